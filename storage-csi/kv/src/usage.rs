//! How much of its quota a store uses.

/// What a store says of its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvUsage {
    /// Bytes of what it keeps, old revisions that are not yet compacted among them.
    pub used_bytes: u64,
    /// From how many bytes on it refuses what puts something; `None` if it has no quota, or does not say.
    pub quota_bytes: Option<u64>,
}

impl KvUsage {
    /// Whether it is at its quota.
    pub(crate) fn is_full(&self) -> bool {
        self.quota_bytes
            .is_some_and(|quota| self.used_bytes >= quota)
    }
}
