//! Names and attributes of a POSIX file system as pure logic over a transactional key-value store: for each operation a
//! function of what was read, which says what to read next, what to commit, or the answer. Leaves the store, retries,
//! the bytes of files, and who may do what to others. Keys, records and invariants are in `docs/protocol/metadata.md`.
//!
//! ```
//! use metadata::{Given, InodeNumber, MetaOperation, MetaRequest, NextStep, Seen, step};
//!
//! let inode = InodeNumber(1 << 16);
//! let request = MetaRequest::reading(MetaOperation::GetAttributes { inode });
//! let given = Given { now_ns: 0, fresh: InodeNumber(0) };
//! let mut seen = Seen::default();
//! while let NextStep::Read(reads) = step(&request, &given, &seen) {
//!     // A shell reads them in its snapshot. Here there is nothing.
//!     reads.keys.into_iter().for_each(|key| seen.add_key(key, None));
//! }
//! ```

mod collect;
mod handles;
mod inodes;
mod keys;
mod layout;
mod mounts;
mod names;
mod numbers;
mod once;
mod records;
mod removal;
mod rename;
mod request;
mod step;
mod types;
mod usage;
mod volumes;

pub use collect::{Collected, collect, collected, garbage};
pub use layout::{DEFAULT_CHUNK_BYTES, FileLayout, MOST_CHUNKS};
pub use names::{MOST_LISTED, MOST_LISTED_WITH_ATTRIBUTES};
pub use numbers::{INODE_BLOCK, allocate};
pub use once::step;
pub use records::InodeAttributes;
pub use rename::MOST_ANCESTORS;
pub use request::{
    AttributeChange, Errno, ListedName, MetaAnswer, MetaOperation, MetaReply, MetaRequest, NewNode,
    OpenedFile, RenameRule, Trim, VolumeSettings, VolumeView, WantedHandle, Written,
};
pub use step::{Changes, Given, MOST_ROUNDS, MOST_WRITES, NextStep, RangeRead, Reads, Seen};
pub use types::{
    EntryName, HandleId, InodeKind, InodeNumber, MOST_NAME_BYTES, MOST_TARGET_BYTES, MountId,
    OperationId,
};
pub use usage::VolumeUsage;
