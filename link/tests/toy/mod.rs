//! A protocol that exists for tests: who its members are, and a header with one number, a payload, and how that is taken.
//! It needs no more than this to get links over TCP and RDMA, checksums and authentication: see `tests/rdma/protocol.rs`.

use std::fmt;

use link::handshake::{IDENTITY_BYTES, REALM_BYTES};
use link::header::{Header, PayloadUse};

/// A member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Player {
    game: [u8; REALM_BYTES],
    number: [u8; 4],
}

impl Player {
    /// The one with this number, in the game that tests play.
    pub(crate) const fn new(number: u32) -> Self {
        let (game, number) = (*b"the game of the test", number.to_be_bytes());
        Self { game, number }
    }

    /// The same one in another game.
    pub(crate) const fn elsewhere(self) -> Self {
        let game = *b"some other game here";
        Self { game, ..self }
    }
}

impl fmt::Display for Player {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let game = String::from_utf8_lossy(&self.game);
        write!(f, "player {} of {game}", u32::from_be_bytes(self.number))
    }
}

impl From<Player> for [u8; IDENTITY_BYTES] {
    fn from(player: Player) -> Self {
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[..REALM_BYTES].copy_from_slice(&player.game);
        bytes[REALM_BYTES..].copy_from_slice(&player.number);
        bytes
    }
}

impl From<[u8; IDENTITY_BYTES]> for Player {
    fn from(bytes: [u8; IDENTITY_BYTES]) -> Self {
        let [game @ .., a, b, c, d] = bytes;
        let number = [a, b, c, d];
        Self { game, number }
    }
}

/// How a frame is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its payload is copied to its place by the link.
    Copied,
    /// The same by whoever receives it.
    CopiedLater,
    /// Its payload is read where it lies.
    ReadInPlace,
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
            Kind::ReadInPlace => 2,
            Kind::Urgent => 3,
            Kind::CopiedLater => 4,
        };
        into[..3].copy_from_slice(&MAGIC);
        into[3] = kind;
        into[4..8].copy_from_slice(&self.payload.to_le_bytes());
        into[8..16].copy_from_slice(&self.number.to_le_bytes());
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let kind = match bytes.strip_prefix(&MAGIC) {
            Some([1, ..]) => Kind::Copied,
            Some([2, ..]) => Kind::ReadInPlace,
            Some([3, ..]) => Kind::Urgent,
            Some([4, ..]) => Kind::CopiedLater,
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

    fn payload_use(&self) -> PayloadUse {
        match self.kind {
            Kind::Copied | Kind::Urgent => PayloadUse::CopiedByLink,
            Kind::CopiedLater => PayloadUse::CopiedByReceiver,
            Kind::ReadInPlace => PayloadUse::ReadInPlace,
        }
    }

    fn may_overtake(&self) -> bool {
        self.kind == Kind::Urgent
    }

    fn payload_name(&self) -> String {
        format!("toy {}", self.number)
    }
}
