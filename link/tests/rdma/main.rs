//! Verbs, the channel over them, and links over that. `stand_in` and `links` run anywhere, on a library of ours that
//! is loaded like the real one; `devices` needs RDMA devices, and runs in the guest that `cargo xtask test --rdma`
//! boots.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

#[path = "../shared/built.rs"]
mod built;
mod devices;
mod fake;
mod links;
mod nodes;
mod protocol;
mod stand_in;
#[path = "../toy/mod.rs"]
mod toy;
