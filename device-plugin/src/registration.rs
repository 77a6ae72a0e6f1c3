//! When to open our socket, to register and to start over. A step function: what is in the plugin
//! folder and what we hold go in, the next step comes out. `plugin` does what it says.
//!
//! A kubelet that starts removes every socket in the folder, then makes its own. Whether a plugin
//! is in use shows in one thing only: somebody follows its ListAndWatch. A kubelet that loses one
//! stream of a plugin drops the plugin even if it has registered again meanwhile, so an answered
//! registration is not the end: with nobody following, it is repeated.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use crate::limits::CONFIRM_WITHIN;

/// First wait after a failed registration or a lost stream; it doubles with each in a row.
pub const RETRY_FIRST: Duration = Duration::from_millis(200);
/// Longest wait between registrations.
pub const RETRY_LONGEST: Duration = Duration::from_secs(5);
/// A stream that lived this long was no failed registration.
pub const SETTLED_AFTER: Duration = Duration::from_secs(10);

/// Which file a path led to. A file that was removed and made anew has another identity even if
/// the file system gives it the same inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl From<&Metadata> for FileIdentity {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What is in the plugin folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FolderContents {
    /// The folder was deleted while we have it mounted: no kubelet will ever show up in it.
    pub folder_deleted: bool,
    /// The kubelet's socket.
    pub kubelet: Option<FileIdentity>,
    /// What lies at the path of our socket.
    pub socket: Option<FileIdentity>,
}

/// What we hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegistrationState {
    socket: Option<FileIdentity>,
    streams: usize,
    last: Option<Attempt>,
    in_a_row: u32,
    failing: bool,
    not_before: Option<Instant>,
}

/// The last registration that was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Attempt {
    kubelet: FileIdentity,
    at: Instant,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationStep {
    /// Open a socket and serve on it.
    Open,
    /// Stop serving: our socket is gone from the folder.
    Close,
    /// Register with this kubelet.
    Register(FileIdentity),
    /// Look again when something changes, at the latest then.
    Wait(Option<Instant>),
    /// Give up, so that whoever runs us mounts the folder that is there now.
    Leave,
}

impl RegistrationState {
    /// What to do next.
    pub fn next(&self, seen: &FolderContents, now: Instant) -> RegistrationStep {
        if seen.folder_deleted {
            return RegistrationStep::Leave;
        }
        if self.socket.is_some() && self.socket != seen.socket {
            return RegistrationStep::Close;
        }
        let Some(kubelet) = seen.kubelet else {
            return RegistrationStep::Wait(None);
        };
        let known = self.last.is_some_and(|last| last.kubelet == kubelet);
        if known && self.socket.is_some() && self.streams > 0 {
            return RegistrationStep::Wait(None);
        }
        match self.not_before {
            Some(at) if known && now < at => RegistrationStep::Wait(Some(at)),
            Some(_) | None if self.socket.is_none() => RegistrationStep::Open,
            Some(_) | None => RegistrationStep::Register(kubelet),
        }
    }

    /// We serve on a new socket.
    pub fn opened(&mut self, socket: FileIdentity) {
        self.socket = Some(socket);
        self.streams = 0;
        self.not_before = None;
    }

    /// No socket could be opened while this kubelet was there.
    pub fn open_failed(&mut self, kubelet: Option<FileIdentity>, now: Instant) {
        if let Some(kubelet) = kubelet {
            self.attempted(kubelet, now);
            self.not_before = Some(now + self.delay());
        }
    }

    /// We no longer serve.
    pub fn closed(&mut self) {
        self.socket = None;
        self.streams = 0;
    }

    /// Whether the last registration that was tried failed.
    pub fn failing(&self) -> bool {
        self.failing
    }

    /// The kubelet answered our registration.
    pub fn registered(&mut self, kubelet: FileIdentity, now: Instant) {
        self.attempted(kubelet, now);
        self.failing = false;
        self.not_before = Some(now + CONFIRM_WITHIN);
    }

    /// The kubelet did not answer, or refused.
    pub fn refused(&mut self, kubelet: FileIdentity, now: Instant) {
        self.attempted(kubelet, now);
        self.failing = true;
        self.not_before = Some(now + self.delay());
    }

    /// So many streams follow us now.
    pub fn followed(&mut self, streams: usize, now: Instant) {
        let lost = self.streams > 0 && streams == 0;
        self.streams = streams;
        if streams > 0 {
            self.not_before = None;
        }
        if lost {
            if self.last.is_some_and(|last| now >= last.at + SETTLED_AFTER) {
                self.in_a_row = 0;
            }
            self.not_before = Some(now + self.delay());
        }
    }

    fn attempted(&mut self, kubelet: FileIdentity, now: Instant) {
        if self.last.is_none_or(|last| last.kubelet != kubelet) {
            self.in_a_row = 0;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.last = Some(Attempt { kubelet, at: now });
    }

    fn delay(&self) -> Duration {
        let doubled = 1_u32 << self.in_a_row.saturating_sub(1).min(10);
        RETRY_FIRST.saturating_mul(doubled).min(RETRY_LONGEST)
    }
}

#[cfg(test)]
#[path = "registration_tests.rs"]
mod tests;
