//! The header of a protocol that exists for tests: one number, a payload, and how that is taken.

use link::header::Header;

/// How a frame is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its payload is copied to its place.
    Copied,
    /// Its payload is read where it lies.
    Lent,
    /// It has none, and may overtake.
    Urgent,
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Toy {
    /// Which frame it is.
    pub(crate) number: u64,
    /// Bytes of its payload.
    pub(crate) payload: u32,
    /// How it is taken.
    pub(crate) kind: Kind,
}

impl Toy {
    /// A frame whose payload is copied.
    pub(crate) const fn copied(number: u64, payload: u32) -> Self {
        let kind = Kind::Copied;
        Self {
            number,
            payload,
            kind,
        }
    }
}

const MAGIC: [u8; 3] = *b"TOY";

impl Header for Toy {
    const BYTES: usize = 16;
    const MAX_QUEUED: usize = 4096;

    fn encode(&self, into: &mut [u8]) {
        let kind = match self.kind {
            Kind::Copied => 1,
            Kind::Lent => 2,
            Kind::Urgent => 3,
        };
        into[..3].copy_from_slice(&MAGIC);
        into[3] = kind;
        into[4..8].copy_from_slice(&self.payload.to_le_bytes());
        into[8..16].copy_from_slice(&self.number.to_le_bytes());
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let kind = match bytes.strip_prefix(&MAGIC) {
            Some([1, ..]) => Kind::Copied,
            Some([2, ..]) => Kind::Lent,
            Some([3, ..]) => Kind::Urgent,
            _ => return Err("failed to parse a toy: it does not begin as one".to_owned()),
        };
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Ok(Self {
            number: word(8),
            payload: (word(0) >> 32) as u32,
            kind,
        })
    }

    fn payload_bytes(&self) -> u32 {
        self.payload
    }

    fn is_read_in_place(&self) -> bool {
        self.kind == Kind::Lent
    }

    fn may_overtake(&self) -> bool {
        self.kind == Kind::Urgent
    }

    fn payload_name(&self) -> String {
        format!("toy {}", self.number)
    }
}
