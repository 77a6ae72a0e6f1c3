//! Keeps the mirrors up to date: one task for each kind, listing and then watching for ever. Each
//! watch ends after some seconds and goes on where it was, so a connection that died without a word
//! is noticed, and a mirror knows how old it is.

mod follow;
mod page;

use std::sync::Arc;
use std::time::Duration;

use crds::{Fabric, NodeValidation, NodeValidationPolicy, StorageChain, StoragePool, names};
use futures::future::BoxFuture;
use kube::{Api, Client, Resource, ResourceExt};
use prometheus::GaugeVec;
use scheduler::JobKind;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::cluster::{SharedCluster, now};
use crate::proof::Masters;
use crate::storage::SharedStorage;
use crate::training_job::job_view::JobView;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate::{self, AttemptProof, TaintRules};
use crate::views::{AttemptView, ClaimView, Guarded, NodeView, PodView};
use crate::workload::Workload;
use follow::{Scope, watch};

/// How often the ages are shown.
const AGES_PERIOD: Duration = Duration::from_secs(5);

/// Starts all watches. They end with the token.
pub fn start(
    client: &Client,
    cluster: &Arc<SharedCluster>,
    taints: TaintRules,
    masters: Arc<Masters>,
    ages: GaugeVec,
    shutdown: &CancellationToken,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let all = Scope::default();
    let ours = Scope {
        labels: Some(names::LABEL_JOB),
        ..all
    };
    let optional = Scope {
        is_optional: true,
        ..all
    };
    let the_fabric = Scope {
        fields: Some("metadata.name=default"),
        ..all
    };
    let mut spawn = |task| spawn(&mut tasks, task, shutdown);
    spawn(Box::pin(show_ages(Arc::clone(cluster), ages)));
    let to = || Arc::clone(cluster);
    let pool = Arc::clone(cluster);
    spawn(watch(
        Api::<NodeView>::all(client.clone()),
        all,
        to(),
        |mirrors| &mut mirrors.nodes,
        move |view| translate::node(view, &taints, &pool.labels),
    ));
    let noting = Arc::clone(cluster);
    spawn(watch(
        // One that a newer release wrote must not hide the others.
        Api::<Guarded<JobView>>::all(client.clone()),
        all,
        to(),
        |mirrors| &mut mirrors.jobs,
        move |job| {
            let mirrored = MirroredJob::guarded(job, JobKind::TrainingJob)?;
            if let Some(key) = mirrored.whole().and_then(Workload::key) {
                noting.note_job(&key);
            }
            Some(mirrored)
        },
    ));
    spawn(watch(
        Api::<Guarded<NodeValidation>>::all(client.clone()),
        optional,
        to(),
        |mirrors| &mut mirrors.validations,
        |job| MirroredJob::guarded(job, JobKind::NodeValidation),
    ));
    spawn(watch(
        Api::<Guarded<NodeValidationPolicy>>::all(client.clone()),
        optional,
        to(),
        |mirrors| &mut mirrors.policies,
        readable,
    ));
    spawn(watch(
        Api::<AttemptView>::all(client.clone()),
        ours,
        to(),
        |mirrors| &mut mirrors.attempts,
        move |view| attempt(&view, &masters),
    ));
    spawn(watch(
        Api::<PodView>::all(client.clone()),
        ours,
        to(),
        |mirrors| &mut mirrors.pods,
        translate::pod,
    ));
    spawn(watch(
        Api::<ClaimView>::all(client.clone()),
        all,
        to(),
        |mirrors| &mut mirrors.claims,
        |view| Some(translate::claim(&view)),
    ));
    spawn(watch(
        Api::<Fabric>::all(client.clone()),
        the_fabric,
        to(),
        |mirrors| &mut mirrors.fabrics,
        |mut fabric: Fabric| {
            fabric.metadata.managed_fields = None;
            Some(fabric)
        },
    ));
    tasks
}

/// Starts the watches of storage, which exist only where storage is on. They end with the token.
pub fn start_storage(
    client: &Client,
    storage: &Arc<SharedStorage>,
    shutdown: &CancellationToken,
) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let pools = watch(
        Api::<Guarded<StoragePool>>::all(client.clone()),
        Scope::default(),
        Arc::clone(storage),
        |mirrors| &mut mirrors.pools,
        readable,
    );
    spawn(&mut tasks, pools, shutdown);
    let chains = watch(
        Api::<Guarded<StorageChain>>::all(client.clone()),
        Scope::default(),
        Arc::clone(storage),
        |mirrors| &mut mirrors.chains,
        readable,
    );
    spawn(&mut tasks, chains, shutdown);
    tasks
}

/// Runs a task until it is asked to stop.
fn spawn(tasks: &mut JoinSet<()>, task: BoxFuture<'static, ()>, shutdown: &CancellationToken) {
    let shutdown = shutdown.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = task => {}
            () = shutdown.cancelled() => {}
        }
    });
}

/// An attempt as it is kept. One whose content is not acted upon is said.
pub fn attempt(view: &AttemptView, masters: &Masters) -> Option<translate::MirroredAttempt> {
    let attempt = translate::attempt(view, masters)?;
    let (namespace, name) = (view.namespace(), view.name_any());
    match &attempt.standing {
        AttemptProof::Proved(_) => {}
        AttemptProof::Unreadable(_, error) => {
            warn!(namespace, name, %error, "failed to read an attempt; it is ignored until a release that reads it runs");
        }
        AttemptProof::Unproved => {
            warn!(
                namespace,
                name, "ignoring the ConfigMap of an attempt: its proof is not valid"
            );
        }
    }
    Some(attempt)
}

/// An object as it is kept. One that this release cannot read does nothing.
fn readable<K: Resource<DynamicType = ()>>(object: Guarded<K>) -> Option<K> {
    let (kind, name) = (K::kind(&()), object.name_any());
    match object.0 {
        Ok(mut object) => {
            object.meta_mut().managed_fields = None;
            Some(object)
        }
        Err(error) => {
            warn!(%kind, name, %error, "failed to read an object; it is ignored until a release that reads it runs");
            None
        }
    }
}

/// Shows how old each mirror is, for ever.
async fn show_ages(cluster: Arc<SharedCluster>, gauges: GaugeVec) {
    let mut period = tokio::time::interval(AGES_PERIOD);
    loop {
        period.tick().await;
        for (kind, age) in cluster.mirrors().ages(now()) {
            // Before the first listing there is nothing that could be old.
            let seconds = age.map_or(0.0, |age| age.as_secs_f64());
            gauges.with_label_values(&[kind]).set(seconds);
        }
    }
}
