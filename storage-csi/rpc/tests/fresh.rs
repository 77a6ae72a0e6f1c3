//! The committed protobuf code is what the compiler makes of the committed .proto files today.

#[path = "../../../device-plugin/tests/generated/mod.rs"]
mod generated;

use generated::Protocol;

/// File of a proto, file of its code, what it is.
const PROTOCOLS: [(&str, &str, &str); 2] = [
    (
        "manager.proto",
        "manager.rs",
        "The chain manager's protocol in Rust.",
    ),
    (
        "meta.proto",
        "meta.rs",
        "The metadata service's protocol in Rust.",
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
        protocol.check(tonic_prost_build::configure());
    }
}
