//! The committed protobuf code is what the compiler makes of the committed .proto today.

mod generated;

use generated::Protocol;

#[test]
fn generated_code_matches_the_proto() {
    let protocol = Protocol {
        package: env!("CARGO_MANIFEST_DIR"),
        proto: "v1beta1.proto",
        code: "v1beta1.rs",
        title: "The device plugin protocol v1beta1 in Rust.",
    };
    protocol.check(tonic_prost_build::configure().btree_map("."));
}
