//! Tar files as far as images need them: folders, files, symbolic links, all owned by root and as
//! old as the epoch, so that the same content gives the same bytes. The `ustar` format of POSIX,
//! without its split of long names.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

use super::Entry;
use crate::error::{Error, ErrorContext, Result};

const BLOCK: usize = 512;
const MAX_NAME: usize = 100;
/// Eleven octal digits.
const MAX_SIZE: u64 = 0o77_777_777_777;

const REGULAR: u8 = b'0';
const SYMLINK: u8 = b'2';
const FOLDER: u8 = b'5';

/// Writes a tar file entry by entry.
#[derive(Debug)]
pub(super) struct Tar<W: Write> {
    out: W,
}

impl<W: Write> Tar<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out }
    }

    pub(super) fn folder(&mut self, path: &str, mode: u32) -> Result<()> {
        self.write(&header(&format!("{path}/"), FOLDER, mode, 0, "")?)
    }

    pub(super) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        self.write(&header(path, SYMLINK, 0o777, 0, target)?)
    }

    pub(super) fn bytes(&mut self, path: &str, mode: u32, bytes: &[u8]) -> Result<()> {
        self.stream(path, mode, bytes.len() as u64, bytes)
    }

    pub(super) fn file(&mut self, path: &str, mode: u32, source: &Path) -> Result<()> {
        let reading = || format!("failed to read {}", source.display());
        let file = File::open(source).context(reading)?;
        let size = file.metadata().context(reading)?.len();
        self.stream(path, mode, size, file)
    }

    /// Writes the two empty blocks that end a tar file.
    pub(super) fn finish(mut self) -> Result<()> {
        self.write(&[0; 2 * BLOCK])?;
        self.out
            .flush()
            .context(|| "failed to write a tar file".to_owned())
    }

    fn stream(&mut self, path: &str, mode: u32, size: u64, content: impl Read) -> Result<()> {
        self.write(&header(path, REGULAR, mode, size, "")?)?;
        let doing = || format!("failed to write {path} to a tar file");
        let copied = io::copy(&mut content.take(size), &mut self.out).context(doing)?;
        if copied != size {
            return Err(Error::new(format!(
                "{path} shrank from {size} to {copied} bytes while it was read"
            )));
        }
        let padding = (BLOCK - (size % BLOCK as u64) as usize) % BLOCK;
        self.write(&[0; BLOCK][..padding])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out
            .write_all(bytes)
            .context(|| "failed to write a tar file".to_owned())
    }
}

/// Writes the layer of an image: its entries in their order, each parent folder before its first
/// child.
pub(super) fn write_layer(target: &Path, entries: &[Entry]) -> Result<()> {
    let file = File::create(target).context(|| format!("failed to make {}", target.display()))?;
    let mut tar = Tar::new(BufWriter::new(file));
    let mut made = BTreeSet::new();
    for entry in entries {
        let (Entry::Folder { path, .. }
        | Entry::File { path, .. }
        | Entry::Text { path, .. }
        | Entry::Link { path, .. }) = entry;
        let inside = path.trim_start_matches('/');
        for (end, _) in inside.match_indices('/') {
            let parent = &inside[..end];
            if made.insert(parent.to_owned()) {
                tar.folder(parent, 0o755)?;
            }
        }
        match entry {
            Entry::Folder { mode, .. } => {
                made.insert(inside.to_owned());
                tar.folder(inside, *mode)?;
            }
            Entry::File { source, mode, .. } => tar.file(inside, *mode, source)?,
            Entry::Text { text, .. } => tar.bytes(inside, 0o644, text.as_bytes())?,
            Entry::Link { target, .. } => tar.link(inside, target)?,
        }
    }
    tar.finish()
}

fn header(name: &str, kind: u8, mode: u32, size: u64, target: &str) -> Result<[u8; BLOCK]> {
    if name.len() > MAX_NAME || target.len() > MAX_NAME || name.contains('\0') {
        return Err(Error::new(format!(
            "{name:?} -> {target:?} does not fit into a tar header"
        )));
    }
    if size > MAX_SIZE {
        return Err(Error::new(format!(
            "{name} has {size} bytes: too large for a tar header"
        )));
    }
    let mut block = [0; BLOCK];
    let mut put =
        |offset: usize, bytes: &[u8]| block[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, format!("{size:011o}").as_bytes());
    put(136, b"00000000000");
    put(148, b"        ");
    put(156, &[kind]);
    put(157, target.as_bytes());
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::super::Entry;
    use super::{Tar, header, write_layer};
    use crate::command;

    #[test]
    fn the_checksum_counts_its_own_field_as_spaces() {
        let block = header("a", b'0', 0o644, 5, "").unwrap();
        let mut blank = block;
        blank[148..156].fill(b' ');
        let sum: u32 = blank.iter().map(|byte| u32::from(*byte)).sum();
        assert_eq!(&block[148..156], format!("{sum:06o}\0 ").as_bytes());
        assert_eq!(&block[124..135], b"00000000005");
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        assert!(header(&"a".repeat(101), b'0', 0o644, 0, "").is_err());
        assert!(header("a", b'2', 0o777, 0, &"b".repeat(101)).is_err());
    }

    #[test]
    fn content_is_padded_to_whole_blocks() {
        let mut bytes = Vec::new();
        let mut tar = Tar::new(&mut bytes);
        tar.bytes("a", 0o644, b"hello").unwrap();
        tar.bytes("b", 0o644, &[7; 512]).unwrap();
        tar.finish().unwrap();
        assert_eq!(bytes.len(), 512 * (2 + 2 + 2));
        assert_eq!(&bytes[512..517], b"hello");
        assert!(bytes[517..1024].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn the_machines_tar_reads_a_layer_and_parents_come_first() {
        let folder = std::env::temp_dir().join(format!("fireflyer-tar-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let layer = folder.join("layer.tar");
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let entries = [
            Entry::File {
                path: "/usr/bin/x".into(),
                source,
                mode: 0o755,
            },
            Entry::Link {
                path: "/usr/bin/y".into(),
                target: "x".into(),
            },
            Entry::Folder {
                path: "/tmp".into(),
                mode: 0o1777,
            },
            Entry::Text {
                path: "/etc/passwd".into(),
                text: "root".into(),
            },
        ];
        write_layer(&layer, &entries).unwrap();
        let listed = command::run(Command::new("tar").arg("-tvf").arg(&layer)).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let lines: Vec<_> = listed
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .collect();
        let names: Vec<_> = lines.iter().map(|words| words[5]).collect();
        assert_eq!(
            names,
            [
                "usr/",
                "usr/bin/",
                "usr/bin/x",
                "usr/bin/y",
                "tmp/",
                "etc/",
                "etc/passwd"
            ]
        );
        assert_eq!(lines[2][0], "-rwxr-xr-x");
        assert_eq!(lines[3][6..], ["->", "x"]);
        assert_eq!(lines[4][0], "drwxrwxrwt");
    }
}
