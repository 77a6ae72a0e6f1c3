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
use crate::training_job::apply::{self, Applier, Jobs, Wait};
use crate::training_job::observe::{self, Reports};

/// Changes come in bursts (1,250 pods turn Running): planning waits for the rest of a burst.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// After a write collided, the mirrors need a moment. As all pauses, doubled up to the longest.
const FIRST_LOOK: Duration = Duration::from_millis(100);
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// After a write failed.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// How long a refusal of the API server is believed before it is asked again; doubled as well.
const FIRST_REFUSAL: Duration = Duration::from_secs(60);
const LONGEST_REFUSAL: Duration = Duration::from_secs(1800);
/// Even when nothing happens: expectations expire, gauges are refreshed.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);

/// Why and until when a job is not touched.
#[derive(Clone, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
    reason: &'static str,
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
        let plan = scheduler::plan(&observed.snapshot, &policy, now);
        let plan = self.vetted(&observed, &policy, plan, now);
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
        let now = Instant::now();
        let resumed = self
            .pauses
            .values()
            .map(|pause| pause.until)
            .filter(|until| *until > now);
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

    /// The plan without the jobs for which it breaks an invariant: a bug stops one decision, not
    /// everybody's. The job says so in a condition.
    fn vetted(&self, observed: &Observed, policy: &Policy, plan: Plan, now: Timestamp) -> Plan {
        let snapshot = &observed.snapshot;
        let (mut plan, violations) = scheduler::vet(snapshot, policy, now, plan);
        for violation in violations {
            let Violation {
                job,
                invariant,
                detail,
            } = &violation;
            error!(%job, invariant, detail, "discarded a plan that breaks an invariant");
            self.metrics
                .violations
                .with_label_values(&[*invariant])
                .inc();
            plan.jobs.extend(discarded(snapshot, &violation, now));
        }
        plan
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
        for (key, error) in stopped {
            let wait = error.wait();
            let (reason, first, longest) = match wait {
                Wait::Look => ("stale", FIRST_LOOK, LONGEST_LOOK),
                Wait::Retry => ("failed", FIRST_RETRY, LONGEST_RETRY),
                Wait::Refused(_) => ("refused", FIRST_REFUSAL, LONGEST_REFUSAL),
            };
            let before = self.pauses.get(&key).filter(|pause| pause.reason == reason);
            let length = before.map_or(first, |pause| (pause.length * 2).min(longest));
            self.metrics.stopped.with_label_values(&[reason]).inc();
            let retry_seconds = length.as_secs_f64();
            if wait == Wait::Look {
                debug!(job = %key, %error, retry_seconds, "stopped");
            } else {
                warn!(job = %key, %error, retry_seconds, "stopped");
            }
            let refusal = match wait {
                Wait::Refused(sentence) => Some(sentence),
                Wait::Look | Wait::Retry => None,
            };
            self.pauses.insert(
                key,
                Pause {
                    until: now + length,
                    length,
                    reason,
                    refusal,
                },
            );
        }
        // Long after a pause is over, the next one is a first one again.
        self.pauses
            .retain(|_, pause| now < pause.until + pause.length * 2);
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
        for node in snapshot
            .nodes
            .iter()
            .filter(|node| !node.class.as_str().is_empty())
        {
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
fn discarded(snapshot: &Snapshot, violation: &Violation, now: Timestamp) -> Option<JobPlan> {
    let key = &violation.job;
    let job = snapshot.jobs.iter().find(|job| job.key == *key)?;
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
        job: key.clone(),
        actions: vec![record],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // PLAN-1
    #[test]
    fn a_discarded_plan_is_told_in_a_condition_once() {
        let key = JobKey {
            namespace: "team".into(),
            name: "digits".into(),
            uid: "u-1".into(),
        };
        let mut job = scheduler::Job {
            key: key.clone(),
            created: Timestamp::default(),
            nodes: 1,
            class: "a100".into(),
            zone_policy: scheduler::ZonePolicy::default(),
            suspend: false,
            grace: Duration::from_secs(80),
            max_restarts: 0,
            ttl: None,
            deleting: false,
            finalizer: false,
            claim_problem: None,
            status: scheduler::Status::default(),
        };
        let detail = "node n1 is in two gangs".to_owned();
        let violation = Violation {
            job: key,
            invariant: "one-gang-per-node",
            detail,
        };
        let now = Timestamp::from_millis(1000);
        let snapshot = |job: &scheduler::Job| Snapshot {
            jobs: vec![job.clone()],
            ..Snapshot::default()
        };

        let plan = discarded(&snapshot(&job), &violation, now).unwrap();
        let [
            Action::Record {
                status,
                event: None,
            },
        ] = &plan.actions[..]
        else {
            panic!("not one record: {:?}", plan.actions);
        };
        let condition = &status.conditions[&ConditionKind::Assigned];
        assert!(
            condition.message.contains("node n1 is in two gangs"),
            "{}",
            condition.message
        );
        job.status = (**status).clone();
        assert_eq!(discarded(&snapshot(&job), &violation, now), None);
    }
}
