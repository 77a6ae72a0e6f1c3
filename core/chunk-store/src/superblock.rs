//! The superblock: what a disk is, and how its parts are laid out in bytes from its start. Two copies, so that one bad
//! sector does not make the rest unreadable. What is in the parts is said by the journal and by the records.

use crate::batch::{self, HEADER_BYTES};
use crate::fields::Fields;
use crate::record::RECORD_LIMIT_BYTES;
use crate::{ChunkStore, checksum};

/// Version of all that is on the disk.
const FORMAT_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"FFCHUNKS";
const COPY_BYTES: usize = 4096;
const CONTENT_BYTES: usize = 48;
/// Where the journal begins: behind both copies, each at a multiple of 64 KiB.
const JOURNAL_AT: u64 = 128 << 10;
/// Recovery reads a segment at a time.
const SEGMENT_LIMIT_BYTES: u32 = 16 << 20;

/// Sizes of the parts of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// What the disk writes whole or not at all: 512 or 4,096.
    pub sector_bytes: u32,
    /// A power of two between a sector and 64 KiB.
    pub block_bytes: u32,
    /// Blocks of the disk.
    pub blocks: u32,
    /// Segments of the journal, 8 to 65,536.
    pub segments: u32,
    /// A multiple of 4 KiB between 16 KiB and 16 MiB.
    pub segment_bytes: u32,
}

/// Why no disk can be laid out so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to lay out the disk: {field} is {value}, allowed is {allowed}")]
pub struct GeometryError {
    /// Which size.
    pub field: &'static str,
    /// What it is.
    pub value: u32,
    /// What it may be.
    pub allowed: &'static str,
}

/// Bytes that belong at a place of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskWrite {
    /// In bytes from the start of the disk.
    pub at: u64,
    /// Whole sectors.
    pub bytes: Vec<u8>,
}

/// Why a disk cannot be opened. Nothing was written to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// It holds something else, or nothing.
    #[error(
        "failed to open the disk: there is no superblock at bytes 0 and 65536, but something else. Format the disk if \
         nobody needs what is on it"
    )]
    Foreign,
    /// A later release has formatted it.
    #[error(
        "failed to open the disk: its format is {0}, this program reads up to {FORMAT_VERSION}. Run the release that \
         formatted it, or format the disk and fill it from its chain"
    )]
    Newer(u32),
    /// Neither copy can be used.
    #[error(
        "failed to open the disk: the superblocks at bytes 0 and 65536 are both damaged. Format the disk and fill it \
         from its chain"
    )]
    Damaged,
    /// Formatting was interrupted.
    #[error(
        "failed to open the disk: the superblocks at bytes 0 and 65536 are of two stores, so formatting was \
         interrupted. Format it again"
    )]
    Differ,
}

/// A disk with a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    geometry: Geometry,
    uuid: u128,
}

impl Superblock {
    /// Where the two copies are.
    pub const COPIES_AT: [u64; 2] = [0, 64 << 10];
    /// Bytes to read for a copy.
    pub const BYTES: usize = COPY_BYTES;

    /// A disk that is laid out so. The UUID must be one that no store on this disk ever had.
    pub fn new(geometry: Geometry, uuid: u128) -> Result<Self, GeometryError> {
        geometry.check()?;
        Ok(Self { geometry, uuid })
    }

    /// What makes an empty store of a disk, whatever is on it, once it is written and flushed.
    #[must_use]
    pub fn format(&self) -> Vec<DiskWrite> {
        let copies = Self::COPIES_AT.map(|at| DiskWrite {
            at,
            bytes: self.encode(),
        });
        let mut writes = copies.to_vec();
        writes.push(DiskWrite {
            at: JOURNAL_AT,
            bytes: batch::encode(self, &batch::FIRST, 0, &[]),
        });
        writes
    }

    /// The store that is on a disk after [`Superblock::format`].
    #[must_use]
    pub fn empty_store(&self) -> ChunkStore {
        ChunkStore::empty(*self)
    }

    /// What the two copies say, each None if it cannot be read. Beside it the copy that is damaged and has to be written
    /// again.
    pub fn read(copies: [Option<&[u8]>; 2]) -> Result<(Self, Option<DiskWrite>), SuperblockError> {
        let damaged = |copy: usize, superblock: Self| DiskWrite {
            at: Self::COPIES_AT[copy],
            bytes: superblock.encode(),
        };
        let unreadable = Err(SuperblockError::Damaged);
        match copies.map(|copy| copy.map_or(unreadable, Self::decode)) {
            [Ok(one), Ok(other)] if one == other => Ok((one, None)),
            [Ok(_), Ok(_)] => Err(SuperblockError::Differ),
            // Another format's copy is no damage: whoever wrote it may have been interrupted.
            [Err(SuperblockError::Newer(version)), _]
            | [_, Err(SuperblockError::Newer(version))] => Err(SuperblockError::Newer(version)),
            [Ok(one), Err(_)] => Ok((one, Some(damaged(1, one)))),
            [Err(_), Ok(one)] => Ok((one, Some(damaged(0, one)))),
            [Err(SuperblockError::Foreign), Err(SuperblockError::Foreign)] => {
                Err(SuperblockError::Foreign)
            }
            [Err(_), Err(_)] => Err(SuperblockError::Damaged),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let Geometry {
            sector_bytes,
            block_bytes,
            blocks,
            segments,
            segment_bytes,
        } = self.geometry;
        let mut bytes = MAGIC.to_vec();
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(self.uuid.to_le_bytes());
        for size in [sector_bytes, block_bytes, blocks, segments, segment_bytes] {
            bytes.extend(size.to_le_bytes());
        }
        bytes.extend(checksum(&bytes).to_le_bytes());
        bytes.resize(COPY_BYTES, 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let damaged = SuperblockError::Damaged;
        let mut fields = Fields(bytes);
        if fields.bytes(MAGIC.len()) != Some(&MAGIC) {
            return Err(SuperblockError::Foreign);
        }
        let content = bytes.get(..CONTENT_BYTES).ok_or(damaged)?;
        let version = fields.u32().ok_or(damaged)?;
        let mut read = || {
            let uuid = fields.u128()?;
            let geometry = Geometry {
                sector_bytes: fields.u32()?,
                block_bytes: fields.u32()?,
                blocks: fields.u32()?,
                segments: fields.u32()?,
                segment_bytes: fields.u32()?,
            };
            (fields.u32()? == checksum(content)).then_some((geometry, uuid))
        };
        // Every format has its checksum there, so that a damaged version is not taken for a later one.
        let (geometry, uuid) = read().ok_or(damaged)?;
        if version > FORMAT_VERSION {
            return Err(SuperblockError::Newer(version));
        }
        Self::new(geometry, uuid).map_err(|_| damaged)
    }

    /// How the disk is laid out.
    #[must_use]
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Which store it is.
    #[must_use]
    pub const fn uuid(&self) -> u128 {
        self.uuid
    }
}

impl Geometry {
    /// Bytes of the whole disk.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.block_at(self.blocks)
    }

    /// Bytes of the largest chunk.
    #[must_use]
    pub const fn chunk_limit_bytes(&self) -> u32 {
        self.block_bytes * crate::BLOCKS_PER_CHUNK as u32
    }

    fn check(&self) -> Result<(), GeometryError> {
        let sectors = [512, 4096];
        let powers = self.sector_bytes..=64 << 10;
        let is_block = powers.contains(&self.block_bytes) && self.block_bytes.is_power_of_two();
        let segment = 16 << 10..=SEGMENT_LIMIT_BYTES;
        let is_segment =
            segment.contains(&self.segment_bytes) && self.segment_bytes.is_multiple_of(4096);
        let checks = [
            (
                sectors.contains(&self.sector_bytes),
                ("sector_bytes", self.sector_bytes, "512 or 4096"),
            ),
            (
                is_block,
                (
                    "block_bytes",
                    self.block_bytes,
                    "a power of two from a sector to 65536",
                ),
            ),
            (
                (1..u32::MAX).contains(&self.blocks),
                ("blocks", self.blocks, "1 to 4294967294"),
            ),
            (
                (8..=65_536).contains(&self.segments),
                ("segments", self.segments, "8 to 65536"),
            ),
            (
                is_segment && self.room_bytes() > RECORD_LIMIT_BYTES,
                (
                    "segment_bytes",
                    self.segment_bytes,
                    "a multiple of 4096 from 16384 (32768 with large sectors) to 16777216",
                ),
            ),
        ];
        match checks.into_iter().find(|(is_allowed, _)| !is_allowed) {
            None => Ok(()),
            Some((_, (field, value, allowed))) => Err(GeometryError {
                field,
                value,
                allowed,
            }),
        }
    }

    /// What at least fits of records into a segment when batches fill it.
    pub(crate) fn room_bytes(&self) -> usize {
        let segment = self.segment_bytes as usize;
        let batches = segment / batch::LIMIT_BYTES + 2;
        let lost = self.round(HEADER_BYTES + RECORD_LIMIT_BYTES)
            + batches * (HEADER_BYTES + self.sector_bytes as usize);
        segment.saturating_sub(lost)
    }

    /// Up to a whole sector.
    pub(crate) const fn round(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.sector_bytes as usize)
    }

    /// Where a segment is. Their numbers go on for ever, and those that are equal modulo the ring share a place.
    pub(crate) fn segment_at(&self, segment: u64) -> u64 {
        JOURNAL_AT + segment % u64::from(self.segments) * u64::from(self.segment_bytes)
    }

    /// Where a block is.
    pub(crate) fn block_at(&self, place: u32) -> u64 {
        let journal = u64::from(self.segments) * u64::from(self.segment_bytes);
        let bytes = u64::from(self.block_bytes);
        (JOURNAL_AT + journal).next_multiple_of(bytes) + u64::from(place) * bytes
    }

    /// Which block is there.
    pub(crate) fn place_of(&self, at: u64) -> Option<u32> {
        let behind = at.checked_sub(self.block_at(0))?;
        let place = u32::try_from(behind / u64::from(self.block_bytes)).ok()?;
        (place < self.blocks).then_some(place)
    }

    /// How many blocks so many bytes take.
    pub(crate) const fn blocks_of(&self, length: u32) -> usize {
        length.div_ceil(self.block_bytes) as usize
    }

    /// Bytes that are valid in a block of a chunk of this length.
    pub(crate) fn valid_bytes(&self, length: u32, index: usize) -> u32 {
        let start = u64::from(self.block_bytes) * index as u64;
        let left = u64::from(length).saturating_sub(start);
        left.min(u64::from(self.block_bytes)) as u32
    }
}
