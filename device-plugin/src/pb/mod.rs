//! Generated code of the device plugin protocol. What the messages mean is said in the .proto; what
//! the calls do is in `service` and `plugin`.

#[expect(
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    reason = "the generator writes attributes in its own style"
)]
#[rustfmt::skip]
pub mod v1beta1;

/// The version that a registration names.
pub const VERSION: &str = "v1beta1";
/// Health of a device that may be given out.
pub const HEALTHY: &str = "Healthy";
/// Health of a device that may not.
pub const UNHEALTHY: &str = "Unhealthy";
