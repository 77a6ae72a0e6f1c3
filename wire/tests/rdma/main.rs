//! Verbs and the channel over them. `stand_in` runs anywhere, on a library of ours that is loaded like the real one;
//! `devices` needs RDMA devices, and runs in the guest that `cargo xtask test --rdma` boots.

#![expect(clippy::unwrap_used, reason = "test harness")]

mod devices;
mod nodes;
mod stand_in;
