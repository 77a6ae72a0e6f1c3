//! Links between processes, for any protocol: shared segments and where their memory lies, rings and their wake-ups,
//! mutual authentication, and transports that carry frames over TCP or RDMA. What a frame means is decided by those who
//! exchange it; of its header a link knows what [`header::Header`] tells. What arrives is validated here once. No module
//! here reads a clock to make a decision.

#[cfg(test)]
extern crate self as link;

pub mod block;
pub mod cow_result;
pub mod event_count;
pub mod handshake;
pub mod header;
mod identity;
mod key;
pub mod loaded;
pub mod memory_policy;
pub mod ring;
pub mod segment;
pub mod spin;
#[cfg(test)]
#[path = "../tests/toy/mod.rs"]
mod toy;
pub mod transport;
pub mod verbs;
pub mod wake_fd;
