//! When nodes are validated: which runs the policies create and delete now, and when to look again.
//! Everything derives from the runs that are kept, so a new leader goes on where the old one
//! stopped. Leaves to `kept` which these are, to `name` what they are called, and to the operator
//! which nodes a policy selects, and the runs.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::Level;
use crate::limits::LEAST_USE_SECONDS;
use crate::links::LinkResult;
use crate::quarantine::{Findings, QuarantineLimits};
use crate::verdict::Verdict;

mod kept;
mod name;
mod pairs;
mod waits;
mod when;

use kept::{gone_until, superseded};
use name::run_name;
use pairs::Candidate;
pub use waits::{Waits, Withdrawal};
use when::{due, ends};

/// A policy. All times here are in seconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DuePolicy {
    /// Unique.
    pub name: String,
    /// When it was created: of two that select a node, the older has it.
    pub created: i64,
    /// No later policy of the name has it.
    pub uid: String,
    /// Seconds within which a node is validated again.
    pub interval: i64,
    /// What its runs check.
    pub level: Level,
    /// Whether a node is due as soon as it exists, and not only after an interval.
    pub new_nodes: bool,
    /// Whether a suspect node is due at once.
    pub suspect_nodes: bool,
    /// Most of its runs at once on nodes that no job uses.
    pub max_idle_nodes: usize,
    /// Seconds since its last run, or its creation, after which the job on a node is asked to
    /// leave. None: never.
    pub interrupt_after: Option<i64>,
    /// Whether it creates no runs. Its nodes stay its own.
    pub suspend: bool,
    /// How many of its nodes it may keep from jobs because they failed. None: it only reports.
    pub quarantine: Option<QuarantineLimits>,
    /// The nodes that it selects.
    pub nodes: BTreeSet<String>,
}

/// A node that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueNode {
    /// Unique.
    pub name: String,
    /// When it was created. Runs that ended before are those of another machine of its name.
    pub created: i64,
    /// Whether nobody holds it and nobody waits for it.
    pub idle: bool,
    /// True if a run that gets it can start there: its kubelet is Ready and takes pods, it offers
    /// itself to pods, and it is not being deleted.
    pub can_start: bool,
    /// The job that uses it.
    pub job: Option<NodeUse>,
    /// Whether something made it suspect.
    pub suspect: bool,
    /// Its leaf switch, with its zone. Empty: unknown.
    pub leaf: String,
    /// The same for all nodes between which the network can be measured: those of a class and zone.
    /// Empty: it can be with none.
    pub group: String,
    /// Identifies its present boot. Empty: unknown.
    pub boot: String,
    /// What its quarantine names: the run that failed, or what a person wrote. None: it is in none.
    pub quarantine: Option<String>,
}

/// How a job uses a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUse {
    /// The job. No other has this name.
    pub job: String,
    /// Since when it has its nodes.
    pub since: i64,
}

/// A NodeValidation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRun {
    /// Unique.
    pub name: String,
    /// The node, which may be gone.
    pub node: String,
    /// The highest level whose checks it runs all. None if it runs too few for any.
    pub level: Option<Level>,
    /// The policy that created it. None: a person did.
    pub policy: Option<String>,
    /// Whether it gets its node before jobs that wait.
    pub is_next: bool,
    /// Whether the job on its node is asked to leave.
    pub interrupts: bool,
    /// When it was created.
    pub created: i64,
    /// When it ended. None: it is open, that is, it holds its node or waits for it.
    pub finished: Option<i64>,
    /// How it ended. None counts as Error.
    pub verdict: Option<Verdict>,
    /// What decides whether its node comes into quarantine, or out of it.
    pub findings: Findings,
    /// What it found of the network to its partner node. None: it did not measure it.
    pub link: Option<LinkResult>,
}

/// Why a node is validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DueReason {
    /// It has never been.
    New,
    /// It was long ago.
    Interval,
    /// It is suspect.
    Suspect,
    /// It is in quarantine, and was started anew since it failed: somebody may have repaired it.
    Restarted,
    /// The network to its partner was slow: it is measured with another one.
    SlowLink,
    /// It is not due, but another node needs a partner.
    Partner,
}

/// A run to create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRun {
    /// The policy that it belongs to.
    pub policy: String,
    /// The node.
    pub node: String,
    /// What to check.
    pub level: Level,
    /// The same as long as the node's newest run is: a plan from an old view creates no second one.
    pub name: String,
    /// Why.
    pub reason: DueReason,
    /// Whether a job uses the node: the run gets it when the job ends or pauses, before others.
    pub is_next: bool,
    /// The node with which it measures the network. That gets a run with this one as its partner.
    pub partner: Option<String>,
}

/// A policy's state once the plan is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySummary {
    /// How many nodes that exist it selects, including those that an older policy has.
    pub nodes: usize,
    /// How many of its own are due and have no open run: too many are due, or nothing runs there.
    pub due: usize,
    /// Number of its open runs on nodes that exist and that no job uses.
    pub running: usize,
    /// Number of its open runs on nodes that a job uses.
    pub waiting: usize,
    /// Its own nodes whose newest result is Fail. Error and Skipped are no results.
    pub failed: Vec<String>,
    /// The oldest of the policies that have nodes which it selects.
    pub overlapped_by: Option<String>,
    /// When its newest run was created.
    pub last: Option<i64>,
    /// When the next of its nodes is due. None also when it is suspended.
    pub next: Option<i64>,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DuePlan {
    /// Runs to create.
    pub create: Vec<NewRun>,
    /// Names of open runs for which a job is to be asked. One of a job is enough, since the job
    /// leaves all its nodes.
    pub interrupt: Vec<String>,
    /// Names of runs of policies to delete: others took their place, or their node is gone.
    pub delete: Vec<String>,
    /// Open runs of policies to delete: they could have started for long, and have not. Not those
    /// that started since.
    pub withdraw: Vec<Withdrawal>,
    /// When to plan again if nothing changes until then.
    pub next: Option<i64>,
    /// Each policy by its name.
    pub policies: BTreeMap<String, PolicySummary>,
}

/// Plans for all policies at once. The lists are complete, for what is not among the nodes is gone,
/// and their order does not matter. `waits` is from the plan before; a new leader has none.
#[must_use]
pub fn plan(
    policies: &[DuePolicy],
    nodes: &[DueNode],
    runs: &[DueRun],
    waits: &mut Waits,
    now: i64,
) -> DuePlan {
    let by_age = by_age(policies);
    let owners = owners(&by_age);
    let observed = Observed::new(nodes, runs, now);
    let mut asked = observed.asked();
    let mut plan = DuePlan {
        withdraw: waits.withdraw(&observed.nodes, runs, now),
        ..DuePlan::default()
    };
    for (age, policy) in by_age.iter().enumerate() {
        let selected = policy.nodes.iter();
        let selected = selected.filter_map(|name| observed.nodes.get(name.as_str()).copied());
        let selected: Vec<&DueNode> = selected.collect();
        let oldest = selected.iter().map(|node| owners[node.name.as_str()]).min();
        let own = selected
            .iter()
            .filter(|node| owners[node.name.as_str()] == age);
        let mut summary = observed.plan_policy(policy, own.copied(), waits, &mut asked, &mut plan);
        summary.nodes = selected.len();
        let older = oldest.filter(|&oldest| oldest < age);
        summary.overlapped_by = older.map(|older| by_age[older].name.clone());
        plan.next = earliest(plan.next, summary.next);
        plan.policies.insert(policy.name.clone(), summary);
    }
    for (node, runs) in &observed.runs {
        let runs = runs.iter().copied().filter(|run| run.policy.is_some());
        if let Some(present) = observed.nodes.get(node) {
            let level = owners.get(node).map(|&owner| by_age[owner].level);
            let names = superseded(runs, level, present.quarantine.as_deref());
            let names = names.map(|run| run.name.clone());
            plan.delete.extend(names);
        } else {
            for run in runs {
                match gone_until(run).filter(|until| *until > now) {
                    Some(until) => plan.next = earliest(plan.next, Some(until)),
                    None => plan.delete.push(run.name.clone()),
                }
            }
        }
    }
    plan.delete.sort_unstable();
    plan
}

/// The oldest policy first.
pub(crate) fn by_age(policies: &[DuePolicy]) -> Vec<&DuePolicy> {
    let mut by_age: Vec<&DuePolicy> = policies.iter().collect();
    by_age.sort_by_key(|policy| (policy.created, &policy.name));
    by_age
}

/// The place of the policy that has a node, the oldest of those that select it.
pub(crate) fn owners<'a>(by_age: &[&'a DuePolicy]) -> BTreeMap<&'a str, usize> {
    let mut owners = BTreeMap::new();
    for (age, policy) in by_age.iter().enumerate() {
        for node in &policy.nodes {
            owners.entry(node.as_str()).or_insert(age);
        }
    }
    owners
}

fn earliest(one: Option<i64>, other: Option<i64>) -> Option<i64> {
    one.into_iter().chain(other).min()
}

/// What is there.
struct Observed<'a> {
    nodes: BTreeMap<&'a str, &'a DueNode>,
    /// By node, the newest first. Open ones are the newest.
    runs: BTreeMap<&'a str, Vec<&'a DueRun>>,
    /// Of each policy with runs.
    policies: BTreeMap<&'a str, OfPolicy>,
    now: i64,
}

/// The runs of a policy.
#[derive(Default)]
struct OfPolicy {
    /// When the newest was created.
    last: Option<i64>,
    /// Number of open ones on nodes that exist and that no job uses. All of them may start at once,
    /// whatever they wait for now.
    running: usize,
    /// Number of open ones on nodes that a job uses.
    waiting: usize,
}

impl<'a> Observed<'a> {
    fn new(nodes: &'a [DueNode], runs: &'a [DueRun], now: i64) -> Self {
        let by_name = nodes.iter().map(|node| (node.name.as_str(), node));
        let by_name: BTreeMap<&str, &DueNode> = by_name.collect();
        let mut by_node: BTreeMap<&str, Vec<&DueRun>> = BTreeMap::new();
        let mut policies: BTreeMap<&str, OfPolicy> = BTreeMap::new();
        for run in runs {
            by_node.entry(&run.node).or_default().push(run);
            let node = by_name.get(run.node.as_str());
            if let Some(policy) = &run.policy {
                let of_policy = policies.entry(policy).or_default();
                of_policy.last = of_policy.last.max(Some(run.created));
                match node.filter(|_| run.finished.is_none()) {
                    Some(node) if node.job.is_some() => of_policy.waiting += 1,
                    Some(_) => of_policy.running += 1,
                    None => {}
                }
            }
        }
        for runs in by_node.values_mut() {
            let age = |run: &&DueRun| (run.finished.unwrap_or(i64::MAX), run.created);
            runs.sort_by(|one, other| (age(other), &other.name).cmp(&(age(one), &one.name)));
        }
        Self {
            nodes: by_name,
            runs: by_node,
            policies,
            now,
        }
    }

    /// The jobs that were asked to leave their nodes, and have not yet.
    fn asked(&self) -> BTreeSet<&'a str> {
        let asks = |run: &&&DueRun| run.finished.is_none() && run.interrupts;
        let asking = self.runs.values().flatten().filter(asks);
        let nodes = asking.filter_map(|run| self.nodes.get(run.node.as_str()));
        let jobs = nodes.filter_map(|node| node.job.as_ref());
        jobs.map(|used| used.job.as_str()).collect()
    }

    /// Adds what a policy does. `own` are its own nodes, `asked` the jobs that no policy asks again.
    fn plan_policy(
        &self,
        policy: &DuePolicy,
        own: impl Iterator<Item = &'a DueNode>,
        waits: &Waits,
        asked: &mut BTreeSet<&'a str>,
        plan: &mut DuePlan,
    ) -> PolicySummary {
        let mut summary = PolicySummary::default();
        let known = self.policies.get(policy.name.as_str());
        if let Some(known) = known {
            (summary.last, summary.running, summary.waiting) =
                (known.last, known.running, known.waiting);
        }
        let mut idle = Vec::new();
        let mut used = Vec::new();
        let mut overdue: BTreeMap<&str, (i64, &DueRun)> = BTreeMap::new();
        for node in own {
            let runs = self
                .runs
                .get(node.name.as_str())
                .map_or(&[][..], Vec::as_slice);
            let ends = ends(runs, policy, node);
            let result = ends.iter().find(|(_, verdict)| verdict.says_something());
            if result.is_some_and(|(_, verdict)| *verdict == Verdict::Fail) {
                summary.failed.push(node.name.clone());
            }
            let due = due(policy, node, ends.first().copied(), runs);
            if let Some(open) = runs.iter().find(|run| run.finished.is_none()) {
                if let Some(job) = self.overdue(policy, node, open, due.since) {
                    let oldest = overdue.entry(job).or_insert((due.since, open));
                    if due.since < oldest.0 {
                        *oldest = (due.since, open);
                    }
                }
                continue;
            }
            let is_idle = node.idle && node.can_start && node.job.is_none();
            let from = match is_idle || node.job.is_some() {
                true => due.early,
                false => due.at,
            };
            let is_wanted = from <= self.now;
            match is_wanted {
                true => summary.due += usize::from(due.at <= self.now),
                false => summary.next = earliest(summary.next, Some(from)),
            }
            let again = waits.again(&node.name).filter(|_| is_idle);
            if let Some(again) = again.filter(|again| *again > self.now) {
                summary.next = earliest(summary.next, Some(again));
                continue;
            }
            let candidates = match () {
                () if node.job.is_some() => &mut used,
                () if is_idle => &mut idle,
                () => continue,
            };
            candidates.push(Candidate {
                node,
                due,
                again,
                is_wanted,
                link: newest_link(runs),
            });
        }
        if policy.suspend {
            summary.next = None;
            return summary;
        }
        // The longest overdue first, so that nobody waits for ever behind suspect nodes. A node
        // whose run was withdrawn queues up anew.
        let order = |one: &Candidate<'_>| {
            let since = one.again.map_or(one.due.at, |again| again.max(one.due.at));
            let is_due = one.due.at <= self.now;
            (if is_due { since } else { i64::MAX }, one.due.early)
        };
        idle.sort_by_key(|one| (order(one), &one.node.name));
        let room = policy.max_idle_nodes.saturating_sub(summary.running);
        let in_pairs = policy.level.needs_partner();
        let of_idle = pairs::choose(idle, room, in_pairs && policy.max_idle_nodes > 1);
        let of_used = pairs::choose(used, usize::MAX, in_pairs);
        for (chosen, is_next) in [(of_idle, false), (of_used, true)] {
            for (one, partner) in chosen {
                summary.due -= usize::from(one.is_wanted && one.due.at <= self.now);
                plan.create.push(new_run(policy, &one, partner, is_next));
                match is_next {
                    true => summary.waiting += 1,
                    false => summary.running += 1,
                }
                summary.last = Some(self.now);
            }
        }
        let overdue = overdue.into_iter().filter(|(job, _)| asked.insert(job));
        plan.interrupt
            .extend(overdue.map(|(_, (_, run))| run.name.clone()));
        summary
    }

    /// The job to be asked for the open run of a node that nobody has validated for too long.
    fn overdue(
        &self,
        policy: &DuePolicy,
        node: &'a DueNode,
        open: &DueRun,
        since: i64,
    ) -> Option<&'a str> {
        let (after, used) = (policy.interrupt_after?, node.job.as_ref()?);
        let is_own = open.policy.as_deref() == Some(policy.name.as_str());
        let is_old = since.saturating_add(after) <= self.now;
        let may_be_asked = used.since.saturating_add(LEAST_USE_SECONDS) <= self.now;
        // Nobody leaves for a run that cannot start.
        let has_use = node.can_start && may_be_asked;
        let asks = is_own && open.is_next && is_old && has_use && !policy.suspend;
        asks.then_some(used.job.as_str())
    }
}

fn new_run(
    policy: &DuePolicy,
    chosen: &Candidate<'_>,
    partner: Option<&str>,
    is_next: bool,
) -> NewRun {
    let Candidate {
        node,
        due,
        is_wanted,
        ..
    } = chosen;
    NewRun {
        policy: policy.name.clone(),
        node: node.name.clone(),
        level: policy.level,
        name: run_name(policy, &node.name, due.since),
        reason: match is_wanted {
            true => due.reason,
            false => DueReason::Partner,
        },
        is_next,
        partner: partner.map(str::to_owned),
    }
}

/// The newest way to a partner. `runs` are the newest first.
fn newest_link<'a>(runs: &[&'a DueRun]) -> Option<&'a LinkResult> {
    runs.iter().find_map(|run| run.link.as_ref())
}

#[cfg(test)]
#[path = "due_tests.rs"]
mod tests;
