//! Verifies a plan against the snapshot without trusting the planner: it shares no code with it and
//! replays the actions one by one. A plan that fails here is a bug of ours; the operator discards
//! it instead of breaking somebody's training.

mod giving;
mod promising;
mod recording;
mod releasing;

use std::collections::{BTreeMap, BTreeSet};

use topology::NodeName;

use crate::node::States;
use crate::plan::{Action, JobPlan, NewAttempt, Plan};
use crate::policy::Policy;
use crate::snapshot::{Attempt, Job, JobKey, Node, Pod, PodState, Snapshot};
use crate::status::JobStatus;
use crate::time::Timestamp;

/// An invariant that a plan would break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan for {job} breaks {invariant}: {detail}")]
pub struct PlanViolation {
    /// The job whose plan it is.
    pub job: JobKey,
    /// Short stable name, for the metric.
    pub invariant: &'static str,
    /// What exactly.
    pub detail: String,
}

/// A node is in one gang at most, and nothing older runs on it.
const ONE_GANG_PER_NODE: &str = "one-gang-per-node";
/// One thing after the other: a job has one plan at a time.
const ONE_PLAN_PER_JOB: &str = "one-plan-per-job";
/// A gang has all its nodes and pods or none.
const GANG_WHOLE: &str = "gang-whole";
/// At most `maxCrossZoneJobs` jobs cross zones, none whose policy forbids it, none over three, none
/// that healthy nodes of one zone would do for.
const CROSSING_LIMIT: &str = "crossing-limit";
/// Nodes go only to jobs whose first pod the API server takes.
const POD_ACCEPTED: &str = "pod-accepted";
/// New work goes to healthy nodes of the class only.
const HEALTHY_NODES: &str = "healthy-nodes";
/// What follows from a transition comes after its record.
const RECORD_FIRST: &str = "record-first";
/// Numbers only grow; what is finished stays as it is.
const ONE_END: &str = "one-end";
/// Nobody who may still save is killed, and no acknowledgement is dropped before it is recorded.
const NO_LOST_SAVE: &str = "no-lost-save";
/// What was promised to a job goes to nobody else.
const PROMISE_KEPT: &str = "promise-kept";
/// Whoever holds nodes has a finalizer, and keeps it until they are free.
const FINALIZER_WHILE_HELD: &str = "finalizer-while-held";

/// Verifies a plan. `now` and `policy` are those that it was made with.
pub fn check(
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
    plan: &Plan,
) -> Result<(), PlanViolation> {
    let mut world = Facts::new(snapshot, policy, now);
    let mut seen = BTreeSet::new();
    for job in &plan.jobs {
        let fail = |(invariant, detail)| PlanViolation {
            job: job.job.clone(),
            invariant,
            detail,
        };
        if !seen.insert(&job.job) {
            return Err(fail((ONE_PLAN_PER_JOB, "it is planned twice".to_owned())));
        }
        world.replay(job).map_err(fail)?;
    }
    Ok(())
}

/// Drops the plans of those jobs that fail the check, so that a bug stops one decision and not
/// everybody's operator. Returns what is left, and why the others were dropped.
pub fn vet(
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
    mut plan: Plan,
) -> (Plan, Vec<PlanViolation>) {
    let mut violations = Vec::new();
    while let Err(violation) = check(snapshot, policy, now, &plan) {
        plan.jobs.retain(|job| job.job != violation.job);
        violations.push(violation);
    }
    (plan, violations)
}

type Outcome = Result<(), (&'static str, String)>;

fn ensure(holds: bool, invariant: &'static str, detail: impl FnOnce() -> String) -> Outcome {
    if holds {
        Ok(())
    } else {
        Err((invariant, detail()))
    }
}

struct Facts<'a> {
    policy: &'a Policy,
    now: Timestamp,
    states: States<'a>,
    nodes: BTreeMap<&'a NodeName, &'a Node>,
    jobs: BTreeMap<&'a JobKey, &'a Job>,
    pods: BTreeMap<&'a JobKey, Vec<&'a Pod>>,
    /// Nodes that somebody holds or uses. Grows as attempts are created; nothing is freed inside
    /// a plan, because jobs are applied side by side.
    taken: BTreeSet<&'a NodeName>,
    /// Nodes with a pod that has not ended.
    occupied: BTreeSet<&'a NodeName>,
    /// The attempts that name nodes.
    attempts: BTreeMap<(&'a JobKey, u32), &'a Attempt>,
    /// The attempts that hold nodes.
    held: BTreeMap<&'a JobKey, &'a Attempt>,
    /// Pods that ended well and are gone.
    departed: BTreeSet<(&'a JobKey, u32, u32)>,
    /// Attempts whose ConfigMap does not say by itself who gets a pod.
    doubtful: BTreeSet<(&'a JobKey, u32)>,
    /// Jobs whose last plan is still being written.
    under_way: BTreeSet<&'a JobKey>,
    promises: promising::Promises<'a>,
    /// Jobs with a gang that crosses zones. Grows like `taken`.
    crossing: BTreeSet<&'a JobKey>,
}

/// One job while its actions are replayed.
struct Replay<'a> {
    job: &'a Job,
    status: &'a JobStatus,
    finalizer: bool,
    /// The attempt created in this plan, the one whose key is there, the ranks that got a pod in
    /// it.
    created: Option<&'a NewAttempt>,
    key: Option<u32>,
    ranks: BTreeSet<(u32, u32)>,
}

impl<'a> Facts<'a> {
    fn new(snapshot: &'a Snapshot, policy: &'a Policy, now: Timestamp) -> Self {
        let jobs: BTreeMap<_, _> = snapshot.jobs.iter().map(|job| (&job.key, job)).collect();
        let mut pods: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for pod in &snapshot.pods {
            pods.entry(&pod.job).or_default().push(pod);
        }
        let occupied: BTreeSet<_> = snapshot
            .pods
            .iter()
            .filter(|pod| !pod.terminal)
            .map(|pod| &pod.node)
            .collect();
        let mut taken = occupied.clone();
        let mut attempts = BTreeMap::new();
        let mut held = BTreeMap::new();
        let mut crossing = BTreeSet::new();
        let doubtful = snapshot.doubtful.iter();
        let mut doubtful: BTreeSet<_> = doubtful.map(|one| (&one.job, one.number)).collect();
        let mut numbers: BTreeMap<(&JobKey, u32), u32> = BTreeMap::new();
        for attempt in &snapshot.attempts {
            *numbers.entry((&attempt.job, attempt.number)).or_default() += 1;
        }
        for attempt in &snapshot.attempts {
            let number = (&attempt.job, attempt.number);
            // Two of one number hold nothing: the planner counts neither.
            if numbers.get(&number).is_some_and(|count| *count > 1) {
                doubtful.insert(number);
                continue;
            }
            attempts.insert(number, attempt);
            if jobs
                .get(&attempt.job)
                .is_some_and(|job| holds(job, attempt))
            {
                if attempt.crossing {
                    crossing.insert(&attempt.job);
                }
                let status = &jobs[&attempt.job].status;
                let keeps = |rank: &u32| !is_lost_member(status, attempt.number, *rank);
                let nodes = (0..).zip(&attempt.nodes);
                taken.extend(nodes.filter(|(rank, _)| keeps(rank)).map(|(_, node)| node));
                held.insert(&attempt.job, attempt);
            }
        }
        for plan in &snapshot.under_way {
            taken.extend(plan.nodes());
            if plan.attempt().is_some_and(|new| new.crossing) && !held.contains_key(&plan.job) {
                crossing.insert(&plan.job);
            }
        }
        let nodes = snapshot
            .nodes
            .iter()
            .map(|node| (&node.name, node))
            .collect();
        let mut world = Self {
            under_way: snapshot.under_way.iter().map(|plan| &plan.job).collect(),
            departed: snapshot
                .departed
                .iter()
                .map(|gone| (&gone.job, gone.attempt, gone.rank))
                .collect(),
            doubtful,
            policy,
            now,
            states: States::new(snapshot, policy, now),
            nodes,
            jobs,
            pods,
            taken,
            occupied,
            attempts,
            held,
            promises: promising::Promises::default(),
            crossing,
        };
        world.read_leavers(snapshot);
        world.read_promises(snapshot);
        world
    }

    /// Whoever has lost its nodes, in one zone and another, crosses until its trainers have
    /// stopped: as its pods say, or the ConfigMap of their attempt, or the job's status.
    fn read_leavers(&mut self, snapshot: &'a Snapshot) {
        let attempts = snapshot.attempts.iter().filter(|one| one.crossing);
        let mut crossing: BTreeSet<(&JobKey, u32)> = attempts
            .map(|one| (&one.job, one.number))
            .filter(|one| !self.doubtful.contains(one))
            .collect();
        let jobs = snapshot.jobs.iter();
        let jobs = jobs.filter(|job| job.status.zones.len() > 1);
        crossing.extend(jobs.map(|job| (&job.key, job.status.attempt)));
        let patience = self.policy.leave_patience;
        for pod in &snapshot.pods {
            let overdue = pod.delete_by.is_some_and(|end| end + patience <= self.now);
            let trains = !pod.has_ended() && !overdue && !self.states.is_lost(&pod.node);
            if trains && (pod.crossing || crossing.contains(&(&pod.job, pod.attempt))) {
                self.crossing.insert(&pod.job);
            }
        }
    }

    fn replay(&mut self, plan: &'a JobPlan) -> Outcome {
        let free = !self.under_way.contains(&plan.job);
        ensure(free, ONE_PLAN_PER_JOB, || {
            "its last plan is still being written".to_owned()
        })?;
        let Some(&job) = self.jobs.get(&plan.job) else {
            let mut actions = plan.actions.iter();
            let only_leftovers = actions.all(|action| {
                let unowned = |attempt, rank| self.is_unowned(&plan.job, attempt, rank);
                matches!(action, Action::StripPod { .. })
                    || matches!(action, Action::DeletePod { attempt, rank, .. } if unowned(*attempt, *rank))
            });
            return ensure(only_leftovers, RECORD_FIRST, || {
                "the job does not exist".to_owned()
            });
        };
        let mut replay = Replay {
            job,
            status: &job.status,
            finalizer: job.finalizer,
            created: None,
            key: None,
            ranks: BTreeSet::new(),
        };
        for action in &plan.actions {
            self.step(&mut replay, action)?;
        }
        self.gang_is_whole(&replay)
    }

    fn step(&mut self, replay: &mut Replay<'a>, action: &'a Action) -> Outcome {
        match action {
            Action::AddFinalizer => replay.finalizer = true,
            Action::RemoveFinalizer => {
                self.holds_nothing(replay)?;
                replay.finalizer = false;
            }
            Action::Record { status, .. } => {
                self.record(replay, status)?;
                replay.status = status;
            }
            Action::CreateAttempt(attempt) => self.create_attempt(replay, attempt)?,
            Action::CreateKey { attempt } => self.create_key(replay, *attempt)?,
            Action::CreatePod {
                attempt,
                rank,
                node,
                finalizer,
            } => {
                self.create_pod(replay, *attempt, *rank, node, *finalizer)?;
            }
            Action::DeletePod {
                attempt,
                rank,
                grace,
            } => self.delete_pod(replay, *attempt, *rank, *grace)?,
            Action::StripPod { attempt, rank } => self.strip(replay, *attempt, *rank)?,
            Action::DeleteAttempt { attempt } => {
                let void = *attempt < replay.status.attempt || !replay.status.phase.holds_nodes();
                ensure(void, RECORD_FIRST, || {
                    format!("attempt {attempt} is deleted while it holds")
                })?;
                let promised = replay.status.promise.as_ref();
                let named = promised.is_some_and(|promise| {
                    promise.attempt == *attempt && promising::stands(promise, self.now)
                });
                ensure(!named, PROMISE_KEPT, || {
                    format!("attempt {attempt} names promised nodes")
                })?;
            }
            Action::DeleteJob => {
                let over = replay.status.phase.is_terminal();
                ensure(over, ONE_END, || {
                    "a job is deleted before its end".to_owned()
                })?;
            }
        }
        Ok(())
    }

    fn gang(&self, job: &Job, attempt: u32) -> impl Iterator<Item = &'a Pod> {
        let pods = self.pods.get(&job.key).map_or(&[][..], Vec::as_slice);
        pods.iter()
            .copied()
            .filter(move |pod| pod.attempt == attempt)
    }

    /// Returns true if no garbage collector will remove the pod, whatever happens to its job.
    fn is_unowned(&self, job: &JobKey, attempt: u32, rank: u32) -> bool {
        let mut pods = self.pods.get(job).into_iter().flatten();
        pods.any(|pod| (pod.attempt, pod.rank) == (attempt, rank) && pod.unowned)
    }

    /// Whether a trainer of the attempt may still be saving.
    fn runs(&self, job: &Job, attempt: u32) -> bool {
        self.gang(job, attempt)
            .any(|pod| pod.state == PodState::Running)
    }
}

/// Whether the others have gone on without a rank.
fn is_lost_member(status: &JobStatus, attempt: u32, rank: u32) -> bool {
    let committed = status.membership.as_ref();
    committed.is_some_and(|members| members.attempt == attempt && members.lost.contains(&rank))
}

fn holds(job: &Job, attempt: &Attempt) -> bool {
    !job.deleting
        && job.key == attempt.job
        && job.status.attempt == attempt.number
        && job.status.phase.holds_nodes()
}
