//! A mount of the file system in memory, served by threads of this process, and what a test waits
//! with.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fuse::connection::FuseConnection;
use fuse::init::ConnectionOptions;
use fuse::mount::{MountOptions, Unmount, mount, unmount};
use fuse::request::Request;
use fuse::serve::{Replier, serve};
use tempfile::TempDir;

use super::memory::Memory;

/// Longer than anything here takes, so that only what never comes fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
const THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited for: {what}");
        thread::yield_now();
    }
}

/// A folder with a fresh mount, which is taken away with it.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn mount() -> (Self, FuseConnection) {
        Self::mount_with(&ConnectionOptions::default())
    }

    pub(crate) fn mount_with(options: &ConnectionOptions) -> (Self, FuseConnection) {
        let folder = Self(tempfile::tempdir().unwrap());
        let device = mount(folder.path(), &MountOptions::default()).unwrap();
        let connection = FuseConnection::establish(device, options).unwrap();
        (folder, connection)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What still uses it goes on, and ends with the namespace.
        unmount(self.path(), Unmount::Detach).ok();
    }
}

/// A mount with its file system.
pub(crate) struct Mounted {
    pub(crate) connection: Arc<FuseConnection>,
    pub(crate) memory: Arc<Memory>,
    folder: Option<Folder>,
    server: Option<JoinHandle<Result<(), fuse::connection::Error>>>,
}

impl Mounted {
    /// A mount whose kernel keeps nothing for long.
    pub(crate) fn new() -> Self {
        Self::keeping(Duration::ZERO)
    }

    /// A mount whose kernel keeps attributes and names for a time.
    pub(crate) fn keeping(valid: Duration) -> Self {
        Self::with(valid, |memory, request, replier| {
            memory.handle(&request, replier);
        })
    }

    /// A mount whose requests go through `handler`.
    pub(crate) fn with(
        valid: Duration,
        handler: impl Fn(&Memory, Request<'_>, Replier) + Send + Sync + 'static,
    ) -> Self {
        let (folder, connection) = Folder::mount();
        Self::serving(folder, connection, Arc::new(Memory::new(valid)), handler)
    }

    /// A mount that another process may have served before.
    pub(crate) fn serving(
        folder: Folder,
        connection: FuseConnection,
        memory: Arc<Memory>,
        handler: impl Fn(&Memory, Request<'_>, Replier) + Send + Sync + 'static,
    ) -> Self {
        let connection = Arc::new(connection);
        let (served, of) = (Arc::clone(&connection), Arc::clone(&memory));
        let server = thread::spawn(move || {
            serve(&served, THREADS, |request, replier| {
                handler(&of, request, replier);
            })
        });
        Self {
            connection,
            memory,
            folder: Some(folder),
            server: Some(server),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.as_ref().unwrap().path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.folder.take());
        if thread::panicking() {
            return; // Programs of the failed test may keep it alive.
        }
        let served = self.server.take().unwrap().join().unwrap();
        served.unwrap();
        assert_eq!(self.connection.refusals().malformed, 0);
    }
}
