//! What goes wrong, and when: each kind of fault in each phase of an operation, alone or one after another.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use collective::machine::{GroupId, Machine, WORLD};
use collective::membership::GangPhase as Leading;
use sim::{Rng, Simulation, To};

use crate::fixture::memory::Id;
use crate::world::{Event, MS, World};

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// A process of a trainer dies.
    Trainer,
    /// A sidecar dies and comes back without its memory.
    Sidecar,
    /// A node dies.
    Node,
    /// Nothing passes between two parts of the gang for a while, or for ever.
    Partition,
    /// The leader dies.
    Leader,
    /// A sidecar stands still for a while.
    Freeze,
    /// A link between two nodes that live ends, as when a frame was damaged or lost.
    Link,
    /// Two of these, shortly after another.
    Double,
}

pub(crate) const FAULTS: [Fault; 8] = [
    Fault::Trainer,
    Fault::Sidecar,
    Fault::Node,
    Fault::Partition,
    Fault::Leader,
    Fault::Freeze,
    Fault::Link,
    Fault::Double,
];

/// How far the operation at hand is when it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// No rank has called it.
    BeforeSubmit,
    /// Ranks have called it, and nothing of it was sent.
    Submitted,
    /// Parts go up, and nothing of the result comes down.
    MidUp,
    /// All parts are at the root, and little of the result has left it.
    RootTurns,
    /// The result comes down.
    MidDown,
    /// It is final on some nodes and not on others.
    DoneOnSome,
    /// It is final on all nodes.
    DoneOnAll,
    /// After another fault: the epoch is over, and its members report.
    Stopping,
    /// After another fault: the members of the next epoch connect.
    Joining,
    /// After another fault: the next epoch has started.
    Again,
}

pub(crate) const PHASES: [Phase; 10] = [
    Phase::BeforeSubmit,
    Phase::Submitted,
    Phase::MidUp,
    Phase::RootTurns,
    Phase::MidDown,
    Phase::DoneOnSome,
    Phase::DoneOnAll,
    Phase::Stopping,
    Phase::Joining,
    Phase::Again,
];

impl Phase {
    /// Whether it is one of a recovery, which another fault has to begin.
    pub(crate) fn is_recovery(self) -> bool {
        self >= Self::Stopping
    }
}

/// What else may be going on in a group of some ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    /// Ranks have asked for it, and not all that are left know that it is open.
    Opening,
    /// Ranks have called its end, and not all nodes are done with it.
    Closing,
}

pub(crate) const LIVES: [Life; 2] = [Life::Opening, Life::Closing];

/// When it happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum When {
    /// In this phase of an operation of all ranks.
    World(Phase),
    /// In this phase of an operation of a group of some.
    Group(Phase),
    Life(Life),
}

impl When {
    pub(crate) fn all() -> Vec<Self> {
        let phases = PHASES.iter().copied();
        let lives = LIVES.iter().copied().map(Self::Life);
        let world = phases.clone().map(Self::World);
        world.chain(phases.map(Self::Group)).chain(lives).collect()
    }

    /// Whether it is about a group of some ranks.
    pub(crate) fn is_of_group(self) -> bool {
        !matches!(self, Self::World(_))
    }

    /// Whether another fault has to come before.
    pub(crate) fn is_recovery(self) -> bool {
        match self {
            Self::World(phase) | Self::Group(phase) => phase.is_recovery(),
            Self::Life(_) => false,
        }
    }
}

/// As it is counted.
impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::World(phase) => write!(f, "{phase:?}"),
            Self::Group(phase) => write!(f, "{phase:?} in a group"),
            Self::Life(life) => write!(f, "{life:?}"),
        }
    }
}

impl World {
    /// Nodes where an operation is final.
    fn final_on(&self, (group, op): Id) -> usize {
        let is_final = |machine: &Machine| {
            let report = machine.report();
            let of = report.iter().find(|of| of.group == group);
            let held = |op| of.is_some_and(|of| of.retained.iter().any(|held| held.op == op));
            of.is_some_and(|of| of.delivered_to_all > op) || held(op)
        };
        let machines = self.sidecars.iter().flat_map(|sidecar| &sidecar.machine);
        machines.filter(|machine| is_final(machine)).count()
    }

    /// Whether it is that time, as an operation shows it.
    pub(crate) fn is(&self, when: When, id: Id) -> bool {
        match when {
            When::World(phase) | When::Group(phase) => self.is_in(phase, id),
            When::Life(life) => self.is_at(life, id.0),
        }
    }

    fn is_at(&self, life: Life, group: GroupId) -> bool {
        let of = &self.groups[&group];
        let mut members = of.members.iter();
        match life {
            Life::Opening => {
                let all = members.clone().all(|member| member.opened.is_some());
                !all && members.any(|member| member.asked)
            }
            Life::Closing => {
                let mut nodes = 0..self.nodes();
                of.is_closing() && nodes.any(|node| self.groups_at(node).contains(&group))
            }
        }
    }

    /// Whether an operation is in a phase.
    pub(crate) fn is_in(&self, phase: Phase, id: Id) -> bool {
        if self.store.is_empty() {
            return false; // The gang has not started.
        }
        let (group, op) = id;
        let of = &self.groups[&group];
        let called = of.members.iter();
        let called = called.filter(|one| one.called > op as usize).count();
        let ups = self.seen.ups.get(&id).copied().unwrap_or(0);
        let downs = self.seen.downs.get(&id).copied().unwrap_or(0);
        let nodes = if group == WORLD {
            self.nodes()
        } else {
            self.nodes_of(group).len()
        };
        match phase {
            Phase::BeforeSubmit => {
                let is_open = of.members.iter().any(|one| one.opened == Some(Ok(())));
                called == 0 && is_open
            }
            Phase::Submitted => called > 0 && ups == 0 && downs == 0,
            Phase::MidUp => ups > 0 && downs == 0,
            // All parts that have to come have, and little has gone down.
            Phase::RootTurns => {
                called > 0 && ups + 1 >= nodes && downs <= 1 && self.final_on(id) < nodes
            }
            Phase::MidDown => downs > 0 && self.final_on(id) < nodes,
            Phase::DoneOnSome => {
                let done = self.final_on(id);
                0 < done && done < nodes
            }
            Phase::DoneOnAll => self.final_on(id) == nodes,
            Phase::Stopping => self.phase().is_some_and(|(_, phase)| {
                matches!(phase, Leading::Stopping { .. } | Leading::Proposing)
            }),
            Phase::Joining => self.phase().is_some_and(|(epoch, phase)| {
                epoch > 1 && matches!(phase, Leading::Connecting { .. })
            }),
            Phase::Again => {
                let goes = self
                    .phase()
                    .is_some_and(|(epoch, phase)| epoch > 1 && *phase == Leading::Running);
                goes && !self.all_ended()
            }
        }
    }

    /// The side of a partition that stays out: the one that does not reach the operator, else the smaller, else the one
    /// without the lowest rank.
    fn cut_off(&self, island: &BTreeSet<usize>, with_operator: usize) -> BTreeSet<usize> {
        let all = 0..self.nodes();
        let outside: BTreeSet<usize> = all.filter(|node| !island.contains(node)).collect();
        let members = self.members();
        let among = |side: &BTreeSet<usize>| -> BTreeSet<usize> {
            members
                .iter()
                .copied()
                .filter(|node| side.contains(node))
                .collect()
        };
        let (inner, outer) = (among(island), among(&outside));
        let safe = |side: &BTreeSet<usize>| side.difference(&self.affected).count();
        let island_stays = match with_operator {
            0 => true,
            1 => false,
            // Where those may be back that something has befallen, either side may be the larger one.
            _ if safe(&inner) > outer.len() => true,
            _ if safe(&outer) > inner.len() => false,
            _ if safe(&inner) != safe(&outer) => safe(&inner) < safe(&outer),
            _ => inner.first() < outer.first(),
        };
        if island_stays {
            outside
        } else {
            island.clone()
        }
    }

    /// Lets a fault happen, mostly to one of these nodes. Returns when the last part of it does.
    pub(crate) fn cause(
        &mut self,
        rng: &mut Rng,
        fault: Fault,
        near: &BTreeSet<usize>,
    ) -> Option<Duration> {
        let now = self.now();
        let members = self.members();
        let runs = |&node: &usize| self.hosts.runs(node) && !self.hosts.is_frozen(node);
        let mut running: Vec<usize> = members.into_iter().filter(runs).collect();
        if running.is_empty() {
            return None;
        }
        if rng.chance(3, 4) && running.iter().any(|node| near.contains(node)) {
            running.retain(|node| near.contains(node));
        }
        let node = *rng.pick(&running);
        self.hosts.note(("fault", fault, node));
        match fault {
            Fault::Trainer | Fault::Sidecar | Fault::Node | Fault::Freeze => {
                self.affected.insert(node);
            }
            Fault::Partition | Fault::Leader | Fault::Link | Fault::Double => {}
        }
        match fault {
            Fault::Trainer => {
                let ranks: Vec<u32> = self.setup.layout.ranks(node).collect();
                self.kill_rank(*rng.pick(&ranks));
            }
            Fault::Sidecar => {
                self.kill_sidecar(node);
                let back = Duration::from_nanos(rng.range(50_000_000..5_000_000_000));
                let restart = Event::Restart { node };
                self.hosts.after(back, To::World, restart);
                return Some(now + back);
            }
            Fault::Node => {
                self.kill_node(node);
                if rng.chance(1, 2) {
                    let leader = self.leaders;
                    let notice =
                        collective::membership::MembershipEvent::Gone { rank: node as u32 };
                    let after = Duration::from_nanos(rng.range(1_000_000..20_000_000_000));
                    let gone = Event::ToLeader { leader, notice };
                    self.hosts.after(after, To::World, gone);
                }
            }
            Fault::Partition => {
                let all = self.nodes();
                let island: BTreeSet<usize> = (0..all).filter(|_| rng.chance(1, 2)).collect();
                let operator = self.operator();
                let with_operator = rng.below(3);
                self.hosts.note(("partition", &island, with_operator));
                self.affected.extend(self.cut_off(&island, with_operator));
                for &inside in &island {
                    for outside in (0..all).filter(|node| !island.contains(node)) {
                        self.cut(inside, outside);
                    }
                }
                for node in 0..all {
                    // One side may be cut off from the operator too.
                    if with_operator == usize::from(island.contains(&node)) {
                        self.cut(node, operator);
                    }
                }
                if rng.chance(2, 3) {
                    let heals = Duration::from_nanos(rng.range(1_000_000..25_000_000_000));
                    self.run_until(now + heals);
                    self.heal();
                }
            }
            Fault::Leader => self.kill_leader(),
            Fault::Freeze => {
                self.hosts.freeze(node);
                let thaws = Duration::from_nanos(rng.range(1_000_000..18_000_000_000));
                self.run_until(now + thaws);
                self.thaw(node);
            }
            Fault::Link => {
                let (peers, epoch) = self.tree_peers(node)?;
                let peer = *rng.pick(&peers);
                self.break_link(node, peer, epoch, rng.chance(1, 2));
            }
            Fault::Double => {
                let simple = &FAULTS[..FAULTS.len() - 1];
                let first = self.cause(rng, *rng.clone().pick(simple), near)?;
                let between = Duration::from_nanos(rng.range(0..3_000_000_000));
                self.run_until(self.now() + between * u32::from(rng.chance(1, 2)));
                let second = self.cause(rng, *rng.clone().pick(simple), near);
                return Some(first.max(second.unwrap_or(first)));
            }
        }
        Some(self.now().max(now) + MS)
    }
}
