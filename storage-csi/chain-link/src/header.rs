//! The header of a chain's frames, as links know it.

use craq::encoding::{FrameHeader, HEADER_BYTES};
use link::header::Header;

/// The header of a frame, which is valid by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainHeader(pub FrameHeader);

impl Header for ChainHeader {
    const BYTES: usize = HEADER_BYTES;
    /// Of 64 chains, all that each may have under way: 256 contents, with their answers, and some reads. A peer that takes
    /// nothing for so long is cut off, and gets all that matters again over the next connection.
    const MAX_QUEUED: usize = 64 * 1024;

    fn encode(&self, into: &mut [u8]) {
        into.copy_from_slice(&self.0.to_bytes());
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let bytes = bytes.first_chunk().ok_or("a header is too short")?;
        let header = FrameHeader::parse(bytes).map_err(|error| error.to_string())?;
        Ok(Self(header))
    }

    fn payload_bytes(&self) -> u32 {
        // Both are bounded far below.
        (self.0.list_bytes() + self.0.chunk_bytes()) as u32
    }

    fn payload_name(&self) -> String {
        format!("the payload of a frame of chain {}", self.0.chain)
    }
}
