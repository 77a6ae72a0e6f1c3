//! The client's side: a channel that connects when a call needs it, proves who this side is, and connects again after a
//! loss, later and later up to a limit.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chain_link::PeerRole;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{sleep_until, timeout};
use tonic::transport::{Channel, Endpoint};

use crate::RpcCredentials;
use crate::handshake::{HandshakeError, initiate};
use crate::keys::KeyError;

/// How long a connection with its handshake may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
/// How long after a failure the next connection is made, at first; twice as long each time.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// And at most.
const MOST_DELAY: Duration = Duration::from_secs(2);
/// How long a call may take until its answer begins; a stream goes on.
const CALL_LIMIT: Duration = Duration::from_secs(10);
/// How often a silent connection is tested, and how long the test may take.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Why there is no channel, and will be none.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address is none.
    #[error("failed to use {address:?} as an address: write host:port")]
    Address {
        /// What was given.
        address: String,
        /// What is wrong with it.
        source: tonic::transport::Error,
    },
    /// This side could prove nothing.
    #[error(transparent)]
    Key(#[from] KeyError),
}

/// A channel to the server of a role at an address (`host:port`). It is there at once; calls fail while the server is
/// not, or proves to be somebody else.
pub fn connect(
    address: &str,
    expected: PeerRole,
    credentials: RpcCredentials,
) -> Result<Channel, ConnectError> {
    credentials.key_to(expected)?;
    let address = with_brackets(address);
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint
        .map_err(|source| ConnectError::Address {
            address: address.clone(),
            source,
        })?
        .timeout(CALL_LIMIT)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true);
    let dialler = Arc::new(Dialler {
        address,
        expected,
        credentials,
        delays: Mutex::default(),
    });
    let connector = tower::service_fn(move |_: Uri| Arc::clone(&dialler).dial());
    Ok(endpoint.connect_with_connector_lazy(connector))
}

/// What the kubelet says of a Service is an address and a port; between the two of IPv6 there is nothing but a colon.
fn with_brackets(address: &str) -> String {
    match address.rsplit_once(':') {
        Some((host, port)) if host.contains(':') && !host.starts_with('[') => {
            format!("[{host}]:{port}")
        }
        Some(_) | None => address.to_owned(),
    }
}

struct Dialler {
    address: String,
    expected: PeerRole,
    credentials: RpcCredentials,
    delays: Mutex<Delays>,
}

/// When the next connection may be made.
#[derive(Default)]
struct Delays {
    failures: u32,
    next: Option<Instant>,
}

impl Delays {
    fn failed(&mut self, now: Instant) {
        let delay = FIRST_DELAY.saturating_mul(1 << self.failures.min(16));
        self.next = Some(now + delay.min(MOST_DELAY));
        self.failures += 1;
    }
}

impl Dialler {
    async fn dial(self: Arc<Self>) -> Result<TokioIo<TcpStream>, HandshakeError> {
        let next = self.delays().next;
        if let Some(next) = next {
            sleep_until(next.into()).await;
        }
        let dialled = timeout(CONNECT_LIMIT, self.dial_now()).await;
        let dialled = dialled.unwrap_or(Err(HandshakeError::Late));
        match &dialled {
            Ok(_) => *self.delays() = Delays::default(),
            Err(_) => self.delays().failed(Instant::now()),
        }
        dialled.map(TokioIo::new)
    }

    async fn dial_now(&self) -> Result<TcpStream, HandshakeError> {
        let mut stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        initiate(&mut stream, &self.credentials, self.expected).await?;
        Ok(stream)
    }

    // Two numbers, whole after every step.
    fn delays(&self) -> std::sync::MutexGuard<'_, Delays> {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv6_is_set_apart_from_its_port() {
        for (given, expected) in [
            ("10.0.0.1:9411", "10.0.0.1:9411"),
            ("meta.example:9411", "meta.example:9411"),
            ("fd00::1:9411", "[fd00::1]:9411"),
            ("[fd00::1]:9411", "[fd00::1]:9411"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(with_brackets(given), expected);
        }
    }

    #[test]
    fn delays_grow_to_a_limit() {
        let now = Instant::now();
        let mut delays = Delays::default();
        let mut seen = Vec::new();
        for _ in 0..40 {
            delays.failed(now);
            seen.push(delays.next.unwrap() - now);
        }
        assert_eq!(seen[..2], [FIRST_DELAY, 2 * FIRST_DELAY]);
        assert!(seen.is_sorted() && seen[39] == MOST_DELAY);
    }
}
