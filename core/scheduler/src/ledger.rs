//! The snapshot, indexed: who holds which node, what still runs on it, which nodes are free. Leaves
//! every decision to others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use topology::{CheckpointRef, NodeName};

use crate::gang::Wake;
use crate::node::{GangLiveness, State, States, Wish};
use crate::plan::JobPlan;
use crate::policy::Policy;
use crate::snapshot::{Absent, Attempt, Doubt, Job, JobKey, Node, Pod, PodState, Snapshot, Stuck};
use crate::stall::GangProgress;
use crate::status::JobPhase;
use crate::time::Timestamp;

/// When news of pods is awaited that are known to be late.
const NEWS: Duration = Duration::from_secs(1);

/// One job with everything that belongs to it. The job itself may be gone already.
#[derive(Debug, Default)]
pub(crate) struct JobView<'a> {
    pub(crate) job: Option<&'a Job>,
    pub(crate) attempts: BTreeMap<u32, &'a Attempt>,
    /// By attempt.
    pub(crate) doubts: BTreeMap<u32, Doubt>,
    /// By attempt, then rank.
    pub(crate) pods: BTreeMap<(u32, u32), &'a Pod>,
    /// By attempt, then rank: pods that ended well and are gone, and since when that is known.
    pub(crate) departed: BTreeMap<(u32, u32), Timestamp>,
    pub(crate) report: Option<&'a CheckpointRef>,
    /// The newest attempt that has resumed from an older checkpoint than it should have, and why.
    pub(crate) passed_over: Option<(u32, &'a str)>,
    /// Of the newest attempt that is.
    pub(crate) stuck: Option<&'a Stuck>,
}

impl<'a> JobView<'a> {
    /// The attempt that owns nodes now, if there is one.
    pub(crate) fn holding(&self) -> Option<&'a Attempt> {
        let job = self.job?;
        if job.deleting || !job.status.phase.holds_nodes() {
            return None;
        }
        self.attempts.get(&job.status.attempt).copied()
    }

    /// Returns true if a pod is one of a gang that crosses zones. The attempt's ConfigMap and the
    /// status say it too, but those may be gone before the pod is.
    fn crosses(&self, pod: &Pod) -> bool {
        let attempt = || self.attempts.get(&pod.attempt);
        let status = || self.job.map(|job| &job.status);
        pod.crossing
            || attempt().is_some_and(|attempt| attempt.crossing)
            || status().is_some_and(|one| one.attempt == pod.attempt && one.zones.len() > 1)
    }

    /// The pods of one attempt, by rank.
    pub(crate) fn gang(&self, attempt: u32) -> impl Iterator<Item = &'a Pod> {
        self.pods
            .range((attempt, 0)..=(attempt, u32::MAX))
            .map(|(_, pod)| *pod)
    }
}

/// An index over a snapshot.
#[derive(Debug)]
pub(crate) struct Ledger<'a> {
    nodes: BTreeMap<&'a NodeName, &'a Node>,
    states: &'a States<'a>,
    views: BTreeMap<&'a JobKey, JobView<'a>>,
    /// Nodes owned by an attempt.
    owned: BTreeSet<&'a NodeName>,
    /// Nodes with a pod that has not ended.
    occupied: BTreeSet<&'a NodeName>,
    /// Plans that are being written.
    under_way: BTreeMap<&'a JobKey, &'a JobPlan>,
    /// Attempts that lost a race between two leaders and must give way.
    superseded: BTreeSet<&'a JobKey>,
    absent: &'a BTreeSet<Absent>,
    liveness: &'a BTreeMap<(JobKey, u32), Arc<GangLiveness>>,
    progress: &'a BTreeMap<(JobKey, u32), GangProgress>,
    /// Until then a sidecar without heartbeats may only not have dialled yet.
    heartbeats_known_at: Timestamp,
    unreadable: BTreeSet<&'a JobKey>,
    pods_as_of: Timestamp,
    unheard_since: &'a BTreeMap<NodeName, Timestamp>,
    /// Jobs with a gang that crosses zones, or is about to.
    crossing: BTreeSet<&'a JobKey>,
    /// The validations that have nodes, by node.
    validating: BTreeMap<&'a NodeName, &'a Arc<str>>,
    now: Timestamp,
    policy: &'a Policy,
}

impl<'a> Ledger<'a> {
    pub(crate) fn new(
        snapshot: &'a Snapshot,
        states: &'a States<'a>,
        policy: &'a Policy,
        now: Timestamp,
    ) -> Self {
        let nodes: BTreeMap<_, _> = snapshot
            .nodes
            .iter()
            .map(|node| (&node.name, node))
            .collect();
        let mut views: BTreeMap<&JobKey, JobView<'_>> = BTreeMap::new();
        let mut ambiguous = BTreeSet::new();
        for job in &snapshot.jobs {
            views.entry(&job.key).or_default().job = Some(job);
        }
        for doubtful in &snapshot.doubtful {
            let view = views.entry(&doubtful.job).or_default();
            view.doubts.insert(doubtful.number, doubtful.doubt);
        }
        for attempt in &snapshot.attempts {
            let view = views.entry(&attempt.job).or_default();
            if view.attempts.insert(attempt.number, attempt).is_some() {
                view.doubts.insert(attempt.number, Doubt::Unproved);
                ambiguous.insert((&attempt.job, attempt.number));
            }
        }
        // Of two with one number nobody knows which was decided, so neither holds anything.
        for (job, number) in ambiguous {
            views.entry(job).or_default().attempts.remove(&number);
        }
        for report in &snapshot.reports {
            if let Some(view) = views.get_mut(&report.job) {
                view.report = view.report.max(Some(&report.checkpoint));
                let passed_over = report.passed_over.as_deref();
                let passed_over = passed_over.map(|text| (report.attempt, text));
                view.passed_over = view.passed_over.max(passed_over);
            }
        }
        for stuck in &snapshot.stuck {
            if let Some(view) = views.get_mut(&stuck.job)
                && view.stuck.is_none_or(|old| old.attempt < stuck.attempt)
            {
                view.stuck = Some(stuck);
            }
        }
        let mut occupied = BTreeSet::new();
        for pod in &snapshot.pods {
            views
                .entry(&pod.job)
                .or_default()
                .pods
                .insert((pod.attempt, pod.rank), pod);
            if !pod.terminal {
                occupied.insert(&pod.node);
            }
        }
        for gone in &snapshot.departed {
            if let Some(view) = views.get_mut(&gone.job) {
                view.departed.insert((gone.attempt, gone.rank), gone.since);
            }
        }
        let mut ledger = Self {
            nodes,
            states,
            views,
            owned: BTreeSet::new(),
            occupied,
            under_way: snapshot
                .under_way
                .iter()
                .map(|plan| (&plan.job, &**plan))
                .collect(),
            superseded: BTreeSet::new(),
            absent: &snapshot.absent,
            liveness: &snapshot.liveness,
            progress: &snapshot.progress,
            heartbeats_known_at: snapshot.heartbeats_known_at,
            unreadable: snapshot.unreadable.iter().collect(),
            pods_as_of: snapshot.pods_as_of.unwrap_or(now).min(now),
            unheard_since: &snapshot.unheard_since,
            crossing: BTreeSet::new(),
            validating: BTreeMap::new(),
            now,
            policy,
        };
        ledger.keep_unreadable();
        ledger.settle_claims();
        ledger.take_under_way();
        ledger.count_leavers();
        ledger.find_validations();
        ledger
    }

    /// Two leaders that did not see each other may have given one node, or the last right to
    /// cross, to two attempts. A running attempt keeps it, otherwise the older one does; the other
    /// gives way.
    fn settle_claims(&mut self) {
        let mut claims: Vec<_> = self
            .views
            .iter()
            .filter_map(|(key, view)| {
                let phase = view.job?.status.phase;
                let attempt = view.holding()?;
                // It may train before that is recorded, and before its pods show it.
                let trains = |pod: &Pod| pod.state == PodState::Running;
                let settled = matches!(phase, JobPhase::Running | JobPhase::Interrupting)
                    || view.gang(attempt.number).any(trains)
                    || self.is_alive_as_a_whole(view, attempt);
                let nodes: Vec<_> = view.places(attempt).map(|(_, node)| node).collect();
                Some((!settled, attempt.created, *key, attempt, nodes))
            })
            .collect();
        claims.sort_by_key(|(unsettled, created, key, ..)| (*unsettled, *created, *key));
        for (unsettled, _, key, attempt, nodes) in claims {
            let too_many = attempt.crossing && self.crossing() >= self.policy.max_cross_zone_jobs;
            let collides = nodes.iter().any(|node| self.owned.contains(node));
            if unsettled && (too_many || collides) {
                self.superseded.insert(key);
            }
            if attempt.crossing {
                self.crossing.insert(key);
            }
            self.owned.extend(nodes);
        }
    }

    /// Whether all who take part send heartbeats: they train, or are about to.
    fn is_alive_as_a_whole(&self, view: &JobView<'a>, attempt: &'a Attempt) -> bool {
        self.gang(attempt).is_some_and(|gang| {
            let mut places = view.places(attempt);
            places.all(|(_, node)| gang.alive.contains(node))
        })
    }

    /// Returns true if the sidecar of a node had dialled this operator for an attempt, has not
    /// left, and is silent.
    pub(crate) fn is_quiet(&self, attempt: &Attempt, node: &NodeName) -> bool {
        let gang = self.gang(attempt);
        gang.is_some_and(|gang| gang.quiet.contains(node))
    }

    /// The heartbeats of an attempt, as far as they are known.
    fn gang(&self, attempt: &Attempt) -> Option<&'a Arc<GangLiveness>> {
        self.liveness.get(&(attempt.job.clone(), attempt.number))
    }

    /// True if it is known what the pods of a node did for as long as the node was heard: its Lease
    /// has run out since, or its Node is gone. Else `wake` is lowered to when to look again.
    pub(crate) fn has_news_of_pods(&self, node: &NodeName, wake: &mut Wake) -> bool {
        let since = self.unheard_since.get(node);
        since.is_none_or(|since| self.is_over_for_pods(*since, wake))
    }

    /// The progress of an attempt, as far as it is known.
    pub(crate) fn progress(&self, attempt: &Attempt) -> Option<&'a GangProgress> {
        self.progress.get(&(attempt.job.clone(), attempt.number))
    }

    /// Whether sidecars may still have to dial this operator.
    pub(crate) fn is_starting(&self) -> bool {
        self.heartbeats_known_at > self.now
    }

    /// What a job holds that cannot be read: as far as one knows, the nodes of its newest attempt.
    fn keep_unreadable(&mut self) {
        for key in &self.unreadable {
            let view = self.views.get(*key);
            let newest = view.and_then(|view| view.attempts.values().next_back());
            self.owned
                .extend(newest.iter().flat_map(|attempt| &attempt.nodes));
        }
    }

    /// Whether the job is not for this release to touch.
    pub(crate) fn is_untouchable(&self, job: &JobKey) -> bool {
        self.unreadable.contains(job)
    }

    /// Whether a read has confirmed that the object does not exist.
    pub(crate) fn is_absent(&self, object: &Absent) -> bool {
        self.absent.contains(object)
    }

    /// Whether a wait for pods is over: what they did since they were last known to be complete is
    /// not known. Else `wake` is lowered to when to look again.
    pub(crate) fn is_over_for_pods(&self, due: Timestamp, wake: &mut Wake) -> bool {
        if due <= self.pods_as_of {
            return true;
        }
        wake.at(if due > self.now { due } else { self.now + NEWS });
        false
    }

    /// What is being written counts as written, as far as it takes something. Also if its job is
    /// being deleted by now: its pods are still on their way to their nodes.
    fn take_under_way(&mut self) {
        for (key, plan) in &self.under_way {
            self.owned.extend(plan.nodes());
            let counted = self
                .views
                .get(key)
                .is_some_and(|view| view.holding().is_some());
            let crosses = plan.attempt().is_some_and(|new| new.crossing);
            if crosses && !counted {
                self.crossing.insert(key);
            }
        }
    }

    /// A gang that holds nothing any more, because it is voided or its job is suspended or being
    /// deleted, crosses zones until its trainers have stopped. Counted last: it takes the right to
    /// cross from nobody who has it.
    fn count_leavers(&mut self) {
        let leaves = |view: &JobView<'_>| {
            let mut pods = view.pods.values();
            pods.any(|pod| view.crosses(pod) && !pod.has_ended() && !self.delays_nothing(pod))
        };
        let views = self.views.iter().filter(|(_, view)| leaves(view));
        let leavers: Vec<_> = views.map(|(key, _)| *key).collect();
        self.crossing.extend(leavers);
    }

    /// A validation has its node until its pod has left.
    fn find_validations(&mut self) {
        let pinned = self.views.iter().filter_map(|(key, view)| {
            let job = view.job?;
            let holds = job.status.phase.holds_nodes() && !job.deleting;
            let mut pods = view.pods.values();
            let has_it = holds || self.gets_nodes(key) || pods.any(|pod| !self.delays_nothing(pod));
            Some((job.pin.as_ref()?, &job.key.name)).filter(|_| has_it)
        });
        self.validating = pinned.collect();
    }

    /// The validation that has the node, or gets it because nobody uses it.
    pub(crate) fn run_at(&self, node: &NodeName) -> Option<&'a Arc<str>> {
        let has_it = self.validating.get(node).copied();
        has_it.or_else(|| self.states.next_runs().awaits(node))
    }

    /// Whether a plan for the job is being written.
    pub(crate) fn is_under_way(&self, job: &JobKey) -> bool {
        self.under_way.contains_key(job)
    }

    /// Whether a plan that gives the job nodes is being written.
    pub(crate) fn gets_nodes(&self, job: &JobKey) -> bool {
        self.under_way
            .get(job)
            .is_some_and(|plan| plan.attempt().is_some())
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = (&'a JobKey, &JobView<'a>)> {
        self.views.iter().map(|(key, view)| (*key, view))
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &'a Node> {
        self.nodes.values().copied()
    }

    pub(crate) fn node(&self, name: &NodeName) -> Option<&'a Node> {
        self.nodes.get(name).copied()
    }

    pub(crate) fn states(&self) -> &'a States<'a> {
        self.states
    }

    /// Whether what ran on the node is not there any more.
    pub(crate) fn is_lost(&self, name: &NodeName) -> bool {
        self.states.is_lost(name)
    }

    /// Whether peers have named the node dead or silent.
    pub(crate) fn is_suspect(&self, node: &Node) -> bool {
        node.suspect_until.is_some_and(|until| until > self.now)
    }

    /// Whether new work may go to the node, now or once it is free.
    pub(crate) fn is_healthy(&self, node: &Node) -> bool {
        !node.class.as_str().is_empty() && self.states.is_usable(&node.name)
    }

    /// Healthy, owned by nobody, and nothing of an older pod runs on it.
    pub(crate) fn is_free(&self, node: &Node) -> bool {
        self.is_healthy(node) && self.is_vacant(&node.name)
    }

    /// Owned by nobody, and nothing of an older pod runs on it.
    pub(crate) fn is_vacant(&self, node: &NodeName) -> bool {
        !self.owned.contains(node) && !self.occupied.contains(node)
    }

    /// Whether jobs keep away from the node for what happened to others there.
    pub(crate) fn is_distrusted(&self, node: &Node) -> bool {
        self.states.avoided_by_all().contains_key(&node.name)
    }

    /// When the first of these nodes is trusted again.
    pub(crate) fn trusted_at(&self) -> Option<Timestamp> {
        self.states.avoided_by_all().values().min().copied()
    }

    /// Who holds which node, or has a pod there that has not ended, or gets one.
    pub(crate) fn users(&self) -> BTreeMap<&'a NodeName, BTreeSet<&'a JobKey>> {
        let mut users: BTreeMap<&NodeName, BTreeSet<&JobKey>> = BTreeMap::new();
        for (key, view) in &self.views {
            let attempt = view.holding();
            let held = attempt
                .into_iter()
                .flat_map(|attempt| view.places(attempt).map(|(_, node)| node));
            let pods = view.pods.values().filter(|pod| !pod.terminal);
            for node in held.chain(pods.map(|pod| &pod.node)) {
                users.entry(node).or_default().insert(key);
            }
        }
        for (key, plan) in &self.under_way {
            for node in plan.nodes() {
                users.entry(node).or_default().insert(key);
            }
        }
        users
    }

    /// Whether the owner of the node may create its pod there. Where the kubelet has only stopped
    /// being Ready for a moment it may: the pod is bound as soon as it is again.
    pub(crate) fn can_take_pod(&self, job: &Job, name: &NodeName) -> bool {
        let is_pinned = job.pin.is_some();
        let open = match self.states.of(name) {
            State::Usable | State::NoNewWork { .. } => true,
            State::Leaving { wishes } => is_pinned && !wishes.contains_key(&Wish::Deleted),
            State::Suspect { .. } | State::Short { .. } => is_pinned,
            State::Lost { .. } => false,
        };
        open && !self.occupied.contains(name)
    }

    /// Whether the job's attempt must give way to another leader's.
    pub(crate) fn is_superseded(&self, job: &JobKey) -> bool {
        self.superseded.contains(job)
    }

    /// How many jobs cross zones.
    pub(crate) fn crossing(&self) -> u32 {
        u32::try_from(self.crossing.len()).unwrap_or(u32::MAX)
    }

    /// Whether the job is one of them.
    pub(crate) fn is_crossing(&self, job: &JobKey) -> bool {
        self.crossing.contains(job)
    }

    /// Earlier jobs with the same name whose objects are still there: new ones would collide with
    /// them.
    pub(crate) fn namesakes(&self, key: &JobKey) -> impl Iterator<Item = &JobView<'a>> {
        let first = JobKey {
            kind: key.kind,
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: "".into(),
        };
        self.views
            .range::<JobKey, _>(first..)
            .take_while(move |(other, _)| {
                (other.kind, &other.namespace, &other.name) == (key.kind, &key.namespace, &key.name)
            })
            .filter(move |(other, _)| **other != key)
            .map(|(_, view)| view)
    }

    /// Whether a pod no longer delays its job's next attempt: it ended, its node is dead, or it has
    /// outlived its grace for so long that waiting is pointless (it still keeps its node).
    pub(crate) fn delays_nothing(&self, pod: &Pod) -> bool {
        pod.terminal || self.is_overdue(pod) || self.is_lost(&pod.node)
    }

    fn is_overdue(&self, pod: &Pod) -> bool {
        let given_up = self.gives_up_at(pod);
        given_up.is_some_and(|when| when <= self.pods_as_of)
    }

    /// Whether nothing is expected of a pod of a gang that was asked to leave. Its sidecar ends
    /// with it, and its Node may go once it has ended: that its node looks lost does not say that
    /// it will not acknowledge.
    pub(crate) fn has_said_all(&self, pod: &Pod) -> bool {
        match pod.finalizer && !pod.terminal {
            true => self.is_overdue(pod),
            false => self.delays_nothing(pod),
        }
    }

    /// When a pod that is being deleted is no longer waited for.
    pub(crate) fn gives_up_at(&self, pod: &Pod) -> Option<Timestamp> {
        pod.delete_by.map(|end| end + self.policy.leave_patience)
    }

    pub(crate) fn policy(&self) -> &'a Policy {
        self.policy
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }
}
