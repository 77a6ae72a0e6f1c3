//! A record: the whole state of one chunk, as the journal keeps it. One without states says that the chunk is no more. Encoding and
//! total decoding; where records lie is the batch's and the journal's business.

use crate::fields::Fields;
use crate::superblock::Geometry;
use crate::{BLOCKS_PER_CHUNK, ChunkKey, NOTES_LIMIT_BYTES, StateVersion};

/// Bytes of a record before its states, so all of one without states.
pub(crate) const RECORD_HEAD_BYTES: usize = 20;
/// Bytes of a state before its blocks and notes.
pub(crate) const STATE_HEAD_BYTES: usize = 24;
const PLACED_BYTES: usize = 8;
/// The longest record: two states of 64 blocks and 2 KiB of notes each, 5,188 bytes.
pub(crate) const RECORD_LIMIT_BYTES: usize = RECORD_HEAD_BYTES
    + 2 * (STATE_HEAD_BYTES + BLOCKS_PER_CHUNK * PLACED_BYTES + NOTES_LIMIT_BYTES);

/// The place of a block that was never written: its bytes are zeros.
const HOLE: u32 = u32::MAX;

/// A block with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    /// Its number among the blocks of the disk.
    pub(crate) place: u32,
    /// Of its valid bytes.
    pub(crate) checksum: u32,
}

/// One version of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) version: StateVersion,
    /// The chunk ends with this version. It has no bytes then.
    pub(crate) is_removal: bool,
    /// Some of its bytes are known to be lost.
    pub(crate) is_damaged: bool,
    pub(crate) length: u32,
    /// As many as the length takes. None: zeros.
    pub(crate) blocks: Vec<Option<Placed>>,
    /// The replication protocol's.
    pub(crate) notes: Vec<u8>,
}

impl State {
    /// Bytes of its encoding.
    pub(crate) fn bytes(&self) -> usize {
        STATE_HEAD_BYTES + self.blocks.len() * PLACED_BYTES + self.notes.len()
    }

    /// The blocks that it keeps from being used again.
    pub(crate) fn places(&self) -> impl Iterator<Item = u32> {
        self.blocks.iter().flatten().map(|block| block.place)
    }

    fn encode(&self, into: &mut Vec<u8>) {
        into.extend(self.version.0.to_le_bytes());
        into.extend([u8::from(self.is_removal), u8::from(self.is_damaged)]);
        into.extend((self.notes.len() as u16).to_le_bytes());
        into.extend(self.length.to_le_bytes());
        for block in &self.blocks {
            let (place, checksum) = block.map_or((HOLE, 0), |block| (block.place, block.checksum));
            into.extend(place.to_le_bytes());
            into.extend(checksum.to_le_bytes());
        }
        into.extend(&self.notes);
    }

    fn decode(fields: &mut Fields<'_>, geometry: &Geometry) -> Option<Self> {
        let version = StateVersion(fields.u128()?);
        let (is_removal, is_damaged) = (fields.flag()?, fields.flag()?);
        let notes = usize::from(fields.u16()?);
        let length = fields.u32()?;
        let count = geometry.blocks_of(length);
        let is_possible = notes <= NOTES_LIMIT_BYTES && count <= BLOCKS_PER_CHUNK;
        if !is_possible || is_removal && length > 0 {
            return None;
        }
        let mut blocks = Vec::with_capacity(count);
        for _ in 0..count {
            let (place, checksum) = (fields.u32()?, fields.u32()?);
            blocks.push(match place {
                HOLE => None,
                _ if place >= geometry.blocks => return None,
                _ => Some(Placed { place, checksum }),
            });
        }
        Some(Self {
            version,
            is_removal,
            is_damaged,
            length,
            blocks,
            notes: fields.bytes(notes)?.to_vec(),
        })
    }
}

/// All that the journal says of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: ChunkKey,
    pub(crate) committed: Option<State>,
    pub(crate) pending: Option<State>,
}

impl Record {
    pub(crate) fn states(&self) -> impl Iterator<Item = &State> {
        self.committed.iter().chain(&self.pending)
    }

    pub(crate) fn states_mut(&mut self) -> impl Iterator<Item = &mut State> {
        self.committed.iter_mut().chain(&mut self.pending)
    }

    pub(crate) fn decode(fields: &mut Fields<'_>, geometry: &Geometry) -> Option<Self> {
        let id = ChunkKey(fields.u128()?);
        let (has_committed, has_pending) = (fields.flag()?, fields.flag()?);
        let _reserved = fields.u16()?;
        let mut state = |is_there: bool| match is_there {
            true => State::decode(fields, geometry).map(Some),
            false => Some(None),
        };
        let (committed, pending) = (state(has_committed)?, state(has_pending)?);
        let is_possible = committed.as_ref().is_none_or(|state| !state.is_removal);
        is_possible.then_some(Self {
            id,
            committed,
            pending,
        })
    }
}

/// Puts a record behind others.
pub(crate) fn encode(
    id: ChunkKey,
    committed: Option<&State>,
    pending: Option<&State>,
    into: &mut Vec<u8>,
) {
    into.extend(id.0.to_le_bytes());
    into.extend([u8::from(committed.is_some()), u8::from(pending.is_some())]);
    into.extend([0; 2]);
    for state in committed.into_iter().chain(pending) {
        state.encode(into);
    }
}

/// Bytes of a record with such states.
pub(crate) fn record_bytes<'a>(states: impl IntoIterator<Item = &'a State>) -> usize {
    RECORD_HEAD_BYTES + states.into_iter().map(State::bytes).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        sector_bytes: 512,
        block_bytes: 1024,
        blocks: 100,
        segments: 8,
        segment_bytes: 16_384,
    };

    fn state() -> State {
        State {
            version: StateVersion(7),
            is_removal: false,
            is_damaged: true,
            length: 2050,
            blocks: vec![
                None,
                Some(Placed {
                    place: 99,
                    checksum: 5,
                }),
                None,
            ],
            notes: b"session".to_vec(),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_in_the_size_that_was_charged() {
        let committed = state();
        let removal = State {
            is_removal: true,
            length: 0,
            blocks: Vec::new(),
            ..state()
        };
        for (committed, pending) in [
            (None, None),
            (Some(&committed), None),
            (None, Some(&removal)),
            (Some(&committed), Some(&removal)),
        ] {
            let mut bytes = Vec::new();
            encode(ChunkKey(3), committed, pending, &mut bytes);
            let charged = record_bytes(committed.into_iter().chain(pending));
            assert_eq!(bytes.len(), charged);
            let mut fields = Fields(&bytes);
            let read = Record::decode(&mut fields, &GEOMETRY).unwrap();
            assert!(fields.0.is_empty());
            assert_eq!(
                (read.committed.as_ref(), read.pending.as_ref()),
                (committed, pending)
            );
            for short in 0..bytes.len() {
                assert_eq!(
                    Record::decode(&mut Fields(&bytes[..short]), &GEOMETRY),
                    None
                );
            }
        }
    }

    #[test]
    fn what_no_store_writes_is_refused() {
        let impossible: [fn(&mut State); 4] = [
            |state| state.length = 64 * 1024 + 1,
            |state| {
                state.blocks[0] = Some(Placed {
                    place: 100,
                    checksum: 0,
                });
            },
            |state| state.notes = vec![0; NOTES_LIMIT_BYTES + 1],
            |state| state.is_removal = true,
        ];
        for spoil in impossible {
            let mut state = state();
            spoil(&mut state);
            let mut bytes = Vec::new();
            encode(ChunkKey(3), Some(&state), None, &mut bytes);
            assert_eq!(Record::decode(&mut Fields(&bytes), &GEOMETRY), None);
        }
    }
}
