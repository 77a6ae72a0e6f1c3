//! The committed protobuf code is what the compiler makes of the committed .proto files today. With
//! `FIREFLYER_REGENERATE=1`, as `cargo xtask gen` sets it, the code is written and not compared.

use std::path::Path;

/// A protocol and what its code says of itself.
const PROTOCOLS: [(&str, &str); 2] = [
    ("manager", "The chain manager's protocol"),
    ("meta", "The metadata service's protocol"),
];

#[test]
fn generated_code_matches_the_protos() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, title) in PROTOCOLS {
        let committed = root.join(format!("src/pb/{name}.rs"));
        let generated = tempfile::tempdir().expect("a temporary folder");

        let descriptors = protox::compile([format!("{name}.proto")], [root.join("proto")])
            .expect("the proto compiles");
        tonic_prost_build::configure()
            .out_dir(generated.path())
            .compile_fds(descriptors)
            .expect("code is generated");
        let body =
            std::fs::read_to_string(generated.path().join(format!("{name}.rs"))).expect("the code");
        let body = body
            .lines()
            .filter(|line| !line.starts_with("// This file is @generated"))
            .collect::<Vec<_>>()
            .join("\n");
        let fresh = format!(
            "//! {title} in Rust.\n\
             // @generated from proto/{name}.proto by `cargo xtask gen`; do not edit.\n\n\
             {body}\n"
        );

        if std::env::var_os("FIREFLYER_REGENERATE").is_some() {
            std::fs::write(&committed, &fresh).expect("the code is written");
        }
        let old = std::fs::read_to_string(&committed).unwrap_or_default();
        assert!(
            old == fresh,
            "src/pb/{name}.rs is stale: run `cargo xtask gen`"
        );
    }
}
