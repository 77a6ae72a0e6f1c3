//! What a sender writes into a slot of the receiver's ring, and the number that says that it is there. A slot is copied
//! out once and checked whole: length of the ring's numbers, checksum, every code; what it means is decided beside.

use crc32c::crc32c;

use crate::header::{Header, MAX_HEADER_BYTES, encoded};
use crate::verbs::Remote;

/// A slot's distance from the next: cache lines of its own.
pub(super) const SLOT_BYTES: usize = 192;
/// What is written of it.
pub(super) const USED_BYTES: usize = MAX_HEADER_BYTES + 32;
/// Slots of a ring, at most: their numbers wrap within what an immediate number holds, many times over.
pub(super) const SLOTS_LIMIT: u32 = 1 << 16;

/// Immediate numbers have one bit for what they say and these for a count.
const COUNT_MASK: u32 = (1 << 31) - 1;
const CREDIT: u32 = 1 << 31;

/// Why a peer's channel is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedSlot {
    /// The slot holds something else than what was announced: a write was lost, or the sender is broken.
    #[error("slot {0} of the ring does not hold what was announced")]
    Lost(u64),
    /// The slot was damaged.
    #[error("slot {0} of the ring does not match its checksum")]
    Checksum(u64),
    /// A field holds what it cannot hold.
    #[error("the {0} of a slot is out of bounds")]
    Field(&'static str),
    /// The header in it is none.
    #[error("{0}")]
    Header(String),
}

/// Where payload was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotTarget {
    /// There is no payload.
    None,
    /// In the receiver's memory.
    At(Destination),
    /// Nowhere: the receiver does not want it.
    Unwanted,
}

/// A place in memory that the receiver has announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The announcement, by the name that both sides have for it.
    pub window: u64,
    /// First byte in it.
    pub offset: u64,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content<H> {
    Frame {
        header: H,
        place: SlotTarget,
    },
    /// The sender of this takes payload there, or none at all under this name.
    Window {
        window: u64,
        remote: Option<Remote>,
    },
}

impl<H: Header> Content<H> {
    /// The content as the bytes of the slot with this number.
    pub(super) fn encode(&self, number: u64) -> [u8; USED_BYTES] {
        let mut bytes = [0; USED_BYTES];
        let (code, window, offset) = match self {
            Self::Frame { header, place } => {
                bytes[..MAX_HEADER_BYTES].copy_from_slice(&encoded(header));
                match place {
                    SlotTarget::None => (1, 0, 0),
                    SlotTarget::At(to) => (2, to.window, to.offset),
                    SlotTarget::Unwanted => (3, 0, 0),
                }
            }
            Self::Window { window, remote } => {
                if let Some(remote) = remote {
                    bytes[..8].copy_from_slice(&remote.address.to_le_bytes());
                    bytes[8..16].copy_from_slice(&remote.bytes.to_le_bytes());
                    bytes[16..20].copy_from_slice(&remote.key.to_le_bytes());
                }
                (4 + u32::from(remote.is_none()), *window, 0)
            }
        };
        let mut put = |at: usize, word: &[u8]| {
            bytes[MAX_HEADER_BYTES + at..MAX_HEADER_BYTES + at + word.len()].copy_from_slice(word);
        };
        put(0, &number.to_le_bytes());
        put(8, &window.to_le_bytes());
        put(16, &offset.to_le_bytes());
        put(24, &code.to_le_bytes());
        let sum = crc32c(&bytes[..USED_BYTES - 4]);
        bytes[USED_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// What the bytes of the slot with this number stand for.
    pub(super) fn parse(bytes: &[u8; USED_BYTES], number: u64) -> Result<Self, MalformedSlot> {
        // An earlier or a half-written one.
        if word(bytes, MAX_HEADER_BYTES) != number {
            return Err(MalformedSlot::Lost(number));
        }
        let (content, sum) = bytes.split_at(USED_BYTES - 4);
        if crc32c(content).to_le_bytes() != sum {
            return Err(MalformedSlot::Checksum(number));
        }
        let window = word(bytes, MAX_HEADER_BYTES + 8);
        let offset = word(bytes, MAX_HEADER_BYTES + 16);
        let code = word(bytes, MAX_HEADER_BYTES + 24) as u32;
        let parsed = match code {
            1..=3 => {
                let place = match code {
                    1 => SlotTarget::None,
                    2 => SlotTarget::At(Destination { window, offset }),
                    _ => SlotTarget::Unwanted,
                };
                let header = H::parse(&bytes[..H::BYTES]).map_err(MalformedSlot::Header)?;
                if (header.payload_bytes() > 0) != (place != SlotTarget::None) {
                    return Err(MalformedSlot::Field("place of the payload"));
                }
                Self::Frame { header, place }
            }
            4 => Self::Window {
                window,
                remote: Some(Remote {
                    address: word(bytes, 0),
                    bytes: word(bytes, 8),
                    key: word(bytes, 16) as u32,
                }),
            },
            5 => Self::Window {
                window,
                remote: None,
            },
            _ => return Err(MalformedSlot::Field("kind")),
        };
        // What is not used must be zero: there is one way to write anything.
        if parsed.encode(number) != *bytes {
            return Err(MalformedSlot::Field("padding"));
        }
        Ok(parsed)
    }
}

fn word(bytes: &[u8; USED_BYTES], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// What the number with a write says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// The slot with this number is written.
    Slot(u64),
    /// So many slots have been read in all.
    Credit(u64),
}

impl Signal {
    pub(super) fn encode(self) -> u32 {
        match self {
            Self::Slot(number) => number as u32 & COUNT_MASK,
            Self::Credit(count) => CREDIT | count as u32 & COUNT_MASK,
        }
    }

    /// What is meant, given that the slot comes `next` and that `read` slots were read by its last report: of a
    /// count, only the lower bits travel.
    pub(super) fn decode(number: u32, next: u64, read: u64) -> Self {
        let count = u64::from(number & COUNT_MASK);
        let since = |base: u64| {
            let behind = count.wrapping_sub(base) & u64::from(COUNT_MASK);
            base + behind
        };
        if number & CREDIT == 0 {
            Self::Slot(since(next))
        } else {
            Self::Credit(since(read))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::toy::Toy;

    fn content() -> impl Strategy<Value = Content<Toy>> {
        let frame = (any::<u64>(), 0u32..1000, any::<[u64; 2]>(), any::<bool>()).prop_map(
            |(operation, payload, [window, offset], wanted)| Content::Frame {
                header: Toy::copied(operation, payload),
                place: match (payload, wanted) {
                    (0, _) => SlotTarget::None,
                    (_, true) => SlotTarget::At(Destination { window, offset }),
                    (_, false) => SlotTarget::Unwanted,
                },
            },
        );
        let window =
            (any::<u64>(), any::<Option<([u64; 2], u32)>>()).prop_map(|(window, remote)| {
                let remote = remote.map(|([address, bytes], key)| Remote {
                    address,
                    bytes,
                    key,
                });
                Content::Window { window, remote }
            });
        prop_oneof![frame, window]
    }

    proptest! {
        #[test]
        fn a_slot_that_is_written_is_read(content in content(), number in any::<u64>()) {
            prop_assert_eq!(Content::parse(&content.encode(number), number), Ok(content));
        }

        #[test]
        fn a_flipped_bit_and_another_number_are_refused(
            content in content(),
            number in any::<u64>(),
            bit in 0..USED_BYTES * 8,
        ) {
            let mut bytes = content.encode(number);
            prop_assert!(Content::<Toy>::parse(&bytes, number.wrapping_add(1)).is_err());
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Content::<Toy>::parse(&bytes, number).is_err());
        }

        #[test]
        fn a_forged_slot_is_refused_or_means_what_it_says(
            content in content(),
            places in prop::collection::vec((0..USED_BYTES - 4, any::<u8>()), 1..8),
        ) {
            let mut bytes = content.encode(7);
            for (place, byte) in places {
                bytes[place] = byte;
            }
            let sum = crc32c(&bytes[..USED_BYTES - 4]);
            bytes[USED_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
            if let Ok(parsed) = Content::<Toy>::parse(&bytes, 7) {
                prop_assert_eq!(parsed.encode(7), bytes);
            }
        }

        #[test]
        fn counts_survive_that_only_their_lower_bits_travel(base in 0..u64::MAX / 2, ahead in 0u64..1 << 20) {
            let there = base + ahead;
            prop_assert_eq!(Signal::decode(Signal::Slot(there).encode(), base, 0), Signal::Slot(there));
            prop_assert_eq!(Signal::decode(Signal::Credit(there).encode(), 0, base), Signal::Credit(there));
        }
    }
}
