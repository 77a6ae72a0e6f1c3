//! One socket of a plugin, from opening to closing, and the registration that names it to the
//! kubelet. When to do either is `registration`'s decision.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Endpoint, Server};
use tracing::{debug, warn};

use crate::limits::{DRAIN_WITHIN, REGISTER_WITHIN};
use crate::pb::VERSION;
use crate::pb::v1beta1::RegisterRequest;
use crate::pb::v1beta1::device_plugin_server::DevicePluginServer;
use crate::pb::v1beta1::registration_client::RegistrationClient;
use crate::registration::FileIdentity;
use crate::resource::Resource;
use crate::service::Service;

/// The kubelet's socket in the plugin folder.
pub const KUBELET_SOCKET: &str = "kubelet.sock";

/// Why a registration failed.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Nobody listens at the kubelet's socket.
    #[error("failed to reach the kubelet at {path}")]
    Dial {
        /// The socket.
        path: PathBuf,
        /// What went wrong.
        source: tonic::transport::Error,
    },
    /// The kubelet said no, or nothing.
    #[error("the kubelet refused the registration: {0}")]
    Refused(#[from] tonic::Status),
}

/// What can happen to an open socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketEvent {
    /// So many streams of ListAndWatch are open now.
    Followed(usize),
    /// The server ended by itself; the reason. Nothing but closing works afterwards.
    Broke(String),
}

/// An open socket with its server.
#[derive(Debug)]
pub struct KubeletSession {
    path: PathBuf,
    identity: FileIdentity,
    streams: watch::Receiver<usize>,
    closing: CancellationToken,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl KubeletSession {
    /// Opens a socket of a new name in the folder and serves on it.
    pub fn open(
        folder: &Path,
        resource: Resource,
        service: impl FnOnce(watch::Sender<usize>, CancellationToken) -> Service,
    ) -> io::Result<Self> {
        sweep(folder, resource);
        let path = folder.join(socket_name(resource));
        let listener = UnixListener::bind(&path)?;
        let identity = FileIdentity::from(&std::fs::symlink_metadata(&path)?);
        let (streams, followed) = watch::channel(0);
        let closing = CancellationToken::new();
        let service = DevicePluginServer::new(service(streams, closing.clone()));
        let server = Server::builder()
            .add_service(service)
            .serve_with_incoming_shutdown(
                UnixListenerStream::new(listener),
                closing.clone().cancelled_owned(),
            );
        Ok(Self {
            path,
            identity,
            streams: followed,
            closing,
            server: tokio::spawn(server),
        })
    }

    /// Where the socket is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which file the socket is.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }

    /// Waits for something to happen to the socket. Dropping the wait loses nothing.
    pub async fn event(&mut self) -> SocketEvent {
        tokio::select! {
            Ok(()) = self.streams.changed() => SocketEvent::Followed(*self.streams.borrow_and_update()),
            ended = &mut self.server => SocketEvent::Broke(match ended {
                Ok(Ok(())) => "the server ended".to_owned(),
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            }),
        }
    }

    /// Ends streams, lets calls finish for a moment and removes the socket.
    pub async fn close(mut self) {
        self.closing.cancel();
        if !self.server.is_finished()
            && tokio::time::timeout(DRAIN_WITHIN, &mut self.server)
                .await
                .is_err()
        {
            self.server.abort();
        }
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| FileIdentity::from(&metadata) == self.identity);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            warn!(path = %self.path.display(), %error, "failed to remove our socket");
        }
    }
}

/// Names the socket to the kubelet. When this returns, the kubelet has dialled it.
pub async fn register(
    folder: &Path,
    socket: &Path,
    resource: Resource,
) -> Result<(), RegisterError> {
    let path = folder.join(KUBELET_SOCKET);
    let dial = async || {
        Endpoint::try_from(format!("unix://{}", path.display()))?
            .timeout(REGISTER_WITHIN)
            .connect()
            .await
    };
    let channel = dial()
        .await
        .map_err(|source| RegisterError::Dial { path, source })?;
    let name = socket.file_name().unwrap_or_default().to_string_lossy();
    RegistrationClient::new(channel)
        .register(RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: name.into_owned(),
            resource_name: resource.name().to_owned(),
            options: Some(Service::options(resource)),
        })
        .await?;
    Ok(())
}

/// A name that no other socket has: not one of ours, nor one of an agent that is being replaced.
/// In a container every agent has the same process id, so the clock makes them differ.
fn socket_name(resource: Resource) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_nanos());
    format!("{}{now:x}.sock", prefix(resource))
}

fn prefix(resource: Resource) -> String {
    format!("fireflyer-{}-", resource.stem())
}

/// Removes sockets that an agent left behind when it died: nobody listens on them.
fn sweep(folder: &Path, resource: Resource) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let named_as_ours = name
            .to_str()
            .is_some_and(|name| name.starts_with(&prefix(resource)) && name.ends_with(".sock"));
        let socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if named_as_ours && socket && nobody_listens(&path) {
            debug!(path = %path.display(), "removing a socket that nobody listens on");
            // Whoever else removed it was faster, which is as well.
            let _removed = std::fs::remove_file(&path);
        }
    }
}

fn nobody_listens(socket: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(socket)
        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Arc;

    use daemon::Registry;
    use tokio::time::Instant;

    use super::*;
    use crate::metrics::Metrics;
    use crate::testing;

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_does_not_answer_a_registration_is_not_waited_for_longer() {
        let folder = tempfile::tempdir().unwrap();
        let _silent = UnixListener::bind(folder.path().join(KUBELET_SOCKET)).unwrap();
        let began = Instant::now();
        let registered = register(folder.path(), Path::new("gpu.sock"), Resource::Gpu).await;
        let error = registered.unwrap_err();
        assert!(matches!(error, RegisterError::Refused(_)), "{error}");
        let took = began.elapsed();
        assert!(
            (REGISTER_WITHIN..2 * REGISTER_WITHIN).contains(&took),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_nothing_keeps_a_socket_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let metrics = Metrics::new(&Registry::new("1.2.3").unwrap()).unwrap();
        let (_hardware, inventory) = watch::channel(Arc::new(testing::inventory()));
        let session =
            KubeletSession::open(folder.path(), Resource::Gpu, |streams, closing| Service {
                resource: Resource::Gpu,
                inventory,
                streams,
                closing,
                metrics,
            });
        let session = session.unwrap();
        let path = session.path().to_owned();
        let _silent = UnixStream::connect(&path).unwrap();
        // Time stands still until the server has accepted it.
        tokio::time::sleep(DRAIN_WITHIN).await;
        let began = Instant::now();
        session.close().await;
        let took = began.elapsed();
        assert!((DRAIN_WITHIN..2 * DRAIN_WITHIN).contains(&took), "{took:?}");
        assert!(!path.exists());
    }
}
