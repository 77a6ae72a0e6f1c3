//! Chain replication with reads from every member (CRAQ) as pure logic: what a member of a chain does with a request, a
//! message, or a write that its store has made durable, and what a client does until it is answered. Leaves bytes on the move, disks, and who is a member to others.
//! The protocol and its invariants are in `docs/protocol/craq.md`.

mod catch_up;
mod chunks;
mod client;
pub mod encoding;
mod head;
mod member;
mod message;
mod read;
mod records;
mod table;
mod update;

pub use chunks::{ChunkState, Chunks, PendingContent};
pub use client::{ChainCall, ChainCallError, ChainClient, ChainOutcome, ClientEffect, ClientInput};
pub use member::{ChainMember, Effect, Input, Reader};
pub use message::{ChainRefusal, ChainRequest, ChunkWrite, Edit, Message, Reply, Update};
pub use records::{MOST_RECORDS, Record, Records};
pub use table::{ChunkId, Place, SessionId, Table, TargetId, Version};
