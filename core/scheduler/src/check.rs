//! Verifies a plan against the snapshot without trusting the planner: it shares no code with it and
//! replays the actions one by one. A plan that fails here is a bug of ours; the operator discards it
//! instead of breaking somebody's training.

use std::collections::{BTreeMap, BTreeSet};

use topology::NodeName;

use crate::plan::{Action, JobPlan, NewAttempt, Plan};
use crate::policy::Policy;
use crate::snapshot::{Attempt, Job, JobKey, Node, Pod, PodState, Snapshot, ZonePolicy};
use crate::status::{ConditionKind, Phase, Status};
use crate::time::Timestamp;

/// An invariant that a plan would break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan for {job} breaks {invariant}: {detail}")]
pub struct Violation {
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
/// At most `maxCrossZoneJobs` jobs cross zones, none whose policy forbids it, none over three.
const CROSSING_LIMIT: &str = "crossing-limit";
/// New work goes to healthy nodes of the class only.
const HEALTHY_NODES: &str = "healthy-nodes";
/// What follows from a transition comes after its record.
const RECORD_FIRST: &str = "record-first";
/// Numbers only grow; what is finished stays as it is.
const ONE_END: &str = "one-end";
/// Nobody who may still save is killed, and no acknowledgement is dropped before it is recorded.
const NO_LOST_SAVE: &str = "no-lost-save";
/// Whoever holds nodes has a finalizer, and keeps it until they are free.
const FINALIZER_WHILE_HELD: &str = "finalizer-while-held";

/// Verifies a plan. `now` and `policy` are those that it was made with.
pub fn check(
    snapshot: &Snapshot,
    policy: &Policy,
    now: Timestamp,
    plan: &Plan,
) -> Result<(), Violation> {
    let mut world = World::new(snapshot, policy, now);
    let mut seen = BTreeSet::new();
    for job in &plan.jobs {
        let fail = |(invariant, detail)| Violation {
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
) -> (Plan, Vec<Violation>) {
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

struct World<'a> {
    policy: &'a Policy,
    now: Timestamp,
    nodes: BTreeMap<&'a NodeName, &'a Node>,
    jobs: BTreeMap<&'a JobKey, &'a Job>,
    pods: BTreeMap<&'a JobKey, Vec<&'a Pod>>,
    /// Nodes that somebody holds or uses. Grows as attempts are created; nothing is freed inside
    /// a plan, because jobs are applied side by side.
    taken: BTreeSet<&'a NodeName>,
    /// Nodes with a pod that has not ended.
    occupied: BTreeSet<&'a NodeName>,
    /// The attempts that hold nodes.
    held: BTreeMap<&'a JobKey, &'a Attempt>,
    /// Jobs whose last plan is still being written.
    under_way: BTreeSet<&'a JobKey>,
    crossing: u32,
}

/// One job while its actions are replayed.
struct Replay<'a> {
    job: &'a Job,
    status: &'a Status,
    finalizer: bool,
    /// The attempt created in this plan, the one whose key is there, the ranks that got a pod in it.
    created: Option<&'a NewAttempt>,
    key: Option<u32>,
    ranks: BTreeSet<(u32, u32)>,
}

impl<'a> World<'a> {
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
        let mut held = BTreeMap::new();
        let mut crossing = 0;
        for attempt in &snapshot.attempts {
            if jobs
                .get(&attempt.job)
                .is_some_and(|job| holds(job, attempt))
            {
                crossing += u32::from(attempt.crossing);
                taken.extend(&attempt.nodes);
                held.insert(&attempt.job, attempt);
            }
        }
        for plan in &snapshot.under_way {
            taken.extend(plan.nodes());
            if plan.attempt().is_some_and(|new| new.crossing) && !held.contains_key(&plan.job) {
                crossing += 1;
            }
        }
        let nodes = snapshot
            .nodes
            .iter()
            .map(|node| (&node.name, node))
            .collect();
        Self {
            under_way: snapshot.under_way.iter().map(|plan| &plan.job).collect(),
            policy,
            now,
            nodes,
            jobs,
            pods,
            taken,
            occupied,
            held,
            crossing,
        }
    }

    fn replay(&mut self, plan: &'a JobPlan) -> Outcome {
        let free = !self.under_way.contains(&plan.job);
        ensure(free, ONE_PLAN_PER_JOB, || {
            "its last plan is still being written".to_owned()
        })?;
        let Some(&job) = self.jobs.get(&plan.job) else {
            let only_strips = plan
                .actions
                .iter()
                .all(|action| matches!(action, Action::StripPod { .. }));
            return ensure(only_strips, RECORD_FIRST, || {
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
            } => {
                self.create_pod(replay, *attempt, *rank, node)?;
            }
            Action::DeletePod {
                attempt,
                rank,
                grace,
            } => {
                let trains = replay.status.attempt == *attempt
                    && replay.status.phase.holds_nodes()
                    && !replay.job.deleting;
                let asked = replay.status.phase == Phase::Interrupting;
                ensure(!trains || asked, RECORD_FIRST, || {
                    format!(
                        "pod of rank {rank} deleted in phase {:?}",
                        replay.status.phase
                    )
                })?;
                let may_save = (trains || replay.job.deleting) && self.runs(replay.job, *attempt);
                ensure(
                    !may_save || *grace >= replay.job.grace,
                    NO_LOST_SAVE,
                    || format!("rank {rank} gets {grace:?} to save"),
                )?;
            }
            Action::StripPod { attempt, rank } => self.strip(replay, *attempt, *rank)?,
            Action::DeleteAttempt { attempt } => {
                let void = *attempt < replay.status.attempt || !replay.status.phase.holds_nodes();
                ensure(void, RECORD_FIRST, || {
                    format!("attempt {attempt} is deleted while it holds")
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

    fn record(&self, replay: &Replay<'a>, new: &Status) -> Outcome {
        let old = replay.status;
        let end = |status: &Status| match status.phase {
            Phase::Succeeded => (true, false),
            Phase::Failed => (false, true),
            Phase::Queued
            | Phase::Assigned
            | Phase::Starting
            | Phase::Running
            | Phase::Interrupting
            | Phase::Restarting
            | Phase::Suspended => (false, false),
        };
        let said = (
            new.is(ConditionKind::Complete),
            new.is(ConditionKind::Failed),
        );
        ensure(said == end(new), ONE_END, || {
            format!("phase {:?} with (Complete, Failed) = {said:?}", new.phase)
        })?;
        ensure(!old.phase.is_terminal(), ONE_END, || {
            "a finished job changes".to_owned()
        })?;
        ensure(!replay.job.deleting, ONE_END, || {
            "a job being deleted changes".to_owned()
        })?;
        let grows = new.attempt >= old.attempt
            && new.attempt <= old.attempt + 1
            && (old.restarts..=old.restarts + 1).contains(&new.restarts)
            && new.restarts <= replay.job.max_restarts.max(old.restarts);
        ensure(grows, ONE_END, || "attempt or restarts jump".to_owned())?;
        let order = |status: &Status| {
            status
                .last_checkpoint
                .as_ref()
                .map(|last| (last.attempt, last.step))
        };
        ensure(order(new) >= order(old), NO_LOST_SAVE, || {
            "the checkpoint goes back".to_owned()
        })?;
        let fresh = new.attempt > old.attempt;
        let legal = if fresh {
            new.phase == Phase::Assigned && !old.phase.holds_nodes()
        } else {
            old.phase.holds_nodes() || !new.phase.holds_nodes()
        };
        ensure(legal, RECORD_FIRST, || {
            format!(
                "{:?} {} to {:?} {}",
                old.phase, old.attempt, new.phase, new.attempt
            )
        })?;
        if new.phase != Phase::Succeeded {
            return Ok(());
        }
        let ended_well = self
            .gang(replay.job, new.attempt)
            .filter(|pod| pod.state == PodState::Succeeded)
            .count();
        ensure(ended_well == replay.job.nodes as usize, ONE_END, || {
            format!("Succeeded with {ended_well} pods that did")
        })
    }

    fn create_attempt(&mut self, replay: &mut Replay<'a>, attempt: &'a NewAttempt) -> Outcome {
        let job = replay.job;
        let recorded = replay.status.phase == Phase::Assigned
            && replay.status.attempt == attempt.number
            && !self.held.contains_key(&job.key);
        ensure(recorded, RECORD_FIRST, || {
            format!("attempt {} is not recorded", attempt.number)
        })?;
        ensure(replay.finalizer, FINALIZER_WHILE_HELD, || {
            "no finalizer".to_owned()
        })?;
        let count = attempt.nodes.len();
        ensure(count == job.nodes as usize, GANG_WHOLE, || {
            format!("{count} nodes for a job of {}", job.nodes)
        })?;
        for place in &attempt.nodes {
            let known = self.nodes.get(&place.node).filter(|node| {
                let suspect = node.suspect_until.is_some_and(|until| until > self.now);
                let sound = node.ready && !node.cordoned && node.has_node_resource && !suspect;
                let here = node.zone == place.zone && node.leaf == place.leaf;
                sound && here && node.class == job.class
            });
            ensure(known.is_some(), HEALTHY_NODES, || {
                format!("node {}", place.node)
            })?;
            ensure(self.taken.insert(&place.node), ONE_GANG_PER_NODE, || {
                format!("node {} is taken", place.node)
            })?;
        }
        self.crossing(job, attempt)?;
        replay.created = Some(attempt);
        Ok(())
    }

    /// Zones are contiguous, at most two, and the limit is kept.
    fn crossing(&mut self, job: &Job, attempt: &NewAttempt) -> Outcome {
        let borders = attempt
            .nodes
            .windows(2)
            .filter(|pair| pair[0].zone != pair[1].zone)
            .count();
        ensure(attempt.crossing == (borders > 0), CROSSING_LIMIT, || {
            format!(
                "{borders} borders in an attempt with crossing = {}",
                attempt.crossing
            )
        })?;
        if borders == 0 {
            return Ok(());
        }
        self.crossing += 1;
        let allowed = borders == 1
            && job.zone_policy != ZonePolicy::Single
            && self.crossing <= self.policy.max_cross_zone_jobs;
        ensure(allowed, CROSSING_LIMIT, || {
            format!("{borders} borders, {} jobs cross", self.crossing)
        })
    }

    /// A key belongs to an attempt that is decided.
    fn create_key(&self, replay: &mut Replay<'a>, attempt: u32) -> Outcome {
        let new = replay.created.map(|new| new.number);
        let old = self.held.get(&replay.job.key).map(|old| old.number);
        ensure(new.or(old) == Some(attempt), RECORD_FIRST, || {
            format!("the key of attempt {attempt}, which is not decided")
        })?;
        replay.key = Some(attempt);
        Ok(())
    }

    fn create_pod(
        &self,
        replay: &mut Replay<'a>,
        attempt: u32,
        rank: u32,
        node: &NodeName,
    ) -> Outcome {
        let status = replay.status;
        let current = status.attempt == attempt && status.phase == Phase::Assigned;
        ensure(current && !replay.job.deleting, RECORD_FIRST, || {
            format!(
                "pod of attempt {attempt} in phase {:?} {}",
                status.phase, status.attempt
            )
        })?;
        ensure(replay.key == Some(attempt), RECORD_FIRST, || {
            format!("pod of attempt {attempt} before its key")
        })?;
        let decided = match replay.created {
            Some(new) => new.nodes.get(rank as usize).map(|place| &place.node),
            None => self
                .held
                .get(&replay.job.key)
                .and_then(|old| old.nodes.get(rank as usize)),
        };
        ensure(decided == Some(node), GANG_WHOLE, || {
            format!("rank {rank} is not on {node}")
        })?;
        ensure(!self.occupied.contains(node), ONE_GANG_PER_NODE, || {
            format!("node {node} is occupied")
        })?;
        let fresh = replay.ranks.insert((attempt, rank));
        ensure(fresh, GANG_WHOLE, || format!("rank {rank} twice"))
    }

    /// A job that gets pods gets all of them.
    fn gang_is_whole(&self, replay: &Replay<'a>) -> Outcome {
        if replay.created.is_none() && replay.ranks.is_empty() {
            return Ok(());
        }
        let attempt = replay.status.attempt;
        let mut ranks: BTreeSet<u32> = replay.ranks.iter().map(|(_, rank)| *rank).collect();
        ranks.extend(self.gang(replay.job, attempt).map(|pod| pod.rank));
        ensure(
            ranks.into_iter().eq(0..replay.job.nodes),
            GANG_WHOLE,
            || format!("attempt {attempt} does not get all its pods"),
        )
    }

    fn strip(&self, replay: &Replay<'a>, attempt: u32, rank: u32) -> Outcome {
        if replay.job.deleting {
            return Ok(());
        }
        let status = replay.status;
        let over = attempt < status.attempt || !status.phase.holds_nodes();
        ensure(over, RECORD_FIRST, || {
            format!("attempt {attempt} is stripped while it holds")
        })?;
        let ack = self
            .gang(replay.job, attempt)
            .find_map(|pod| match &pod.state {
                PodState::Interrupted { ack } if pod.rank == rank => ack.as_ref(),
                PodState::Unbound
                | PodState::Starting
                | PodState::ImageError(_)
                | PodState::Running
                | PodState::Succeeded
                | PodState::Interrupted { .. }
                | PodState::Failed(_)
                | PodState::Refused(_) => None,
            });
        // An acknowledgement that claims to come from the future is not believed.
        let recorded = ack.filter(|ack| ack.attempt == attempt).is_none_or(|ack| {
            let last = status.last_checkpoint.as_ref();
            last.is_some_and(|last| (last.attempt, last.step) >= (ack.attempt, ack.step))
        });
        ensure(recorded, NO_LOST_SAVE, || {
            format!("acknowledgement of attempt {attempt} dropped")
        })
    }

    fn holds_nothing(&self, replay: &Replay<'a>) -> Outcome {
        let released = replay.job.deleting || !replay.status.phase.holds_nodes();
        let ready = |name| self.nodes.get(name).is_some_and(|node| node.ready);
        let mut pods = self.pods.get(&replay.job.key).into_iter().flatten();
        let free = pods.all(|pod| pod.terminal || !ready(&pod.node));
        ensure(released && free, FINALIZER_WHILE_HELD, || {
            "it still holds nodes".to_owned()
        })
    }

    fn gang(&self, job: &Job, attempt: u32) -> impl Iterator<Item = &'a Pod> {
        let pods = self.pods.get(&job.key).map_or(&[][..], Vec::as_slice);
        pods.iter()
            .copied()
            .filter(move |pod| pod.attempt == attempt)
    }

    /// Whether a trainer of the attempt may still be saving.
    fn runs(&self, job: &Job, attempt: u32) -> bool {
        self.gang(job, attempt)
            .any(|pod| pod.state == PodState::Running)
    }
}

fn holds(job: &Job, attempt: &Attempt) -> bool {
    !job.deleting
        && job.key == attempt.job
        && job.status.attempt == attempt.number
        && job.status.phase.holds_nodes()
}
