//! The disk of a target: a file in an empty folder, or a block device. Finds out what is there, formats what is empty, keeps
//! others out, opens the store. Reads and writes past the page cache, so that memory and flushes are the service's own.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use chunk_store::{
    ChunkStore, Geometry, GeometryError, RecoveryError, RecoveryStep, RecoverySummary,
    StoreRecovery, Superblock, SuperblockError,
};
use link::memory_policy::MemoryPolicy;
use link::segment::{self, Segment, Writers};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags};

/// The file of a target in its folder.
const FILE: &str = "fireflyer-target";
/// The same while it is formatted.
const UNFINISHED: &str = "fireflyer-target.new";
/// Blocks, of which a chunk has up to 64.
const BLOCK_BYTES: u32 = 64 << 10;
/// One byte of the journal for so many of the disk: room for the records of chunks that fill one block each.
const JOURNAL_SHARE: u64 = 128;
/// Segments of the journal, where that makes them neither too small nor too large.
const SEGMENTS: u64 = 64;
/// A smaller target is not worth its journal.
const LEAST_BYTES: u64 = 64 << 20;
/// Of a folder's free room, in hundredths, what a target takes if nobody says how much.
const DEFAULT_SHARE: u64 = 90;
/// What is looked at of a device to see whether it is empty.
const BLANK_BYTES: usize = 1 << 20;
/// Foreign files that an error names.
const NAMED: usize = 3;

/// Why a target cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetDiskError {
    /// The system refused.
    #[error("failed to {doing} {path}")]
    System {
        /// What it refused.
        doing: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Somebody else's files.
    #[error(
        "failed to use {path} as a target: it holds {names}, which are not ours. Name an empty folder, or empty this one if \
         nobody needs them"
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// Some of them.
        names: String,
    },
    /// A device that is not blank.
    #[error(
        "failed to use the device {path} as a target: it is not empty. Wipe it (wipefs, blkdiscard) if nobody needs what is on it"
    )]
    NotBlank {
        /// Which.
        path: PathBuf,
    },
    /// Neither a folder nor a device.
    #[error("failed to use {path} as a target: it is neither a folder nor a block device")]
    Kind {
        /// What.
        path: PathBuf,
    },
    /// Another service has it.
    #[error("failed to use {path} as a target: another process uses it")]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// Too small.
    #[error("failed to make a target of {bytes} bytes in {path}: it needs {LEAST_BYTES} at least")]
    Small {
        /// Where.
        path: PathBuf,
        /// What there is.
        bytes: u64,
    },
    /// Its sizes make no layout.
    #[error("failed to format {path}")]
    Geometry {
        /// Which.
        path: PathBuf,
        /// Why.
        source: GeometryError,
    },
    /// What it is cannot be read.
    #[error("failed to open the target in {path}")]
    Superblock {
        /// Which.
        path: PathBuf,
        /// Why.
        source: SuperblockError,
    },
    /// Its journal cannot be read.
    #[error("failed to open the target in {path}")]
    Recovery {
        /// Which.
        path: PathBuf,
        /// Why.
        source: RecoveryError,
    },
    /// It is shorter than when it was formatted.
    #[error(
        "failed to open the target in {path}: it has {bytes} bytes, {formatted} when it was formatted"
    )]
    Shrunk {
        /// Which.
        path: PathBuf,
        /// What it has.
        bytes: u64,
        /// What it had.
        formatted: u64,
    },
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] segment::Error),
}

/// What is at a path.
#[derive(Debug)]
pub enum DiskFound {
    /// Nothing: it may be formatted, if no table knows a target there.
    Empty(EmptyDisk),
    /// A target.
    Target(TargetDisk),
}

/// A path without anything.
#[derive(Debug)]
pub struct EmptyDisk {
    path: PathBuf,
    /// The device, or nothing where a file is made.
    device: Option<File>,
}

/// The disk of a target, which nobody else uses as long as it is open.
#[derive(Debug)]
pub struct TargetDisk {
    path: PathBuf,
    file: File,
    superblock: Superblock,
}

/// Memory that disks read and write directly.
#[derive(Debug)]
pub struct DiskMemory(Segment);

impl DiskMemory {
    /// So much of it.
    pub fn new(bytes: usize) -> Result<Self, segment::Error> {
        let home = MemoryPolicy::Anywhere;
        let segment = Segment::create_untouched("disk", bytes, Writers::Everybody, &home)?;
        Ok(Self(segment))
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.0.bytes_mut()
    }
}

/// What is at a path. Changes nothing.
pub fn look(path: &Path) -> Result<DiskFound, TargetDiskError> {
    let kind = fs::metadata(path)
        .map_err(failed("look at", path))?
        .file_type();
    if kind.is_block_device() {
        let file = open(path)?;
        return match is_blank(&file, path)? {
            true => Ok(DiskFound::Empty(EmptyDisk {
                path: path.to_owned(),
                device: Some(file),
            })),
            false => match TargetDisk::open(path, file) {
                Err(TargetDiskError::Superblock {
                    path,
                    source: SuperblockError::Foreign,
                }) => Err(TargetDiskError::NotBlank { path }),
                opened => opened.map(DiskFound::Target),
            },
        };
    }
    if !kind.is_dir() {
        let path = path.to_owned();
        return Err(TargetDiskError::Kind { path });
    }
    let mut foreign = Vec::new();
    let mut is_there = false;
    for entry in fs::read_dir(path).map_err(failed("list", path))? {
        let name = entry.map_err(failed("list", path))?.file_name();
        match name.to_str() {
            Some(FILE) => is_there = true,
            Some(UNFINISHED | "lost+found") => {}
            Some(_) | None => foreign.push(name.to_string_lossy().into_owned()),
        }
    }
    if is_there {
        let file = path.join(FILE);
        return TargetDisk::open(path, open(&file)?).map(DiskFound::Target);
    }
    if !foreign.is_empty() {
        foreign.sort();
        foreign.truncate(NAMED);
        return Err(TargetDiskError::Foreign {
            path: path.to_owned(),
            names: foreign.join(", "),
        });
    }
    Ok(DiskFound::Empty(EmptyDisk {
        path: path.to_owned(),
        device: None,
    }))
}

impl EmptyDisk {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a target of it, of so many bytes: if nobody says how many, of the device or most of the free room.
    pub fn format(self, uuid: u128, bytes: Option<u64>) -> Result<TargetDisk, TargetDiskError> {
        let Self { path, device } = self;
        if let Some(file) = device {
            let all = length(&file, &path)?;
            let superblock = layout(&path, &file, all.min(bytes.unwrap_or(all)), uuid)?;
            write_format(&file, &path, &superblock)?;
            return Ok(TargetDisk {
                path,
                file,
                superblock,
            });
        }
        let unfinished = path.join(UNFINISHED);
        match fs::remove_file(&unfinished) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("remove", &unfinished)(error)),
        }
        let all = match bytes {
            Some(bytes) => bytes,
            None => free_bytes(&path)? / 100 * DEFAULT_SHARE,
        };
        let make = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&unfinished);
        make.map_err(failed("make", &unfinished))?;
        let file = open(&unfinished)?;
        let superblock = layout(&path, &file, all, uuid)?;
        let total = superblock.geometry().total_bytes();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, total)
            .map_err(|error| failed("reserve room for", &unfinished)(error.into()))?;
        write_format(&file, &path, &superblock)?;
        fs::rename(&unfinished, path.join(FILE)).map_err(failed("name", &unfinished))?;
        let folder = File::open(&path).and_then(|folder| folder.sync_all());
        folder.map_err(failed("flush", &path))?;
        Ok(TargetDisk {
            path,
            file,
            superblock,
        })
    }
}

impl TargetDisk {
    fn open(path: &Path, file: File) -> Result<Self, TargetDiskError> {
        let mut memory = DiskMemory::new(2 * Superblock::BYTES)?;
        let (one, other) = memory.bytes().split_at_mut(Superblock::BYTES);
        let other = &mut other[..Superblock::BYTES];
        let [one_at, other_at] = Superblock::COPIES_AT;
        let is_read = [
            file.read_exact_at(one, one_at).is_ok(),
            file.read_exact_at(other, other_at).is_ok(),
        ];
        let copies = [is_read[0].then_some(&*one), is_read[1].then_some(&*other)];
        let (superblock, damaged) =
            Superblock::read(copies).map_err(|source| TargetDiskError::Superblock {
                path: path.to_owned(),
                source,
            })?;
        let formatted = superblock.geometry().total_bytes();
        let bytes = length(&file, path)?;
        if bytes < formatted {
            return Err(TargetDiskError::Shrunk {
                path: path.to_owned(),
                bytes,
                formatted,
            });
        }
        if let Some(copy) = damaged {
            let room = &mut memory.bytes()[..copy.bytes.len()];
            room.copy_from_slice(&copy.bytes);
            let written = file
                .write_all_at(room, copy.at)
                .and_then(|()| file.sync_data());
            written.map_err(failed("repair", path))?;
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            superblock,
        })
    }

    /// Which target it is.
    #[must_use]
    pub fn uuid(&self) -> u128 {
        self.superblock.uuid()
    }

    /// How it is laid out.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        self.superblock.geometry()
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The store on it.
    pub fn recover(&self) -> Result<(ChunkStore, RecoverySummary), TargetDiskError> {
        let wrong = |source| TargetDiskError::Recovery {
            path: self.path.clone(),
            source,
        };
        let geometry = self.geometry();
        let largest = geometry.segment_bytes.max(geometry.block_bytes);
        let mut memory = DiskMemory::new(largest as usize)?;
        let mut recovery = StoreRecovery::new(self.superblock, false);
        loop {
            match recovery.step() {
                RecoveryStep::Read { at, bytes } => {
                    let room = &mut memory.bytes()[..bytes];
                    // What cannot be read is lost, and the recovery goes on without it.
                    let is_read = self.file.read_exact_at(room, at).is_ok();
                    recovery.read(is_read.then_some(&*room)).map_err(wrong)?;
                }
                RecoveryStep::Write { at, bytes } => {
                    let room = &mut memory.bytes()[..bytes.len()];
                    room.copy_from_slice(bytes);
                    self.write(room, at).map_err(failed("write", &self.path))?;
                    recovery.done().map_err(wrong)?;
                }
                RecoveryStep::Flush => {
                    self.flush().map_err(failed("flush", &self.path))?;
                    recovery.done().map_err(wrong)?;
                }
                RecoveryStep::Finish => return recovery.finish().map_err(wrong),
            }
        }
    }

    /// Reads whole sectors into [memory](DiskMemory) that a disk reads into.
    pub fn read(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        self.file.read_exact_at(into, at)
    }

    /// Writes whole sectors from such memory.
    pub fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, at)
    }

    /// What was written before outlives a power cut.
    pub fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> TargetDiskError {
    let path = path.to_owned();
    move |source| TargetDiskError::System {
        doing,
        path,
        source,
    }
}

/// Opens for direct reads and writes, for this process alone.
fn open(path: &Path) -> Result<File, TargetDiskError> {
    let flags = OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .open(path)
        .map_err(failed("open", path))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(TargetDiskError::InUse {
            path: path.to_owned(),
        }),
        Err(error) => Err(failed("lock", path)(error.into())),
    }
}

fn is_blank(device: &File, path: &Path) -> Result<bool, TargetDiskError> {
    let mut memory = DiskMemory::new(BLANK_BYTES)?;
    let room = &mut memory.bytes()[..BLANK_BYTES];
    device
        .read_exact_at(room, 0)
        .map_err(failed("read", path))?;
    Ok(room.iter().all(|byte| *byte == 0))
}

/// Of a file or a device.
fn length(file: &File, path: &Path) -> Result<u64, TargetDiskError> {
    let end = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0));
    end.map_err(|error| failed("measure", path)(error.into()))
}

fn free_bytes(path: &Path) -> Result<u64, TargetDiskError> {
    let stat = rustix::fs::statvfs(path);
    let stat = stat.map_err(|error| failed("measure", path)(error.into()))?;
    Ok(stat.f_bavail * stat.f_frsize)
}

/// How a disk of so many bytes is laid out.
fn layout(path: &Path, file: &File, bytes: u64, uuid: u128) -> Result<Superblock, TargetDiskError> {
    if bytes < LEAST_BYTES {
        let path = path.to_owned();
        return Err(TargetDiskError::Small { path, bytes });
    }
    let journal = bytes / JOURNAL_SHARE;
    let segment = (journal / SEGMENTS).clamp(64 << 10, 16 << 20) / 4096 * 4096;
    let segments = (journal / segment).clamp(16, 65_536);
    let around = (256 << 10) + segments * segment + u64::from(BLOCK_BYTES);
    let blocks = (bytes - around) / u64::from(BLOCK_BYTES);
    let geometry = Geometry {
        sector_bytes: sector_bytes(file, path)?,
        block_bytes: BLOCK_BYTES,
        blocks: u32::try_from(blocks).unwrap_or(u32::MAX - 1),
        segments: segments as u32,
        segment_bytes: segment as u32,
    };
    Superblock::new(geometry, uuid).map_err(|source| TargetDiskError::Geometry {
        path: path.to_owned(),
        source,
    })
}

/// What direct reads and writes have to be multiples of.
fn sector_bytes(file: &File, path: &Path) -> Result<u32, TargetDiskError> {
    // A file has to have something that can be read; a device is long enough.
    if length(file, path)? < 4096 {
        rustix::fs::ftruncate(file, 4096).map_err(|error| failed("measure", path)(error.into()))?;
    }
    let mut memory = DiskMemory::new(4096)?;
    match file.read_at(&mut memory.bytes()[..512], 0) {
        Ok(_) => Ok(512),
        Err(_) => Ok(4096),
    }
}

fn write_format(file: &File, path: &Path, superblock: &Superblock) -> Result<(), TargetDiskError> {
    for write in superblock.format() {
        let mut memory = DiskMemory::new(write.bytes.len())?;
        let room = &mut memory.bytes()[..write.bytes.len()];
        room.copy_from_slice(&write.bytes);
        file.write_all_at(room, write.at)
            .map_err(failed("format", path))?;
    }
    file.sync_all().map_err(failed("flush", path))
}
