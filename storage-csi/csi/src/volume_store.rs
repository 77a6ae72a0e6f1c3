//! What the controller needs of whoever keeps the volumes. How they are kept, and what they promise
//! together, belongs there.

use std::future::Future;

use crate::VolumeRoot;

/// What a volume shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedVolume {
    /// What it may hold.
    pub bytes: u64,
    /// Who may use its root.
    pub root: VolumeRoot,
}

/// A volume that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// At most 128 bytes, without a slash. It is also the source of the volume's mounts.
    pub id: String,
    /// What it may hold.
    pub bytes: u64,
    /// Who may use its root, as it was made.
    pub root: VolumeRoot,
}

/// What all volumes together may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeCapacity {
    /// Bytes that may be promised: the pools' capacity, times their overcommit.
    pub total_bytes: u64,
    /// Bytes that volumes were promised.
    pub promised_bytes: u64,
}

impl VolumeCapacity {
    /// What can still be promised.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.promised_bytes)
    }
}

/// Why a volume is not made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeError {
    /// The name is another volume's, which is not the same.
    Exists(VolumeRecord),
    /// What is left is too little.
    NoRoom(VolumeCapacity),
    /// Nobody knows.
    Unavailable(StoreUnavailable),
}

/// It is not known whether anything was done; the same call may be made again. Why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUnavailable(pub String);

impl From<StoreUnavailable> for VolumeError {
    fn from(unavailable: StoreUnavailable) -> Self {
        Self::Unavailable(unavailable)
    }
}

/// Keeps volumes. Any call may be made again, and its future may be dropped before it ends.
pub trait VolumeStore: Send + Sync + 'static {
    /// Makes a volume, or finds the one of this name that is the same.
    fn create(
        &self,
        name: &str,
        wanted: WantedVolume,
    ) -> impl Future<Output = Result<VolumeRecord, VolumeError>> + Send;

    /// Deletes a volume. That there is none, whatever the text, is no error.
    fn delete(&self, id: &str) -> impl Future<Output = Result<(), StoreUnavailable>> + Send;

    /// The volume of an id, whatever the text.
    fn get(
        &self,
        id: &str,
    ) -> impl Future<Output = Result<Option<VolumeRecord>, StoreUnavailable>> + Send;

    /// What can be promised.
    fn capacity(&self) -> impl Future<Output = Result<VolumeCapacity, StoreUnavailable>> + Send;

    /// Whether calls make sense yet.
    fn is_ready(&self) -> impl Future<Output = bool> + Send;
}
