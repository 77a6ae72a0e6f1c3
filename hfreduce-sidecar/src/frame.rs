//! The frames of the collective, as links carry them.

use collective::encoding::{self, HEADER_BYTES};
use collective::machine::{Fence, Frame, MessageId};
use link::header::{Header, PayloadUse};

/// A link to another sidecar.
pub type Link = link::transport::BoxedLink<FencedFrame>;

/// A frame with what fences it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FencedFrame {
    /// The sender's attempt and epoch.
    pub fence: Fence,
    /// The frame.
    pub frame: Frame,
}

impl Header for FencedFrame {
    const BYTES: usize = HEADER_BYTES;
    /// Each operation in flight sends less than this to a neighbour at once, because payload is bounded by slots.
    const MAX_QUEUED: usize = 4096;

    fn encode(&self, into: &mut [u8]) {
        into.copy_from_slice(&encoding::encode(self.fence, &self.frame));
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let header = bytes.first_chunk();
        let header = header.ok_or_else(|| format!("a header of {} bytes", bytes.len()))?;
        let (fence, frame) = encoding::parse(header).map_err(|error| error.to_string())?;
        Ok(Self { fence, frame })
    }

    fn payload_bytes(&self) -> u32 {
        self.frame.payload_bytes()
    }

    /// A part that goes up is a source of a reduction, and its slot is returned after that. What has a place of its own is
    /// copied there by whoever has a processor for it.
    fn payload_use(&self) -> PayloadUse {
        if matches!(self.frame, Frame::ReduceChunk { .. }) {
            PayloadUse::ReadInPlace
        } else {
            PayloadUse::CopiedByReceiver
        }
    }

    /// What waits for room may wait as long as a late rank, and its sender lives.
    fn may_overtake(&self) -> bool {
        matches!(self.frame, Frame::Heartbeat)
    }

    fn payload_name(&self) -> String {
        match self.frame {
            Frame::ReduceChunk { op, chunk, .. } | Frame::BroadcastChunk { op, chunk, .. } => {
                format!("chunk {chunk} of operation {op}")
            }
            Frame::Data { message, chunk, .. } => {
                let MessageId {
                    from, to, number, ..
                } = message;
                format!("chunk {chunk} of message {number} from rank {from} to rank {to}")
            }
            Frame::Refuse { .. }
            | Frame::Fail { .. }
            | Frame::ReadyToReceive { .. }
            | Frame::ReceiveRejected { .. }
            | Frame::Credit { .. }
            | Frame::Awaiting { .. }
            | Frame::Abort { .. }
            | Frame::Watermark { .. }
            | Frame::Heartbeat
            | Frame::Leaving { .. }
            | Frame::Open { .. }
            | Frame::Opened { .. } => "a frame without payload".to_owned(),
        }
    }
}
