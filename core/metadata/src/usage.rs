//! What a volume uses, in parts that are added up: operations at the same time rarely change the same part.

use serde::{Deserialize, Serialize};

use crate::keys;
use crate::once::Work;
use crate::step::{Outcome, parse};
use crate::types::{InodeNumber, MountId};

/// Mounts with parts of their own. One more shares those of another, and sometimes conflicts with it.
const MOUNTS: u64 = 256;
/// Parts of a mount, used in turn: its operations have numbers one after the other.
const PARTS: u64 = 16;

/// What a volume uses, or a part of that, which can be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeUsage {
    /// Sizes of all files.
    pub bytes: i64,
    /// Without the root.
    pub inodes: i64,
}

impl VolumeUsage {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            inodes: self.inodes.saturating_add(other.inodes),
        }
    }
}

/// Of an operation of a mount, by its number.
pub(crate) fn shard(mount: MountId, number: u64) -> u64 {
    mount.0 % MOUNTS * PARTS + number % PARTS
}

impl Work<'_> {
    /// Counts in the volume of an inode, while that exists: who deletes one removes all parts.
    pub(crate) fn count(&mut self, volume: InodeNumber, inodes: i64, bytes: i64) -> Outcome<()> {
        if inodes == 0 && bytes == 0 {
            return Ok(());
        }
        let (root, part) = (keys::inode(volume), keys::usage(volume, self.shard));
        self.seen.need([root.clone(), part.clone()], [])?;
        if self.seen.get(root)?.is_some() {
            // An operation may count twice: what it writes and then lets go.
            let before = match self.changes.writes.get(&part) {
                Some(Some(value)) => parse(&part, value)?,
                Some(None) | None => self.seen.record(part.clone())?.unwrap_or_default(),
            };
            let more = VolumeUsage { bytes, inodes };
            self.changes.put(part, &more.and(before))?;
        }
        Ok(())
    }
}
