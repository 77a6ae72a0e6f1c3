//! The client's half of the metadata services: operations with numbers, sent again until they are answered, to whichever
//! service answers. What they mean is decided in `metadata`.

mod calls;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use metadata::{Errno, MetaAnswer, MetaOperation, MetaReply, MetaRequest, MountId, OperationId};
use tokio::time::sleep;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

pub use calls::{FileExtent, NodeOwner};

use crate::pb::meta::metadata_client::MetadataClient;
use crate::pb::meta::{CallRequest, EndMountRequest};

/// How long an operation is tried where nobody says otherwise.
const LIMIT: Duration = Duration::from_secs(60);
/// How long one service may take to answer before another one is asked.
const TRY_LIMIT: Duration = Duration::from_secs(5);
/// How long after a failure the next try is made, at first; twice as long each time.
const FIRST_DELAY: Duration = Duration::from_millis(10);
/// And at most.
const MOST_DELAY: Duration = Duration::from_secs(1);

/// Answers that would be the same again.
const NEVER_ANOTHER: [Code; 4] = [
    Code::InvalidArgument,
    Code::PermissionDenied,
    Code::Unimplemented,
    Code::Internal,
];

/// Why an operation has no reply.
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    /// It may not be done, and was not.
    #[error("refused: {0}")]
    Refused(#[from] Errno),
    /// The key-value store has no room for it. It was not done.
    #[error("the key-value store of the metadata is full: {0}")]
    Full(String),
    /// No service has answered in time. It may have been done, or be done soon.
    #[error("failed to reach a metadata service: {0}")]
    Unavailable(String),
    /// A service does not understand it, or is not understood.
    #[error("failed to understand a metadata service: {0}")]
    Protocol(String),
}

/// A mount's side. Cheap to clone; all clones are the same mount.
#[derive(Clone, Debug)]
pub struct MetaClient {
    shared: Arc<Shared>,
    limit: Duration,
}

#[derive(Debug)]
struct Shared {
    services: Vec<MetadataClient<Channel>>,
    /// Which of them is asked.
    asked: AtomicUsize,
    mount: MountId,
    numbers: Mutex<Numbers>,
}

/// Numbers of operations.
#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    /// Without an answer.
    open: BTreeSet<u64>,
}

/// A number that somebody waits for.
struct Open<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.numbers().open.remove(&self.number);
    }
}

impl Shared {
    // Numbers are whole after every step.
    fn numbers(&self) -> std::sync::MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new number, and below which one nobody waits.
    fn open(&self) -> (Open<'_>, u64) {
        let mut numbers = self.numbers();
        numbers.last += 1;
        let number = numbers.last;
        numbers.open.insert(number);
        let settled = numbers.open.first().copied().unwrap_or(number);
        let shared = self;
        (Open { shared, number }, settled)
    }
}

/// When to stop trying, and how long to wait before.
struct Tries {
    end: Instant,
    delay: Duration,
}

impl Tries {
    fn new(limit: Duration) -> Self {
        Self {
            end: Instant::now() + limit,
            delay: FIRST_DELAY,
        }
    }

    /// Waits before the next one, unless it is too late for that.
    async fn next(&mut self) -> bool {
        let is_time = Instant::now() + self.delay < self.end;
        if is_time {
            sleep(self.delay).await;
            self.delay = (self.delay * 2).min(MOST_DELAY);
        }
        is_time
    }
}

impl MetaClient {
    /// Of a mount with a number that none had before, towards services at these channels.
    #[must_use]
    pub fn new(channels: Vec<Channel>, mount: MountId) -> Self {
        let services = channels.into_iter().map(MetadataClient::new);
        Self {
            shared: Arc::new(Shared {
                services: services.collect(),
                asked: AtomicUsize::new(0),
                mount,
                numbers: Mutex::default(),
            }),
            limit: LIMIT,
        }
    }

    /// The same, with another limit for each operation.
    #[must_use]
    pub fn with_limit(&self, limit: Duration) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            limit,
        }
    }

    /// Who this is.
    #[must_use]
    pub fn mount(&self) -> MountId {
        self.shared.mount
    }

    /// An operation, until it is answered. One that waits for a truncation tries again, each time under a new number.
    pub async fn call(&self, operation: MetaOperation) -> Result<MetaReply, MetaError> {
        let mut tries = Tries::new(self.limit);
        loop {
            let answer = self.send(&operation, &mut tries).await?;
            if answer != Err(Errno::Trimming) || !tries.next().await {
                return Ok(answer?);
            }
        }
    }

    /// Sends an operation, and again while nobody has answered.
    async fn send(
        &self,
        operation: &MetaOperation,
        tries: &mut Tries,
    ) -> Result<MetaAnswer, MetaError> {
        let open = operation.needs_id().then(|| self.shared.open());
        let mount = self.shared.mount;
        let id = open.as_ref().map(|(open, _)| OperationId {
            mount,
            number: open.number,
        });
        let mut request = MetaRequest {
            id,
            settled: open.as_ref().map_or(0, |(_, settled)| *settled),
            is_repeated: false,
            operation: operation.clone(),
        };
        loop {
            let bytes = serde_json::to_vec(&request).map_err(protocol)?;
            let call = async |mut service: MetadataClient<Channel>| {
                service.call(limited(CallRequest { request: bytes })).await
            };
            match self.try_once(tries, call).await? {
                Some(response) => {
                    return serde_json::from_slice(&response.into_inner().answer).map_err(protocol);
                }
                None => request.is_repeated = true,
            }
        }
    }

    /// Ends a mount: this one when it is unmounted, or one that is gone, whose sessions have ended in all chains.
    pub async fn end_mount(&self, mount: MountId) -> Result<(), MetaError> {
        let mut tries = Tries::new(self.limit);
        loop {
            let request = EndMountRequest { mount: mount.0 };
            let call = async |mut service: MetadataClient<Channel>| {
                service.end_mount(limited(request)).await
            };
            if self.try_once(&mut tries, call).await?.is_some() {
                return Ok(());
            }
        }
    }

    /// None if it has to be tried again.
    async fn try_once<T>(
        &self,
        tries: &mut Tries,
        call: impl AsyncFnOnce(MetadataClient<Channel>) -> Result<T, Status>,
    ) -> Result<Option<T>, MetaError> {
        let at = self.shared.asked.load(Ordering::Relaxed);
        let Some(service) = self.shared.services.get(at) else {
            return Err(MetaError::Unavailable("there is none".to_owned()));
        };
        let status = match call(service.clone()).await {
            Ok(response) => return Ok(Some(response)),
            Err(status) => status,
        };
        let text = status.to_string();
        if status.code() == Code::ResourceExhausted {
            return Err(MetaError::Full(text));
        }
        // A broken connection can look like an answer, but has a cause.
        let is_answer = std::error::Error::source(&status).is_none();
        if is_answer && NEVER_ANOTHER.contains(&status.code()) {
            return Err(MetaError::Protocol(text));
        }
        let next = (at + 1) % self.shared.services.len();
        self.shared.asked.store(next, Ordering::Relaxed);
        match tries.next().await {
            true => Ok(None),
            false => Err(MetaError::Unavailable(text)),
        }
    }
}

fn limited<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(TRY_LIMIT);
    request
}

fn protocol(error: serde_json::Error) -> MetaError {
    MetaError::Protocol(error.to_string())
}
