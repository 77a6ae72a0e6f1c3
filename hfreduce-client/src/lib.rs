//! HFReduce from a process of a trainer: how it attaches to the sidecar of its node, what the two exchange over
//! socket and rings, the calls, and the copies to and from GPUs. The sidecar uses the same descriptions of messages.

pub mod attach;
pub mod client;
pub mod cuda;
pub mod entry;
pub mod host_memory;
pub mod limits;
pub mod parts;

pub use link::panics;

pub use collective::{Call, DType, Factor, Numerics, OpKind, ReduceOp};
