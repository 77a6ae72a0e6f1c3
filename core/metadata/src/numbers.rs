//! Numbers of inodes: a service takes a block of them at a time. One that is lost with its service is not missed.

use crate::keys;
use crate::request::Errno;
use crate::step::{Changes, NextStep, Outcome, Seen, Stop};
use crate::types::InodeNumber;

/// Numbers of a block. The first one is not given: small numbers have meanings for FUSE.
pub const INODE_BLOCK: u64 = 1 << 16;

/// Takes the next block; answers with its first number.
pub fn allocate(seen: &Seen) -> NextStep<Result<InodeNumber, Errno>> {
    let take = || -> Outcome<(Changes, InodeNumber)> {
        let key = keys::next_inode();
        let first: u64 = seen.record(key.clone())?.unwrap_or(INODE_BLOCK);
        let next = first.checked_add(INODE_BLOCK).ok_or(Errno::NoSpace)?;
        let mut changes = Changes::default();
        changes.put(key, &next)?;
        Ok((changes, InodeNumber(first)))
    };
    match take() {
        Ok((changes, first)) => NextStep::Commit(changes, Ok(first)),
        Err(Stop::Read(reads)) => NextStep::Read(reads),
        Err(Stop::Refuse(errno)) => NextStep::Answer(Err(errno)),
    }
}
