//! The fields of a header, in the order in which they lie there.

use super::{Broken, COMMON_BYTES, Call, CallRefusal, Error, HEADER_BYTES, MessageId, Mismatch};
use super::{SUM_BYTES, Stream, Verdict, codes};
use crate::machine::{Claim, Opener, Reason, Watermark};
use crate::op::OpKind;
use crate::reduce_op::{Factor, ReduceOp};

/// Words of an encoded call.
pub const CALL_WORDS: usize = 4;

const CLAIM_BYTES: usize = 8 + CALL_WORDS * 8;
const OPENER_BYTES: usize = 16;
const MARK_BYTES: usize = 16;
const MESSAGE_BYTES: usize = 17;

/// The longest of all kinds are shorter than a header, so putting and taking always succeed.
const _: () = {
    let room = HEADER_BYTES - COMMON_BYTES - SUM_BYTES;
    assert!(2 * CLAIM_BYTES <= room);
    assert!(CLAIM_BYTES + MARK_BYTES <= room);
    assert!(2 * OPENER_BYTES <= room);
    assert!(MESSAGE_BYTES + CALL_WORDS * 8 < room);
};

/// A call as words, for frames and rings: the first holds four codes and the factor.
#[must_use]
pub const fn call_to_words(call: &Call) -> [u64; CALL_WORDS] {
    let (kind, root) = match call.kind {
        OpKind::AllReduce { .. } => (1, 0),
        OpKind::Reduce { root, .. } => (2, root),
        OpKind::Broadcast { root } => (3, root),
        OpKind::AllGather => (4, 0),
        OpKind::Barrier => (5, 0),
        OpKind::Close => (6, 0),
        OpKind::ReduceScatter { .. } => (7, 0),
        OpKind::Gather { root } => (8, root),
        OpKind::Scatter { root } => (9, root),
        OpKind::AllToAll { with: None } => (10, 0),
        OpKind::AllToAll { with: Some(rank) } => (10, rank.saturating_add(1)),
        OpKind::Send { to } => (11, to),
        OpKind::Receive { from } => (12, from),
    };
    let (reduce, factor) = match call.reduce_op() {
        None | Some(ReduceOp::Sum) => (1, 0),
        Some(ReduceOp::Avg) => (2, 0),
        Some(ReduceOp::Max) => (3, 0),
        Some(ReduceOp::Min) => (4, 0),
        Some(ReduceOp::PremulSum(factor)) => (5, factor.to_bits()),
        Some(ReduceOp::And) => (6, 0),
        Some(ReduceOp::Or) => (7, 0),
        Some(ReduceOp::Xor) => (8, 0),
    };
    let dtype = codes::of_dtype(call.dtype);
    let [a, b, c, d] = factor.to_le_bytes();
    let numerics = codes::of_numerics(call.numerics);
    let codes = u64::from_le_bytes([kind, dtype, reduce, numerics, a, b, c, d]);
    [codes, root as u64, call.count, call.tag]
}

/// The call that words stand for. What it does not say has to be zero, and a sum.
pub fn call_from_words(words: &[u64; CALL_WORDS]) -> Result<Call, Error> {
    let [codes, root, count, tag] = *words;
    let [kind, dtype, reduce, numerics, a, b, c, d] = codes.to_le_bytes();
    let root = u32::try_from(root).map_err(|_| Error::Field("root"))?;
    let op = match reduce {
        1 => ReduceOp::Sum,
        2 => ReduceOp::Avg,
        3 => ReduceOp::Max,
        4 => ReduceOp::Min,
        5 => ReduceOp::PremulSum(Factor::from_bits(u32::from_le_bytes([a, b, c, d]))),
        6 => ReduceOp::And,
        7 => ReduceOp::Or,
        8 => ReduceOp::Xor,
        _ => return Err(Error::Field("reduction")),
    };
    let kind = match kind {
        1 => OpKind::AllReduce { op },
        2 => OpKind::Reduce { op, root },
        3 => OpKind::Broadcast { root },
        4 => OpKind::AllGather,
        5 => OpKind::Barrier,
        6 => OpKind::Close,
        7 => OpKind::ReduceScatter { op },
        8 => OpKind::Gather { root },
        9 => OpKind::Scatter { root },
        10 => OpKind::AllToAll {
            with: root.checked_sub(1),
        },
        11 => OpKind::Send { to: root },
        12 => OpKind::Receive { from: root },
        _ => return Err(Error::Field("operation")),
    };
    let call = Call {
        kind,
        dtype: codes::dtype(dtype)?,
        count,
        tag,
        numerics: codes::numerics(numerics)?,
    };
    // What is only moved is not rounded.
    let is_fast = numerics == 0 || call.reduce_op().is_some();
    if call_to_words(&call) != *words || !is_fast {
        return Err(Error::Field("call"));
    }
    Ok(call)
}

/// Puts one field after another.
pub(super) struct Writer {
    pub(super) bytes: [u8; HEADER_BYTES],
    at: usize,
}

impl Writer {
    /// Leaves so many bytes free.
    pub(super) const fn behind(at: usize) -> Self {
        let bytes = [0; HEADER_BYTES];
        Self { bytes, at }
    }

    /// Goes back to what was left free.
    pub(super) const fn back(self) -> Self {
        Self { at: 0, ..self }
    }

    pub(super) fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    pub(super) fn u8(&mut self, field: u8) {
        self.put(&[field]);
    }

    pub(super) fn u32(&mut self, field: u32) {
        self.put(&field.to_le_bytes());
    }

    pub(super) fn u64(&mut self, field: u64) {
        self.put(&field.to_le_bytes());
    }

    pub(super) fn rank(&mut self, rank: u32) {
        self.u64(rank.into());
    }

    pub(super) fn call(&mut self, call: &Call) {
        for word in call_to_words(call) {
            self.u64(word);
        }
    }

    fn claim(&mut self, claim: &Claim) {
        self.rank(claim.rank);
        self.call(&claim.call);
    }

    /// Whether it is a mismatch; the kind of the frame says so.
    pub(super) fn verdict(&mut self, verdict: &Verdict) -> bool {
        match verdict {
            Verdict::Mismatch(Mismatch { one, other }) => {
                self.claim(one);
                self.claim(other);
                true
            }
            Verdict::Refusal(CallRefusal { claim, reason }) => {
                self.claim(claim);
                self.u8(codes::of_reason(*reason));
                false
            }
        }
    }

    pub(super) fn message(&mut self, message: &MessageId) {
        let tag = match message.of {
            Stream::Operation => None,
            Stream::Tag(tag) => Some(tag),
        };
        self.u32(message.from);
        self.u32(message.to);
        self.u8(tag.is_some().into());
        self.u64(tag.unwrap_or(0));
    }

    pub(super) fn opener(&mut self, opener: &Opener) {
        self.u32(opener.rank);
        self.u32(opener.size);
        self.u64(opener.checksum);
    }

    pub(super) fn watermark(&mut self, watermark: Watermark) {
        self.u64(watermark.completed);
        self.u64(watermark.delivered);
    }

    /// The operation that it is about, if any: it has a field of its own.
    pub(super) fn broken(&mut self, broken: &Broken) -> u64 {
        let (code, detail, subject, by, op) = match *broken {
            Broken::NodeLost { node, by } => (1, 0, node as u32, by, 0),
            Broken::NodeSilent { node, by } => (2, 0, node as u32, by, 0),
            Broken::NodeLeft { node, by, op } => (3, 0, node as u32, by, op),
            Broken::RankLost { rank, by } => (4, 0, rank, by, 0),
            Broken::RankLeft { rank, by, op } => (5, 0, rank, by, op),
            Broken::Protocol {
                node,
                by,
                violation,
            } => (6, codes::of_violation(violation), node as u32, by, 0),
            Broken::Revoked => (7, 0, 0, 0, 0),
        };
        self.put(&[code, detail]);
        self.u32(subject);
        self.u32(by as u32);
        op
    }
}

/// Takes one field after another.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn take<const N: usize>(&mut self) -> [u8; N] {
        let Some((field, rest)) = self.0.split_first_chunk::<N>() else {
            return [0; N];
        };
        self.0 = rest;
        *field
    }

    pub(super) fn u8(&mut self) -> u8 {
        let [byte] = self.take();
        byte
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub(super) fn rank(&mut self) -> Result<u32, Error> {
        u32::try_from(self.u64()).map_err(|_| Error::Field("rank"))
    }

    pub(super) fn call(&mut self) -> Result<Call, Error> {
        let words = std::array::from_fn(|_| self.u64());
        call_from_words(&words)
    }

    fn claim(&mut self) -> Result<Claim, Error> {
        let rank = self.rank()?;
        let call = self.call()?;
        Ok(Claim { rank, call })
    }

    pub(super) fn verdict(&mut self, is_mismatch: bool) -> Result<Verdict, Error> {
        let claim = self.claim()?;
        Ok(if is_mismatch {
            let other = self.claim()?;
            Verdict::Mismatch(Mismatch { one: claim, other })
        } else {
            let reason: Reason = codes::reason(self.u8())?;
            Verdict::Refusal(CallRefusal { claim, reason })
        })
    }

    /// The value of a code, or none where it is 0.
    pub(super) fn unless_zero<T>(
        &mut self,
        value: fn(u8) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        match self.u8() {
            0 => Ok(None),
            code => value(code).map(Some),
        }
    }

    pub(super) fn message(&mut self, number: u64) -> Result<MessageId, Error> {
        let (from, to) = (self.u32(), self.u32());
        let of = match (self.u8(), self.u64()) {
            (0, 0) => Stream::Operation,
            (1, tag) => Stream::Tag(tag),
            _ => return Err(Error::Field("tag")),
        };
        Ok(MessageId {
            from,
            to,
            of,
            number,
        })
    }

    pub(super) fn opener(&mut self) -> Opener {
        Opener {
            rank: self.u32(),
            size: self.u32(),
            checksum: self.u64(),
        }
    }

    pub(super) fn watermark(&mut self) -> Watermark {
        Watermark {
            completed: self.u64(),
            delivered: self.u64(),
        }
    }

    pub(super) fn broken(&mut self, op: u64) -> Result<Broken, Error> {
        let [code, detail] = self.take();
        let (rank, by) = (self.u32(), self.u32() as usize);
        let node = rank as usize;
        Ok(match code {
            1 => Broken::NodeLost { node, by },
            2 => Broken::NodeSilent { node, by },
            3 => Broken::NodeLeft { node, by, op },
            4 => Broken::RankLost { rank, by },
            5 => Broken::RankLeft { rank, by, op },
            6 => Broken::Protocol {
                node,
                by,
                violation: codes::violation(detail)?,
            },
            7 => Broken::Revoked,
            _ => return Err(Error::Field("cause")),
        })
    }
}
