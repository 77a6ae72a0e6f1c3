//! Bytes between our processes: the rendezvous stream, mutual authentication, shared segments, where their memory lies, and rings between trainer and sidecar, data frames between
//! sidecars, RDMA. What arrives is validated here once, so the rest may trust its types; what a message
//! means is decided by those who exchange it. No module here reads a clock to make a decision,
//! and none depends on another crate of ours but `contract`.

#[cfg(test)]
extern crate self as wire;

pub mod attach;
pub mod bell;
pub mod block;
pub mod client;
pub mod cuda;
pub mod doorbell;
mod draft;
pub mod entry;
pub mod handshake;
pub mod header;
pub mod home;
mod identity;
mod key;
mod loaded;
pub mod op;
pub mod parts;
pub mod rendezvous;
pub mod ring;
pub mod segment;
pub mod spin;
#[cfg(test)]
#[path = "../tests/toy/mod.rs"]
mod toy;
pub mod transport;
pub mod verbs;

pub use op::{Call, DType, Numerics, OpKind, ReduceOp};
