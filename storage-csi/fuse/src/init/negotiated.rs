//! What was agreed, and how a successor on the same mount learns it.

use super::{InitFlags, PAGE_BYTES, WRITE_LIMIT_BYTES};
use crate::abi::{LEAST_BUFFER_BYTES, NEWEST_MINOR, OLDEST_MINOR};

/// What holds on a connection for as long as its mount lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// Of the protocol.
    pub minor: u32,
    /// What both sides can do.
    pub flags: InitFlags,
    /// The most bytes of a write.
    pub max_write_bytes: u32,
}

/// Bytes of a saved state.
pub const SAVED_BYTES: usize = 24;
const MAGIC: [u8; 8] = *b"FFFUSE\0\x01";

/// What was saved is no state of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to take a connection over: its saved state is not of this version; mount again")]
pub struct WrongState;

impl Negotiated {
    /// For a process that goes on with the descriptor.
    pub fn save(&self) -> [u8; SAVED_BYTES] {
        let mut saved = [0; SAVED_BYTES];
        saved[..8].copy_from_slice(&MAGIC);
        saved[8..12].copy_from_slice(&self.minor.to_le_bytes());
        saved[12..16].copy_from_slice(&self.max_write_bytes.to_le_bytes());
        saved[16..].copy_from_slice(&self.flags.0.to_le_bytes());
        saved
    }

    /// What another process saved.
    pub fn restore(saved: &[u8]) -> Result<Self, WrongState> {
        let saved: &[u8; SAVED_BYTES] = saved.try_into().map_err(|_| WrongState)?;
        let [
            magic @ ..,
            m0,
            m1,
            m2,
            m3,
            w0,
            w1,
            w2,
            w3,
            f0,
            f1,
            f2,
            f3,
            f4,
            f5,
            f6,
            f7,
        ] = *saved;
        let negotiated = Self {
            minor: u32::from_le_bytes([m0, m1, m2, m3]),
            max_write_bytes: u32::from_le_bytes([w0, w1, w2, w3]),
            flags: InitFlags(u64::from_le_bytes([f0, f1, f2, f3, f4, f5, f6, f7])),
        };
        let is_ours = magic == MAGIC
            && (OLDEST_MINOR..=NEWEST_MINOR).contains(&negotiated.minor)
            && (PAGE_BYTES..=WRITE_LIMIT_BYTES).contains(&negotiated.max_write_bytes);
        is_ours.then_some(negotiated).ok_or(WrongState)
    }

    /// Bytes of a buffer that every request fits into: a page before what a write carries.
    pub(crate) fn buffer_bytes(&self) -> usize {
        (PAGE_BYTES as usize + self.max_write_bytes as usize).max(LEAST_BUFFER_BYTES)
    }
}
