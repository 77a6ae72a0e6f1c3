//! The leader's loop: wait for a change, look, plan, check, apply. One plan at a time for the whole
//! cluster, because placement is a decision about all jobs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crds::fabric::FabricSpec;
use scheduler::{
    Action, ConditionKind, JobKey, JobPlan, Phase, Plan, Policy, Snapshot, Timestamp, Violation,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::bootstrap;
use crate::cluster::{Cluster, key_of, version_of};
use crate::metrics::Metrics;
use crate::training_job::apply::{self, Applier, Jobs};
use crate::training_job::observe::{self, Reports};

/// Changes come in bursts (1,250 pods turn Running): planning waits for the rest of a burst.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// After a write collided, the mirrors need a moment.
const STALE_RETRY: Duration = Duration::from_millis(100);
/// After a write failed: doubled up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// How long a refusal of the API server is believed before it is asked again.
const REFUSAL: Duration = Duration::from_secs(60);
/// Even when nothing happens: expectations expire, gauges are refreshed.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Why and until when a job is not touched.
#[derive(Clone, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
    /// What the API server refused, shown as the reason why the job waits.
    refusal: Option<String>,
}

/// The loop's state.
#[derive(Debug)]
pub struct Reconciler {
    cluster: Arc<Cluster>,
    applier: Applier,
    default_fabric: FabricSpec,
    reports: watch::Receiver<Reports>,
    metrics: Metrics,
    pauses: BTreeMap<JobKey, Pause>,
}

/// One look at the cluster.
struct Observed {
    snapshot: Snapshot,
    jobs: Jobs,
    fabric: FabricSpec,
}

impl Reconciler {
    /// A loop that has not started.
    pub fn new(
        cluster: Arc<Cluster>,
        applier: Applier,
        default_fabric: FabricSpec,
        reports: watch::Receiver<Reports>,
        metrics: Metrics,
    ) -> Self {
        Self {
            cluster,
            applier,
            default_fabric,
            reports,
            metrics,
            pauses: BTreeMap::new(),
        }
    }

    /// Plans and writes until the token is cancelled; then it stops at once, also in mid-write.
    pub async fn lead(&mut self, leading: &CancellationToken) {
        let mut wake = Instant::now();
        loop {
            let reports_changed = async {
                if self.reports.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = leading.cancelled() => return,
                () = self.cluster.changed() => {}
                () = reports_changed => {}
                () = tokio::time::sleep_until(wake) => {}
            }
            tokio::select! {
                () = leading.cancelled() => return,
                () = tokio::time::sleep(DEBOUNCE) => {}
            }
            tokio::select! {
                () = leading.cancelled() => return,
                next = self.cycle() => wake = next,
            }
        }
    }

    /// One plan, made and carried out. Returns when to make the next if nothing changes.
    async fn cycle(&mut self) -> Instant {
        let Some(observed) = self.observe() else {
            return self.make_fabric().await;
        };
        let now = self.now();
        let started = Instant::now();
        let policy = observe::policy(&observed.fabric);
        let plan = self.checked(
            &observed,
            &policy,
            scheduler::plan(&observed.snapshot, &policy, now),
            now,
        );
        self.metrics
            .plan_seconds
            .with_label_values::<&str>(&[])
            .observe(started.elapsed().as_secs_f64());
        self.count(&observed.snapshot, &plan, now);

        let wake_at = plan.wake_at;
        let plan = self.without_paused(plan);
        if !plan.is_empty() {
            let started = Instant::now();
            let stopped = self
                .applier
                .apply(plan, &observed.jobs, &observed.fabric)
                .await;
            let elapsed = started.elapsed().as_secs_f64();
            self.metrics
                .apply_seconds
                .with_label_values::<&str>(&[])
                .observe(elapsed);
            // What was written is a change as well: the next plan rests on it.
            self.cluster.notify();
            self.pause(stopped);
        }
        let planned = wake_at.map(|at| {
            Instant::now() + Duration::from_millis(at.as_millis().saturating_sub(now.as_millis()))
        });
        let resumed = self.pauses.values().map(|pause| pause.until);
        let latest = Instant::now() + LONGEST_SLEEP;
        planned
            .into_iter()
            .chain(resumed)
            .chain([latest])
            .min()
            .unwrap_or(latest)
    }

    fn observe(&mut self) -> Option<Observed> {
        let reports = self.reports.borrow_and_update().clone();
        let mut mirrors = self.cluster.mirrors();
        mirrors.expire(std::time::Instant::now());
        let mut snapshot = observe::snapshot(&mirrors, &reports)?;
        let fabric = mirrors.fabric()?.spec.clone();
        let jobs: Jobs = mirrors
            .jobs
            .values()
            .filter_map(|job| Some((observe::key(job)?, Arc::clone(job))))
            .collect();
        drop(mirrors);
        self.pauses.retain(|key, _| jobs.contains_key(key));
        for job in &mut snapshot.jobs {
            let refusal = self
                .pauses
                .get(&job.key)
                .and_then(|pause| pause.refusal.clone());
            job.claim_problem = job.claim_problem.take().or(refusal);
        }
        Some(Observed {
            snapshot,
            jobs,
            fabric,
        })
    }

    async fn make_fabric(&self) -> Instant {
        match bootstrap::create_fabric(&self.applier.writer, &self.default_fabric).await {
            Ok(Some(fabric)) => {
                let (key, version) = (key_of(&fabric), version_of(&fabric));
                let now = std::time::Instant::now();
                self.cluster
                    .mirrors()
                    .fabrics
                    .created(key, version, fabric, now);
                self.cluster.notify();
            }
            Ok(None) => debug!("the Fabric exists, waiting to see it"),
            Err(error) => warn!(%error, "failed to create the default Fabric"),
        }
        Instant::now() + FIRST_RETRY
    }

    /// The plan, or what of it breaks no invariant: a bug stops one decision, not everybody's.
    fn checked(&self, observed: &Observed, policy: &Policy, plan: Plan, now: Timestamp) -> Plan {
        let snapshot = &observed.snapshot;
        let Err(violation) = scheduler::check(snapshot, policy, now, &plan) else {
            return plan;
        };
        self.tell(&violation);
        let mut sound = Plan {
            jobs: Vec::new(),
            wake_at: plan.wake_at,
        };
        for job in plan.jobs {
            let key = job.job.clone();
            sound.jobs.push(job);
            if let Err(violation) = scheduler::check(snapshot, policy, now, &sound) {
                warn!(job = %key, %violation, "discarded what was planned for this job");
                sound.jobs.pop();
                sound.jobs.extend(discarded(snapshot, key, &violation, now));
            }
        }
        sound
    }

    fn tell(&self, violation: &Violation) {
        error!(
            invariant = violation.invariant,
            detail = violation.detail,
            "a plan broke an invariant"
        );
        self.metrics
            .violations
            .with_label_values(&[violation.invariant])
            .inc();
    }

    /// The plan without what a pause forbids. A job whose pods are refused is still recorded, so
    /// that its condition says why; only creating is not tried again before the pause is over.
    fn without_paused(&self, mut plan: Plan) -> Plan {
        let now = Instant::now();
        for job in &mut plan.jobs {
            let Some(pause) = self.pauses.get(&job.job).filter(|pause| now < pause.until) else {
                continue;
            };
            let allowed = match pause.refusal {
                Some(_) => job
                    .actions
                    .iter()
                    .take_while(|action| !creates(action))
                    .count(),
                None => 0,
            };
            job.actions.truncate(allowed);
        }
        plan.jobs.retain(|job| !job.actions.is_empty());
        plan
    }

    fn pause(&mut self, stopped: Vec<(JobKey, apply::Error)>) {
        let now = Instant::now();
        let failed: BTreeMap<JobKey, apply::Error> = stopped.into_iter().collect();
        // Whoever went through, or whose time is over, starts from the shortest pause again.
        self.pauses
            .retain(|key, pause| failed.contains_key(key) || now < pause.until);
        for (key, error) in failed {
            let before = self.pauses.get(&key).map(|pause| pause.length);
            let refusal = error
                .refusal()
                .map(|reason| format!("the API server refuses it: {reason}"));
            let (reason, length) = if error.is_stale() {
                ("stale", STALE_RETRY)
            } else if refusal.is_some() {
                ("refused", REFUSAL)
            } else {
                (
                    "failed",
                    before.map_or(FIRST_RETRY, |length| (length * 2).min(LONGEST_RETRY)),
                )
            };
            self.metrics.stopped.with_label_values(&[reason]).inc();
            if error.is_stale() {
                debug!(job = %key, %error, "stopped");
            } else {
                warn!(job = %key, %error, retry_seconds = length.as_secs_f64(), "stopped");
            }
            self.pauses.insert(
                key,
                Pause {
                    until: now + length,
                    length,
                    refusal,
                },
            );
        }
    }

    fn count(&self, snapshot: &Snapshot, plan: &Plan, now: Timestamp) {
        for action in plan.jobs.iter().flat_map(|job| &job.actions) {
            self.metrics
                .actions
                .with_label_values(&[apply::kind(action)])
                .inc();
        }
        self.metrics.jobs.reset();
        for phase in PHASES {
            self.metrics
                .jobs
                .with_label_values(&[&*format!("{phase:?}")])
                .set(0);
        }
        for job in &snapshot.jobs {
            self.metrics
                .jobs
                .with_label_values(&[&*format!("{:?}", job.status.phase)])
                .inc();
        }
        self.metrics.nodes.reset();
        for node in &snapshot.nodes {
            let state = if !node.ready || !node.has_node_resource {
                "unready"
            } else if node.suspect_until.is_some_and(|until| now < until) {
                "suspect"
            } else if node.cordoned {
                "cordoned"
            } else {
                "usable"
            };
            self.metrics
                .nodes
                .with_label_values(&[node.class.as_str(), state])
                .inc();
        }
    }

    fn now(&self) -> Timestamp {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Timestamp::from_millis(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

fn creates(action: &Action) -> bool {
    matches!(action, Action::CreateAttempt(_) | Action::CreatePod { .. })
}

const PHASES: [Phase; 9] = [
    Phase::Queued,
    Phase::Assigned,
    Phase::Starting,
    Phase::Running,
    Phase::Interrupting,
    Phase::Restarting,
    Phase::Suspended,
    Phase::Succeeded,
    Phase::Failed,
];

/// Instead of a discarded plan: says so on the job, once.
fn discarded(
    snapshot: &Snapshot,
    key: JobKey,
    violation: &Violation,
    now: Timestamp,
) -> Option<JobPlan> {
    let job = snapshot.jobs.iter().find(|job| job.key == key)?;
    let message = format!("a plan for this job was discarded: {violation}; please report it");
    let mut status = job.status.clone();
    let assigned = status.conditions.get(&ConditionKind::Assigned);
    if assigned.is_some_and(|condition| condition.message == message) {
        return None;
    }
    let holds = status.is(ConditionKind::Assigned);
    status.set(
        ConditionKind::Assigned,
        holds,
        "PlanDiscarded",
        &message,
        now,
    );
    let record = Action::Record {
        status: Box::new(status),
        event: None,
    };
    Some(JobPlan {
        job: key,
        actions: vec![record],
    })
}
