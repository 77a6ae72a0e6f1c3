//! The chain table of a file system as pure logic: services, targets, chains and sessions, and what an event makes of
//! them. A step takes the whole state and an event, and answers which records change. Where records are kept, and that
//! nobody else changes them meanwhile, is the chain manager's business.
//!
//! Every change gives the head a new revision. Whoever writes the records of a step together, and only if the head is
//! still the one that the step saw, keeps all of this true for any number of managers:
//!
//! - revisions and versions of chains only rise, and numbers of sessions and services are never used again;
//! - a member's life changes only when its service comes with the target's data, which gives the chain a new version;
//! - lists of chains never change;
//! - a path that should hold a target and is empty is never formatted.
//!
//! A step changes at most [`MOST_CHANGED`] records, so that it fits into a transaction; when it is not complete, the same
//! event goes on where it ended.

mod chains;
mod record;
mod register;
mod sessions;
mod state;
mod step;

pub use chains::ChainSpec;
pub use record::{
    ChainListRecord, ChainRecord, DamagedRecord, HEAD_KEY, ServiceRecord, SessionRecord, TableHead,
    TableMember, TableRecord, TableUuid, TargetRecord,
};
pub use register::{PathVerdict, RegisteredPath, Registration};
pub use state::TableState;
pub use step::{TableAnswer, TableEvent, TableRefusal, TableStep};

/// Records that a step changes at most: a transaction takes 128.
pub const MOST_CHANGED: usize = 120;
/// Paths of a service.
pub const MOST_PATHS: usize = 32;
/// Services that there may be.
pub const MOST_SERVICES: usize = 1 << 12;
/// Chains that there may be.
pub const MOST_CHAINS: usize = 1 << 14;
/// Chains of a pool: a list of them is a record.
pub const MOST_POOL_CHAINS: usize = 1 << 12;
/// Lists of chains that there may be.
pub const MOST_LISTS: usize = 1 << 10;
/// Members of a chain.
pub const MOST_MEMBERS: usize = 8;
/// Sessions that may be open.
pub const MOST_SESSIONS: usize = 1 << 12;
/// Bytes of a name: of a node, a client, a pool; the bytes of a path.
pub const MOST_NAME_BYTES: usize = 1 << 10;
/// Chains are numbered with so many bits.
pub const CHAIN_BITS: u32 = 24;
