//! The server's side: connections that have proved who made them, as tonic's servers take them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use chain_link::StoragePeer;
use daemon::slots::Slots;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Status};
use tracing::{debug, warn};

use crate::RpcCredentials;
use crate::handshake::{HandshakeError, respond};

/// Connections that have not proved who they are. One more makes the oldest of the busiest address go.
const UNPROVED_LIMIT: usize = 64;
/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(3);
/// Connections that have, and that the server has not taken yet.
const PROVED_LIMIT: usize = 16;
/// How long nobody is accepted after accepting has failed.
const RETRY: Duration = Duration::from_millis(20);
/// How often a silent connection is tested, and how long the test may take.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Calls of one connection at a time.
const CALLS_LIMIT: usize = 256;

/// A connection whose maker is known.
#[derive(Debug)]
pub struct AuthenticatedStream {
    stream: TcpStream,
    peer: StoragePeer,
}

impl Connected for AuthenticatedStream {
    type ConnectInfo = StoragePeer;

    fn connect_info(&self) -> StoragePeer {
        self.peer
    }
}

/// Who makes a call.
pub fn peer<T>(request: &Request<T>) -> Result<StoragePeer, Status> {
    let peer = request.extensions().get::<StoragePeer>().copied();
    peer.ok_or_else(|| Status::unauthenticated("the connection had no handshake"))
}

/// A server with the limits that all of ours have.
#[must_use]
pub fn server() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .concurrency_limit_per_connection(CALLS_LIMIT)
}

/// Accepts connections, for `serve_with_incoming`, until the stream is dropped. `refused` counts those that did not
/// prove who they are.
pub fn accept(
    listener: TcpListener,
    credentials: RpcCredentials,
    refused: impl Fn() + Send + Sync + 'static,
) -> ReceiverStream<io::Result<AuthenticatedStream>> {
    let (proved, taken) = mpsc::channel(PROVED_LIMIT);
    let shared = Arc::new(Acceptor {
        credentials,
        slots: Slots::new(UNPROVED_LIMIT),
        proved,
        refused: Box::new(refused),
    });
    tokio::spawn(accept_all(listener, shared));
    ReceiverStream::new(taken)
}

struct Acceptor {
    credentials: RpcCredentials,
    slots: Slots,
    proved: mpsc::Sender<io::Result<AuthenticatedStream>>,
    refused: Box<dyn Fn() + Send + Sync>,
}

async fn accept_all(listener: TcpListener, acceptor: Arc<Acceptor>) {
    let mut handshakes = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // Those that have ended.
            Some(_) = handshakes.join_next() => continue,
            () = acceptor.proved.closed() => return,
        };
        match accepted {
            Ok((stream, address)) => {
                handshakes.spawn(Arc::clone(&acceptor).prove(stream, address));
            }
            Err(error) => {
                warn!(%error, "failed to accept a connection");
                sleep(RETRY).await;
            }
        }
    }
}

impl Acceptor {
    async fn prove(self: Arc<Self>, mut stream: TcpStream, address: SocketAddr) {
        let slot = self.slots.admit(address.ip());
        let handshake = async {
            stream.set_nodelay(true)?;
            respond(&mut stream, &self.credentials).await
        };
        let proved = tokio::select! {
            proved = timeout(HANDSHAKE_LIMIT, handshake) => proved.unwrap_or(Err(HandshakeError::Late)),
            () = slot.evicted() => Err(HandshakeError::Late),
        };
        drop(slot);
        match proved {
            Ok(peer) => {
                debug!(%peer, %address, "connected");
                // Whoever is not there to take it is about to end.
                let _taken = self
                    .proved
                    .send(Ok(AuthenticatedStream { stream, peer }))
                    .await;
            }
            Err(error) => {
                debug!(%address, error = daemon::chain(&error), "refused a connection");
                (self.refused)();
            }
        }
    }
}

impl AsyncRead for AuthenticatedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for AuthenticatedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
