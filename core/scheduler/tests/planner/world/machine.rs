//! Machines and their Node objects: they die and come back, blink, and are replaced; and what the
//! rendezvous service knows of the sidecars on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use scheduler::{GangLiveness, JobKey, Node, PodState, Problem, Ready, Snapshot, Timestamp, Wish};
use topology::NodeName;

use super::{Event, LEASE, PodId, World};

/// Silence after which the rendezvous service no longer counts a sidecar as alive.
const QUIET: Duration = Duration::from_millis(3500);
/// The words for what a node offers without our agent.
const NO_AGENT: &str = "0 of 1 fireflyer.dev/node";
/// The words for a pod that its node has ended with itself.
pub(super) const RESTARTED: &str = "the node was restarted";
/// Silence after which peers give a sidecar up.
const GIVEN_UP: Duration = Duration::from_millis(2500);

#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// As its object shows it.
    pub(crate) node: Node,
    pub(crate) alive: bool,
    /// When it lost power.
    died: Duration,
    /// Whether its Node object is gone.
    pub(super) gone: bool,
    /// Whether the kubelet refuses the next pod.
    pub(crate) refuses: u32,
    /// Milliseconds that it needs to get the trainer's image, which it does not have yet.
    pub(crate) pull: u64,
}

impl Machine {
    pub(crate) fn new(node: Node) -> Self {
        Self {
            node,
            alive: true,
            died: Duration::ZERO,
            gone: false,
            refuses: 0,
            pull: 0,
        }
    }

    /// Whether the stock scheduler binds pods to it.
    pub(super) fn is_open(&self) -> bool {
        let Node {
            ready,
            taint,
            foreign_taint,
            wishes,
            ..
        } = &self.node;
        let is_kept_away = taint.is_some() || foreign_taint.is_some() || !wishes.is_empty();
        *ready == Ready::True && !is_kept_away && self.has_agent()
    }

    /// Returns true if the node offers itself.
    pub(super) fn has_agent(&self) -> bool {
        self.node.short.as_deref() != Some(NO_AGENT)
    }
}

impl World {
    pub(crate) fn die(&mut self, name: NodeName) {
        let now = self.queue.now();
        // Peers name it within two seconds.
        let until = self.clock() + Duration::from_secs(62);
        let Some(machine) = self.machines.get_mut(&name).filter(|one| one.alive) else {
            return;
        };
        machine.alive = false;
        machine.died = now;
        machine.node.suspect_until = Some(until);
        for (job, attempt, _) in self.pods_on(&name) {
            self.break_gang(&job, attempt);
        }
        self.queue.after(GIVEN_UP, Event::Listen);
        self.queue.after(QUIET, Event::Listen);
        self.queue.after(LEASE, Event::DeclareDead(name));
        self.changed();
    }

    pub(crate) fn declare_dead(&mut self, name: NodeName) {
        if let Some(machine) = self.machines.get_mut(&name)
            && !machine.alive
        {
            machine.node.ready = Ready::Unknown;
        }
        self.changed();
    }

    /// The machine starts again: what ran on it did not survive.
    pub(crate) fn revive(&mut self, name: NodeName) {
        if let Some(machine) = self.machines.get_mut(&name) {
            machine.alive = true;
            machine.node.ready = Ready::True;
        }
        self.lose_pods(&name);
        self.changed();
    }

    /// What ran there is gone; what was never bound and is being deleted goes.
    fn lose_pods(&mut self, name: &NodeName) {
        for id in self.pods_on(name) {
            if self.pods[&id].is_bound() {
                self.end(&id, PodState::Refused(RESTARTED.to_owned()));
            }
        }
        for id in self.pods_on(name) {
            if self.pods[&id].pod.delete_by.is_some() {
                self.kill(id);
            }
        }
    }

    /// Pods that are not terminal.
    fn pods_on(&self, name: &NodeName) -> Vec<PodId> {
        let here = self.pods.iter().filter(|(_, running)| {
            let pod = &running.pod;
            pod.node == *name && !pod.terminal
        });
        here.map(|(id, _)| id.clone()).collect()
    }

    /// What Kubernetes says of a machine that is alive: its runtime restarts, or its Lease is not
    /// renewed.
    pub(super) fn report(&mut self, name: &NodeName, ready: Ready) {
        if let Some(machine) = self.machines.get_mut(name)
            && machine.alive
        {
            machine.node.ready = ready;
            self.changed();
        }
    }

    /// Our agent on the node goes, or is back.
    pub(super) fn set_agent(&mut self, name: &NodeName, is_there: bool) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.node.short = (!is_there).then(|| NO_AGENT.into());
            self.changed();
        }
    }

    /// Nobody can be validated on a node without our agent.
    pub(super) fn know_agents(&self, snapshot: &mut Snapshot) {
        let nodes = snapshot.nodes.iter();
        let without = nodes.filter(|node| node.short.as_deref() == Some(NO_AGENT));
        let without: BTreeSet<&NodeName> = without.map(|node| &node.name).collect();
        for job in &mut snapshot.jobs {
            if job.pin.as_ref().is_some_and(|pin| without.contains(pin)) {
                job.problem = Some(Problem {
                    reason: "NoAgent",
                    message: "the node has no agent".to_owned(),
                });
            }
        }
    }

    pub(super) fn delete_node(&mut self, name: NodeName) {
        if let Some(machine) = self.machines.get_mut(&name) {
            machine
                .node
                .wishes
                .insert(Wish::Deleted, Timestamp::default());
            self.queue
                .after(Duration::from_secs(30), Event::Retire(name));
        }
    }

    /// The autoscaler takes its finalizer off a Node on which nothing runs any more.
    pub(super) fn retire(&mut self, name: NodeName) {
        if !self.pods_on(&name).is_empty() {
            self.queue
                .after(Duration::from_secs(10), Event::Retire(name));
            return;
        }
        if let Some(machine) = self.machines.get_mut(&name) {
            machine.alive = false;
            machine.node.ready = Ready::Unknown;
            machine.gone = true;
        }
        self.queue
            .after(Duration::from_secs(120), Event::Enlist(name));
        self.changed();
    }

    /// A machine of that name joins the cluster.
    pub(super) fn enlist(&mut self, name: NodeName) {
        if let Some(machine) = self.machines.get_mut(&name) {
            machine.gone = false;
            machine.node.wishes.clear();
        }
        self.revive(name);
    }

    /// What the rendezvous service knows of each gang.
    pub(super) fn liveness(&self) -> BTreeMap<(JobKey, u32), Arc<GangLiveness>> {
        let now = self.queue.now();
        if now < self.operator.deaf_until {
            return BTreeMap::new();
        }
        let mut gangs: BTreeMap<(JobKey, u32), GangLiveness> = BTreeMap::new();
        let dialled = self
            .pods
            .iter()
            .filter(|(_, running)| running.dialled && !running.pod.terminal);
        for ((job, attempt, _), running) in dialled {
            let gang = gangs.entry((job.clone(), *attempt)).or_default();
            let name = &running.pod.node;
            let machine = &self.machines[name];
            let silent = now.saturating_sub(machine.died);
            if machine.alive || silent < QUIET {
                gang.alive.insert(name.clone());
            } else if machine.died >= self.operator.deaf_until {
                gang.quiet.insert(name.clone());
            }
            let run = self.runs.get(&(job.clone(), *attempt));
            if !machine.alive && silent >= GIVEN_UP && run.is_some_and(|run| run.joined) {
                gang.given_up.insert(name.clone());
            }
        }
        let gangs = gangs.into_iter();
        gangs.map(|(key, alive)| (key, Arc::new(alive))).collect()
    }

    /// Whether it counts what is ended. Where leaders see everything at once, not after a deposed
    /// one has come back.
    fn counts(&self) -> bool {
        self.copies.is_some() || !self.operator.haunted
    }

    /// Nobody ends a gang that trains, unless it is asked to save.
    pub(super) fn nobody_healthy_is_killed(&mut self, id: &PodId, grace: Duration) {
        let (job, attempt, rank) = id;
        let Some(stored) = self.jobs.get(job) else {
            return;
        };
        let current = stored.job.status.attempt == *attempt && !stored.job.deleting;
        if grace >= stored.job.grace {
            let run = self.runs.entry((job.clone(), *attempt)).or_default();
            run.is_asked = true;
            return;
        }
        let member = !self.out(job, *attempt).contains(rank);
        if current && member && self.counts() {
            let whole = self.is_whole(job, *attempt) || self.ends_well(job, *attempt);
            let healthy = whole && !self.has_stalled(job, *attempt);
            assert!(!healthy, "a healthy gang is ended\n{}", self.describe());
            let prepares = self.prepares_as_a_whole(job, *attempt);
            assert!(
                !prepares,
                "a gang that prepares is ended\n{}",
                self.describe()
            );
        }
    }
}
