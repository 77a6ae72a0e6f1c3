//! A client of the file system: its session of the chain manager, and what reads and writes in it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use chain_link::PeerRole;
use craq::SessionId;
use metadata::MountId;
use mount::ChunkedFiles;
use storage_client::{ClientOptions, StorageClient};
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use storage_rpc::pb::manager::{EndSessionRequest, OpenSessionRequest};
use storage_rpc::{MetaClient, connect};
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use tracing::{info, warn};

use crate::args::{DataArgs, FileSystem, ReachArgs};
use crate::follow::follow;

/// How long after a manager did not answer it is asked again.
const PAUSE: Duration = Duration::from_millis(500);

/// An open session.
pub(crate) struct Session {
    pub(crate) manager: ChainManagerClient<Channel>,
    pub(crate) id: SessionId,
    pub(crate) chunks: Arc<ChunkedFiles>,
    follows: JoinHandle<()>,
}

impl Session {
    /// Opens the session of a name: an earlier one of it ends.
    pub(crate) async fn open(
        file_system: &FileSystem,
        manager: &str,
        name: &str,
        data: DataArgs,
    ) -> anyhow::Result<Self> {
        let manager = manager_of(file_system, manager, PeerRole::Client)?;
        let request = OpenSessionRequest {
            client: name.to_owned(),
        };
        let mut asked = manager.clone();
        let opened =
            until_answered(async || asked.open_session(request.clone()).await, &[]).await?;
        let session = opened.session;
        info!(session, name, "opened a session");
        let options = ClientOptions {
            file_system: file_system.uuid,
            session: SessionId(session),
            key: file_system.key(PeerRole::Client, PeerRole::Service)?,
            chunk_bytes: data.chunk_bytes,
            traffic_class: data.traffic_class,
        };
        let client = StorageClient::start(options).context("failed to start a client of chains")?;
        let chunks = Arc::new(ChunkedFiles::new(client));
        let (follows, of) = (Arc::clone(&chunks), manager.clone());
        let follows = tokio::spawn(async move {
            follow(of, 0, |map| follows.follow(&map)).await;
        });
        Ok(Self {
            manager,
            id: SessionId(session),
            chunks,
            follows,
        })
    }

    /// It writes nothing more.
    pub(crate) async fn end(mut self) {
        self.follows.abort();
        let request = EndSessionRequest { session: self.id.0 };
        if let Err(status) = self.manager.end_session(request).await {
            warn!(%status, "failed to end the session: it ends when another of its name is opened");
        }
    }
}

/// The chain manager, for a process of a role.
pub(crate) fn manager_of(
    file_system: &FileSystem,
    address: &str,
    role: PeerRole,
) -> anyhow::Result<ChainManagerClient<Channel>> {
    let credentials = file_system.credentials(role, 0);
    let channel = connect(address, PeerRole::Manager, credentials);
    let channel = channel.context("failed to use --manager")?;
    Ok(ChainManagerClient::new(channel))
}

/// Asks the chain manager until it answers. A refusal with one of these codes is its answer.
pub(crate) async fn until_answered<T>(
    mut ask: impl AsyncFnMut() -> Result<Response<T>, Status>,
    refusals: &[Code],
) -> Result<T, Status> {
    let mut is_waiting = false;
    loop {
        match ask().await {
            Ok(response) => return Ok(response.into_inner()),
            Err(status) if refusals.contains(&status.code()) => return Err(status),
            Err(status) => {
                if !is_waiting {
                    warn!(%status, "waiting for the chain manager");
                }
                is_waiting = true;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The metadata services, for a mount or, as 0, for who has none.
pub(crate) fn names_of(
    file_system: &FileSystem,
    reach: &ReachArgs,
    mount: u64,
) -> anyhow::Result<MetaClient> {
    let connect = |address: &String| {
        let credentials = file_system.credentials(PeerRole::Client, mount as u32);
        connect(address, PeerRole::Meta, credentials).context("failed to use --meta")
    };
    let channels = reach
        .meta
        .iter()
        .map(connect)
        .collect::<anyhow::Result<_>>()?;
    Ok(MetaClient::new(channels, MountId(mount)))
}
