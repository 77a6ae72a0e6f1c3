//! A cluster in miniature: an API server that keeps versions, machines that die, kubelets that
//! start, kill and report pods with random delays, programs that train, save, fail or ignore
//! signals, and an operator around the planner that can be killed after any write. Every run with
//! the same seed is the same.

mod api;
mod copies;
mod kubelet;
mod machine;
mod operator;
mod pauses;
mod progress;
mod regroup;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use scheduler::{
    Absent, Attempt, CollectedPod, DryRun, Job, JobKey, Node, Pod, Policy, Ready, Snapshot,
    Timestamp,
};
use sim::{Queue, Rng};
use topology::NodeName;

pub(crate) use copies::{Copies, Kind};
pub(crate) use machine::Machine;
pub(crate) use operator::{Crash, Operator};

/// (job, attempt, rank)
pub(crate) type PodId = (JobKey, u32, u32);

/// How long after its death a node is known to be dead (its Lease has run out).
const LEASE: Duration = Duration::from_secs(40);
/// A run that takes longer than this hangs.
const HORIZON: Duration = Duration::from_secs(48 * 3600);

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// The stock scheduler tries to bind a pod.
    Bind(PodId),
    /// The sidecar of a pod is up and dials.
    Dial(PodId),
    /// A pod goes on with its next init container, or with its trainer's image.
    Prepare(PodId, usize),
    /// The trainer of a pod starts.
    Start(PodId),
    /// Every rank of an attempt reaches the end of its work.
    Finish(JobKey, u32),
    /// A rank reaches its end.
    End(PodId),
    /// A trainer fails by itself.
    Fail(PodId),
    /// The ranks of an attempt find that the checkpoint cannot be read now.
    Unreadable(JobKey, u32),
    /// The rendezvous decides how a gang goes on that has lost members.
    Regroup(JobKey, u32),
    /// A gang that was asked to stop has saved.
    Saved(JobKey, u32),
    /// The kubelet ends a pod that is being deleted.
    Kill(PodId),
    /// The garbage collector looks for objects without an owner.
    Collect,
    /// A machine loses power; is known to be dead; is back.
    Die(NodeName),
    DeclareDead(NodeName),
    Revive(NodeName),
    /// The condition `Ready` of a node changes, for all that the machine does.
    Report(NodeName, Ready),
    /// A Node object that is being deleted goes once its pods have left; a new machine takes its
    /// name.
    Retire(NodeName),
    Enlist(NodeName),
    /// The rendezvous service notices a sidecar, or misses it.
    Listen,
    /// A person does something.
    Do(Deed),
    /// The operator plans; performs its next write; has slept until its plan said so; a deposed one
    /// goes on.
    Plan,
    Write,
    Wake,
    Haunt,
    /// A read of the operator arrives; the answer to a dry run.
    Read(Absent),
    Tried(JobKey),
    /// Watches deliver to the leader what is due; one says nothing for a while.
    Deliver,
    Hang(Kind, Duration),
    /// The leader's copy of the nodes lacks one.
    Miss(NodeName),
}

/// What people do.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    Suspend(JobKey, bool),
    Delete(JobKey),
    /// A deletion as some tools do it by default, and the end of a namespace: what the job owns
    /// goes first.
    DeleteForeground(JobKey),
    /// Creates a job as soon as its name is free.
    Create(Box<Job>, Program),
    Cordon(NodeName, bool),
    /// Our agent on a node goes, or is back.
    Agent(NodeName, bool),
    /// An agent restarts, or is back: a taint of its own keeps new pods away meanwhile.
    Taint(NodeName, bool),
    /// What an autoscaler does: a Node with a finalizer is deleted.
    DeleteNode(NodeName),
    /// What a drain does.
    Evict(JobKey, u32),
    /// The pods' garbage collector finds too many that have ended: so many of them are deleted,
    /// those that were created first.
    CollectPods(usize),
    /// A kubelet restarts, admits a pod anew that has ended, and refuses it.
    Rewrite,
    /// The storage with the checkpoints goes away, or comes back.
    Storage(bool),
}

/// What a job's program is like.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Milliseconds of training that it needs.
    pub(crate) work: u64,
    /// After how many milliseconds which rank fails, one for each time that the gang starts.
    pub(crate) faults: VecDeque<(u64, u32)>,
    /// After how many milliseconds it makes no progress any more, one for each time that the gang
    /// starts.
    pub(crate) hangs: VecDeque<u64>,
    /// Whether it saves and acknowledges when it is asked to stop.
    pub(crate) saves: bool,
    /// Whether its image does not exist.
    pub(crate) blocked: bool,
    /// Milliseconds that each init container of its pods takes.
    pub(crate) init: Vec<u64>,
    /// Whether survivors of a failure notice it and fail too, or hang.
    pub(crate) survivors_hang: bool,
    /// Within how many milliseconds of each other its ranks end.
    pub(crate) straggles: u64,
}

impl Program {
    pub(crate) fn trains(work_seconds: u64) -> Self {
        Self {
            work: work_seconds * 1000,
            faults: VecDeque::new(),
            hangs: VecDeque::new(),
            saves: true,
            blocked: false,
            init: Vec::new(),
            survivors_hang: false,
            straggles: 0,
        }
    }
}

/// A job as the API server stores it, and the truth about its training.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) job: Job,
    pub(crate) version: u64,
    pub(crate) program: Program,
    /// Milliseconds of training that are saved.
    pub(crate) saved: u64,
    /// Newest acknowledgement (attempt, step) that a pod object carried.
    pub(crate) acked: Option<(u32, u64)>,
}

/// A pod object, and whether its sidecar is up.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) pod: Pod,
    pub(crate) dialled: bool,
    /// Whether its launcher got SIGTERM.
    pub(crate) stopping: bool,
    /// The number of pods that were created before it.
    pub(crate) born: u64,
}

/// One attempt's training.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) joined: bool,
    /// When its gang had joined.
    pub(crate) joined_at: Duration,
    pub(crate) started: Option<u64>,
    pub(crate) broken: bool,
    pub(crate) saving: bool,
    /// True if the operator asked one of its pods to save and leave.
    pub(crate) is_asked: bool,
    /// True if its work is done, so that nobody needs the others any more; and the ranks that have
    /// ended well.
    pub(crate) finishing: bool,
    pub(crate) ended: BTreeSet<u32>,
    /// True if the pod of one of them went while nobody watched, or before it was written down.
    pub(crate) unseen: bool,
    /// True if a pod that its node has ended was collected: only that pod could say why the others
    /// failed.
    pub(crate) cause_is_gone: bool,
    /// Since when it is known that nobody goes on.
    pub(crate) stuck: Option<Timestamp>,
    /// When it makes no progress any more, in milliseconds.
    pub(crate) hangs_at: Option<u64>,
    /// The sign of progress that is too old, and when its ranks were asked for their stacks.
    pub(crate) asked: Option<(Timestamp, Timestamp)>,
}

/// How far clocks are ahead of the true time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clocks {
    pub(crate) operator: Duration,
    pub(crate) cluster: Duration,
}

pub(crate) struct World {
    pub(crate) queue: Queue<Event>,
    pub(crate) rng: Rng,
    pub(crate) policy: Policy,
    pub(crate) machines: BTreeMap<NodeName, Machine>,
    pub(crate) jobs: BTreeMap<JobKey, Stored>,
    pub(crate) attempts: BTreeMap<(JobKey, u32), Attempt>,
    /// The Secrets of attempts.
    pub(crate) keys: BTreeSet<(JobKey, u32)>,
    pub(crate) pods: BTreeMap<PodId, Running>,
    pub(crate) runs: BTreeMap<(JobKey, u32), Run>,
    pub(crate) operator: Operator,
    /// Pods that ended well and are gone, as every replica remembers them that watches.
    pub(crate) departed: Vec<CollectedPod>,
    /// True if checkpoints can neither be read nor written.
    pub(crate) storage_away: bool,
    /// The number of pods that were ever created.
    pub(crate) born: u64,
    /// What the leader knows, if that is not everything.
    pub(crate) copies: Option<Copies>,
    /// Whether deletions hit whatever has the name, though it belongs to a later job.
    pub(crate) deletes_by_name: bool,
    pub(crate) clocks: Clocks,
    /// Writes to the API by operators.
    pub(crate) writes: u64,
    /// Names of jobs that are gone.
    pub(crate) gone: Vec<JobKey>,
    /// Jobs that people have still to create.
    pub(crate) to_come: usize,
}

impl World {
    pub(crate) fn new(rng: &mut Rng, nodes: Vec<Node>) -> Self {
        let machines = nodes
            .into_iter()
            .map(|node| (node.name.clone(), Machine::new(node)))
            .collect();
        let mut queue = Queue::default();
        queue.at(Duration::ZERO, Event::Wake);
        Self {
            queue,
            rng: rng.fork(),
            policy: Policy::default(),
            machines,
            jobs: BTreeMap::new(),
            attempts: BTreeMap::new(),
            keys: BTreeSet::new(),
            pods: BTreeMap::new(),
            runs: BTreeMap::new(),
            operator: Operator::default(),
            departed: Vec::new(),
            storage_away: false,
            born: 0,
            copies: None,
            deletes_by_name: false,
            clocks: Clocks::default(),
            writes: 0,
            gone: Vec::new(),
            to_come: 0,
        }
    }

    pub(crate) fn submit(&mut self, job: Job, program: Program) {
        let stored = Stored {
            job,
            version: 1,
            program,
            saved: 0,
            acked: None,
        };
        self.jobs.insert(stored.job.key.clone(), stored);
        self.changed();
    }

    pub(crate) fn after(&mut self, seconds: u64, deed: Deed) {
        self.to_come += usize::from(matches!(deed, Deed::Create(..)));
        self.queue
            .after(Duration::from_secs(seconds), Event::Do(deed));
    }

    /// The true time.
    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.millis())
    }

    /// The operator's clock.
    pub(crate) fn clock(&self) -> Timestamp {
        self.now() + self.clocks.operator
    }

    /// The clock of the API server and of the kubelets.
    pub(crate) fn stamp(&self) -> Timestamp {
        self.now() + self.clocks.cluster
    }

    pub(crate) fn millis(&self) -> u64 {
        u64::try_from(self.queue.now().as_millis()).unwrap()
    }

    pub(crate) fn delay(&mut self, from_ms: u64, to_ms: u64) -> Duration {
        Duration::from_millis(self.rng.range(from_ms..to_ms))
    }

    /// What the operator sees.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.objects();
        let mut sights = self.operator.sights.clone();
        sights.fill_in(&mut snapshot, &self.policy, self.clock());
        snapshot
    }

    fn objects(&self) -> Snapshot {
        let mut snapshot = Snapshot {
            nodes: self
                .machines
                .values()
                .filter(|machine| !machine.gone)
                .map(|machine| machine.node.clone())
                .collect(),
            jobs: self
                .jobs
                .values()
                .map(|stored| stored.job.clone())
                .collect(),
            attempts: self.attempts.values().cloned().collect(),
            doubtful: Vec::new(),
            pods: self
                .pods
                .values()
                .map(|running| running.pod.clone())
                .collect(),
            departed: self.departed.clone(),
            reports: Vec::new(),
            stuck: self.stuck(),
            absent: self.operator.absent.clone(),
            liveness: self.liveness(),
            progress: self.progress(),
            under_way: self.operator.under_way(),
            ..Snapshot::default()
        };
        self.as_copied(&mut snapshot);
        self.know_agents(&mut snapshot);
        for job in &mut snapshot.jobs {
            if !self.operator.tried.contains(&job.key) {
                job.dry_run = DryRun::Unknown;
            }
        }
        snapshot
    }

    /// Runs until the condition holds; panics if it never does.
    pub(crate) fn run_until(&mut self, what: &str, condition: impl Fn(&Self) -> bool) {
        while !condition(self) {
            let Some(event) = self.queue.pop() else {
                panic!(
                    "nothing happens any more, but not: {what}\n{}",
                    self.describe()
                );
            };
            assert!(
                self.queue.now() < HORIZON,
                "hangs, not: {what}\n{}",
                self.describe()
            );
            self.happen(event);
            self.invariants();
        }
    }

    /// Lets so many events happen, if there are so many.
    pub(crate) fn advance(&mut self, events: usize) {
        for _ in 0..events {
            let Some(event) = self.queue.pop() else {
                return;
            };
            self.happen(event);
            self.invariants();
        }
    }

    /// Lets the cluster come to rest after everything has ended, and checks that nothing is left
    /// over.
    pub(crate) fn settle(&mut self) {
        let end = self.queue.now() + Duration::from_secs(300);
        while self.queue.next_at().is_some_and(|next| next <= end) {
            let event = self.queue.pop().unwrap();
            self.happen(event);
            self.invariants();
        }
        for stored in self.jobs.values() {
            let idle = !stored.job.status.phase.holds_nodes();
            assert!(
                !(idle && stored.job.finalizer),
                "leaked finalizer\n{}",
                self.describe()
            );
        }
        for running in self.pods.values() {
            let job = self.jobs.get(&running.pod.job);
            let busy = job.is_some_and(|stored| stored.job.status.phase.holds_nodes());
            let dead = !self
                .machines
                .get(&running.pod.node)
                .is_some_and(|machine| machine.alive);
            let over = running.pod.terminal && !running.pod.finalizer;
            assert!(
                busy || over || dead,
                "leaked pod {:?}\n{}",
                running.pod,
                self.describe()
            );
        }
        if !self.operator.haunted {
            let orphan = self
                .keys
                .iter()
                .find(|key| !self.attempts.contains_key(*key));
            assert!(
                orphan.is_none(),
                "leaked key {orphan:?}\n{}",
                self.describe()
            );
        }
        let plan = scheduler::plan(&self.snapshot(), &self.policy, self.clock());
        assert!(
            plan.is_empty(),
            "not at rest: {plan:#?}\n{}",
            self.describe()
        );
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Bind(id) => self.bind(id),
            Event::Dial(id) => self.dial(id),
            Event::Prepare(id, index) => self.prepare(id, index),
            Event::Start(id) => self.start(id),
            Event::Finish(job, attempt) => self.finish(job, attempt),
            Event::End(id) => self.end_well(&id),
            Event::Fail(id) => self.fail(id),
            Event::Unreadable(job, attempt) => self.unreadable(job, attempt),
            Event::Regroup(job, attempt) => self.regroup(job, attempt),
            Event::Saved(job, attempt) => self.saved(job, attempt),
            Event::Kill(id) => self.kill(id),
            Event::Collect => self.collect(),
            Event::Die(name) => self.die(name),
            Event::DeclareDead(name) => self.declare_dead(name),
            Event::Revive(name) => self.revive(name),
            Event::Report(name, ready) => self.report(&name, ready),
            Event::Retire(name) => self.retire(name),
            Event::Enlist(name) => self.enlist(name),
            Event::Listen => self.changed(),
            Event::Do(deed) => self.deed(deed),
            Event::Plan => self.plan(),
            Event::Write => self.write(),
            Event::Wake => self.changed(),
            Event::Haunt => self.haunt(),
            Event::Read(object) => self.read(object),
            Event::Tried(job) => self.tried(job),
            Event::Deliver => self.deliver(),
            Event::Miss(name) => self.miss(&name),
            Event::Hang(kind, length) => self.hang(kind, length),
        }
        self.note();
    }

    /// What must hold after every single event.
    fn invariants(&self) {
        // A pod counts for the node that it is pinned to, bound or not, alive or dead: what runs on
        // a node without heartbeats may still run. Only two leaders that do not see each other may
        // pin two pods to one node; then the resource `fireflyer.dev/node` lets one of them be
        // bound.
        let haunted = self.operator.haunted;
        let counts = |running: &&Running| match haunted {
            true => running.is_bound(),
            false => !running.pod.terminal,
        };
        let mut users: BTreeMap<&NodeName, &Pod> = BTreeMap::new();
        for running in self.pods.values().filter(counts) {
            let other = users.insert(&running.pod.node, &running.pod);
            assert!(
                other.is_none(),
                "two pods on one node: {other:?} and {:?}",
                running.pod
            );
        }
        // On a dead machine nothing trains, whatever its pod says; and an attempt may be without
        // its ConfigMap.
        let crossing: BTreeSet<_> = self
            .pods
            .values()
            .filter(|one| one.pod.crossing && one.trains() && self.is_alive(&one.pod.node))
            .map(|one| (&one.pod.job, one.pod.attempt))
            .collect();
        let limit = self.policy.max_cross_zone_jobs as usize;
        assert!(
            crossing.len() <= limit,
            "too many jobs cross: {crossing:?}\n{}",
            self.describe()
        );
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!("at {} after {} writes\n", self.now(), self.writes);
        for (key, stored) in &self.jobs {
            let Job {
                status,
                suspend,
                deleting,
                finalizer,
                ..
            } = &stored.job;
            text += &format!(
                "{key} {:?} attempt {} restarts {} replans {} retry {:?} suspend {suspend} \
                 deleting {deleting} finalizer {finalizer} saved {} {:?} {:?}\n",
                status.phase,
                status.attempt,
                status.restarts,
                status.replans,
                status.retry_at,
                stored.saved,
                status
                    .conditions
                    .values()
                    .map(|c| c.message.as_str())
                    .collect::<Vec<_>>(),
                status.failure.as_ref().map(|failure| &failure.message),
            );
        }
        for running in self.pods.values() {
            text += &format!("{:?}\n", running.pod);
        }
        text
    }
}
