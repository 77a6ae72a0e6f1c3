//! What the node's service needs of whoever serves mounts. What a mount shows belongs there.

use std::future::Future;
use std::path::Path;

/// How full a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MountUsage {
    /// What it may hold.
    pub bytes: u64,
    /// What it holds.
    pub used_bytes: u64,
    /// How many inodes it may have, if that is bounded.
    pub inodes: Option<u64>,
    /// How many it has.
    pub used_inodes: u64,
}

/// Why a volume is not mounted, or still is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountError {
    /// Nobody knows the volume.
    NoSuchVolume,
    /// The same call may succeed later; why.
    Unavailable(String),
    /// Somebody has to do something; what is wrong.
    Failed(String),
}

/// Serves mounts of volumes. There is one mount for each volume and node: pods get it by bind
/// mounts.
pub trait Mounter: Send + Sync + 'static {
    /// Mounts a volume at a folder that exists and has no mount of it, with the volume's id as the
    /// mount's source, and serves it. Mounts that it had there before are gone.
    fn mount(
        &self,
        id: &str,
        at: &Path,
        read_only: bool,
    ) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Unmounts a volume from a folder and forgets that mount. That there is none, or that it is
    /// dead, is no error.
    fn unmount(&self, id: &str, at: &Path) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Whether it serves the mount of a volume at a folder: not before it has mounted it, and not
    /// any more when the connection has ended. From memory: this never waits, and never asks the
    /// mount. A process that is killed while it waits for a mount of its own never ends.
    fn is_serving(&self, id: &str, at: &Path) -> bool;

    /// How full a mounted volume is, from memory: this never waits.
    fn usage(&self, id: &str) -> Option<MountUsage>;
}
