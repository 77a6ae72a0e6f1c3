//! The rendezvous service: where the sidecars of an attempt find each other. It authenticates them,
//! keeps one [`collective::membership::Membership`] for each attempt, and passes on to the planner
//! what the gangs report. Only the leader serves; a standby sends sidecars to it. Nothing here is
//! durable but who goes on after a loss, see `store`: a new leader learns the rest from sidecars
//! that dial again.

mod deferred;
mod directory;
mod gang_session;
mod gangs;
mod large;
mod pending;
mod session;
mod standalone;
mod store;

use std::sync::Arc;

use daemon::slots::Slots;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use directory::{ClusterDirectory, Directory, Gang, GangRefusal};
pub use gangs::Planner;
pub use standalone::{Error as StandaloneError, serve as serve_standalone};
pub use store::{CommitStore, InMemory, InStatus};

use crate::leader::Role;
use crate::limits::PENDING_CONNECTIONS;
use crate::metrics::Metrics;

/// Sidecars connected at once: 10,000 nodes, and each once more while it dials again.
const CONNECTIONS: usize = 32_768;

/// Everything a connection needs.
#[derive(Clone)]
pub(crate) struct Service {
    directory: Arc<dyn Directory>,
    role: watch::Receiver<Role>,
    gangs: gangs::Handle,
    metrics: Metrics,
    /// One for each connection of a sidecar.
    room: Arc<Semaphore>,
    /// Above [`collective::membership::encoding::TO_OPERATOR_LIMIT_BYTES`].
    large: large::LargeFrames,
    hellos: pending::Hellos,
}

/// Serves until the token is cancelled.
pub async fn serve(
    listener: TcpListener,
    directory: Arc<dyn Directory>,
    store: Arc<dyn CommitStore>,
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
        room: Arc::new(Semaphore::new(CONNECTIONS)),
        large: large::LargeFrames::default(),
        hellos: pending::Hellos::default(),
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(actor);
    let slots = Slots::new(PENDING_CONNECTIONS);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let slot = slots.admit(peer.ip());
                    tasks.spawn(session::run(stream, peer, slot, service.clone()));
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

#[cfg(test)]
mod tests;
