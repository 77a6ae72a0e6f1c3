//! Real servers and clients on loopback: who is let in and known, who is not, and what a loss of the server costs.

#![expect(clippy::unwrap_used, reason = "test harness")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chain_link::{PeerRole, StoragePeer};
use link::handshake::Key;
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use storage_rpc::pb::manager::chain_manager_server::{ChainManager, ChainManagerServer};
use storage_rpc::pb::manager::{
    CreateChainsRequest, CreateChainsResponse, EndSessionRequest, EndSessionResponse, ListRequest,
    ListResponse, ListedSession, OpenSessionRequest, OpenSessionResponse, RegisterRequest,
    RegisterResponse, ReportRequest, ReportResponse, WatchRequest, WatchResponse,
};
use storage_rpc::{RpcCredentials, StorageKeys, accept, connect, peer, server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

const FILE_SYSTEM: u128 = 0x1234;

/// Answers a list with who asked.
struct Echo;

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ChainManager for Echo {
    type WatchStream = tokio_stream::Empty<Result<WatchResponse, Status>>;

    async fn list(&self, request: Request<ListRequest>) -> Answer<ListResponse> {
        let client = peer(&request)?.to_string();
        let session = 0;
        Ok(Response::new(ListResponse {
            sessions: vec![ListedSession { session, client }],
            ..ListResponse::default()
        }))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        Ok(Response::new(tokio_stream::empty()))
    }

    async fn open_session(&self, _: Request<OpenSessionRequest>) -> Answer<OpenSessionResponse> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn register(&self, _: Request<RegisterRequest>) -> Answer<RegisterResponse> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn report(&self, _: Request<ReportRequest>) -> Answer<ReportResponse> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn end_session(&self, _: Request<EndSessionRequest>) -> Answer<EndSessionResponse> {
        Err(Status::unimplemented("nobody asks"))
    }

    async fn create_chains(&self, _: Request<CreateChainsRequest>) -> Answer<CreateChainsResponse> {
        Err(Status::unimplemented("nobody asks"))
    }
}

struct Running {
    address: SocketAddr,
    refused: Arc<AtomicUsize>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<()>,
}

impl Running {
    async fn at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let refused = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&refused);
        let credentials = RpcCredentials {
            identity: StoragePeer::new(FILE_SYSTEM, PeerRole::Manager, 1),
            keys: members(),
        };
        let incoming = accept(listener, credentials, move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(async move {
            let service = ChainManagerServer::new(Echo);
            let server = server().add_service(service);
            let stopped = async { drop(stopped.await) };
            server
                .serve_with_incoming_shutdown(incoming, stopped)
                .await
                .unwrap();
        });
        Self {
            address,
            refused,
            stop,
            server,
        }
    }

    async fn start() -> Self {
        Self::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.server.await.unwrap();
    }

    fn client(
        &self,
        expected: PeerRole,
        role: PeerRole,
        keys: StorageKeys,
    ) -> ChainManagerClient<Channel> {
        self.client_of(FILE_SYSTEM, expected, role, keys)
    }

    fn client_of(
        &self,
        file_system: u128,
        expected: PeerRole,
        role: PeerRole,
        keys: StorageKeys,
    ) -> ChainManagerClient<Channel> {
        let identity = StoragePeer::new(file_system, role, 7);
        let credentials = RpcCredentials { identity, keys };
        ChainManagerClient::new(connect(&self.address.to_string(), expected, credentials).unwrap())
    }
}

fn key(byte: u8) -> Key {
    Key::new([byte; 32])
}

fn members() -> StorageKeys {
    StorageKeys::of_member(key(1), key(2))
}

async fn ask(client: &mut ChainManagerClient<Channel>) -> Result<String, Status> {
    let answer = client.list(ListRequest {}).await?.into_inner();
    Ok(answer.sessions[0].client.clone())
}

/// A status with its causes.
fn text(status: &Status) -> String {
    let mut text = status.to_string();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

#[tokio::test]
async fn the_server_knows_who_calls() {
    let running = Running::start().await;
    use PeerRole::{Client, Manager, Service};
    let mut service = running.client(Manager, Service, members());
    assert!(
        ask(&mut service)
            .await
            .unwrap()
            .starts_with("storage service 7 of file system")
    );
    let mut client = running.client(Manager, Client, StorageKeys::of_client(key(2)));
    assert!(ask(&mut client).await.unwrap().starts_with("client 7 of"));
    assert_eq!(running.refused.load(Ordering::SeqCst), 0);
    running.stop().await;
}

#[tokio::test]
async fn nobody_else_is_let_in() {
    let running = Running::start().await;
    use PeerRole::{Client, Manager, Meta, Service};
    let other_keys = || StorageKeys::of_member(key(8), key(9));
    // A client that says it is a service has the wrong key for that.
    let pretender = StorageKeys::of_member(key(2), key(2));
    for (mut client, part) in [
        (
            running.client(Manager, Service, other_keys()),
            "does not hold the same key",
        ),
        (
            running.client(Manager, Client, StorageKeys::of_client(key(9))),
            "does not hold the same key",
        ),
        (
            running.client(Manager, Service, pretender),
            "does not hold the same key",
        ),
        (running.client(Meta, Service, members()), "chain manager 1"),
        // The server hangs up before it says who it is.
        (
            running.client_of(9, Manager, Service, members()),
            "the connection broke",
        ),
    ] {
        let refused = ask(&mut client).await.unwrap_err();
        assert!(text(&refused).contains(part), "{}", text(&refused));
    }
    let identity = StoragePeer::new(FILE_SYSTEM, Service, 7);
    let keys = StorageKeys::of_client(key(2));
    let credentials = RpcCredentials { identity, keys };
    let refused = connect(&running.address.to_string(), Manager, credentials).unwrap_err();
    assert!(
        refused.to_string().contains("no key for chain manager"),
        "{refused}"
    );
    until(|| running.refused.load(Ordering::SeqCst) == 5).await;
    running.stop().await;
}

#[tokio::test]
async fn strangers_who_say_nothing_keep_nobody_out() {
    let running = Running::start().await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(running.address).await.unwrap());
    }
    let mut garbage = TcpStream::connect(running.address).await.unwrap();
    garbage.write_all(&[0x47; 200]).await.unwrap();
    let mut client = running.client(PeerRole::Manager, PeerRole::Service, members());
    let started = Instant::now();
    ask(&mut client).await.unwrap();
    // All are cut off, those who said nothing too.
    for mut stream in silent.into_iter().chain([garbage]) {
        let mut byte = [0];
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read(&mut byte)).await;
        assert!(matches!(read.unwrap(), Ok(0) | Err(_)));
    }
    assert!(started.elapsed() >= Duration::from_secs(1));
    until(|| running.refused.load(Ordering::SeqCst) == 101).await;
    running.stop().await;
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_again() {
    let running = Running::start().await;
    let address = running.address;
    let mut client = running.client(PeerRole::Manager, PeerRole::Client, members());
    ask(&mut client).await.unwrap();
    running.stop().await;
    let mut failures = 0;
    while failures < 3 {
        let refused = ask(&mut client).await.unwrap_err();
        assert_ne!(refused.code(), Code::Ok);
        failures += 1;
    }
    let running = Running::at(address).await;
    let started = Instant::now();
    while ask(&mut client).await.is_err() {
        assert!(started.elapsed() < Duration::from_secs(30));
    }
    running.stop().await;
}

async fn until(holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
