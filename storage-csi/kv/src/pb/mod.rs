//! Generated code of the calls of etcd that we make. What they are for is in `etcd`.

#[expect(
    clippy::allow_attributes_without_reason,
    reason = "the generator writes attributes in its own style"
)]
#[expect(unreachable_pub, reason = "the generator does not know who uses it")]
#[rustfmt::skip]
pub(crate) mod etcdserverpb;
