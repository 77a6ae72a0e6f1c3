//! Files and directories that programs of this mount have open. What a handle has written and not yet said is no more than the
//! chunks and the bound in its record say: whoever comes after this process can find it out.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuse::request::FileHandle;
use metadata::{FileLayout, InodeNumber, ListedName, OpenedFile, Written};

/// How old the time of a change may become that is not said although it was synced: nothing but it has changed.
const TIME_STEP_NS: i64 = 1_000_000_000;

/// How far a handle has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// How often bytes of the file were cut off, as this mount knows it.
    pub(crate) cut: u64,
    /// Up to where it may write; none if it only reads.
    pub(crate) bound: Option<u64>,
    /// What was written since the last sync.
    pub(crate) written: Option<Written>,
    /// Writes that have begun.
    pub(crate) writes: u64,
    /// Of the file, as far as is known here.
    pub(crate) size: u64,
    /// The time of the last change that was said.
    pub(crate) said_ns: i64,
}

impl Progress {
    /// Whether a sync has something to say. Bytes are on all replicas once they are written; what is left is the file's length,
    /// and a time that is said now and then, and when the file is closed.
    pub(crate) fn needs_sync(&self) -> bool {
        self.written.is_some_and(
            |Written {
                 length, mtime_ns, ..
             }| {
                length > self.size || mtime_ns >= self.said_ns.saturating_add(TIME_STEP_NS)
            },
        )
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) number: u64,
    pub(crate) inode: InodeNumber,
    pub(crate) layout: FileLayout,
    progress: Mutex<Progress>,
    /// Held while its progress is said to others.
    pub(crate) saying: tokio::sync::Mutex<()>,
}

impl OpenFile {
    pub(crate) fn progress(&self) -> MutexGuard<'_, Progress> {
        // Nothing that holds it panics.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A write up to `end` begins, if it may. Once it has begun, its length is part of the file's.
    pub(crate) fn begin_write(&self, end: u64, now_ns: i64) -> bool {
        let mut progress = self.progress();
        if progress.bound.is_none_or(|bound| bound < end) {
            return false;
        }
        let cut = progress.cut;
        let written = progress.written.get_or_insert(Written {
            length: 0,
            cut,
            mtime_ns: now_ns,
        });
        written.length = written.length.max(end);
        written.mtime_ns = written.mtime_ns.max(now_ns);
        progress.writes += 1;
        true
    }

    /// What was written was said; what was written since is not.
    pub(crate) fn said(&self, said: &Progress, size: u64, cut: u64) {
        let mut progress = self.progress();
        progress.size = size;
        if let Some(written) = said.written {
            progress.said_ns = written.mtime_ns;
        }
        if progress.writes == said.writes {
            progress.written = None;
            progress.cut = cut;
        }
    }

    /// Bytes were cut off since. This is what the chunks say is left.
    pub(crate) fn restart(&self, cut: u64, length: u64) {
        let mut progress = self.progress();
        progress.cut = cut;
        if let Some(written) = &mut progress.written {
            written.length = length;
            written.cut = cut;
        }
    }
}

/// An open directory: what was listed of it so far, so that a list goes on where it was.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) names: Vec<ListedName>,
    pub(crate) is_whole: bool,
}

/// A directory that is open.
#[derive(Debug, Default)]
pub(crate) struct OpenDirectory {
    pub(crate) listing: tokio::sync::Mutex<Listing>,
}

/// The last number of a handle: mounts of one process are one to the metadata service.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// All that is open.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    files: Mutex<BTreeMap<u64, Arc<OpenFile>>>,
    directories: Mutex<BTreeMap<u64, Arc<OpenDirectory>>>,
}

impl OpenFiles {
    /// A number that no handle of this process had.
    pub(crate) fn number(&self) -> u64 {
        LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<OpenFile>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn directories(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<OpenDirectory>>> {
        self.directories
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A file was opened.
    pub(crate) fn open(
        &self,
        number: u64,
        opened: &OpenedFile,
        layout: FileLayout,
    ) -> Arc<OpenFile> {
        let progress = Progress {
            cut: opened.attributes.cut,
            bound: opened.bound,
            written: None,
            writes: 0,
            size: opened.attributes.size,
            said_ns: i64::MIN,
        };
        let file = Arc::new(OpenFile {
            number,
            inode: opened.attributes.inode,
            layout,
            progress: Mutex::new(progress),
            saying: tokio::sync::Mutex::default(),
        });
        self.files().insert(number, Arc::clone(&file));
        file
    }

    pub(crate) fn file(&self, handle: FileHandle) -> Option<Arc<OpenFile>> {
        self.files().get(&handle.0).cloned()
    }

    pub(crate) fn close(&self, handle: FileHandle) -> Option<Arc<OpenFile>> {
        self.files().remove(&handle.0)
    }

    /// Handles of a file.
    pub(crate) fn of(&self, inode: InodeNumber) -> Vec<Arc<OpenFile>> {
        let files = self.files();
        let of = files.values().filter(|file| file.inode == inode);
        of.cloned().collect()
    }

    pub(crate) fn open_directory(&self) -> FileHandle {
        let number = self.number();
        self.directories().insert(number, Arc::default());
        FileHandle(number)
    }

    pub(crate) fn directory(&self, handle: FileHandle) -> Option<Arc<OpenDirectory>> {
        self.directories().get(&handle.0).cloned()
    }

    pub(crate) fn close_directory(&self, handle: FileHandle) {
        self.directories().remove(&handle.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{Progress, TIME_STEP_NS, Written};

    #[test]
    fn a_sync_says_a_length_at_once_and_a_time_now_and_then() {
        let after = |length, mtime_ns| Progress {
            cut: 0,
            bound: Some(1 << 20),
            written: Some(Written {
                length,
                cut: 0,
                mtime_ns,
            }),
            writes: 1,
            size: 4096,
            said_ns: 1000,
        };
        let says = |progress: Progress| progress.needs_sync();
        assert!(says(after(4097, 1001)), "it is longer");
        assert!(!says(after(4096, 1001)), "only its time has changed");
        assert!(says(after(4096, 1000 + TIME_STEP_NS)), "long ago");
        let nothing = Progress {
            written: None,
            ..after(0, 0)
        };
        assert!(!says(nothing));
        let first = Progress {
            said_ns: i64::MIN,
            ..after(1, 5)
        };
        assert!(says(first), "nothing was said before");
    }
}
