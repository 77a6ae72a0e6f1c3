//! Verbs on real devices.
#[test]
#[ignore = "needs RDMA devices: cargo xtask test --rdma"]
fn a_device_is_there() {
    assert!(std::path::Path::new("/sys/class/infiniband/rxe0").exists());
}
