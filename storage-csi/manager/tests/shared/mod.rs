//! Managers on loopback, and those who call them.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use chain_link::{ChainMap, PeerRole, StoragePeer};
use daemon::CancellationToken;
use kv::KvStore;
use link::handshake::Key;
use manager::{ManagerConfig, ServeError, serve};
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use storage_rpc::pb::manager::path_answer::Action;
use storage_rpc::pb::manager::{
    ChainSpec, CreateChainsRequest, RegisterRequest, RegisterResponse, RegisteredPath,
    WatchRequest, WatchResponse,
};
use storage_rpc::{MapFollower, RpcCredentials, StorageKeys, connect};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

pub(crate) const FILE_SYSTEM: u128 = 0x5eed;
/// Ten times what anything takes here.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) type Client = ChainManagerClient<Channel>;

/// A manager that runs.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    shutdown: CancellationToken,
    served: JoinHandle<Result<(), ServeError>>,
}

fn keys() -> StorageKeys {
    StorageKeys::of_member(Key::new([1; 32]), Key::new([2; 32]))
}

impl Running {
    pub(crate) async fn start(store: KvStore, number: u32) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let config = ManagerConfig {
            file_system: FILE_SYSTEM,
            number,
            keys: keys(),
        };
        let served = tokio::spawn(serve(config, store, listener, || {}, shutdown.clone()));
        Self {
            address,
            shutdown,
            served,
        }
    }

    pub(crate) fn client(&self, role: PeerRole) -> Client {
        let identity = StoragePeer::new(FILE_SYSTEM, role, 0);
        let keys = keys();
        let credentials = RpcCredentials { identity, keys };
        let channel = connect(&self.address.to_string(), PeerRole::Manager, credentials);
        ChainManagerClient::new(channel.unwrap())
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.served.await.unwrap().unwrap();
    }
}

pub(crate) fn registration(node: u32, life: u64, target: &[u8]) -> RegisterRequest {
    RegisterRequest {
        node: format!("node-{node}"),
        life,
        member_address: format!("10.0.0.{node}:1"),
        client_address: format!("10.0.0.{node}:2"),
        paths: vec![RegisteredPath {
            path: "/disk".to_owned(),
            target: target.to_vec(),
        }],
    }
}

/// A service starts for the first time: its number and its target.
pub(crate) async fn start_service(mut client: Client, node: u32) -> Result<(u32, Vec<u8>), Status> {
    let RegisterResponse { paths, .. } = client
        .register(registration(node, 1, &[]))
        .await?
        .into_inner();
    assert_eq!(paths[0].action(), Action::Format);
    let target = paths[0].target.clone();
    let served = client
        .register(registration(node, 1, &target))
        .await?
        .into_inner();
    assert_eq!(served.paths[0].action(), Action::Serve);
    Ok((served.service, target))
}

pub(crate) fn creation(pool: &str, chains: &[(u32, &[Vec<u8>])]) -> CreateChainsRequest {
    let spec = |(chain, targets): &(u32, &[Vec<u8>])| ChainSpec {
        chain: *chain,
        targets: targets.to_vec(),
    };
    CreateChainsRequest {
        pool: pool.to_owned(),
        chains: chains.iter().map(spec).collect(),
    }
}

/// Asks again while the manager or its store is not there.
pub(crate) async fn again<T, F>(client: &Client, ask: impl Fn(Client) -> F) -> T
where
    F: Future<Output = Result<T, Status>>,
{
    let started = Instant::now();
    loop {
        match ask(client.clone()).await {
            Ok(answer) => return answer,
            Err(status) => {
                assert!(started.elapsed() < LIMIT, "{status}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// A stream of tables, put together; a new one when it ends.
pub(crate) struct Follower {
    client: Client,
    service: u32,
    stream: Option<Streaming<WatchResponse>>,
    follower: MapFollower,
    pub(crate) map: ChainMap,
}

impl Follower {
    pub(crate) fn new(client: Client, service: u32) -> Self {
        Self {
            client,
            service,
            stream: None,
            follower: MapFollower::default(),
            map: ChainMap::default(),
        }
    }

    /// Takes one message, and checks that no chain goes back.
    pub(crate) async fn step(&mut self) {
        let service = self.service;
        if self.stream.is_none() {
            let watch = again(&self.client, |mut client| async move {
                client.watch(WatchRequest { service }).await
            });
            let watch = watch.await;
            self.follower.reconnect();
            self.stream = Some(watch.into_inner());
        }
        let Some(stream) = &mut self.stream else {
            return;
        };
        let Ok(Some(message)) = stream.message().await else {
            self.stream = None;
            return;
        };
        let Some(map) = self.follower.take(message).unwrap() else {
            return;
        };
        for (number, before) in &self.map.chains {
            let (before, now) = (&before.table, &map.chains[number].table);
            assert!(now.version >= before.version && now.revision >= before.revision);
            assert!(now.version > before.version || now.members == before.members);
        }
        self.map = map.clone();
    }

    pub(crate) async fn until(&mut self, holds: impl Fn(&ChainMap) -> bool) {
        let followed = async {
            while !holds(&self.map) {
                self.step().await;
            }
        };
        tokio::time::timeout(LIMIT, followed)
            .await
            .expect("the map changes as it should");
    }
}
