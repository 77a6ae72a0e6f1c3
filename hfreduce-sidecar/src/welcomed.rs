//! Which processes of this node a sidecar has welcomed, as files in the run directory. A sidecar that starts in its place
//! finds there whom it has to wait for, and that nobody else was told anything.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use wire::run_dir;

/// The list of the welcomed.
#[derive(Clone, Debug)]
pub struct Welcomed {
    dir: PathBuf,
}

impl Welcomed {
    /// The list in this run directory; empty if there is none yet.
    pub fn open(run_dir: &Path) -> io::Result<Self> {
        let dir = run_dir.join(run_dir::WELCOMED);
        match fs::create_dir(&dir) {
            Ok(()) => Ok(Self { dir }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Self { dir }),
            Err(error) => Err(error),
        }
    }

    /// The local ranks below `local` that are on it.
    pub fn ranks(&self, local: usize) -> io::Result<BTreeSet<usize>> {
        let mut ranks = BTreeSet::new();
        for rank in 0..local {
            if self.file(rank).try_exists()? {
                ranks.insert(rank);
            }
        }
        Ok(ranks)
    }

    /// Puts a local rank on it, before it is welcomed.
    pub fn note(&self, rank: usize) -> io::Result<()> {
        // Never through a link that a process has put there.
        let new = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(self.file(rank));
        match new {
            Ok(_empty) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes one off that has left without having called anything.
    pub fn strike(&self, rank: usize) -> io::Result<()> {
        match fs::remove_file(self.file(rank)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn file(&self, rank: usize) -> PathBuf {
        self.dir.join(rank.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_sidecar_finds_who_was_welcomed_and_has_not_left() {
        let dir = tempfile::tempdir().unwrap();
        let list = Welcomed::open(dir.path()).unwrap();
        assert!(list.ranks(8).unwrap().is_empty());
        for rank in [5, 0, 7, 5] {
            list.note(rank).unwrap();
        }
        list.strike(0).unwrap();
        list.strike(1).unwrap();
        let next = Welcomed::open(dir.path()).unwrap();
        assert_eq!(next.ranks(8).unwrap(), BTreeSet::from([5, 7]));
        assert_eq!(next.ranks(6).unwrap(), BTreeSet::from([5]));
    }
}
