//! Generated protobuf code: the committed code is what the compiler makes of the committed .proto
//! today. With `FIREFLYER_REGENERATE=1`, as `cargo xtask gen` sets it, the code is written and not
//! compared. Other packages' tests use it, too.

use std::path::Path;

/// A protocol of a package.
pub(crate) struct Protocol<'a> {
    /// Its folder.
    pub(crate) package: &'a str,
    /// Its file in `proto`.
    pub(crate) proto: &'a str,
    /// The file in `src/pb`.
    pub(crate) code: &'a str,
    /// What the code says of itself.
    pub(crate) title: &'a str,
}

impl Protocol<'_> {
    /// Compares, or writes.
    pub(crate) fn check(&self, builder: tonic_prost_build::Builder) {
        let Self {
            proto, code, title, ..
        } = self;
        let root = Path::new(self.package);
        let committed = root.join("src/pb").join(code);
        let generated = tempfile::tempdir().expect("a temporary folder");
        let descriptors =
            protox::compile([proto], [root.join("proto")]).expect("the proto compiles");
        builder
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
            "//! {title}\n\
             // @generated from proto/{proto} by `cargo xtask gen`; do not edit.\n\n\
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
