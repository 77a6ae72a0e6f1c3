//! Which processes of this node are attached to its sidecar, and which have called and left, as files in the run directory.
//! A sidecar that starts in its place finds there which ranks it has to wait for, and how far the results were delivered to those that do not come back.
//! Other processes may write there too: what is no record counts as that of one to wait for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::limits::RECORD_LIMIT_BYTES;
use collective::session::Departed;
use contract::run_dir;
use hfreduce_client::attach::{GROUP_LIMIT, OPERATION_LIMIT};
use serde::{Deserialize, Serialize};
use tracing::warn;

/// The record of attached processes.
#[derive(Clone, Debug)]
pub struct AttachedRanks {
    dir: PathBuf,
}

/// What a sidecar finds that starts in place of another.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttachedBefore {
    /// Local ranks that come back.
    pub awaited: BTreeSet<usize>,
    /// Local ranks that have called and do not come back.
    pub left: BTreeMap<usize, Departed>,
}

/// What became of a process that was attached.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Record {
    Attached,
    Left(Departed),
}

impl AttachedRanks {
    /// The record in this run directory; empty if there is none yet.
    pub fn open(run_dir: &Path) -> io::Result<Self> {
        let dir = run_dir.join(run_dir::ATTACHED_RANKS);
        match fs::create_dir(&dir) {
            Ok(()) => Ok(Self { dir }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(Self { dir }),
            Err(error) => Err(error),
        }
    }

    /// The local ranks below `local` that are in it.
    #[must_use]
    pub fn find(&self, local: usize) -> AttachedBefore {
        let mut found = AttachedBefore::default();
        for rank in 0..local {
            match self.read(rank) {
                Ok(None) => continue,
                Ok(Some(Record::Left(left))) if is_possible(&left) => {
                    found.left.insert(rank, left);
                    continue;
                }
                Ok(Some(Record::Attached)) => {}
                Ok(Some(Record::Left(_))) => {
                    warn!(
                        local_rank = rank,
                        "the record of a process that left cannot be true: waiting for it"
                    );
                }
                Err(error) => {
                    warn!(%error, local_rank = rank, "no record of a process: waiting for it");
                }
            }
            found.awaited.insert(rank);
        }
        found
    }

    fn read(&self, rank: usize) -> Result<Option<Record>, run_dir::Error> {
        run_dir::read_if_any(&self.file(rank), RECORD_LIMIT_BYTES)
    }

    /// Notes that a local rank attaches, before the attachment is acknowledged.
    pub fn note(&self, rank: usize) -> Result<(), run_dir::Error> {
        run_dir::write(&self.file(rank), &Record::Attached)
    }

    /// Notes that one has called and left.
    pub fn note_left(&self, rank: usize, left: Departed) -> Result<(), run_dir::Error> {
        run_dir::write(&self.file(rank), &Record::Left(left))
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

fn is_possible(left: &Departed) -> bool {
    let groups = left.groups.iter().map(|group| group.delivered);
    let mut far = groups.chain([left.delivered]);
    far.all(|delivered| delivered < OPERATION_LIMIT) && left.groups.len() <= GROUP_LIMIT
}

#[cfg(test)]
mod tests {
    use collective::machine::OpId;
    use collective::session::Remembered;

    use super::*;

    fn left(delivered: OpId) -> Departed {
        let group = Remembered {
            group: 7,
            ranks: vec![0, 5],
            replicated: true,
            priority: 0,
            delivered: 3,
            closed: false,
            failed: false,
        };
        Departed {
            delivered,
            groups: vec![group],
        }
    }

    #[test]
    fn the_next_sidecar_finds_who_is_attached_and_what_was_delivered_to_those_who_left() {
        let dir = tempfile::tempdir().unwrap();
        let record = AttachedRanks::open(dir.path()).unwrap();
        assert_eq!(record.find(8), AttachedBefore::default());
        for rank in [5, 0, 7, 5, 2] {
            record.note(rank).unwrap();
        }
        record.strike(0).unwrap();
        record.strike(1).unwrap();
        record.note_left(2, left(9)).unwrap();
        let next = AttachedRanks::open(dir.path()).unwrap();
        let found = next.find(8);
        assert_eq!(found.awaited, BTreeSet::from([5, 7]));
        assert_eq!(found.left, BTreeMap::from([(2, left(9))]));
        assert_eq!(next.find(6).awaited, BTreeSet::from([5]));
    }

    #[test]
    fn who_has_no_record_that_can_be_true_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let record = AttachedRanks::open(dir.path()).unwrap();
        let path = |rank: usize| {
            dir.path()
                .join(run_dir::ATTACHED_RANKS)
                .join(rank.to_string())
        };
        record.note_left(0, left(9)).unwrap();
        let whole = fs::read(path(0)).unwrap();
        for torn in 0..whole.len() {
            fs::write(path(0), &whole[..torn]).unwrap();
            assert_eq!(record.find(1).awaited, BTreeSet::from([0]), "{torn} bytes");
        }
        record.note_left(0, left(OPERATION_LIMIT)).unwrap();
        fs::write(path(1), r#"{"gone":{}}"#).unwrap();
        fs::write(path(2), vec![b' '; RECORD_LIMIT_BYTES as usize + 1]).unwrap();
        std::os::unix::fs::symlink("/dev/null", path(3)).unwrap();
        let found = record.find(4);
        assert_eq!(found.awaited, BTreeSet::from([0, 1, 2, 3]));
        assert!(found.left.is_empty());
    }
}
