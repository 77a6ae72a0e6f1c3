//! Serves /live, /ready and /metrics, and what else a process has to report. Probes, scrapes and
//! questions are all that comes in here: nothing can be changed over it. Whoever reaches the port
//! may connect, so connections are few, say what they want soon, and make room for each other.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::limits::{CONNECTIONS, HEAD_TIME};
use crate::metrics::Registry;
use crate::ready::Readiness;
use crate::slots::Slots;
use crate::watchdog::Watchdog;

/// How long a connection may last: one that does not take its answer ends as well.
const LIFETIME: Duration = Duration::from_secs(60);
/// Before another try to accept, when there was no descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long answers under way may take when the process ends.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Why the endpoints could not be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address is taken or not ours.
    #[error("failed to listen on {address} for health and metrics")]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Bound endpoints, not yet serving: binding first makes a taken port an error at start.
#[derive(Debug)]
pub struct Endpoints {
    listener: TcpListener,
    registry: Registry,
    readiness: Readiness,
    watchdog: Option<Watchdog>,
    more: Router,
}

/// Why there is no answer now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl Endpoints {
    /// Binds the address.
    pub async fn bind(
        address: SocketAddr,
        registry: Registry,
        readiness: Readiness,
    ) -> Result<Self, Error> {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| Error::Listen { address, source })?;
        Ok(Self {
            listener,
            registry,
            readiness,
            watchdog: None,
            more: Router::new(),
        })
    }

    /// /live fails while the watched loop hangs.
    #[must_use]
    pub fn with_watchdog(self, watchdog: Watchdog) -> Self {
        Self {
            watchdog: Some(watchdog),
            ..self
        }
    }

    /// Serves one more document: `answer` is asked each time.
    #[must_use]
    pub fn with_json<D, F>(
        self,
        path: &str,
        answer: impl Fn() -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        D: Serialize + 'static,
        F: Future<Output = Result<D, Unavailable>> + Send + 'static,
    {
        let handler = async move || {
            let text = match answer().await {
                Ok(document) => {
                    serde_json::to_string_pretty(&document).map_err(|error| error.to_string())
                }
                Err(Unavailable(why)) => Err(why),
            };
            match text {
                Ok(text) => Ok(([(CONTENT_TYPE, "application/json")], text + "\n")),
                Err(why) => Err((StatusCode::SERVICE_UNAVAILABLE, why + "\n")),
            }
        };
        Self {
            more: self.more.route(path, get(handler)),
            ..self
        }
    }

    /// The address that was bound, with the port the kernel chose for port 0.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the token is cancelled.
    pub async fn serve(self, shutdown: CancellationToken) {
        let Self {
            listener,
            registry,
            readiness,
            watchdog,
            more,
        } = self;
        if let Ok(address) = listener.local_addr() {
            info!(%address, "serving health and metrics");
        }
        let router = Router::new()
            .route("/live", get(live))
            .with_state(watchdog)
            .merge(
                Router::new()
                    .route("/ready", get(ready))
                    .with_state(readiness),
            )
            .merge(
                Router::new()
                    .route("/metrics", get(metrics))
                    .with_state(registry),
            )
            .merge(more);
        accept(&listener, &router, &shutdown).await;
    }
}

/// Accepts connections until the token is cancelled, then lets answers under way end.
async fn accept(listener: &TcpListener, router: &Router, shutdown: &CancellationToken) {
    let slots = Slots::new(CONNECTIONS);
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_ended) = tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let (slot, router) = (slots.admit(peer.ip()), router.clone());
                    let shutdown = shutdown.clone();
                    tasks.spawn(async move {
                        tokio::select! {
                            () = slot.evicted() => debug!(%peer, "made room for another connection"),
                            _ = timeout(LIFETIME, converse(stream, router, shutdown)) => {}
                        }
                    });
                }
                // Out of descriptors, usually.
                Err(error) => {
                    warn!(%error, "failed to accept a connection for health and metrics");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    let ended = async { while tasks.join_next().await.is_some() {} };
    // Who has not taken its answer by then does without.
    timeout(LAST_ANSWERS, ended).await.ok();
    tasks.shutdown().await;
}

/// Answers what is asked on one connection.
async fn converse(stream: TcpStream, router: Router, shutdown: CancellationToken) {
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME);
    let service = TowerToHyperService::new(router);
    let mut connection = pin!(server.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection for health and metrics has ended");
    }
}

async fn live(State(watchdog): State<Option<Watchdog>>) -> (StatusCode, String) {
    match watchdog.and_then(|watchdog| watchdog.stalled()) {
        None => (StatusCode::OK, "alive\n".to_owned()),
        Some(stalled) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("its loop has hung for {} s\n", stalled.as_secs()),
        ),
    }
}

async fn ready(State(readiness): State<Readiness>) -> (StatusCode, String) {
    let missing = readiness.missing();
    if missing.is_empty() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("waiting for {}\n", missing.join(", ")),
        )
    }
}

async fn metrics(State(registry): State<Registry>) -> Result<String, (StatusCode, String)> {
    registry
        .text()
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::task::JoinHandle;

    use super::*;

    /// The time limit of a probe.
    const PROBE: Duration = Duration::from_secs(5);

    async fn serve(set: impl FnOnce(Endpoints) -> Endpoints) -> (SocketAddr, JoinHandle<()>) {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let registry = Registry::new("1.2.3").unwrap();
        let endpoints = Endpoints::bind(any_port, registry, Readiness::default());
        let endpoints = set(endpoints.await.unwrap());
        let address = endpoints.address().unwrap();
        let server = tokio::spawn(endpoints.serve(CancellationToken::new()));
        (address, server)
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn ready_says_what_is_missing_until_nothing_is() {
        let readiness = Readiness::default();
        let gate = readiness.gate("first lists");
        let registry = Registry::new("1.2.3").unwrap();
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let endpoints = Endpoints::bind(any_port, registry, readiness)
            .await
            .unwrap();
        let address = endpoints.address().unwrap();
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(endpoints.serve(shutdown.clone()));

        let answer = get(address, "/ready").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.contains("first lists"),
            "{answer}"
        );
        gate.open();
        assert!(get(address, "/ready").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/live").await.starts_with("HTTP/1.1 200"));
        assert!(
            get(address, "/metrics")
                .await
                .contains("fireflyer_build_info")
        );

        shutdown.cancel();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn what_a_process_tells_is_json_or_says_why_it_is_not() {
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let registry = Registry::new("1.2.3").unwrap();
        let endpoints = Endpoints::bind(any_port, registry, Readiness::default())
            .await
            .unwrap()
            .with_json("/fine", || async { Ok([1, 2]) })
            .with_json("/busy", || async {
                Err::<(), _>(Unavailable("asleep".into()))
            });
        let address = endpoints.address().unwrap();
        let shutdown = CancellationToken::new();
        let server = tokio::spawn(endpoints.serve(shutdown.clone()));

        let fine = get(address, "/fine").await;
        assert!(
            fine.starts_with("HTTP/1.1 200") && fine.contains("application/json"),
            "{fine}"
        );
        assert!(fine.contains("[\n  1,\n  2\n]\n"), "{fine}");
        let busy = get(address, "/busy").await;
        assert!(
            busy.starts_with("HTTP/1.1 503") && busy.ends_with("asleep\n"),
            "{busy}"
        );

        shutdown.cancel();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn live_fails_while_the_watched_loop_hangs() {
        let watchdog = Watchdog::new(Duration::ZERO);
        let (address, _server) = serve(|endpoints| endpoints.with_watchdog(watchdog.clone())).await;
        assert!(get(address, "/live").await.starts_with("HTTP/1.1 200"));
        watchdog.touch();
        let answer = get(address, "/live").await;
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.contains("has hung"),
            "{answer}"
        );
        watchdog.rest();
        assert!(get(address, "/live").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn a_probe_is_answered_while_others_hold_a_thousand_idle_connections() {
        crate::descriptors::raise_limit();
        let (address, _server) = serve(|endpoints| endpoints).await;
        for sources in [1, 50] {
            let mut idle = Vec::new();
            for number in 0..1_000 {
                let socket = TcpSocket::new_v4().unwrap();
                let source = Ipv4Addr::new(127, 1, 0, 1 + (number % sources) as u8);
                socket.bind((source, 0).into()).unwrap();
                idle.push(socket.connect(address).await.unwrap());
                if number % 100 == 99 {
                    let answer = tokio::time::timeout(PROBE, get(address, "/live")).await;
                    assert!(answer.unwrap().starts_with("HTTP/1.1 200"));
                }
            }
            // All but the last were closed to make room.
            let closed = idle.iter_mut().take(1_000 - CONNECTIONS);
            for stream in closed {
                let mut byte = [0];
                let read = tokio::time::timeout(PROBE, stream.read(&mut byte)).await;
                assert!(!matches!(read.unwrap(), Ok(1..)));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_asks_nothing_or_half_a_question_is_closed() {
        let (address, _server) = serve(|endpoints| endpoints).await;
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(b"GET /live HTT").await.unwrap();
        let asked = tokio::time::Instant::now();
        let mut rest = Vec::new();
        for stream in [&mut silent, &mut half] {
            let closed = tokio::time::timeout(2 * HEAD_TIME, stream.read_to_end(&mut rest));
            closed.await.unwrap().ok();
        }
        assert!(asked.elapsed() < HEAD_TIME + Duration::from_secs(1));
    }
}
