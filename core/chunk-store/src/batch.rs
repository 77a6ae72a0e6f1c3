//! A batch of records as bytes: a header, the records, zeros up to a whole sector. Both parts have a checksum that starts
//! with the store's UUID, so that nothing else is taken for a batch: not what an earlier store left on the disk, and not
//! what somebody puts into the notes of a chunk. Which records go into a batch, and where it goes, is decided elsewhere.

use crc32c::{crc32c, crc32c_append};

use crate::fields::Fields;
use crate::record::Record;
use crate::superblock::Superblock;

pub(crate) const HEADER_BYTES: usize = 64;
/// No batch is larger: a flush takes longer than writing it.
pub(crate) const LIMIT_BYTES: usize = 64 << 10;
const MAGIC: [u8; 8] = *b"FFCHUNKJ";
/// What the header's own checksum covers.
const CONTENT_BYTES: usize = HEADER_BYTES - 4;

/// What a batch begins with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// Later batches have greater ones. Some are left out.
    pub(crate) sequence: u64,
    /// The batch before it, which was flushed when this one was written. Numbers between are of batches that were lost.
    pub(crate) flushed: u64,
    /// The first batch that is still part of the journal.
    pub(crate) start: u64,
    /// Which segment the batch is in, by the number that goes on for ever.
    pub(crate) segment: u64,
    /// In bytes from the segment's start.
    pub(crate) offset: u32,
}

/// What lies at a sector of the journal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// No batch begins here.
    Nothing,
    /// A batch was begun here, and not all of it is there.
    Torn(Header),
    /// A batch with its records, and how many bytes it takes.
    Whole(Header, Vec<Record>, usize),
}

/// The batch that a new store begins with, so that a journal without any is a damaged one.
pub(crate) const FIRST: Header = Header {
    sequence: 1,
    flushed: 0,
    start: 1,
    segment: 0,
    offset: 0,
};

/// A batch of records that are encoded already.
pub(crate) fn encode(
    superblock: &Superblock,
    header: &Header,
    count: u32,
    records: &[u8],
) -> Vec<u8> {
    let seed = crc32c(&superblock.uuid().to_le_bytes());
    let mut bytes = MAGIC.to_vec();
    for number in [
        header.sequence,
        header.flushed,
        header.start,
        header.segment,
    ] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(header.offset.to_le_bytes());
    bytes.extend((records.len() as u32).to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(crc32c_append(seed, records).to_le_bytes());
    bytes.resize(CONTENT_BYTES, 0);
    bytes.extend(crc32c_append(seed, &bytes).to_le_bytes());
    bytes.extend(records);
    bytes.resize(superblock.geometry().round(bytes.len()), 0);
    bytes
}

/// What lies at an offset of a segment, given all bytes of the segment.
pub(crate) fn find(superblock: &Superblock, segment: &[u8], offset: usize, place: u64) -> Found {
    let bytes = segment.get(offset..).unwrap_or_default();
    let Some((header, length, count, sum)) = header(superblock, bytes) else {
        return Found::Nothing;
    };
    let geometry = superblock.geometry();
    let is_here = header.offset as usize == offset
        && header.segment % u64::from(geometry.segments) == place
        && header.flushed < header.sequence
        && header.start <= header.sequence;
    if !is_here {
        return Found::Nothing;
    }
    let seed = crc32c(&superblock.uuid().to_le_bytes());
    let records = bytes
        .get(HEADER_BYTES..)
        .and_then(|rest| rest.get(..length as usize))
        .filter(|records| crc32c_append(seed, records) == sum)
        .and_then(|records| decode(superblock, records, count));
    match records {
        Some(records) => {
            let bytes = geometry.round(HEADER_BYTES + length as usize);
            Found::Whole(header, records, bytes)
        }
        None => Found::Torn(header),
    }
}

/// A header, and bytes, number and checksum of the records.
fn header(superblock: &Superblock, bytes: &[u8]) -> Option<(Header, u32, u32, u32)> {
    let content = bytes.get(..CONTENT_BYTES)?;
    let mut fields = Fields(bytes);
    if fields.bytes(MAGIC.len())? != MAGIC {
        return None;
    }
    let header = Header {
        sequence: fields.u64()?,
        flushed: fields.u64()?,
        start: fields.u64()?,
        segment: fields.u64()?,
        offset: fields.u32()?,
    };
    let (length, count, sum) = (fields.u32()?, fields.u32()?, fields.u32()?);
    let seed = crc32c(&superblock.uuid().to_le_bytes());
    let mut fields = Fields(bytes.get(CONTENT_BYTES..)?);
    let is_sound = fields.u32()? == crc32c_append(seed, content);
    // Numbers that no store reaches would overflow when they are counted on.
    let is_possible = header.sequence < u64::MAX / 2 && header.segment < u64::MAX / 2;
    (is_sound && is_possible).then_some((header, length, count, sum))
}

fn decode(superblock: &Superblock, records: &[u8], count: u32) -> Option<Vec<Record>> {
    let mut fields = Fields(records);
    let mut decoded = Vec::new();
    for _ in 0..count {
        decoded.push(Record::decode(&mut fields, superblock.geometry())?);
    }
    fields.0.is_empty().then_some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChunkKey;
    use crate::record;
    use crate::superblock::Geometry;

    fn superblock(uuid: u128) -> Superblock {
        let geometry = Geometry {
            sector_bytes: 512,
            block_bytes: 1024,
            blocks: 100,
            segments: 8,
            segment_bytes: 16_384,
        };
        Superblock::new(geometry, uuid).unwrap()
    }

    const HEADER: Header = Header {
        sequence: 9,
        flushed: 7,
        start: 3,
        segment: 10,
        offset: 512,
    };

    /// A segment with one batch of 40 records.
    fn segment() -> Vec<u8> {
        let mut records = Vec::new();
        for id in 0..40 {
            record::encode(ChunkKey(id), None, None, &mut records);
        }
        let mut bytes = vec![0; 512];
        bytes.extend(encode(&superblock(1), &HEADER, 40, &records));
        bytes.resize(16_384, 0);
        bytes
    }

    #[test]
    fn a_batch_is_found_where_it_was_written_by_this_store_and_nowhere_else() {
        let segment = segment();
        let found = find(&superblock(1), &segment, 512, 2);
        let Found::Whole(HEADER, records, 1024) = found else {
            panic!("{found:?}");
        };
        assert_eq!(records.len(), 40);
        let nowhere = [
            find(&superblock(2), &segment, 512, 2),
            find(&superblock(1), &segment, 512, 3),
            find(&superblock(1), &segment[512..], 0, 2),
            find(&superblock(1), &segment, 1024, 2),
            find(&superblock(1), &segment, 16_384, 2),
        ];
        assert!(nowhere.iter().all(|found| *found == Found::Nothing));
    }

    #[test]
    fn a_batch_whose_end_is_missing_is_torn() {
        let mut segment = segment();
        segment[1024..1536].fill(0);
        let torn = Found::Torn(HEADER);
        assert_eq!(find(&superblock(1), &segment, 512, 2), torn);
        assert_eq!(find(&superblock(1), &segment[..1024], 512, 2), torn);
    }
}
