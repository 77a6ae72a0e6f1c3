//! What a process brings to its calls: looked up in its registered segments, and checked.

use std::fmt::Display;
use std::sync::Arc;

use collective::machine::Splits;
use collective::session::Lane;
use collective::{Call, OpKind};
use hfreduce_client::entry::{self, SegmentRange};
use hfreduce_client::parts;

use super::{PendingCall, Session};
use crate::memory::InputMemory;

/// Inputs begin at a cache line.
const ALIGNMENT: u64 = 64;

/// What a call comes with.
pub(super) struct Brought {
    /// Where the contribution lies, or what is wrong with it; none if the operation reads none here.
    pub(super) input: Result<Option<InputMemory>, String>,
    /// How an all-to-all is divided.
    pub(super) splits: Option<Splits>,
    /// Bytes that the process gets for itself alone.
    pub(super) own_bytes: u64,
}

impl Session {
    pub(super) fn input(
        &self,
        lane: Option<&Lane<PendingCall>>,
        call: &Call,
        place: SegmentRange,
    ) -> Brought {
        let plain = |input, own_bytes| Brought {
            input,
            splits: None,
            own_bytes,
        };
        let refused = plain(Ok(None), 0); // By the words of the call.
        let Some((rank, size)) = lane.map(|lane| (lane.rank(), lane.size())) else {
            return refused;
        };
        if call.check(size).is_err() {
            return refused;
        }
        let bytes = entry::input_bytes(call, rank, size);
        let lies = || self.place(call, place, bytes);
        let input = (bytes != Some(0)).then(lies).transpose();
        if let OpKind::AllToAll { .. } = call.kind {
            return match input.and_then(|lists| divide(call, lists, size)) {
                Ok((input, splits, own_bytes)) => Brought {
                    input: Ok(Some(input)),
                    splits: Some(splits),
                    own_bytes,
                },
                Err(wrong) => plain(Err(wrong), 0),
            };
        }
        let own_bytes = call.own_bytes(rank, size);
        plain(input, own_bytes)
    }

    /// What lies at a place in the registered segments.
    pub(super) fn place(
        &self,
        what: &impl Display,
        place: SegmentRange,
        bytes: Option<usize>,
    ) -> Result<InputMemory, String> {
        let wrong = || {
            let SegmentRange { segment, offset } = place;
            format!("{what} reads past the end of input segment {segment} at {offset}")
        };
        let block = self.inputs.get(&place.segment).ok_or_else(|| {
            format!(
                "{what} names input segment {}, which is not registered",
                place.segment
            )
        })?;
        if !place.offset.is_multiple_of(ALIGNMENT) {
            return Err(format!(
                "{what} reads at {}, which is no multiple of {ALIGNMENT}",
                place.offset
            ));
        }
        let bytes = bytes.ok_or_else(wrong)?;
        let offset = usize::try_from(place.offset).map_err(|_| wrong())?;
        let end = offset.checked_add(bytes).ok_or_else(wrong)?;
        if end > block.len() {
            return Err(wrong());
        }
        Ok(InputMemory {
            block: Arc::clone(block),
            offset,
            bytes,
        })
    }
}

/// The elements of an all-to-all, how they are divided, and how many bytes come. The process may change the lists
/// afterwards, so they are read once.
fn divide(
    call: &Call,
    lists: Option<InputMemory>,
    size: u32,
) -> Result<(InputMemory, Splits, u64), String> {
    let wrong = || format!("{call} is divided into more than its input, or more than there can be");
    let lists = lists.ok_or_else(wrong)?;
    let end = lists.offset + lists.bytes;
    let bytes = lists.block.read(lists.offset..end);
    let bytes = bytes.map_err(|_in_use| "the list of parts is being written".to_owned())?;
    let (send, receive) = parts::read(&bytes, size).ok_or_else(wrong)?;
    let sum = |counts: &[u64]| {
        let mut counts = counts.iter();
        let all = counts.try_fold(0u64, |sum, count| sum.checked_add(*count))?;
        all.checked_mul(call.dtype.size() as u64)
            .filter(|bytes| *bytes <= collective::op::MAX_RESULT_BYTES)
    };
    let (out, back) = (sum(&send), sum(&receive));
    let (out, back) = out.zip(back).ok_or_else(wrong)?;
    let out = usize::try_from(out).map_err(|_| wrong())?;
    let room = lists.block.len() - end;
    if out > room || lists.bytes != parts::bytes(size) {
        return Err(wrong());
    }
    let input = InputMemory {
        block: Arc::clone(&lists.block),
        offset: end,
        bytes: out,
    };
    Ok((input, Splits { send, receive }, back))
}
