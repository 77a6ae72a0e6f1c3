//! Programs of I/O that run in processes of their own: whoever starts programs or serves a mount has no file of a mount
//! open. Each prints one line of JSON.

mod blocks;
mod commits;
mod front;
mod relay;
mod small;

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::fs::OFlags;
use serde_json::Value;

pub(super) use blocks::BLOCK_BYTES;
pub(super) use front::FILE_NAME;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Part {
    /// Writes a file in blocks of 1 MiB with O_DIRECT.
    Write(blocks::WholeFile),
    /// Reads what `write` has written.
    Read(blocks::WholeFile),
    /// Writes 4 KiB and calls fsync, again and again.
    Sync(small::Repeated),
    /// Creates empty files in a new folder.
    Create(small::Repeated),
    /// Writes 4 KiB to each of several files at once, with O_DIRECT and fdatasync, again and again.
    Commits(commits::Commits),
    /// Sends 4 KiB over a chain of relays and waits for the answer, again and again.
    Hops(relay::Hops),
    /// Takes blocks, sends them on and writes them.
    Relay(relay::Relay),
    /// Mounts a file that lies behind relays.
    Front(front::Front),
}

impl Part {
    pub(crate) fn run(self) -> Result<()> {
        let done: Value = match self {
            Self::Write(file) => blocks::write(&file)?,
            Self::Read(file) => blocks::read(&file)?,
            Self::Sync(repeated) => small::sync(&repeated)?,
            Self::Create(repeated) => small::create(&repeated)?,
            Self::Commits(commits) => commits::run(&commits)?,
            Self::Hops(hops) => relay::hops(&hops)?,
            Self::Relay(relay) => return relay::run(&relay),
            Self::Front(front) => return front::run(&front),
        };
        println!("{done}");
        Ok(())
    }
}

/// Opens a file for direct reads and writes.
fn open_direct(path: &Path) -> Result<File> {
    let opened = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(OFlags::DIRECT.bits().cast_signed())
        .open(path);
    opened.with_context(|| format!("failed to open {} with O_DIRECT", path.display()))
}

/// Memory that direct reads and writes take: it begins at a page.
struct AlignedBuffer {
    memory: Vec<u8>,
    from: usize,
    length: usize,
}

impl AlignedBuffer {
    const PAGE_BYTES: usize = 4096;

    fn new(length: usize) -> Self {
        let memory = vec![0; length + Self::PAGE_BYTES];
        let from = memory.as_ptr().align_offset(Self::PAGE_BYTES);
        Self {
            memory,
            from,
            length,
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.from..self.from + self.length]
    }
}

/// Fills memory with bytes that no disk and no network makes smaller.
fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in bytes.chunks_mut(size_of::<u64>()) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::{AlignedBuffer, fill};

    #[test]
    fn memory_begins_at_a_page_and_its_content_does_not_repeat() {
        let mut buffer = AlignedBuffer::new(1 << 16);
        let bytes = buffer.bytes();
        assert_eq!(bytes.as_ptr() as usize % AlignedBuffer::PAGE_BYTES, 0);
        fill(bytes, 7);
        let (one, other) = bytes.split_at(1 << 15);
        assert_ne!(one, other);
        let mut again = vec![0; 1 << 16];
        fill(&mut again, 7);
        assert_eq!(again, bytes);
    }
}
