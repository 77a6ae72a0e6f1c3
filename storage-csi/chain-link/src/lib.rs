//! Frames of chains between processes: their header on a link, the memory that their bytes lie in, who is at the other
//! end, where the others are and who of them is dialled, and a loop's sleep over many links. What frames mean is the business of
//! `craq`; who dials whom, of the programs.

mod buffers;
mod chain_link;
mod chain_map;
mod dialler;
mod header;
mod peer;
mod poll;

pub use buffers::{BufferError, Buffers, ChunkBytes, ChunkRoom};
pub use chain_link::{ChainLink, LARGE_BYTES, LinkError, ReceivedFrame};
pub use chain_map::{ChainMap, MappedChain, ServiceAddress};
pub use dialler::Dialler;
pub use header::ChainHeader;
pub use peer::{PeerRole, StoragePeer};
pub use poll::wait;
