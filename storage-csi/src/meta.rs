//! The process of a metadata service.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use daemon::args::listen_address;
use meta::{ChunksError, FileChunks, LiveMounts, MetaBackends, MetaConfig};
use metadata::{FileLayout, InodeNumber, MountId, Trim};
use mount::{ChunkError, ChunkedFiles};
use storage_rpc::pb::manager::ListRequest;
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use tokio::net::TcpListener;
use tonic::transport::Channel;

use crate::args::MetaArgs;
use crate::client::Session;
use crate::run::Process;

/// Where it listens if nobody says so.
const PORT: u16 = 9414;
/// How long after the end of a session a mount may still write: members of chains get the table that ends it within a
/// second, and take nothing of it after that.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) async fn run(args: MetaArgs, process: Process) -> anyhow::Result<()> {
    let MetaArgs {
        file_system,
        store,
        manager,
        name,
        listen,
        data,
    } = args;
    let file_system = file_system.read_as_member()?;
    let store = store.connect()?;
    let address = listen_address(listen, PORT);
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("failed to listen on {address}"))?;
    let name = format!("metadata/{name}");
    let session = tokio::select! {
        session = Session::open(&file_system, &manager, &name, data) => session?,
        () = process.shutdown.cancelled() => return Ok(()),
    };
    let backends = MetaBackends {
        store,
        chunks: Chunks(Arc::clone(&session.chunks)),
        mounts: Sessions {
            manager: session.manager.clone(),
        },
    };
    let config = MetaConfig {
        file_system: file_system.uuid,
        number: session.id.0 as u32,
        keys: file_system.keys.clone(),
        mount: MountId(session.id.0),
        grace: GRACE,
    };
    process.readiness.gate("listening").open();
    meta::serve(config, backends, listener, || {}, process.shutdown).await?;
    session.end().await;
    Ok(())
}

/// Chunks of files on their chains.
struct Chunks(Arc<ChunkedFiles>);

fn failed(error: ChunkError) -> ChunksError {
    ChunksError(error.to_string())
}

#[tonic::async_trait]
impl FileChunks for Chunks {
    async fn remove(
        &self,
        inode: InodeNumber,
        layout: FileLayout,
        chunks: Range<u64>,
    ) -> Result<(), ChunksError> {
        self.0.remove(inode, &layout, chunks).await.map_err(failed)
    }

    async fn trim(&self, inode: InodeNumber, trim: Trim) -> Result<(), ChunksError> {
        let Trim {
            from,
            reach,
            layout,
            ..
        } = trim;
        self.0
            .cut(inode, &layout, from, reach)
            .await
            .map_err(failed)
    }

    async fn length(
        &self,
        inode: InodeNumber,
        layout: FileLayout,
        bytes: Range<u64>,
    ) -> Result<u64, ChunksError> {
        self.0.measure(inode, &layout, bytes).await.map_err(failed)
    }
}

/// Sessions of the chain manager: a mount is one.
struct Sessions {
    manager: ChainManagerClient<Channel>,
}

#[tonic::async_trait]
impl LiveMounts for Sessions {
    async fn live(&self) -> Result<BTreeSet<MountId>, ChunksError> {
        let mut manager = self.manager.clone();
        let listed = manager.list(ListRequest {}).await;
        let listed = listed.map_err(|status| ChunksError(status.to_string()))?;
        let sessions = listed.into_inner().sessions.into_iter();
        Ok(sessions.map(|session| MountId(session.session)).collect())
    }
}
