//! A job of the snapshot: what it asks for, what its attempt runs with, and why it cannot get pods.

use std::time::Duration;

use crds::fabric::FabricSpec;
use crds::training_job::ZonePolicy;
use scheduler::{DryRun, Job, JobKey, Problem, Timestamp};
use topology::OnPeerLoss;

use super::{class_name, class_of};
use crate::cluster::Mirrors;
use crate::training_job::job_view::{JobView, SPEC_LIMIT_BYTES, TemplateView};
use crate::training_job::translate::Terms;
use crate::training_job::{pod, status, translate};
use crate::workload::Workload;

/// The job; none if the API server has not named it in full.
pub(super) fn of(
    workload: &Workload,
    job: &JobView,
    fabric: &FabricSpec,
    mirrors: &Mirrors,
) -> Option<Job> {
    let key = workload.key()?;
    let spec = &job.spec;
    let named = class_name(job).map(String::as_str);
    let class = class_of(job, fabric);
    let finalizers = job.metadata.finalizers.as_deref().unwrap_or_default();
    let terms = terms(&key, job, mirrors);
    let asked = Duration::from_secs(pod::grace_seconds(job).into());
    let stall_seconds = spec.failure_policy.stall_seconds;
    let asked_to = translate::on_peer_loss(spec.failure_policy.on_peer_loss);
    Some(Job {
        key,
        created: translate::created(&job.metadata),
        nodes: spec.nodes,
        pin: None,
        when_busy: scheduler::WhenBusy::default(),
        class: class
            .map(|class| class.name.as_str())
            .or(named)
            .unwrap_or_default()
            .into(),
        procs_per_node: class.map(|class| pod::procs_per_node(job, class)),
        zone_policy: match spec.zone_policy {
            ZonePolicy::Single => scheduler::ZonePolicy::Single,
            ZonePolicy::PreferSingle => scheduler::ZonePolicy::PreferSingle,
        },
        suspend: spec.suspend,
        grace: terms.map_or(asked, |terms| terms.grace),
        exit: Duration::from_secs(spec.failure_policy.exit_seconds.into()),
        stall: stall_seconds.map(|seconds| Duration::from_secs(seconds.into())),
        max_restarts: spec.failure_policy.max_restarts,
        shrinks: terms.map_or(asked_to, |terms| terms.on_peer_loss) == OnPeerLoss::Shrink,
        ttl: workload.ttl(),
        deleting: job.metadata.deletion_timestamp.is_some(),
        finalizer: finalizers
            .iter()
            .any(|finalizer| finalizer == crds::names::FINALIZER),
        observed: workload.is_observed(),
        problem: problem(job, fabric, mirrors),
        hold: None,
        dry_run: DryRun::Unknown,
        status: workload.status().unwrap_or_default(),
        seen: Timestamp::default(),
    })
}

/// What the attempt that has the job's nodes runs with: the job may ask for something else by now.
fn terms(key: &JobKey, job: &JobView, mirrors: &Mirrors) -> Option<Terms> {
    let status = job.status.as_ref()?;
    if !status::phase_from_api(status.phase).holds_nodes() {
        return None;
    }
    let name = crds::names::attempt_name(&key.name, status.attempt);
    let mirrored = mirrors.attempts.get(&key.namespace, &name)?;
    mirrored.terms.filter(|_| mirrored.attempt.job == *key)
}

/// Why the job cannot get pods, whatever nodes are free.
fn problem(job: &JobView, fabric: &FabricSpec, mirrors: &Mirrors) -> Option<Problem> {
    let because = |reason| move |message| Problem { reason, message };
    if let (None, Some(name)) = (class_of(job, fabric), class_name(job)) {
        let known: Vec<&str> = fabric
            .classes
            .iter()
            .map(|class| class.name.as_str())
            .collect();
        let known = known.join(", ");
        let message = format!("node class {name} is not in the Fabric, which has {known}");
        return Some(because("ClassUnknown")(message));
    }
    let (claims, template) = match &job.template {
        TemplateView::Read { claims, problem } => (claims, problem),
        TemplateView::TooLarge(bytes) => {
            return Some(because("TemplateTooLarge")(too_large(*bytes)));
        }
    };
    claim_problem(job, claims, mirrors)
        .map(because("ClaimUnusable"))
        .or_else(|| {
            template
                .as_deref()
                .map(str::to_owned)
                .map(because("TemplateUnusable"))
        })
}

fn too_large(bytes: usize) -> String {
    format!(
        "the job's spec has {bytes} bytes as JSON, and the operator reads the pod template of one with at most \
         {SPEC_LIMIT_BYTES}: put scripts and files into the image or into ConfigMaps that the template mounts, then \
         delete the job and create it again"
    )
}

/// Every claim that a pod mounts must be there, and be one that all of the gang's pods can mount.
fn claim_problem(job: &JobView, claims: &[Box<str>], mirrors: &Mirrors) -> Option<String> {
    let namespace = job.metadata.namespace.as_deref().unwrap_or_default();
    let nodes = job.spec.nodes;
    let refused = |name: &str, modes: &str, usable: fn(&translate::MirroredClaim) -> bool| {
        let Some(claim) = mirrors.claims.get(namespace, name) else {
            return Some(format!(
                "claim {name} does not exist in namespace {namespace}"
            ));
        };
        (nodes > 1 && !usable(claim)).then(|| {
            format!("claim {name} is not {modes}, and pods on {nodes} nodes must mount it")
        })
    };
    let checkpoint = job.spec.checkpoint.as_ref().and_then(|checkpoint| {
        refused(&checkpoint.claim_name, "ReadWriteMany", |claim| {
            claim.shared
        })
    });
    checkpoint.or_else(|| {
        claims.iter().find_map(|name| {
            refused(name, "ReadWriteMany or ReadOnlyMany", |claim| {
                claim.readable
            })
        })
    })
}
