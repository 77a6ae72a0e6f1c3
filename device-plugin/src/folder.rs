//! Notices changes in a folder, also when the folder itself goes and comes back. Owns the inotify
//! descriptor; what a change means is found out by whoever asked, by looking.

use std::io;
use std::path::{Path, PathBuf};

use futures::{FutureExt as _, StreamExt as _};
use inotify::{EventStream, Inotify, WatchDescriptor, WatchMask};

/// What is read from the kernel in one go: some hundred events.
const EVENT_BYTES: usize = 16 * 1024;

/// Why a folder could not be watched.
#[derive(Debug, thiserror::Error)]
#[error("failed to watch {path}")]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

/// A folder under watch, whether it exists or not; its parent must.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    events: EventStream<Vec<u8>>,
    watched: Option<WatchDescriptor>,
}

impl Folder {
    /// Starts watching. Changes from here on are noticed, also before the first wait.
    pub fn watch(path: &Path) -> Result<Self, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| Error { path, source }
        };
        let events = Inotify::init()
            .and_then(|inotify| inotify.into_event_stream(vec![0; EVENT_BYTES]))
            .map_err(failed(path))?;
        if let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) {
            let mask = WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE | WatchMask::ONLYDIR;
            events.watches().add(parent, mask).map_err(failed(parent))?;
        }
        let mut folder = Self {
            path: path.to_owned(),
            events,
            watched: None,
        };
        folder.follow().map_err(failed(path))?;
        Ok(folder)
    }

    /// Waits until something changed since the last wait returned. Dropping the wait loses nothing.
    pub async fn changed(&mut self) -> Result<(), Error> {
        let mut event = self.events.next().await;
        // Changes come in bursts: one look at the folder answers all that are queued.
        while let Some(Ok(_)) = event {
            let Some(another) = self.events.next().now_or_never() else {
                break;
            };
            event = another;
        }
        let read = match event {
            Some(read) => read.map(|_| ()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        read.and_then(|()| self.follow()).map_err(|source| Error {
            path: self.path.clone(),
            source,
        })
    }

    /// Watches what is at the path now: the folder may be another one than before.
    fn follow(&mut self) -> io::Result<()> {
        let mask = WatchMask::CREATE
            | WatchMask::DELETE
            | WatchMask::CLOSE_WRITE
            | WatchMask::MOVE
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF
            | WatchMask::ONLYDIR;
        let mut watches = self.events.watches();
        let now = match watches.add(&self.path, mask) {
            Ok(watched) => Some(watched),
            Err(error) if is_absent(&error) => None,
            Err(error) => return Err(error),
        };
        if let Some(old) = self.watched.take()
            && now.as_ref() != Some(&old)
        {
            // Fails when the folder is gone, and its watch with it.
            let _gone = watches.remove(old);
        }
        self.watched = now;
        Ok(())
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    async fn noticed(folder: &mut Folder) {
        tokio::time::timeout(Duration::from_secs(10), folder.changed())
            .await
            .expect("the change is noticed")
            .expect("the folder is watched");
    }

    #[tokio::test]
    async fn a_folder_that_comes_late_or_is_replaced_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("plugins");
        let mut folder = Folder::watch(&path).unwrap();

        fs::create_dir(&path).unwrap();
        noticed(&mut folder).await;
        fs::write(path.join("one"), "").unwrap();
        noticed(&mut folder).await;

        fs::rename(&path, root.path().join("old")).unwrap();
        fs::create_dir(&path).unwrap();
        noticed(&mut folder).await;
        // Whatever of the replacing is still queued is taken out, then the new folder must speak.
        while tokio::time::timeout(Duration::ZERO, folder.changed())
            .await
            .is_ok()
        {}
        fs::write(path.join("two"), "").unwrap();
        noticed(&mut folder).await;
    }

    #[tokio::test]
    async fn a_folder_without_a_parent_cannot_be_watched() {
        let root = tempfile::tempdir().unwrap();
        let error = Folder::watch(&root.path().join("no/plugins")).unwrap_err();
        assert!(error.to_string().ends_with("/no"), "{error}");
    }
}
