//! Links between processes, for any protocol: shared segments and where their memory lies, rings and their wake-ups,
//! connections and mutual authentication, and transports that carry frames over TCP or RDMA. What a frame means is decided
//! by those who exchange it; of its header a link knows what [`header::Header`] says, and of who they are what
//! [`handshake::PeerIdentity`] says. What arrives is validated here once. Only [`connect`] has time limits.

#[cfg(test)]
extern crate self as link;

pub mod block;
pub mod connect;
pub mod cow_result;
pub mod event_count;
pub mod handshake;
pub mod header;
mod key;
pub mod limits;
pub mod loaded;
pub mod memory_policy;
pub mod panics;
pub mod pending;
pub mod ring;
pub mod segment;
pub mod spin;
#[cfg(test)]
#[path = "../tests/toy/mod.rs"]
mod toy;
pub mod transport;
pub mod verbs;
pub mod wake_fd;
