//! Services on loopback, each in a runtime of its own so that it can be killed, and the bytes of files in memory.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use chain_link::{PeerRole, StoragePeer};
use daemon::CancellationToken;
use kv::KvStore;
use link::handshake::Key;
use meta::{ChunksError, FileChunks, LiveMounts, MetaBackends, MetaConfig, serve};
use metadata::{FileLayout, InodeNumber, MountId, Trim, VolumeSettings};
use storage_rpc::{MetaClient, RpcCredentials, StorageKeys, connect};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::physical::Physical;

/// Mounts of services have numbers from here on.
const FIRST_SERVICE: u64 = 100;
pub(crate) const FILE_SYSTEM: u128 = 0x5eed;
/// Ten times what anything takes here.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Chunks are small, so that files have several.
pub(crate) const LAYOUT: FileLayout = FileLayout {
    table: 1,
    chunk_bytes: 1 << 16,
    stripe: 4,
    seed: 0,
};
pub(crate) const SETTINGS: VolumeSettings = VolumeSettings {
    bytes: 1 << 30,
    mode: 0o777,
    uid: 0,
    gid: 0,
};

/// The bytes of files, and who is there.
#[derive(Clone, Default)]
pub(crate) struct Backend {
    physical: Arc<Mutex<Physical>>,
    gone: Arc<Mutex<BTreeSet<MountId>>>,
    services: Arc<AtomicU64>,
}

impl Backend {
    pub(crate) fn physical(&self) -> MutexGuard<'_, Physical> {
        self.physical.lock().unwrap()
    }

    fn next_service(&self) -> MountId {
        MountId(FIRST_SERVICE + self.services.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn cut_off(&self, inode: InodeNumber, trim: &Trim) {
        let first = trim.from / u64::from(trim.layout.chunk_bytes);
        for chunk in first..trim.layout.chunks(trim.reach) {
            self.physical().trim(inode, trim, chunk);
        }
    }

    /// A mount has ended.
    pub(crate) fn lose(&self, mount: MountId) {
        self.gone.lock().unwrap().insert(mount);
    }
}

#[tonic::async_trait]
impl FileChunks for Backend {
    async fn remove(
        &self,
        inode: InodeNumber,
        _: FileLayout,
        chunks: Range<u64>,
    ) -> Result<(), ChunksError> {
        let mut physical = self.physical();
        chunks.for_each(|chunk| physical.remove(inode, chunk));
        Ok(())
    }

    async fn trim(&self, inode: InodeNumber, trim: Trim) -> Result<(), ChunksError> {
        self.cut_off(inode, &trim);
        Ok(())
    }

    async fn length(
        &self,
        inode: InodeNumber,
        layout: FileLayout,
        bytes: Range<u64>,
    ) -> Result<u64, ChunksError> {
        let physical = self.physical();
        Ok(physical.length(inode, layout, bytes.start, bytes.end))
    }
}

#[tonic::async_trait]
impl LiveMounts for Backend {
    async fn live(&self) -> Result<BTreeSet<MountId>, ChunksError> {
        let gone = self.gone.lock().unwrap();
        let all = (0..1000).map(MountId);
        Ok(all.filter(|mount| !gone.contains(mount)).collect())
    }
}

fn keys() -> StorageKeys {
    StorageKeys::of_member(Key::new([1; 32]), Key::new([2; 32]))
}

/// A service that runs.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    mount: MountId,
    runtime: Option<Runtime>,
}

impl Running {
    pub(crate) fn start(store: KvStore, backend: &Backend) -> Self {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), store, backend)
    }

    fn at(address: SocketAddr, store: KvStore, backend: &Backend) -> Self {
        let runtime = Runtime::new().unwrap();
        let mount = backend.next_service();
        let config = MetaConfig {
            file_system: FILE_SYSTEM,
            number: 0,
            keys: keys(),
            mount,
            grace: Duration::ZERO,
        };
        let backends = MetaBackends {
            store,
            chunks: backend.clone(),
            mounts: backend.clone(),
        };
        let (sent, received) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let listener = TcpListener::bind(address).await.unwrap();
            sent.send(listener.local_addr().unwrap()).unwrap();
            let shutdown = CancellationToken::new();
            serve(config, backends, listener, || {}, shutdown)
                .await
                .unwrap();
        });
        Self {
            address: received.recv_timeout(LIMIT).unwrap(),
            mount,
            runtime: Some(runtime),
        }
    }

    /// Kills it in whatever it does, and starts another one at its address. Its own mount is gone with it.
    pub(crate) fn replace(&mut self, store: KvStore, backend: &Backend) {
        self.kill();
        backend.lose(self.mount);
        *self = Self::at(self.address, store, backend);
    }

    pub(crate) fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LIMIT);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The client of a mount, over all these services.
pub(crate) fn client(services: &[Running], mount: u64) -> MetaClient {
    let channel = |service: &Running| {
        let identity = StoragePeer::new(FILE_SYSTEM, PeerRole::Client, 0);
        let keys = keys();
        let credentials = RpcCredentials { identity, keys };
        connect(&service.address.to_string(), PeerRole::Meta, credentials).unwrap()
    };
    MetaClient::new(services.iter().map(channel).collect(), MountId(mount))
}
