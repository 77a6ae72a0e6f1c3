//! One volume at one folder, from mount to unmount.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use fuse::connection::FuseConnection;
use fuse::init::ConnectionOptions;
use fuse::mount::{MountOptions, Unmount, mount, unmount};
use fuse::serve::serve;
use metadata::VolumeView;
use storage_rpc::MetaClient;
use tokio::runtime::Handle;
use tokio::task::JoinHandle as Task;
use tracing::{error, info};

use crate::chunks::ChunkedFiles;
use crate::file_system::FileSystem;

/// Threads that read requests. What a request waits for it does in a task.
const THREADS: NonZeroUsize = NonZeroUsize::new(2).unwrap();

/// Why a volume is not mounted.
#[derive(Debug, thiserror::Error)]
pub enum VolumeMountError {
    /// The kernel refuses.
    #[error(transparent)]
    Mount(#[from] fuse::mount::Error),
    /// Kernel and file system do not come together.
    #[error(transparent)]
    Connection(#[from] fuse::connection::Error),
    /// There are no threads.
    #[error("failed to start a thread for a mount")]
    Thread(#[source] std::io::Error),
}

/// A mounted volume.
#[derive(Debug)]
pub struct VolumeMount {
    folder: PathBuf,
    files: Arc<FileSystem>,
    refresh: Task<()>,
    thread: Option<JoinHandle<()>>,
}

impl VolumeMount {
    /// Mounts a volume, by its name and what the metadata service says of it, at a folder that exists.
    pub fn start(
        folder: &Path,
        (names, chunks): (MetaClient, Arc<ChunkedFiles>),
        (volume, view): (&str, VolumeView),
        is_read_only: bool,
        runtime: &Handle,
    ) -> Result<Self, VolumeMountError> {
        let options = MountOptions {
            source: volume.to_owned(),
            read_only: is_read_only,
            ..MountOptions::default()
        };
        let volume_of = (volume.to_owned(), view);
        let files = FileSystem::new((names, chunks), volume_of, runtime.clone());
        let device = mount(folder, &options)?;
        let wanted = ConnectionOptions {
            truncates_on_open: true,
            ..ConnectionOptions::default()
        };
        let connection = match FuseConnection::establish(device, &wanted) {
            Ok(connection) => Arc::new(connection),
            Err(error) => {
                unmount(folder, Unmount::Detach)?;
                return Err(error.into());
            }
        };
        let served = Arc::clone(&files);
        let at = folder.display().to_string();
        let named = thread::Builder::new().name("mount".to_owned());
        let thread = named.spawn(move || {
            let handle =
                |request: fuse::request::Request<'_>, replier| served.handle(request, replier);
            match serve(&connection, THREADS, handle) {
                Ok(()) => info!(at, "unmounted"),
                Err(error) => error!(at, %error, "a mount has ended"),
            }
        });
        let thread = thread.map_err(|source| {
            // The mount is dead without its thread.
            unmount(folder, Unmount::Detach).ok();
            VolumeMountError::Thread(source)
        })?;
        let refresh = runtime.spawn(Arc::clone(&files).refresh());
        Ok(Self {
            folder: folder.to_owned(),
            files,
            refresh,
            thread: Some(thread),
        })
    }

    /// What is known of the volume, from memory.
    #[must_use]
    pub fn volume(&self) -> VolumeView {
        self.files.volume()
    }

    /// Whether somebody has unmounted it.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Unmounts it. Who still uses it keeps it until the last of them is gone.
    pub fn unmount(mut self) -> Result<(), VolumeMountError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), VolumeMountError> {
        self.refresh.abort();
        // Its thread ends with the connection, which who uses it may keep.
        if self
            .thread
            .take()
            .is_some_and(|thread| !thread.is_finished())
        {
            unmount(&self.folder, Unmount::Detach)?;
        }
        Ok(())
    }
}

impl Drop for VolumeMount {
    fn drop(&mut self) {
        self.refresh.abort();
        if self
            .thread
            .take()
            .is_some_and(|thread| !thread.is_finished())
            && let Err(error) = unmount(&self.folder, Unmount::Detach)
        {
            error!(%error, "failed to unmount a volume");
        }
    }
}
