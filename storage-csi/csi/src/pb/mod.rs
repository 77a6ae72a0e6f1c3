//! Generated code of the Container Storage Interface and of the kubelet's plugin registration. What
//! the messages mean is said in the .proto files; what the calls do is in the services.

#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "the generator writes attributes in its own style"
)]
#[rustfmt::skip]
#[path = "csi.v1.rs"]
pub mod csi;
#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "the generator writes attributes in its own style"
)]
#[rustfmt::skip]
pub mod pluginregistration;
