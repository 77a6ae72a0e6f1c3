//! The fields of a header, in the order in which they lie there.

use super::{Claim, Error, HEADER_BYTES, Mark, Message, Opener, Verdict};
use crate::op::{CALL_WORDS, Call};

const CLAIM_BYTES: usize = 8 + CALL_WORDS * 8;

/// Puts one field after another.
pub(super) struct Writer {
    pub(super) bytes: [u8; HEADER_BYTES],
    at: usize,
}

impl Default for Writer {
    fn default() -> Self {
        let bytes = [0; HEADER_BYTES];
        Self { bytes, at: 0 }
    }
}

impl Writer {
    pub(super) fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    pub(super) fn claim(&mut self, claim: &Claim) {
        self.put(&u64::from(claim.rank).to_le_bytes());
        self.call(&claim.call);
    }

    pub(super) fn call(&mut self, call: &Call) {
        for word in call.encode() {
            self.put(&word.to_le_bytes());
        }
    }

    pub(super) fn message(&mut self, message: &Message) {
        self.put(&message.from.to_le_bytes());
        self.put(&message.to.to_le_bytes());
        self.put(&[u8::from(message.tag.is_some())]);
        self.put(&message.tag.unwrap_or(0).to_le_bytes());
    }

    pub(super) fn opener(&mut self, opener: &Opener) {
        self.put(&opener.rank.to_le_bytes());
        self.put(&opener.size.to_le_bytes());
        self.put(&opener.checksum.to_le_bytes());
    }

    pub(super) fn mark(&mut self, mark: &Mark) {
        self.put(&mark.done.to_le_bytes());
        self.put(&mark.told.to_le_bytes());
    }
}

/// The fields of all kinds together are shorter than a header, so taking always succeeds.
const _: () = assert!(40 + 2 * CLAIM_BYTES + 4 <= HEADER_BYTES && 40 + 32 + 4 <= HEADER_BYTES);

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

    pub(super) fn opener(&mut self) -> Opener {
        Opener {
            rank: self.u32(),
            size: self.u32(),
            checksum: self.u64(),
        }
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    pub(super) fn claim(&mut self) -> Result<Claim, Error> {
        let rank = u32::try_from(self.u64()).map_err(|_| Error::Field("rank"))?;
        let call = self.call()?;
        Ok(Claim { rank, call })
    }

    pub(super) fn call(&mut self) -> Result<Call, Error> {
        let words = std::array::from_fn(|_| self.u64());
        Call::decode(&words).ok_or(Error::Field("call"))
    }

    pub(super) fn message(&mut self) -> Result<Message, Error> {
        let (from, to) = (self.u32(), self.u32());
        let tag = match (self.u8(), self.u64()) {
            (0, 0) => None,
            (1, tag) => Some(tag),
            _ => return Err(Error::Field("tag")),
        };
        Ok(Message { from, to, tag })
    }

    pub(super) fn mark(&mut self) -> Mark {
        Mark {
            done: self.u64(),
            told: self.u64(),
        }
    }

    pub(super) fn mismatch(&mut self) -> Result<Verdict, Error> {
        Ok(Verdict::Mismatch {
            one: self.claim()?,
            other: self.claim()?,
        })
    }

    pub(super) fn refusal(&mut self) -> Result<Verdict, Error> {
        let claim = self.claim()?;
        let reason = self.u8();
        Ok(Verdict::Refusal { claim, reason })
    }
}
