//! Serves /live, /ready and /metrics, and what else a process has to tell. Probes, scrapes and questions are all that
//! comes in here: nothing can be changed over it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::metrics::Registry;
use crate::ready::Readiness;

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
    /// The listener failed while serving.
    #[error("failed to serve health and metrics")]
    Serve(#[source] io::Error),
}

/// Bound endpoints, not yet serving: binding first makes a taken port an error at start.
#[derive(Debug)]
pub struct Endpoints {
    listener: TcpListener,
    registry: Registry,
    readiness: Readiness,
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
            more: Router::new(),
        })
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
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), Error> {
        let Self {
            listener,
            registry,
            readiness,
            more,
        } = self;
        if let Ok(address) = listener.local_addr() {
            info!(%address, "serving health and metrics");
        }
        let router = Router::new()
            .route("/live", get(async || "alive\n"))
            .route("/ready", get(ready))
            .with_state(readiness)
            .merge(
                Router::new()
                    .route("/metrics", get(metrics))
                    .with_state(registry),
            )
            .merge(more);
        axum::serve(listener, router)
            .with_graceful_shutdown(async move { shutdown.cancelled().await })
            .await
            .map_err(Error::Serve)
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
    use tokio::net::TcpStream;

    use super::*;

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
        server.await.unwrap().unwrap();
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
        server.await.unwrap().unwrap();
    }
}
