//! What links need to know of a protocol's frames. All else about them is the protocol's own.

use std::fmt;

/// Bytes of the longest header: two cache lines, nothing next to a payload that is worth sending.
pub const MAX_HEADER_BYTES: usize = 128;

/// The use of a payload in the memory of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadUse {
    /// The link copies it to its place, on the thread that looks at the link.
    CopiedByLink,
    /// The receiver copies it to its place, where and when it wants, but whatever others do.
    CopiedByReceiver,
    /// The receiver reads it where it lies, for as long as it has to wait for others, and releases it by an answer of the
    /// protocol.
    ReadInPlace,
}

/// The header of a protocol's frames, all of one size. Bytes of payload follow it, or none.
pub trait Header: Copy + PartialEq + fmt::Debug + Send + 'static {
    /// Bytes of each header, at most [`MAX_HEADER_BYTES`].
    const BYTES: usize;
    /// Frames that may wait to be sent on a link. A sender that queues more has a bug.
    const MAX_QUEUED: usize;

    /// Writes it into [`Self::BYTES`] bytes.
    fn encode(&self, into: &mut [u8]);

    /// The header that [`Self::BYTES`] bytes stand for, or what is wrong with them. Whoever sent them is not trusted.
    fn parse(bytes: &[u8]) -> Result<Self, String>;

    /// Bytes of payload that follow.
    fn payload_bytes(&self) -> u32;

    /// Returns the use of the payload where a link receives it into memory of its own.
    fn payload_use(&self) -> PayloadUse {
        PayloadUse::CopiedByLink
    }

    /// Whether it may be sent before frames that wait for room at the receiver. Has no payload.
    fn may_overtake(&self) -> bool {
        false
    }

    /// How errors name the payload.
    fn payload_name(&self) -> String;
}

/// A header as bytes, behind which its longest could still have some.
pub(crate) fn encoded<H: Header>(header: &H) -> [u8; MAX_HEADER_BYTES] {
    const { assert!(H::BYTES <= MAX_HEADER_BYTES) };
    let mut bytes = [0; MAX_HEADER_BYTES];
    header.encode(&mut bytes[..H::BYTES]);
    bytes
}
