//! The committed protobuf code is what the compiler makes of the committed .proto today.

#[path = "../../../device-plugin/tests/generated/mod.rs"]
mod generated;

use generated::Protocol;

#[test]
fn generated_code_matches_the_proto() {
    let protocol = Protocol {
        package: env!("CARGO_MANIFEST_DIR"),
        proto: "etcd.proto",
        code: "etcdserverpb.rs",
        title: "Three calls of etcd in Rust.",
    };
    protocol.check(tonic_prost_build::configure().build_server(false));
}
