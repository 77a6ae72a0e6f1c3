//! The command line: what is measured, and what of the machine is there for it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};

use super::part::BLOCK_BYTES;
use super::quantity::Group;

/// Measures the file system. `cargo xtask bench storage` prepares the machine and starts it, as root.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One round, with files of 64 MiB.
    #[arg(long)]
    pub(super) quick: bool,
    /// Interleaved rounds (3; with --quick 1).
    #[arg(long)]
    rounds: Option<usize>,
    /// What has one of these words: write, read, cp, torch.save, cat, fsync, create, idle.
    #[arg(long, value_delimiter = ',', value_name = "WORDS")]
    only: Vec<String>,
    /// Longest wait for a quiet machine in a round, in seconds.
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    gate: u64,
    /// Folder on the disk that is measured.
    #[arg(long)]
    pub(super) scratch: PathBuf,
    /// Writes everything there, each round by itself.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// The program of the file system.
    #[arg(long)]
    pub(super) storage_csi: PathBuf,
    /// Etcd's program.
    #[arg(long)]
    pub(super) etcd: PathBuf,
    /// The trainer's root, with PyTorch; `!WHY` says why there is none.
    #[arg(long)]
    trainer: String,
    /// In namespaces that nobody else uses.
    #[arg(long, hide = true)]
    pub(super) inside: bool,
}

impl Args {
    pub(super) fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    pub(super) fn gate(&self) -> Duration {
        Duration::from_secs(self.gate)
    }

    /// Bytes of the files that are written and read.
    pub(super) fn file_bytes(&self) -> u64 {
        if self.quick { 64 << 20 } else { 256 << 20 }
    }

    pub(super) fn file_blocks(&self) -> u64 {
        self.file_bytes() / BLOCK_BYTES as u64
    }

    /// The trainer's root, or why there is none.
    pub(super) fn trainer(&self) -> Result<PathBuf, String> {
        match self.trainer.strip_prefix('!') {
            Some(why) => Err(why.to_owned()),
            None => Ok(PathBuf::from(&self.trainer)),
        }
    }

    /// What is measured.
    pub(super) fn groups(&self) -> Result<BTreeSet<Group>> {
        if self.only.is_empty() {
            return Ok(Group::ALL.into());
        }
        let group = |word: &String| {
            let mut all = Group::ALL.into_iter();
            match all.find(|group| group.word() == word.trim()) {
                Some(group) => Ok(group),
                None => bail!(
                    "nothing is called {word:?}: --only takes {}",
                    Group::ALL.map(Group::word).join(", ")
                ),
            }
        };
        self.only.iter().map(group).collect()
    }
}
