//! A mounted volume: what each request of the kernel asks of names and of chunks, in a task of its own. A request that waits
//! for a chain keeps no thread, and the root's attributes and the volume's room are answered from memory, so that a chain
//! that waits for a member never holds up who only looks at the mount.

mod bytes;
mod names;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuse::Errno;
use fuse::answer::{Answer, FileSystemStatus};
use fuse::request::{FileOperation, Inode, Request};
use fuse::serve::{Answering, Replier};
use metadata::{Errno as Refusal, InodeAttributes, VolumeView};
use storage_rpc::{MetaClient, MetaError};
use tokio::runtime::Handle;
use tracing::{debug, warn};

use crate::attributes::{Numbers, valid};
use crate::chunks::{ChunkError, ChunkedFiles};
use crate::open_files::OpenFiles;

/// How often what is answered from memory is asked for again.
const REFRESH: Duration = Duration::from_secs(2);
/// Blocks in which statfs(2) counts.
const STATUS_BLOCK_BYTES: u64 = 4096;
/// Inodes that statfs(2) says there are: nothing limits them but the store.
const INODES: u64 = 1 << 32;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error(transparent)]
    Names(#[from] MetaError),
    #[error(transparent)]
    Chunks(#[from] ChunkError),
    /// The kernel named a handle that is not open, or asks for what a file is not.
    #[error("{0}")]
    Errno(Errno),
    /// A file without what every file has.
    #[error("failed to use a file: it has no layout")]
    NoLayout,
}

impl Failed {
    /// What a program sees.
    fn errno(&self) -> Errno {
        match self {
            Self::Names(MetaError::Refused(refused)) => errno(refused),
            Self::Names(MetaError::Full(_)) | Self::Chunks(ChunkError::Full) => Errno::NOSPC,
            Self::Names(MetaError::Unavailable(_) | MetaError::Protocol(_))
            | Self::Chunks(
                ChunkError::Ended
                | ChunkError::NoChains { .. }
                | ChunkError::Busy
                | ChunkError::Memory(_),
            )
            | Self::NoLayout => Errno::IO,
            Self::Errno(errno) => *errno,
        }
    }
}

fn errno(refused: &Refusal) -> Errno {
    match refused {
        Refusal::NotFound => Errno::NOENT,
        Refusal::Exists => Errno::EXIST,
        Refusal::NotDirectory => Errno::NOTDIR,
        Refusal::IsDirectory => Errno::ISDIR,
        Refusal::NotEmpty => Errno::NOTEMPTY,
        Refusal::NotPermitted => Errno::PERM,
        Refusal::Invalid => Errno::INVAL,
        Refusal::TooManyLinks => Errno::MLINK,
        Refusal::CrossesVolumes => Errno::XDEV,
        Refusal::TooLarge => Errno::FBIG,
        Refusal::NoSpace => Errno::NOSPC,
        Refusal::Stale => Errno::STALE,
        Refusal::BadHandle => Errno::BADF,
        Refusal::Trimming | Refusal::Cut { .. } | Refusal::Ended | Refusal::Damaged { .. } => {
            Errno::IO
        }
    }
}

type Outcome<T> = Result<T, Failed>;

/// What is answered from memory.
#[derive(Clone, Debug)]
struct Remembered {
    root: Option<InodeAttributes>,
    volume: VolumeView,
}

/// A volume that is mounted.
#[derive(Debug)]
pub(crate) struct FileSystem {
    names: MetaClient,
    chunks: Arc<ChunkedFiles>,
    volume: String,
    numbers: Numbers,
    open: OpenFiles,
    remembered: Mutex<Remembered>,
    runtime: Handle,
}

impl FileSystem {
    pub(crate) fn new(
        (names, chunks): (MetaClient, Arc<ChunkedFiles>),
        (volume, view): (String, VolumeView),
        runtime: Handle,
    ) -> Arc<Self> {
        let numbers = Numbers { root: view.root };
        let remembered = Remembered {
            root: None,
            volume: view,
        };
        Arc::new(Self {
            names,
            chunks,
            volume,
            numbers,
            open: OpenFiles::default(),
            remembered: Mutex::new(remembered),
            runtime,
        })
    }

    fn remembered(&self) -> MutexGuard<'_, Remembered> {
        self.remembered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of the volume.
    pub(crate) fn volume(&self) -> VolumeView {
        self.remembered().volume.clone()
    }

    /// Keeps what is answered from memory up to date, for ever.
    pub(crate) async fn refresh(self: Arc<Self>) {
        loop {
            if let Err(error) = self.refresh_once().await {
                debug!(volume = self.volume, %error, "failed to look at a volume");
            }
            tokio::time::sleep(REFRESH).await;
        }
    }

    pub(crate) async fn refresh_once(&self) -> Outcome<()> {
        let root = self.names.get_attributes(self.numbers.root).await?;
        let view = self.names.get_volume(self.volume.clone()).await?;
        *self.remembered() = Remembered {
            root: Some(root),
            volume: view,
        };
        Ok(())
    }

    /// Answers a request, now or later.
    pub(crate) fn handle(self: &Arc<Self>, request: Request<'_>, replier: Replier) {
        match request.operation {
            FileOperation::FileSystemStatus => answer(replier, &Answer::FileSystemStatus(self.status())),
            FileOperation::GetAttributes { .. } if request.inode == Inode::ROOT => {
                self.root_attributes(replier);
            }
            FileOperation::Forget { .. }
            | FileOperation::BatchForget(_)
            // A request that waits for a chain ends when that is whole again.
            | FileOperation::Interrupt { .. }
            | FileOperation::Destroy => answer(replier, &Answer::Done),
            FileOperation::Read { handle, offset, size } => {
                self.spawn(replier, move |fs, replier| async move {
                    fs.read(handle, offset, size, replier).await
                });
            }
            FileOperation::Write { handle, offset, data, .. } => self.start_write(handle, offset, data, replier),
            FileOperation::Open { flags, .. } => {
                let inode = self.numbers.number(request.inode);
                self.spawn(replier, move |fs, replier| async move {
                    fs.open(inode, flags, replier).await
                });
            }
            FileOperation::Flush { handle } => self.spawn(replier, move |fs, replier| async move {
                fs.flush(handle).await?;
                answer(replier, &Answer::Done);
                Ok(())
            }),
            FileOperation::Sync { handle, .. } => {
                self.spawn(replier, move |fs, replier| async move {
                    fs.sync(handle).await?;
                    answer(replier, &Answer::Done);
                    Ok(())
                });
            }
            FileOperation::Release { handle, .. } => {
                self.spawn(replier, move |fs, replier| async move {
                    fs.release(handle).await?;
                    answer(replier, &Answer::Done);
                    Ok(())
                });
            }
            FileOperation::OpenDirectory { .. } => self.open_directory(replier),
            FileOperation::ReleaseDirectory { handle, .. } => {
                self.open.close_directory(handle);
                answer(replier, &Answer::Done);
            }
            // All of a directory is durable when it is answered.
            FileOperation::SyncDirectory { .. } => answer(replier, &Answer::Done),
            FileOperation::ReadDirectory { handle, offset, size } => {
                let inode = self.numbers.number(request.inode);
                self.spawn(replier, move |fs, replier| async move {
                    fs.read_directory((inode, handle), offset, size, false, replier).await
                });
            }
            FileOperation::ReadDirectoryPlus { handle, offset, size } => {
                let inode = self.numbers.number(request.inode);
                self.spawn(replier, move |fs, replier| async move {
                    fs.read_directory((inode, handle), offset, size, true, replier).await
                });
            }
            FileOperation::Lookup { .. }
            | FileOperation::GetAttributes { .. }
            | FileOperation::SetAttributes(_)
            | FileOperation::ReadLink
            | FileOperation::MakeSymlink { .. }
            | FileOperation::MakeNode { .. }
            | FileOperation::MakeDirectory { .. }
            | FileOperation::Unlink { .. }
            | FileOperation::RemoveDirectory { .. }
            | FileOperation::Rename { .. }
            | FileOperation::Link { .. }
            | FileOperation::Create { .. } => self.handle_name(&request, replier),
            // The kernel does not ask again.
            FileOperation::Access { .. }
            | FileOperation::Allocate { .. }
            | FileOperation::Seek { .. }
            | FileOperation::CopyRange(_)
            | FileOperation::SetXattr { .. }
            | FileOperation::GetXattr { .. }
            | FileOperation::ListXattr { .. }
            | FileOperation::RemoveXattr { .. } => answer(replier, &Answer::Error(Errno::NOSYS)),
        }
    }

    /// Runs what may wait. A failure is the answer.
    fn spawn<F>(
        self: &Arc<Self>,
        replier: Replier,
        run: impl FnOnce(Arc<Self>, Late) -> F + Send + 'static,
    ) where
        F: Future<Output = Outcome<()>> + Send + 'static,
    {
        let late = Late(Arc::new(Mutex::new(Some(replier))));
        let (fs, ours) = (Arc::clone(self), late.clone());
        let running = run(fs, late);
        let mut task = Box::pin(async move {
            if let Err(error) = running.await {
                if error.errno() == Errno::IO {
                    warn!(%error, "a request of a program fails");
                }
                answer(ours, &Answer::Error(error.errno()));
            }
        });
        // What it does before it waits needs no other thread, which would have to wake up first.
        let _runtime = self.runtime.enter();
        let mut nobody = Context::from_waker(Waker::noop());
        if task.as_mut().poll(&mut nobody).is_pending() {
            self.runtime.spawn(Answering(task));
        }
    }

    fn root_attributes(self: &Arc<Self>, replier: Replier) {
        let root = self.remembered().root.clone();
        match root {
            Some(root) => {
                let attributes = self.numbers.attributes(&root);
                answer(replier, &Answer::Attributes(attributes, valid(root.kind)));
            }
            None => {
                let inode = self.numbers.root;
                self.spawn(replier, move |fs, replier| async move {
                    fs.get_attributes(inode, replier).await
                });
            }
        }
    }

    fn status(&self) -> FileSystemStatus {
        let volume = self.volume();
        let blocks = volume.settings.bytes / STATUS_BLOCK_BYTES;
        // Sums of what was added and taken away, so never negative for long.
        let count = |sum: i64| u64::try_from(sum).unwrap_or_default();
        let used = count(volume.usage.bytes).div_ceil(STATUS_BLOCK_BYTES);
        let free = blocks.saturating_sub(used);
        FileSystemStatus {
            block_bytes: STATUS_BLOCK_BYTES as u32,
            blocks,
            free_blocks: free,
            available_blocks: free,
            inodes: INODES,
            free_inodes: INODES.saturating_sub(count(volume.usage.inodes)),
        }
    }
}

/// A replier that a task answers with, or else whoever runs the task.
#[derive(Clone, Debug)]
pub(crate) struct Late(Arc<Mutex<Option<Replier>>>);

/// Who can still be answered.
trait Answered {
    fn take(self) -> Option<Replier>;
}

impl Answered for Replier {
    fn take(self) -> Option<Replier> {
        Some(self)
    }
}

impl Answered for Late {
    fn take(self) -> Option<Replier> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Answers, if nobody has.
fn answer(replier: impl Answered, answer: &Answer<'_>) {
    if let Some(replier) = replier.take()
        && let Err(error) = replier.answer(answer)
    {
        warn!(%error, "an answer did not reach the kernel");
    }
}

/// In nanoseconds since 1970.
fn now_ns() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}
