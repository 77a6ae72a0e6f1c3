//! The committed protobuf code is what the compiler makes of the committed .proto files today.

#[path = "../../../device-plugin/tests/generated/mod.rs"]
mod generated;

use generated::Protocol;

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
    for (proto, code, title) in PROTOCOLS {
        let protocol = Protocol {
            package: env!("CARGO_MANIFEST_DIR"),
            proto,
            code,
            title,
        };
        protocol.check(tonic_prost_build::configure().btree_map("."));
    }
}
