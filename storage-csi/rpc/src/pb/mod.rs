//! Generated code of the protocols between storage programs. What the messages mean is said in the .proto files.

#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "the generator writes attributes in its own style"
)]
#[rustfmt::skip]
pub mod manager;

#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "the generator writes attributes in its own style"
)]
#[rustfmt::skip]
pub mod meta;
