//! Keeps one plugin in use by the kubelet: looks at the plugin folder, asks `registration` what to
//! do, and does it, until the agent shuts down.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use daemon::{CancellationToken, Gate, chain};
use tokio::sync::watch;
use tracing::{debug, info, warn};

use crate::backend::Inventory;
use crate::folder::{self, Folder};
use crate::metrics::Metrics;
use crate::registration::{FileIdentity, FolderContents, RegistrationState, RegistrationStep};
use crate::resource::Resource;
use crate::service::Service;
use crate::session::{self, KUBELET_SOCKET, KubeletSession, SocketEvent};

/// Why a plugin cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The plugin folder could not be watched.
    #[error(transparent)]
    Watch(#[from] folder::Error),
    /// The folder could not be looked into.
    #[error("failed to list the plugin folder {path}")]
    Look {
        /// The folder.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The folder is mounted here and was deleted outside.
    #[error("the plugin folder {path} was deleted while mounted; a restart mounts the new one")]
    Deleted {
        /// The folder.
        path: PathBuf,
    },
}

/// A plugin for one resource.
#[derive(Debug)]
pub struct Plugin {
    /// What it serves.
    pub resource: Resource,
    /// The kubelet's plugin folder.
    pub folder: PathBuf,
    /// The devices, now and later.
    pub inventory: watch::Receiver<Arc<Inventory>>,
    /// Where calls and registrations are counted.
    pub metrics: Metrics,
    /// Open while the kubelet follows us.
    pub gate: Gate,
    /// Cancelled when the agent ends.
    pub shutdown: CancellationToken,
}

impl Plugin {
    /// Serves until shutdown. A node that has no device of the resource is waited for: an empty
    /// resource is not announced.
    pub async fn run(mut self) -> Result<(), Error> {
        let resource = self.resource;
        tokio::select! {
            () = self.shutdown.cancelled() => return Ok(()),
            some = self.inventory.wait_for(|inventory| !resource.devices(inventory).is_empty()) => {
                if some.is_err() {
                    return Ok(());
                }
            }
        }
        let mut folder = Folder::watch(&self.folder)?;
        let mut session: Option<KubeletSession> = None;
        let mut held = RegistrationState::default();
        let result = loop {
            let path = session.as_ref().map(KubeletSession::path);
            let seen = match look(&self.folder, path) {
                Ok(seen) => seen,
                Err(error) => break Err(error),
            };
            match held.next(&seen, Instant::now()) {
                RegistrationStep::Open => session = self.open(&seen, &mut held),
                RegistrationStep::Close => {
                    info!(
                        resource = resource.name(),
                        "our socket was removed; starting over"
                    );
                    self.close(session.take(), &mut held).await;
                }
                RegistrationStep::Register(kubelet) => {
                    if let Some(session) = &session {
                        self.register(session, kubelet, &mut held).await;
                    }
                }
                RegistrationStep::Wait(until) => {
                    match self.wait(&mut folder, &mut session, &mut held, until).await {
                        Ok(Next::Look) => {}
                        Ok(Next::End) => break Ok(()),
                        Err(error) => break Err(error),
                    }
                }
                RegistrationStep::Leave => {
                    break Err(Error::Deleted {
                        path: self.folder.clone(),
                    });
                }
            }
        };
        self.close(session, &mut held).await;
        result
    }

    fn open(&self, seen: &FolderContents, held: &mut RegistrationState) -> Option<KubeletSession> {
        let opened =
            KubeletSession::open(&self.folder, self.resource, |streams, closing| Service {
                resource: self.resource,
                inventory: self.inventory.clone(),
                streams,
                closing,
                metrics: self.metrics.clone(),
            });
        match opened {
            Ok(session) => {
                debug!(path = %session.path().display(), "opened a socket");
                held.opened(session.identity());
                Some(session)
            }
            Err(error) => {
                warn!(folder = %self.folder.display(), %error, "failed to open a socket");
                held.open_failed(seen.kubelet, Instant::now());
                None
            }
        }
    }

    async fn register(
        &self,
        session: &KubeletSession,
        kubelet: FileIdentity,
        held: &mut RegistrationState,
    ) {
        let resource = self.resource;
        let answer = tokio::select! {
            () = self.shutdown.cancelled() => return,
            answer = session::register(&self.folder, session.path(), resource) => answer,
        };
        self.metrics.registered(resource, answer.is_ok());
        match answer {
            Ok(()) => {
                info!(resource = resource.name(), "registered with the kubelet");
                held.registered(kubelet, Instant::now());
            }
            Err(error) => {
                let error = chain(&error);
                // A kubelet that is down leaves its socket behind: once is news, again is not.
                if held.failing() {
                    debug!(
                        resource = resource.name(),
                        error, "failed to register again"
                    );
                } else {
                    warn!(resource = resource.name(), error, "failed to register");
                }
                held.refused(kubelet, Instant::now());
            }
        }
    }

    /// Waits for the first thing that may call for another step.
    async fn wait(
        &self,
        folder: &mut Folder,
        session: &mut Option<KubeletSession>,
        held: &mut RegistrationState,
        until: Option<Instant>,
    ) -> Result<Next, Error> {
        let deadline = async {
            match until {
                Some(until) => tokio::time::sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shutdown.cancelled() => return Ok(Next::End),
            changed = folder.changed() => changed?,
            event = event(session) => match event {
                SocketEvent::Followed(streams) => {
                    debug!(resource = self.resource.name(), streams, "the kubelet follows the devices");
                    if streams > 0 { self.gate.open() } else { self.gate.close() }
                    held.followed(streams, Instant::now());
                }
                SocketEvent::Broke(reason) => {
                    warn!(resource = self.resource.name(), reason, "the plugin's server failed");
                    self.close(session.take(), held).await;
                }
            },
            () = deadline => {}
        }
        Ok(Next::Look)
    }

    async fn close(&self, session: Option<KubeletSession>, held: &mut RegistrationState) {
        if let Some(session) = session {
            self.gate.close();
            session.close().await;
        }
        held.closed();
    }
}

enum Next {
    Look,
    End,
}

async fn event(session: &mut Option<KubeletSession>) -> SocketEvent {
    match session {
        Some(session) => session.event().await,
        None => std::future::pending().await,
    }
}

/// What is in the folder now.
fn look(folder: &Path, socket: Option<&Path>) -> Result<FolderContents, Error> {
    let find = |path: &Path| match std::fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Look {
            path: folder.to_owned(),
            source,
        }),
    };
    let identity = |path: &Path| Ok::<_, Error>(find(path)?.as_ref().map(FileIdentity::from));
    Ok(FolderContents {
        folder_deleted: find(folder)?.is_some_and(|metadata| metadata.nlink() == 0),
        kubelet: identity(&folder.join(KUBELET_SOCKET))?,
        socket: socket.map(identity).transpose()?.flatten(),
    })
}
