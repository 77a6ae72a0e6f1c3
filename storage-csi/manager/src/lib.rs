//! The chain manager: owns the chain table of a file system in a key-value store, changes it by compare-and-swap, and
//! streams it to services and clients. Any number may run over one store, and each answers everything. What an event makes
//! of the table is decided in `chain-table`; what a message means is said in `manager.proto`.

mod keeper;
mod list;
mod service;
mod watch;

use std::time::Duration;

use chain_link::{PeerRole, StoragePeer};
use chain_table::{TableEvent, TableRefusal, TableUuid};
use daemon::CancellationToken;
use kv::KvStore;
use storage_rpc::pb::manager::chain_manager_server::ChainManagerServer;
use storage_rpc::{RpcCredentials, StorageKeys, accept, server};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tracing::{info, warn};

use keeper::{ChangeError, TableKeeper};
use service::Service;

/// How often the store is asked whether another manager has changed the table.
const POLL: Duration = Duration::from_millis(500);
/// How long calls in progress may take at the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// What a manager has to know.
#[derive(Debug)]
pub struct ManagerConfig {
    /// The file system's UUID.
    pub file_system: u128,
    /// Which of its managers this is.
    pub number: u32,
    /// The keys of a member.
    pub keys: StorageKeys,
}

/// Why a manager ends by itself.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The store is not this file system's.
    #[error("failed to use the key-value store")]
    Store(#[from] TableRefusal),
    /// The server ended.
    #[error("failed to serve")]
    Server(#[from] tonic::transport::Error),
}

/// Serves until it is asked to shut down. Waits for the store as long as it takes. `refused` counts connections that did
/// not prove who they are.
pub async fn serve(
    config: ManagerConfig,
    store: KvStore,
    listener: TcpListener,
    refused: impl Fn() + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let ManagerConfig {
        file_system,
        number,
        keys,
    } = config;
    let keeper = TableKeeper::new(store);
    let begun = tokio::select! {
        begun = begin(&keeper, TableUuid(file_system)) => begun,
        () = shutdown.cancelled() => return Ok(()),
    };
    begun?;
    let identity = StoragePeer::new(file_system, PeerRole::Manager, number);
    info!(%identity, revision = keeper.state().head().revision, "serving");
    let incoming = accept(listener, RpcCredentials { identity, keys }, refused);
    let service = Service::new(keeper.clone(), shutdown.clone());
    let server = server()
        .add_service(ChainManagerServer::new(service))
        .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
    let ended = async {
        shutdown.cancelled().await;
        sleep(DRAIN_LIMIT).await;
    };
    tokio::select! {
        served = server => Ok(served?),
        () = follow(&keeper) => Ok(()),
        () = ended => Ok(()),
    }
}

/// The table is there, and is this file system's.
async fn begin(keeper: &TableKeeper, file_system: TableUuid) -> Result<(), TableRefusal> {
    let mut is_waiting = false;
    loop {
        match keeper.change(&TableEvent::Begin { file_system }).await {
            Ok(_) => return Ok(()),
            Err(ChangeError::Refused(refusal)) => return Err(refusal),
            Err(error) => {
                if !is_waiting {
                    warn!(
                        error = daemon::chain(&error),
                        "waiting for the key-value store"
                    );
                }
                is_waiting = true;
                sleep(POLL).await;
            }
        }
    }
}

/// Looks for changes that other managers make, for ever.
async fn follow(keeper: &TableKeeper) {
    let mut is_cut_off = false;
    loop {
        sleep(POLL).await;
        match keeper.refresh().await {
            Ok(()) if is_cut_off => {
                info!("the key-value store answers again");
                is_cut_off = false;
            }
            Ok(()) => {}
            Err(error) if !is_cut_off => {
                warn!(error = daemon::chain(&error), "failed to look for changes");
                is_cut_off = true;
            }
            Err(_) => {}
        }
    }
}
