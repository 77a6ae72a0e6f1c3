//! The rendezvous of one attempt without a cluster: the same service over a directory of two files.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use collective::membership::RecoveryPolicy;
use contract::assignment::{self, Assignment};
use contract::identity::JobId;
use link::handshake::{KEY_BYTES, Key};
use scheduler::JobKey;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::args::StandaloneArgs;
use crate::leader::Role;
use crate::metrics::Metrics;
use crate::rendezvous::directory::{Directory, Gang, GangRefusal};
use crate::rendezvous::gangs::Planner;
use crate::rendezvous::store::InMemory;
use crate::training_job::observe::Reports;

/// Why the attempt could not be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("failed to read {path}")]
    Read { path: PathBuf, source: io::Error },
    /// The assignment is not one.
    #[error("failed to read the assignment {path}")]
    Assignment {
        path: PathBuf,
        source: assignment::Error,
    },
    /// The key is not one.
    #[error("failed to read the key {path}: it has {found} bytes, expected {KEY_BYTES}")]
    Key { path: PathBuf, found: usize },
    /// The address cannot be had.
    #[error("failed to listen on {address}")]
    Listen {
        address: std::net::SocketAddr,
        source: io::Error,
    },
}

/// Ends the attempt when its gang cannot go on, as the planner does in a cluster.
#[derive(Debug)]
struct Alone {
    one: OneGang,
    reports: watch::Receiver<Reports>,
    /// Why it is over: reports forget a gang that got the reason.
    over: OnceLock<String>,
}

impl Directory for Alone {
    fn key(&self, job: JobId, attempt: u32) -> Option<Key> {
        self.one.key(job, attempt)
    }

    fn gang(&self, job: JobId, attempt: u32) -> Result<Arc<Gang>, GangRefusal> {
        if let Some(stuck) = self.reports.borrow().stuck.values().next() {
            self.over.get_or_init(|| stuck.message.clone());
        }
        match self.over.get() {
            Some(reason) => Err(GangRefusal::void(reason.clone())),
            None => self.one.gang(job, attempt),
        }
    }
}

/// One attempt, known beforehand.
#[derive(Debug)]
pub(super) struct OneGang {
    pub(super) gang: Arc<Gang>,
    pub(super) key: Key,
}

impl Directory for OneGang {
    fn key(&self, job: JobId, _attempt: u32) -> Option<Key> {
        (job == JobId::new(&self.gang.job.uid)).then(|| self.key.clone())
    }

    fn gang(&self, _job: JobId, attempt: u32) -> Result<Arc<Gang>, GangRefusal> {
        let served = self.gang.attempt;
        if attempt == served {
            return Ok(Arc::clone(&self.gang));
        }
        Err(GangRefusal {
            reason: format!("attempt {attempt} is not served, {served} is"),
            void: attempt < served,
        })
    }
}

impl OneGang {
    fn read(args: &StandaloneArgs) -> Result<Self, Error> {
        let read = |path: &PathBuf| {
            fs::read(path).map_err(|source| Error::Read {
                path: path.clone(),
                source,
            })
        };
        let assignment =
            Assignment::from_gz(&read(&args.assignment)?, assignment::ASSIGNMENT_LIMIT_BYTES)
                .map_err(|source| Error::Assignment {
                    path: args.assignment.clone(),
                    source,
                })?;
        let key = read(&args.key)?;
        let key: [u8; KEY_BYTES] = key.try_into().map_err(|key: Vec<u8>| Error::Key {
            path: args.key.clone(),
            found: key.len(),
        })?;
        let job = assignment.job;
        Ok(Self {
            gang: Arc::new(Gang {
                job: JobKey {
                    kind: scheduler::JobKind::TrainingJob,
                    namespace: job.namespace.into(),
                    name: job.name.into(),
                    uid: job.uid.into(),
                },
                attempt: assignment.attempt,
                nodes: assignment
                    .nodes
                    .into_iter()
                    .map(|node| node.name.into())
                    .collect(),
                policy: RecoveryPolicy {
                    on_peer_loss: assignment.on_peer_loss,
                    peer_loss: Duration::from_secs(assignment.peer_loss_seconds.into()),
                    ..RecoveryPolicy::default()
                },
            }),
            key: Key::new(key),
        })
    }
}

/// Serves one attempt until the token is cancelled.
pub async fn serve(
    args: &StandaloneArgs,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let one = OneGang::read(args)?;
    let address = args.listen;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| Error::Listen { address, source })?;
    serve_one(listener, one, metrics, shutdown).await;
    Ok(())
}

pub(super) async fn serve_one(
    listener: TcpListener,
    one: OneGang,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let (_leading, role) = watch::channel(Role::Leading);
    let (sender, reports) = watch::channel(Reports::default());
    let (_nobody_looks, gone) = watch::channel(Vec::new());
    let (_nobody_counts, stalled) = watch::channel(Vec::new());
    let planner = Planner {
        reports: sender,
        gone,
        stalled,
    };
    let directory = Arc::new(Alone {
        one,
        reports,
        over: OnceLock::new(),
    });
    let store = Arc::new(InMemory::default());
    super::serve(listener, directory, store, role, planner, metrics, shutdown).await;
}
