//! The committed protobuf code is what the compiler makes of the committed .proto files today. With
//! `FIREFLYER_REGENERATE=1`, as `cargo xtask gen` sets it, the code is written and not compared.

use std::path::Path;

/// File of a proto, file of its code, what it is.
const PROTOCOLS: [(&str, &str, &str); 2] = [
    (
        "csi.proto",
        "csi.v1.rs",
        "The Container Storage Interface in Rust.",
    ),
    (
        "pluginregistration.proto",
        "pluginregistration.rs",
        "The kubelet's plugin registration in Rust.",
    ),
];

#[test]
fn generated_code_matches_the_protos() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (proto, code, what) in PROTOCOLS {
        let committed = root.join("src/pb").join(code);
        let generated = tempfile::tempdir().expect("a temporary folder");
        let descriptors =
            protox::compile([proto], [root.join("proto")]).expect("the proto compiles");
        tonic_prost_build::configure()
            .btree_map(".")
            .out_dir(generated.path())
            .compile_fds(descriptors)
            .expect("code is generated");
        let body = std::fs::read_to_string(generated.path().join(code)).expect("the code");
        let body = body
            .lines()
            .filter(|line| !line.starts_with("// This file is @generated"))
            .collect::<Vec<_>>()
            .join("\n");
        let fresh = format!(
            "//! {what}\n// @generated from proto/{proto} by `cargo xtask gen`; do not edit.\n\n\
             {body}\n"
        );
        if std::env::var_os("FIREFLYER_REGENERATE").is_some() {
            std::fs::write(&committed, &fresh).expect("the code is written");
        }
        let old = std::fs::read_to_string(&committed).unwrap_or_default();
        assert!(
            old == fresh,
            "src/pb/{code} is stale: run `cargo xtask gen`"
        );
    }
}
