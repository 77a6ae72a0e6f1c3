//! Keeps the mirrors up to date: one task for each kind, listing and then watching for ever.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use crds::{Fabric, TrainingJob, names};
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cluster::{Cluster, Mirrors, key_of, version_of};
use crate::mirror::{Kept, Mirror};
use crate::training_job::translate;
use crate::views::{AttemptView, ClaimView, NodeView, PodView};

/// Objects in one page of a listing: 500 pods of 8 KB are 4 MB decoded at a time.
const PAGE: u32 = 500;

/// Starts all watches. They end with the token.
pub fn start(
    client: &Client,
    cluster: &Arc<Cluster>,
    dedicated_taints: &[String],
    shutdown: &CancellationToken,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let ours = watcher::Config::default()
        .labels(names::LABEL_JOB)
        .page_size(PAGE);
    let all = watcher::Config::default().page_size(PAGE);
    let the_fabric = watcher::Config::default().fields("metadata.name=default");
    let taints = dedicated_taints.to_vec();

    let mut spawn = |task: futures::future::BoxFuture<'static, ()>| {
        let shutdown = shutdown.clone();
        tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = shutdown.cancelled() => {}
            }
        });
    };
    spawn(Box::pin(watch(
        Api::<NodeView>::all(client.clone()),
        all.clone(),
        Arc::clone(cluster),
        |mirrors| &mut mirrors.nodes,
        move |view| translate::node(view, &taints),
    )));
    spawn(Box::pin(watch(
        Api::<TrainingJob>::all(client.clone()),
        all.clone(),
        Arc::clone(cluster),
        |mirrors| &mut mirrors.jobs,
        |job| Some(slim_job(job)),
    )));
    spawn(Box::pin(watch(
        Api::<AttemptView>::all(client.clone()),
        ours.clone(),
        Arc::clone(cluster),
        |mirrors| &mut mirrors.attempts,
        |view| attempt(&view),
    )));
    spawn(Box::pin(watch(
        Api::<PodView>::all(client.clone()),
        ours,
        Arc::clone(cluster),
        |mirrors| &mut mirrors.pods,
        translate::pod,
    )));
    spawn(Box::pin(watch(
        Api::<ClaimView>::all(client.clone()),
        all,
        Arc::clone(cluster),
        |mirrors| &mut mirrors.claims,
        |view| Some(translate::claim(&view)),
    )));
    spawn(Box::pin(watch(
        Api::<Fabric>::all(client.clone()),
        the_fabric,
        Arc::clone(cluster),
        |mirrors| &mut mirrors.fabrics,
        |mut fabric: Fabric| {
            fabric.metadata.managed_fields = None;
            Some(fabric)
        },
    )));
    tasks
}

/// A job as it is kept: without the record of who set which field.
pub fn slim_job(mut job: TrainingJob) -> Arc<TrainingJob> {
    job.metadata.managed_fields = None;
    Arc::new(job)
}

/// An attempt as it is kept. One that cannot be read is left out, and said: its pods then count
/// as leftovers.
pub fn attempt(view: &AttemptView) -> Option<translate::Attempt> {
    translate::attempt(view).unwrap_or_else(|error| {
        let name = view.name_any();
        warn!(namespace = view.namespace(), name, %error, "ignoring an attempt that cannot be read");
        None
    })
}

async fn watch<K, T>(
    api: Api<K>,
    config: watcher::Config,
    cluster: Arc<Cluster>,
    mirror: impl Fn(&mut Mirrors) -> &mut Mirror<T> + Send,
    translate: impl Fn(K) -> Option<T> + Send,
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Kept + Send,
{
    let kind = K::kind(&());
    let mut events = watcher(api, config).default_backoff().boxed();
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                warn!(%kind, error = %chain(&error), "watch failed, trying again");
                continue;
            }
        };
        let news = match event {
            watcher::Event::Init => {
                mirror(&mut cluster.mirrors()).listing(Instant::now());
                false
            }
            watcher::Event::InitApply(object) => {
                let (key, version) = (key_of(&object), version_of(&object));
                if let Some(value) = translate(object) {
                    mirror(&mut cluster.mirrors()).listed(key, version, value);
                }
                false
            }
            watcher::Event::InitDone => {
                let mut mirrors = cluster.mirrors();
                let mirror = mirror(&mut mirrors);
                mirror.listing_done();
                info!(%kind, objects = mirror.len(), "listed");
                true
            }
            watcher::Event::Apply(object) => {
                let (key, version) = (key_of(&object), version_of(&object));
                let value = translate(object);
                mirror(&mut cluster.mirrors()).applied(key, version, value)
            }
            watcher::Event::Delete(object) => {
                let (key, version) = (key_of(&object), version_of(&object));
                mirror(&mut cluster.mirrors()).deleted(&key, version)
            }
        };
        if news {
            cluster.notify();
        }
    }
}

/// An error with its causes, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
