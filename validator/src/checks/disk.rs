//! Whether the disk under a folder, or the claim of the run, gives back what was written, and how
//! fast: a file of known data, written and read in order, past the page cache where the file system
//! can. Each sector names its place, so that one that lies elsewhere is known for what it is.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use health::{Check, CheckResult};
use rustix::fs::{Advice, OFlags, fadvise, fstatvfs};

use super::{BitFlip, CheckContext, measured, wrong};
use crate::log;
use crate::results::failed;

/// Least and most that is written.
const LEAST_BYTES: u64 = 64 << 20;
const MOST_BYTES: u64 = 1 << 30;
/// Part of the free space that may be used.
const SPACE_SHARE: u64 = 4;
/// What goes to the disk at once.
const BLOCK_BYTES: usize = 4 << 20;
/// What direct IO and every disk can do in one.
const SECTOR_BYTES: usize = 4096;
const WORD_BYTES: usize = 8;

pub(super) fn run(context: &CheckContext<'_>) -> anyhow::Result<Vec<CheckResult>> {
    let Some(claim) = context.claim else {
        return folder(context, context.scratch, "");
    };
    let half = CheckContext {
        budget: context.budget / 2,
        ..*context
    };
    let mut results = folder(&half, half.scratch, "")?;
    // What is wrong with the claim says nothing about the node's own disk.
    let of_claim = folder(&half, claim, "claim ");
    results.extend(of_claim.unwrap_or_else(|error| {
        let error = failed(Check::Disk, format!("{error:#}"));
        vec![CheckResult {
            device: "claim".to_owned(),
            ..error
        }]
    }));
    Ok(results)
}

/// One folder, whose devices begin with a prefix.
fn folder(
    context: &CheckContext<'_>,
    folder: &Path,
    prefix: &str,
) -> anyhow::Result<Vec<CheckResult>> {
    let device = |name: &str| format!("{prefix}{name}");
    let mut scratch = Scratch::create(folder)?;
    let space = fstatvfs(&scratch.file).context("failed to ask for free space")?;
    let free = space.f_bavail.saturating_mul(space.f_frsize) / SPACE_SHARE;
    if free < LEAST_BYTES {
        let folder = folder.display();
        bail!("failed to have space in {folder}: a quarter of what is free is {free} bytes");
    }
    let most = free.min(MOST_BYTES);
    let mut buffer = Buffer::new();
    let (bytes, write) = scratch.write(&mut buffer, most, context.budget / 2)?;
    log(&format!(
        "{} MiB on disk, direct: {}",
        bytes >> 20,
        scratch.direct
    ));
    if let Some(fault) = context.fault {
        scratch.spoil(fault)?;
    }
    Ok(
        match scratch.read(&mut buffer, bytes, context.budget / 2)? {
            Err(detail) => vec![wrong(Check::Disk, device("read"), detail)],
            Ok((read_bytes, read)) => vec![
                measured(Check::Disk, device("write"), rate(bytes, write)),
                measured(Check::Disk, device("read"), rate(read_bytes, read)),
            ],
        },
    )
}

/// In GB/s.
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / time.as_nanos().max(1) as f64
}

/// A file without a name: it goes with this process.
struct Scratch {
    file: File,
    direct: bool,
}

impl Scratch {
    fn create(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(format!("validator-{}", std::process::id()));
        let create = |flags: OFlags| {
            let flags = i32::try_from(flags.bits()).unwrap_or_default();
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true).truncate(true);
            options.custom_flags(flags).open(&path)
        };
        let direct = create(OFlags::DIRECT);
        let is_direct = direct.is_ok();
        let file = direct
            .or_else(|_| create(OFlags::empty()))
            .with_context(|| format!("failed to create a file in {}", folder.display()))?;
        std::fs::remove_file(&path).context("failed to remove the file's name")?;
        let direct = is_direct;
        Ok(Self { file, direct })
    }

    /// Writes until the time is over, but not less or more than the bounds.
    fn write(
        &mut self,
        buffer: &mut Buffer,
        most: u64,
        budget: Duration,
    ) -> anyhow::Result<(u64, Duration)> {
        let (mut bytes, mut time) = (0, Duration::ZERO);
        while bytes < LEAST_BYTES || (time < budget && bytes < most) {
            fill(buffer.block(), bytes);
            let started = Instant::now();
            let wrote = self.file.write_all(buffer.block());
            wrote.with_context(|| format!("failed to write at offset {bytes}"))?;
            time += started.elapsed();
            bytes += BLOCK_BYTES as u64;
        }
        let started = Instant::now();
        self.file.sync_all().context("failed to flush")?;
        fadvise(&self.file, 0, None, Advice::DontNeed).context("failed to drop the page cache")?;
        Ok((bytes, time + started.elapsed()))
    }

    /// Reads and compares until the time is over, but not less than the bound; or says what is
    /// wrong.
    fn read(
        &mut self,
        buffer: &mut Buffer,
        most: u64,
        budget: Duration,
    ) -> anyhow::Result<Result<(u64, Duration), String>> {
        self.file.rewind()?;
        let (mut bytes, mut time) = (0, Duration::ZERO);
        while bytes < most && (bytes < LEAST_BYTES || time < budget) {
            let started = Instant::now();
            let read = self.file.read_exact(buffer.block());
            read.with_context(|| format!("failed to read at offset {bytes}"))?;
            time += started.elapsed();
            if let Err(detail) = compare(buffer.block(), bytes) {
                return Ok(Err(detail));
            }
            bytes += BLOCK_BYTES as u64;
        }
        if bytes < most {
            log(&format!("{} MiB of them were read in time", bytes >> 20));
        }
        Ok(Ok((bytes, time)))
    }

    /// Flips a bit of what is on disk.
    fn spoil(&mut self, fault: BitFlip) -> io::Result<()> {
        let sector = fault.at / SECTOR_BYTES as u64 * SECTOR_BYTES as u64;
        let mut buffer = Buffer::new();
        let bytes = &mut buffer.block()[..SECTOR_BYTES];
        self.file.seek(io::SeekFrom::Start(sector))?;
        self.file.read_exact(bytes)?;
        let at = usize::try_from(fault.at - sector).unwrap_or_default();
        bytes[at + fault.bit as usize / 8] ^= 1 << (fault.bit % 8);
        self.file.seek(io::SeekFrom::Start(sector))?;
        self.file.write_all(bytes)
    }
}

/// A block at an address that direct IO takes.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new() -> Self {
        let bytes = vec![0; BLOCK_BYTES + SECTOR_BYTES];
        let start = bytes.as_ptr().align_offset(SECTOR_BYTES).min(SECTOR_BYTES);
        Self { bytes, start }
    }

    fn block(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + BLOCK_BYTES]
    }
}

/// The word at a place: the place itself at the start of a sector, else bits without order.
fn word(offset: u64) -> u64 {
    match offset.is_multiple_of(SECTOR_BYTES as u64) {
        true => offset,
        false => (offset | 1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_right(23),
    }
}

fn fill(block: &mut [u8], offset: u64) {
    let places = (offset..).step_by(WORD_BYTES);
    for (place, bytes) in places.zip(block.chunks_exact_mut(WORD_BYTES)) {
        bytes.copy_from_slice(&word(place).to_le_bytes());
    }
}

fn compare(block: &[u8], offset: u64) -> Result<(), String> {
    let places = (offset..).step_by(WORD_BYTES);
    for (place, bytes) in places.zip(block.chunks_exact(WORD_BYTES)) {
        let expected = word(place).to_le_bytes();
        if bytes != expected {
            let (expected, got) = (hex(&expected), hex(bytes));
            return Err(format!("offset {place:#x}: expected {expected}, got {got}"));
        }
    }
    Ok(())
}

/// The bytes as they lie there.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{small, values, wrongs};
    use super::*;

    #[test]
    fn a_disk_has_two_rates_and_no_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let values = values(Check::Disk, &small(folder.path()));
        let devices: Vec<_> = values.iter().map(|(device, _)| device.as_str()).collect();
        assert_eq!(devices, ["write", "read"]);
        assert!(values.iter().all(|(_, rate)| *rate > 0.0), "{values:?}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_claim_is_measured_beside_the_disk_and_does_not_hide_it() {
        let (disk, claim) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let of = |claim| CheckContext {
            claim: Some(claim),
            ..small(disk.path())
        };
        let devices = |context: &CheckContext<'_>| {
            let results = run(context).unwrap();
            let devices = results.into_iter().map(|result| result.device);
            devices.collect::<Vec<_>>()
        };
        let both = ["write", "read", "claim write", "claim read"];
        assert_eq!(devices(&of(claim.path())), both);
        let broken = ["write", "read", "claim"];
        assert_eq!(devices(&of(Path::new("/nowhere"))), broken);
    }

    #[test]
    fn a_flipped_bit_is_found_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let fault = Some(BitFlip {
            at: 0x20_1008,
            bit: 1,
        });
        let context = CheckContext {
            fault,
            ..small(folder.path())
        };
        let wrongs = wrongs(Check::Disk, &context);
        let expected = word(0x20_1008).to_le_bytes();
        let mut got = expected;
        got[0] ^= 2;
        let (expected, got) = (hex(&expected), hex(&got));
        let detail = format!("offset 0x201008: expected {expected}, got {got}");
        assert_eq!(wrongs, [("read".to_owned(), detail)]);
    }

    #[test]
    fn a_folder_that_is_not_there_is_an_error() {
        let error = run(&small(Path::new("/nowhere"))).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("failed to create a file in /nowhere")
        );
    }
}
