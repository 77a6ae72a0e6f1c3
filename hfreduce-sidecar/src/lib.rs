//! The HFReduce engine of a node: local processes put their gradients into shared memory, the node
//! reduces them in one pass with what its tree children send, and everybody reads the result in place.
//! What happens in which order is `collective::machine`'s to say; bytes are moved here.

pub mod args;
pub mod attached_ranks;
pub mod background;
pub mod bench;
pub mod engine;
mod follow;
pub mod frame;
pub mod inspect;
pub mod limits;
pub mod linker;
pub mod member;
pub mod memory;
pub mod metrics;
pub mod negotiate;
pub mod node;
pub mod numa;
pub mod pool;
pub mod private;
pub mod rendezvous;
pub mod serve;
pub mod session;
pub mod stop;
pub mod workers;
