//! The metadata service: names, attributes, open files and sizes of a file system, kept in a key-value store. It keeps
//! nothing itself, so any number may run over one store, and each answers everything. What an operation does is decided in
//! `metadata`; the bytes of files belong to whoever implements [`FileChunks`], and sessions to [`LiveMounts`].

mod chunks;
mod collector;
mod ending;
mod numbers;
mod room;
mod runner;
mod service;

use std::sync::Arc;
use std::time::Duration;

use chain_link::{PeerRole, StoragePeer};
use daemon::CancellationToken;
use kv::KvStore;
use metadata::MountId;
use storage_rpc::pb::meta::metadata_server::MetadataServer;
use storage_rpc::{RpcCredentials, StorageKeys, accept, server};
use tokio::net::TcpListener;
use tokio::time::sleep;
use tracing::info;

pub use chunks::{ChunksError, FileChunks, LiveMounts};

use ending::Ender;
use room::NameRoom;
use runner::StepRunner;
use service::Service;

/// How long calls in progress may take at the end.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);

/// What a service has to know.
#[derive(Debug)]
pub struct MetaConfig {
    /// The file system's UUID.
    pub file_system: u128,
    /// Which of its metadata services this is.
    pub number: u32,
    /// The keys of a member.
    pub keys: StorageKeys,
    /// The session under which it reaches chunks: it finishes what mounts had begun, and is ended as they are when it dies.
    pub mount: MountId,
    /// How long after the end of a session in the manager's table its writes may still come.
    pub grace: Duration,
}

/// What a service uses.
#[derive(Clone, Debug)]
pub struct MetaBackends<C, M> {
    /// Where everything is kept.
    pub store: KvStore,
    /// The bytes of files.
    pub chunks: C,
    /// Who is there.
    pub mounts: M,
}

/// Serves until it is asked to shut down, ends mounts that are gone, and collects garbage. `refused` counts connections
/// that did not prove who they are.
pub async fn serve<C: FileChunks, M: LiveMounts>(
    config: MetaConfig,
    backends: MetaBackends<C, M>,
    listener: TcpListener,
    refused: impl Fn() + Send + Sync + 'static,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let MetaConfig {
        file_system,
        number,
        keys,
        mount,
        grace,
    } = config;
    let MetaBackends {
        store,
        chunks,
        mounts,
    } = backends;
    let runner = StepRunner::new(store.clone());
    let room = NameRoom::default();
    let chunks = Arc::new(chunks);
    let identity = StoragePeer::new(file_system, PeerRole::Meta, number);
    info!(%identity, "serving");
    let incoming = accept(listener, RpcCredentials { identity, keys }, refused);
    let ender = Ender::new(runner.clone(), Arc::clone(&chunks), mount);
    let service = Service::new(
        runner.clone(),
        Arc::clone(&chunks),
        ender.clone(),
        room.clone(),
    );
    let server = server()
        .add_service(MetadataServer::new(service))
        .serve_with_incoming_shutdown(incoming, shutdown.clone().cancelled_owned());
    let ended = async {
        shutdown.cancelled().await;
        sleep(DRAIN_LIMIT).await;
    };
    tokio::select! {
        served = server => served,
        () = collector::run(&runner, chunks.as_ref()) => Ok(()),
        () = Box::pin(room.run(&store)) => Ok(()),
        () = ender.run(&mounts, grace) => Ok(()),
        () = ended => Ok(()),
    }
}
