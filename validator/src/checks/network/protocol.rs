//! What two validators say to each other: who they are, and the headers of their frames. How these
//! travel is the business of `link`.

use std::fmt;

use link::connect::{Checksum, Credentials, Negotiator};
use link::handshake::{IDENTITY_BYTES, Key, REALM_BYTES};
use link::header::Header;

/// Connections of a session: one does not fill a fast network.
pub(crate) const LANES: u32 = 4;
/// A session is one round of connections.
pub(crate) const EPOCH: u64 = 1;
/// Most data of a frame: what a core's cache holds twice.
pub(crate) const FRAME_BYTES: u32 = 128 << 10;
/// Frames of a lane that wait to be sent.
pub(crate) const FRAMES_AHEAD: usize = 8;

/// One of the two, or rather a lane of it: `link` has one connection between two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Party {
    realm: [u8; REALM_BYTES],
    number: [u8; 4],
}

impl Party {
    /// A lane of the side that dials. `uid` is that of the run that listens.
    pub(crate) fn lane(uid: &str, lane: u32) -> Self {
        let mut realm = [0; REALM_BYTES];
        // Not the uid itself, which is the key.
        let hash = Key::derive(b"realm of the network check", uid, 0);
        realm.copy_from_slice(&hash.as_bytes()[..REALM_BYTES]);
        let number = lane.to_be_bytes();
        Self { realm, number }
    }

    /// The side that listens, above all lanes: they dial it.
    pub(crate) fn listener(uid: &str) -> Self {
        Self::lane(uid, u32::MAX)
    }

    /// Who it is, and that it knows the uid. Only the cluster's administrators can read that.
    pub(crate) fn credentials(self, uid: &str) -> Credentials<Self> {
        Credentials {
            identity: self,
            key: Key::derive(b"key of the network check", uid, 0),
        }
    }
}

/// How the two connect: over TCP, as a static program loads no driver of an RDMA device. Data has no
/// checksums, because each byte is compared.
pub(crate) fn negotiator() -> Negotiator {
    Negotiator::new(None, 0, Checksum::Off)
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match u32::from_be_bytes(self.number) {
            u32::MAX => f.write_str("the validator that listens"),
            lane => write!(f, "lane {lane} of the validator that dials"),
        }
    }
}

impl From<Party> for [u8; IDENTITY_BYTES] {
    fn from(party: Party) -> Self {
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[..REALM_BYTES].copy_from_slice(&party.realm);
        bytes[REALM_BYTES..].copy_from_slice(&party.number);
        bytes
    }
}

impl From<[u8; IDENTITY_BYTES]> for Party {
    fn from(bytes: [u8; IDENTITY_BYTES]) -> Self {
        let [realm @ .., a, b, c, d] = bytes;
        let number = [a, b, c, d];
        Self { realm, number }
    }
}

/// A frame. Who dials says `Start` and sends, and after it the other: `Data` until the other side
/// says `Enough`, then `End`, which is answered by what was `Counted`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// The times that data is counted for, and that it comes before.
    Start {
        /// In milliseconds.
        warm_up_ms: u32,
        /// In milliseconds.
        window_ms: u32,
    },
    /// The next bytes of the pattern, which follow.
    Data {
        /// 1 to [`FRAME_BYTES`].
        bytes: u32,
    },
    /// The time is over.
    Enough,
    /// No data follows.
    End,
    /// What a lane has received.
    Counted(Tally),
}

/// What a lane has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Bytes within the window.
    pub(crate) bytes: u64,
    /// The first byte of all that is not what was sent.
    pub(crate) wrong: Option<WrongByte>,
}

/// A byte that is not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrongByte {
    /// In the lane's data.
    pub(crate) offset: u64,
    pub(crate) expected: u8,
    pub(crate) got: u8,
}

/// The last byte is the version.
const MAGIC: [u8; 4] = *b"FFN\x01";
const BYTES: usize = 24;

impl Message {
    fn to_bytes(self) -> [u8; BYTES] {
        let (kind, pair, one, two) = match self {
            Self::Start {
                warm_up_ms,
                window_ms,
            } => (1, [0; 2], warm_up_ms.into(), window_ms.into()),
            Self::Data { bytes } => (2, [0; 2], bytes.into(), 0),
            Self::Enough => (3, [0; 2], 0, 0),
            Self::End => (4, [0; 2], 0, 0),
            Self::Counted(Tally { bytes, wrong: None }) => (5, [0; 2], bytes, 0),
            Self::Counted(Tally {
                bytes,
                wrong: Some(wrong),
            }) => (6, [wrong.expected, wrong.got], bytes, wrong.offset),
        };
        let mut all = [0; BYTES];
        all[..4].copy_from_slice(&MAGIC);
        all[4] = kind;
        all[5..7].copy_from_slice(&pair);
        all[8..16].copy_from_slice(&u64::to_le_bytes(one));
        all[16..].copy_from_slice(&u64::to_le_bytes(two));
        all
    }
}

impl Header for Message {
    const BYTES: usize = BYTES;
    const MAX_QUEUED: usize = 2 * FRAMES_AHEAD;

    fn encode(&self, into: &mut [u8]) {
        into.copy_from_slice(&self.to_bytes());
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let wrong = || format!("failed to parse a frame of the network check: {bytes:02x?}");
        let word = |at: usize| {
            let word = bytes.get(at..)?.first_chunk()?;
            Some(u64::from_le_bytes(*word))
        };
        let (one, two) = word(8).zip(word(16)).ok_or_else(wrong)?;
        // What is cut off here is not what is compared below.
        let message = match bytes[4] {
            1 => Self::Start {
                warm_up_ms: one as u32,
                window_ms: two as u32,
            },
            2 if (1..=FRAME_BYTES.into()).contains(&one) => Self::Data { bytes: one as u32 },
            3 => Self::Enough,
            4 => Self::End,
            5 => Self::Counted(Tally {
                bytes: one,
                wrong: None,
            }),
            6 => Self::Counted(Tally {
                bytes: one,
                wrong: Some(WrongByte {
                    offset: two,
                    expected: bytes[5],
                    got: bytes[6],
                }),
            }),
            _ => return Err(wrong()),
        };
        match message.to_bytes() == bytes {
            true => Ok(message),
            false => Err(wrong()),
        }
    }

    fn payload_bytes(&self) -> u32 {
        match *self {
            Self::Data { bytes } => bytes,
            Self::Start { .. } | Self::Enough | Self::End | Self::Counted(_) => 0,
        }
    }

    fn payload_name(&self) -> String {
        format!("{} bytes of data", self.payload_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hex(message: Message) -> String {
        let bytes = message.to_bytes();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whoever changes these has to raise the version: the two nodes may run different releases.
    #[test]
    fn the_frames_keep_their_bytes() {
        let wrong = WrongByte {
            offset: 0x0102_0304_0506_0708,
            expected: 0xaa,
            got: 0xab,
        };
        let counted = |bytes, wrong| Message::Counted(Tally { bytes, wrong });
        let start = Message::Start {
            warm_up_ms: 500,
            window_ms: 7000,
        };
        for (message, bytes) in [
            (start, "46464e0101000000f401000000000000581b000000000000"),
            (
                Message::Data { bytes: FRAME_BYTES },
                "46464e010200000000000200000000000000000000000000",
            ),
            (
                Message::Enough,
                "46464e010300000000000000000000000000000000000000",
            ),
            (
                Message::End,
                "46464e010400000000000000000000000000000000000000",
            ),
            (
                counted(7, None),
                "46464e010500000007000000000000000000000000000000",
            ),
            (
                counted(7, Some(wrong)),
                "46464e0106aaab0007000000000000000807060504030201",
            ),
        ] {
            assert_eq!(hex(message), bytes, "{message:?}");
            assert_eq!(Message::parse(&message.to_bytes()), Ok(message));
        }
    }

    #[test]
    fn data_of_no_bytes_or_of_too_many_is_refused() {
        for bytes in [0, FRAME_BYTES + 1, u32::MAX] {
            assert!(Message::parse(&Message::Data { bytes }.to_bytes()).is_err());
        }
    }

    #[test]
    fn parties_of_two_validations_have_nothing_in_common() {
        let (one, other) = (Party::lane("one", 3), Party::lane("other", 3));
        assert_ne!(one.realm, other.realm);
        let key = |party: Party, uid| *party.credentials(uid).key.as_bytes();
        assert_ne!(key(one, "one"), key(one, "other"));
        assert!(one < Party::listener("one"), "lanes dial the listener");
        assert_eq!(Party::from(<[u8; IDENTITY_BYTES]>::from(one)), one);
    }

    proptest! {
        #[test]
        fn any_bytes_are_one_message_or_none(
            kind in 0u8..8,
            mut bytes in prop::collection::vec(any::<u8>(), 0..BYTES + 2),
            simple in any::<bool>(),
        ) {
            for (at, byte) in bytes.iter_mut().enumerate() {
                match at {
                    0..4 => *byte = MAGIC[at],
                    4 => *byte = kind,
                    7 | 12..16 | 20.. if simple => *byte = 0,
                    _ => {}
                }
            }
            if let Ok(message) = Message::parse(&bytes) {
                prop_assert_eq!(&message.to_bytes()[..], bytes);
                prop_assert!(message.payload_bytes() <= FRAME_BYTES);
            }
        }
    }
}
