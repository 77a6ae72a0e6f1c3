//! Puts the agent together: one task follows the hardware, one per resource serves the kubelet, one
//! keeps the labels. The first that cannot go on ends them all.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use daemon::{CancellationToken, Readiness, chain};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tracing::{info, warn};

use crate::backend::{self, HardwareBackend, Inventory, NodeLocation};
use crate::labels::Labels;
use crate::metrics::Metrics;
use crate::plugin::{self, Plugin};
use crate::resource::Resource;

/// How long to wait before the hardware is read again after it could not be.
const DISCOVER_AGAIN: Duration = Duration::from_secs(5);

/// Why the agent cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The hardware could not be read.
    #[error(transparent)]
    HardwareBackend(#[from] backend::Error),
    /// A plugin cannot go on.
    #[error("failed to serve {resource}")]
    Plugin {
        /// The plugin's resource.
        resource: &'static str,
        /// Why.
        source: plugin::Error,
    },
    /// A task ended by a panic.
    #[error("failed to run a task to its end")]
    Task(#[from] JoinError),
}

/// What the agent of one node consists of.
#[derive(Debug)]
pub struct Agent<B> {
    /// Where facts come from.
    pub backend: B,
    /// Where this node belongs, as the flags say; the backend says what they leave open.
    pub place: NodeLocation,
    /// The kubelet's plugin folder.
    pub plugin_dir: PathBuf,
    /// Who keeps the labels, if anybody.
    pub labels: Option<Labels>,
    /// Where things are counted.
    pub metrics: Metrics,
    /// Ready once the kubelet follows every plugin.
    pub readiness: Readiness,
    /// Cancelled when the agent shall end.
    pub shutdown: CancellationToken,
}

impl<B: HardwareBackend> Agent<B> {
    /// Runs until shutdown. Hardware that cannot be read at the start is an error; later, what was
    /// read last stays true until it can be read again.
    pub async fn run(self) -> Result<(), Error> {
        let Self {
            mut backend,
            place,
            plugin_dir,
            labels,
            metrics,
            readiness,
            shutdown,
        } = self;
        let first = discover(&mut backend, &place, &metrics)?;
        let (sender, inventory) = watch::channel(first);

        let mut tasks: JoinSet<Result<(), Error>> = JoinSet::new();
        for resource in Resource::ALL {
            let gate = readiness.gate(resource.gate());
            if resource.devices(&inventory.borrow()).is_empty() {
                gate.open();
            }
            let plugin = Plugin {
                resource,
                folder: plugin_dir.clone(),
                inventory: inventory.clone(),
                metrics: metrics.clone(),
                gate,
                shutdown: shutdown.clone(),
            };
            tasks.spawn(async move {
                plugin.run().await.map_err(|source| Error::Plugin {
                    resource: resource.name(),
                    source,
                })
            });
        }
        if let Some(labels) = labels {
            let shutdown = shutdown.clone();
            tasks.spawn(async move {
                labels.run(inventory, shutdown).await;
                Ok(())
            });
        }
        let follow = follow(backend, place, sender, metrics, shutdown.clone());
        tasks.spawn(async move {
            follow.await;
            Ok(())
        });

        let mut result = Ok(());
        while let Some(ended) = tasks.join_next().await {
            let ended = ended.map_err(Error::from).and_then(|ended| ended);
            if !shutdown.is_cancelled() {
                shutdown.cancel();
            }
            result = result.and(ended);
        }
        result
    }
}

fn discover<B: HardwareBackend>(
    backend: &mut B,
    place: &NodeLocation,
    metrics: &Metrics,
) -> Result<Arc<Inventory>, backend::Error> {
    let found = backend.discover();
    metrics.discovered(found.is_ok());
    let mut inventory = found?;
    inventory.place = place.clone().or(inventory.place);
    for resource in Resource::ALL {
        metrics.devices(resource, &resource.devices(&inventory));
    }
    Ok(Arc::new(inventory))
}

/// Reads the hardware whenever it may have changed.
async fn follow<B: HardwareBackend>(
    mut backend: B,
    place: NodeLocation,
    sender: watch::Sender<Arc<Inventory>>,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let mut failed = false;
    loop {
        let changed = tokio::select! {
            () = shutdown.cancelled() => return,
            changed = backend.changed() => changed,
            () = tokio::time::sleep(DISCOVER_AGAIN), if failed => Ok(()),
        };
        let found = changed.and_then(|()| discover(&mut backend, &place, &metrics));
        failed = found.is_err();
        match found {
            Ok(found) => {
                sender.send_if_modified(|inventory| {
                    let other = *inventory != found;
                    if other {
                        info!(faults = ?found.faults, "the hardware changed");
                        *inventory = found;
                    }
                    other
                });
            }
            Err(error) => {
                let error = chain(&error);
                warn!(
                    error,
                    "failed to read the hardware, using the last inventory"
                );
            }
        }
    }
}
