//! The files of `/run/fireflyer`, the small memory-backed folder that trainer and sidecar of a pod
//! share: their names, their types, and how they are written (a reader sees the old content or the
//! new one, never half of it). Who writes which file is said at its name.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use crate::limits::PROGRESS_LIMIT_BYTES;
use rustix::fs::OFlags;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use topology::{CheckpointRef, OnPeerLoss, Progress};

/// The mode of a file that its writer alone may change.
pub const READABLE: u32 = 0o644;
/// Where the folder is mounted in both containers.
pub const PATH: &str = "/run/fireflyer";
/// The sidecar's unix socket for the trainer's processes.
pub const SOCKET: &str = "hfreduce.sock";
/// The launcher, put there by the sidecar, so that any trainer image works.
pub const LAUNCHER: &str = "launcher";
/// The gang's addresses, written by the sidecar once everybody joined.
pub const ROSTER: &str = "roster.json";
/// A folder with a file for each local rank that is attached to a sidecar, or has called and left, written by it for the
/// one in its place.
pub const ATTACHED_RANKS: &str = "attached-ranks";
/// What the sidecar's engine did last, written by it when something has failed.
pub const FLIGHT_RECORDING: &str = "hfreduce-flight.json";
/// Exists when the pod was asked to stop; made by the launcher.
pub const STOP: &str = "stop";
/// Exists when nothing of this pod may run on, because others do its work or did: made by the sidecar. Holds why.
pub const VOID: &str = "void";
/// Made when the ranks are to print their stacks, and again each time: by the sidecar. Holds why.
pub const STACKS: &str = "stacks";
/// The checkpoint saved because of the stop; written by the lowest rank that is left.
pub const ACK: &str = "ack.json";
/// How far training is; written by the lowest rank that is left, forwarded by its sidecar.
pub const PROGRESS: &str = "progress.json";
/// Why a rank ends that cannot go on, where the program itself is not at fault; written by each such rank.
pub const CAUSE: &str = "cause.json";

/// The attempt's assignment in the folder of its ConfigMap.
pub const ASSIGNMENT: &str = "/etc/fireflyer/attempt/assignment.json.gz";
/// The attempt's key in the folder of its Secret.
pub const KEY: &str = "/etc/fireflyer/key/key";

/// Largest roster: 10,000 nodes at some 200 bytes each.
pub const ROSTER_LIMIT_BYTES: u64 = 4 << 20;
/// Why a file of the run directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error("failed to read {path}")]
    Read { path: PathBuf, source: io::Error },
    /// It is larger than a file of its kind can be.
    #[error("failed to read {path}: it is larger than {limit} bytes")]
    TooLarge { path: PathBuf, limit: u64 },
    /// It holds something else than expected.
    #[error("failed to parse {path}")]
    Parse {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// It could not be written.
    #[error("failed to write {path}")]
    Write { path: PathBuf, source: io::Error },
}

/// Why a program could not go on, as it says itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatedCause {
    /// What it means for the job.
    pub kind: CauseKind,
    /// What happened, for people.
    #[serde(deserialize_with = "topology::progress::text")]
    pub message: String,
}

/// What it means for a job that its program could not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CauseKind {
    /// Checkpoints exist and cannot be read now: another attempt may succeed.
    CheckpointUnavailable,
    /// Checkpoints exist and none can be loaded: no attempt will succeed.
    NoUsableCheckpoint,
}

/// The gang, as it joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Roster {
    /// The attempt it belongs to.
    pub attempt: u32,
    /// The membership inside the attempt.
    pub epoch: u64,
    /// All nodes, in rank order.
    pub nodes: Vec<RosterNode>,
    /// The port rank 0 offers to the training framework.
    pub master_port: u16,
    /// The rule for the other nodes when one is lost.
    #[serde(default)]
    pub on_peer_loss: OnPeerLoss,
}

/// One node of the gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RosterNode {
    /// Its node rank.
    pub rank: u32,
    /// Its Kubernetes name.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Its pod's address.
    pub address: IpAddr,
    /// Its sidecar's port.
    pub port: u16,
}

impl StatedCause {
    /// Reads why ranks of this node ended, if any has said so.
    pub fn read(dir: &Path) -> Result<Option<Self>, Error> {
        read_if_any(&dir.join(CAUSE), PROGRESS_LIMIT_BYTES)
    }
}

/// Reads how far training is, if a rank of this node has written that yet.
pub fn read_progress(dir: &Path) -> Result<Option<Progress>, Error> {
    read_if_any(&dir.join(PROGRESS), PROGRESS_LIMIT_BYTES)
}

/// Reads the acknowledgement, if there is one yet.
pub fn read_ack(dir: &Path) -> Result<Option<CheckpointRef>, Error> {
    read_if_any(&dir.join(ACK), PROGRESS_LIMIT_BYTES)
}

impl Roster {
    /// Reads the roster, if the gang has joined already.
    pub fn read(dir: &Path) -> Result<Option<Self>, Error> {
        read_if_any(&dir.join(ROSTER), ROSTER_LIMIT_BYTES)
    }

    /// Writes the roster.
    pub fn write(&self, dir: &Path) -> Result<(), Error> {
        write(&dir.join(ROSTER), self)
    }
}

/// Reads a file that another process may have put there, if there is any.
pub fn read_if_any<T: DeserializeOwned>(path: &Path, limit: u64) -> Result<Option<T>, Error> {
    let failed = |source| Error::Read {
        path: path.to_owned(),
        source,
    };
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(Error::TooLarge {
            path: path.to_owned(),
            limit,
        });
    }
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|source| Error::Parse {
            path: path.to_owned(),
            source,
        })
}

/// Replaces a file.
pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), Error> {
    let failed = |source| Error::Write {
        path: path.to_owned(),
        source,
    };
    let bytes = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
    put(path, &bytes, READABLE).map_err(failed)
}

/// Opens a file, and nothing else that another process of the pod may have put there: no link, and no pipe that it
/// would wait at.
fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(flags as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(file)
}

/// Puts a file in place whole, for every user to read. Never through a link that another process of the pod has put
/// there.
pub fn put(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    // One writer a file, so a name of the process's own is unique.
    let new = path.with_extension(format!("{}.new", std::process::id()));
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).open(&new)?;
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use topology::progress::TEXT_LIMIT_CHARS;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn what_is_not_written_yet_is_none_and_then_what_was_written() {
        let dir = folder();
        assert_eq!(read_progress(dir.path()).unwrap(), None);
        let progress = Progress {
            step: 120,
            loss: Some(0.25),
            checkpoint: Some(CheckpointRef {
                attempt: 1,
                step: 100,
                digest: "ab".repeat(32),
            }),
            passed_over: Some("resumed from attempt-1/step-80".to_owned()),
        };
        write(&dir.path().join(PROGRESS), &progress).unwrap();
        assert_eq!(read_progress(dir.path()).unwrap(), Some(progress));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing left");
    }

    #[test]
    fn what_is_null_in_a_progress_is_not_known() {
        let dir = folder();
        let text = r#"{"step":1,"loss":null,"checkpoint":null,"passedOver":null}"#;
        fs::write(dir.path().join(PROGRESS), text).unwrap();
        let progress = read_progress(dir.path()).unwrap().unwrap();
        assert_eq!(serde_json::to_string(&progress).unwrap(), r#"{"step":1}"#);
    }

    #[test]
    fn nothing_is_written_or_read_through_a_link_and_no_pipe_is_waited_at() {
        let dir = folder();
        let (secret, target) = (dir.path().join("secret"), dir.path().join(ACK));
        fs::write(&secret, b"before").unwrap();
        let new = target.with_extension(format!("{}.new", std::process::id()));
        for planted in [&target, &new] {
            std::os::unix::fs::symlink(&secret, planted).unwrap();
        }
        assert!(matches!(read_ack(dir.path()), Err(Error::Read { .. })));
        put(&target, b"after", READABLE).unwrap();
        assert_eq!(fs::read(&secret).unwrap(), b"before");
        assert_eq!(fs::read(&target).unwrap(), b"after");
        for planted in [&target, &new] {
            fs::remove_file(planted).ok();
            let made = std::process::Command::new("mkfifo").arg(planted).status();
            assert!(made.unwrap().success());
        }
        let error = read_ack(dir.path()).unwrap_err();
        assert!(matches!(error, Error::Read { .. }), "{error}");
        put(&target, b"again", READABLE).unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"again");
    }

    #[test]
    fn a_cause_is_read_as_the_ranks_write_it_and_a_sentence_is_bounded() {
        let dir = folder();
        assert_eq!(StatedCause::read(dir.path()).unwrap(), None);
        let write = |message: &str| {
            let cause = serde_json::json!({"kind": "NoUsableCheckpoint", "message": message});
            fs::write(dir.path().join(CAUSE), cause.to_string()).unwrap();
        };
        write("none loads");
        let cause = StatedCause::read(dir.path()).unwrap().unwrap();
        assert_eq!(
            (cause.kind, &*cause.message),
            (CauseKind::NoUsableCheckpoint, "none loads")
        );
        for wrong in ["two\nlines", &"x".repeat(TEXT_LIMIT_CHARS + 1)] {
            write(wrong);
            assert!(matches!(
                StatedCause::read(dir.path()),
                Err(Error::Parse { .. })
            ));
        }
    }

    #[test]
    fn a_file_that_is_too_large_or_wrong_is_named() {
        let dir = folder();
        fs::write(dir.path().join(ACK), vec![b' '; 5000]).unwrap();
        let error = read_ack(dir.path()).unwrap_err();
        assert!(error.to_string().contains("larger than 4096"), "{error}");
        fs::write(
            dir.path().join(ACK),
            r#"{"attempt":1,"step":2,"digest":"a b"}"#,
        )
        .unwrap();
        let error = read_ack(dir.path()).unwrap_err();
        assert!(matches!(error, Error::Parse { .. }), "{error}");
    }
}
