//! A socket file and the server behind it: bound anew when the file is gone, never taken from
//! somebody who serves it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tracing::{info, warn};

/// How often it is looked whether the file is there.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long calls in progress may take when the socket closes.
const DRAIN_WITHIN: Duration = Duration::from_secs(1);
/// Calls at once on a connection.
const CALLS_PER_CONNECTION: usize = 64;

/// Why a socket is not served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody serves it.
    #[error("failed to listen at {path}: another process does; end it first")]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// The file cannot be made.
    #[error("failed to listen at {path}; is its folder mounted, and may this process write to it?")]
    Bind {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The server ended by itself.
    #[error("failed to serve at {path}")]
    Serve {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: tonic::transport::Error,
    },
}

/// A socket that this process listens at.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    listener: UnixListener,
    identity: FileIdentity,
}

/// Which file it is: device, inode, and when it was last changed, since inodes are used again.
type FileIdentity = (u64, u64, i64, i64);

fn identity(path: &Path) -> io::Result<FileIdentity> {
    let found = fs::symlink_metadata(path)?;
    let (device, inode) = (found.dev(), found.ino());
    Ok((device, inode, found.ctime(), found.ctime_nsec()))
}

impl Socket {
    /// Listens. A file that a process left behind is removed.
    pub(crate) fn bind(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Bind {
            path: path.to_owned(),
            source,
        };
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => {
                let path = path.to_owned();
                return Err(Error::Taken { path });
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            // There is none, or what is there is in the way.
            Err(_) => {}
        }
        Ok(Self {
            listener: UnixListener::bind(path).map_err(failed)?,
            identity: identity(path).map_err(failed)?,
            path: path.to_owned(),
        })
    }

    /// Serves until shutdown. Calls `gone` when the file was removed, before it is made anew.
    pub(crate) async fn serve(
        self,
        routes: Routes,
        gone: impl Fn(),
        shutdown: CancellationToken,
    ) -> Result<(), Error> {
        let mut socket = self;
        loop {
            let path = socket.path.clone();
            if socket.serve_this(routes.clone(), &shutdown).await? == Ended::Shutdown {
                return Ok(());
            }
            info!(path = %path.display(), "our socket was removed; listening anew");
            gone();
            let Some(bound) = bind_again(&path, &shutdown).await else {
                return Ok(());
            };
            socket = bound;
        }
    }

    /// Serves while the file is there.
    async fn serve_this(
        self,
        routes: Routes,
        shutdown: &CancellationToken,
    ) -> Result<Ended, Error> {
        let Self {
            path,
            listener,
            identity: ours,
        } = self;
        let is_there = || identity(&path).is_ok_and(|found| found == ours);
        let closing = CancellationToken::new();
        let server = Server::builder()
            .concurrency_limit_per_connection(CALLS_PER_CONNECTION)
            .add_routes(routes)
            .serve_with_incoming_shutdown(
                UnixListenerStream::new(listener),
                closing.clone().cancelled_owned(),
            );
        tokio::pin!(server);
        let ended = tokio::select! {
            ended = &mut server => {
                // It never ends without an error before it is asked to.
                let path = path.clone();
                return ended.map(|()| Ended::Removed).map_err(|source| Error::Serve { path, source });
            }
            () = shutdown.cancelled() => Ended::Shutdown,
            () = removed(is_there) => Ended::Removed,
        };
        closing.cancel();
        // What is not done then is dropped.
        timeout(DRAIN_WITHIN, server).await.ok();
        if is_there()
            && let Err(error) = fs::remove_file(&path)
        {
            warn!(path = %path.display(), %error, "failed to remove our socket");
        }
        Ok(ended)
    }
}

/// Why a socket is not served any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Shutdown,
    Removed,
}

async fn removed(is_there: impl Fn() -> bool) {
    let mut looks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while is_there() {
        looks.tick().await;
    }
}

/// Tries until it succeeds; nothing at shutdown.
async fn bind_again(path: &Path, shutdown: &CancellationToken) -> Option<Socket> {
    let mut is_news = true;
    loop {
        match Socket::bind(path) {
            Ok(socket) => return Some(socket),
            Err(error) if is_news => warn!(%error, "failed to listen anew; trying again"),
            Err(_) => {}
        }
        is_news = false;
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}
