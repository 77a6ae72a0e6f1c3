//! What goes wrong, and when: each kind of fault in each phase of an operation, alone or one after another.

use std::collections::BTreeSet;
use std::time::Duration;

use collective::machine::OpId;
use collective::membership::Phase as Leading;
use sim::Rng;

use crate::world::{MS, World};

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
    /// Two of these, shortly after another.
    Double,
}

pub(crate) const FAULTS: [Fault; 7] = [
    Fault::Trainer,
    Fault::Sidecar,
    Fault::Node,
    Fault::Partition,
    Fault::Leader,
    Fault::Freeze,
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

impl World {
    /// Nodes where an operation is final.
    fn final_on(&self, op: OpId) -> usize {
        let is_final = |machine: &collective::machine::Machine| {
            let report = machine.report();
            report[0].told_all > op || report[0].held.iter().any(|held| held.op == op)
        };
        let machines = self.sidecars.iter().flat_map(|sidecar| &sidecar.machine);
        machines.filter(|machine| is_final(machine)).count()
    }

    /// Whether the world is in a phase of an operation.
    pub(crate) fn is_in(&self, phase: Phase, op: OpId) -> bool {
        let called = self
            .clients
            .iter()
            .filter(|client| client.called > op as usize)
            .count();
        let ups = self.ups.get(&op).copied().unwrap_or(0);
        let downs = self.downs.get(&op).copied().unwrap_or(0);
        let nodes = self.nodes();
        match phase {
            Phase::BeforeSubmit => called == 0 && !self.store.is_empty(),
            Phase::Submitted => called > 0 && ups == 0 && downs == 0,
            Phase::MidUp => ups > 0 && downs == 0,
            // All parts that have to come have, and little has gone down.
            Phase::RootTurns => ups + 1 >= nodes && downs <= 1 && self.final_on(op) < nodes,
            Phase::MidDown => downs > 0 && self.final_on(op) < nodes,
            Phase::DoneOnSome => {
                let done = self.final_on(op);
                0 < done && done < nodes
            }
            Phase::DoneOnAll => self.final_on(op) == nodes,
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

    /// Lets a fault happen. Returns when the last part of it does.
    pub(crate) fn befall(&mut self, rng: &mut Rng, fault: Fault) -> Option<Duration> {
        let now = self.now();
        let members = self.members();
        let standing: Vec<usize> = members
            .into_iter()
            .filter(|&node| self.sidecars[node].alive && !self.sidecars[node].frozen)
            .collect();
        if standing.is_empty() {
            return None;
        }
        let node = *rng.pick(&standing);
        self.note(("fault", fault, node));
        match fault {
            Fault::Trainer => {
                let ranks: Vec<u32> = self.setup.layout.ranks(node).collect();
                self.kill_rank(*rng.pick(&ranks));
            }
            Fault::Sidecar => {
                self.kill_sidecar(node);
                let back = Duration::from_nanos(rng.range(50_000_000..5_000_000_000));
                self.queue
                    .after(back, crate::world::Event::Restart { node });
                return Some(now + back);
            }
            Fault::Node => {
                self.kill_node(node);
                if rng.chance(1, 2) {
                    let leader = self.leaders;
                    let heard = collective::membership::Event::Gone { rank: node as u32 };
                    let after = Duration::from_nanos(rng.range(1_000_000..20_000_000_000));
                    self.queue
                        .after(after, crate::world::Event::ToLeader { leader, heard });
                }
            }
            Fault::Partition => {
                let all = self.nodes();
                let island: BTreeSet<usize> = (0..all).filter(|_| rng.chance(1, 2)).collect();
                let operator = self.operator();
                let with_operator = rng.below(3);
                self.note(("partition", &island, with_operator));
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
            Fault::Leader => self.depose(),
            Fault::Freeze => {
                self.freeze(node);
                let thaws = Duration::from_nanos(rng.range(1_000_000..18_000_000_000));
                self.run_until(now + thaws);
                self.thaw(node);
            }
            Fault::Double => {
                let simple = &FAULTS[..FAULTS.len() - 1];
                let first = self.befall(rng, *rng.clone().pick(simple))?;
                let between = Duration::from_nanos(rng.range(0..3_000_000_000));
                self.run_until(self.now() + between * u32::from(rng.chance(1, 2)));
                let second = self.befall(rng, *rng.clone().pick(simple));
                return Some(first.max(second.unwrap_or(first)));
            }
        }
        Some(self.now().max(now) + MS)
    }
}
