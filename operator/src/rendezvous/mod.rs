//! The rendezvous service: where the sidecars of an attempt find each other. It authenticates them,
//! keeps one [`collective::membership::Membership`] for each attempt, and tells the planner what the
//! gangs report. Only the leader serves; a standby sends sidecars to it. Nothing here is durable but
//! who goes on after a loss, see `store`: a new leader learns the rest from sidecars that dial again.

mod directory;
mod gangs;
mod meeting;
mod session;
mod standalone;
mod store;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use directory::{ClusterDirectory, Directory, Gang};
pub use gangs::Planner;
pub use standalone::{Error as StandaloneError, serve as serve_standalone};
pub use store::{InMemory, InStatus, Store};

use crate::leader::Role;
use crate::metrics::Metrics;

/// Sidecars connected at once: 10,000 nodes, each once more while it dials again, and strangers.
const CONNECTIONS: usize = 32_768;

/// Everything a connection needs.
#[derive(Clone)]
pub(crate) struct Service {
    directory: Arc<dyn Directory>,
    role: watch::Receiver<Role>,
    gangs: gangs::Handle,
    metrics: Metrics,
}

/// Serves until the token is cancelled.
pub async fn serve(
    listener: TcpListener,
    directory: Arc<dyn Directory>,
    store: Arc<dyn Store>,
    role: watch::Receiver<Role>,
    planner: Planner,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    if let Ok(address) = listener.local_addr() {
        info!(%address, "serving the rendezvous");
    }
    let (gangs, actor) = gangs::start(
        Arc::clone(&directory),
        store,
        role.clone(),
        planner,
        metrics.clone(),
    );
    let service = Service {
        directory,
        role,
        gangs,
        metrics,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(actor);
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = accept(&listener, &room) => match accepted {
                Ok((stream, peer, permit)) => {
                    let service = service.clone();
                    tasks.spawn(async move {
                        session::run(stream, peer, service).await;
                        drop(permit);
                    });
                }
                // Out of descriptors, usually: those that are connected go on.
                Err(error) => {
                    warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(session::ACCEPT_PAUSE).await;
                }
            },
            Some(_ended) = tasks.join_next() => {}
        }
    }
    tasks.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> io::Result<(
    tokio::net::TcpStream,
    SocketAddr,
    tokio::sync::OwnedSemaphorePermit,
)> {
    let permit = Arc::clone(room)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

#[cfg(test)]
mod tests;
