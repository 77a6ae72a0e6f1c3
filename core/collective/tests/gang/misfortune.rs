//! Everything at random: any group, any calls, any misfortune at any time. The test that explores.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use collective::machine::{Broken, Cause, Input, OpId, Reason, Timing};
use collective::{Call, DoubleTree};
use sim::{CrashPoint, Rng, Simulation, explore, print_count};

use crate::calls::any_reduction;
use crate::fixture::draw;
use crate::world::groups::Outcome;
use crate::world::{Setup, World};

/// Each misfortune comes a few hundred times.
const SEEDS: u64 = 2000;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Misfortune {
    /// Nothing goes wrong.
    Nothing,
    /// A rank calls something else.
    Mismatch,
    /// A node cannot carry out a rank's call.
    Refusal,
    /// A node dies at one of its steps.
    Crash,
    /// A rank's process dies.
    Death,
    /// A node stands still for a while.
    Freeze,
    /// No message passes between two parts of the group any more.
    Partition,
    /// The authority ends the epoch; one node receives that first.
    Revocation,
}

const ALL: [Misfortune; 8] = [
    Misfortune::Nothing,
    Misfortune::Mismatch,
    Misfortune::Refusal,
    Misfortune::Crash,
    Misfortune::Death,
    Misfortune::Freeze,
    Misfortune::Partition,
    Misfortune::Revocation,
];

/// What may be blamed for the end of the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Blame {
    /// Nothing: it does not end.
    Nothing,
    /// This to the letter: one node sees it, and all others learn it.
    Only(Broken),
    /// That this node is lost. Each of its neighbours may be the one who saw it: their links close at different times.
    Lost(usize),
    /// That this node is silent, as any of its neighbours saw it.
    Silent(usize),
    /// The same of one that wakes up just when it is given up, or just before.
    PerhapsSilent(usize),
    /// That a neighbour on the other side is silent: each side blames the other, for any edge between them.
    Across(BTreeSet<usize>),
}

impl Blame {
    fn allows(&self, broken: Broken, trees: &DoubleTree) -> bool {
        let sees = |by: usize, node: usize| trees.tree_peers(node).contains(&by);
        match (self, broken) {
            (Self::Only(this), _) => broken == *this,
            (Self::Lost(lost), Broken::NodeLost { node, by })
            | (Self::Silent(lost) | Self::PerhapsSilent(lost), Broken::NodeSilent { node, by }) => {
                node == *lost && sees(by, node)
            }
            (Self::Across(island), Broken::NodeSilent { node, by }) => {
                island.contains(&node) != island.contains(&by) && sees(by, node)
            }
            _ => false,
        }
    }
}

/// Lets it happen. Returns what the epoch may end of.
fn cause(world: &mut World, rng: &mut Rng, misfortune: Misfortune) -> Blame {
    let nodes = world.setup.layout.nodes();
    let node = rng.below(nodes);
    let at = Duration::from_nanos(rng.range(0..40_000_000));
    match misfortune {
        Misfortune::Nothing | Misfortune::Mismatch | Misfortune::Refusal => Blame::Nothing,
        Misfortune::Crash => {
            world.victim = Some(node);
            world.crash = CrashPoint::at(rng.range(0..400));
            Blame::Lost(node)
        }
        Misfortune::Death => {
            world.run_until(at);
            world.handle(node, Input::RankLost { rank: 0 });
            let rank = world.setup.layout.ranks(node).start;
            Blame::Only(Broken::RankLost { rank, by: node })
        }
        Misfortune::Freeze => {
            world.run_until(at);
            world.hosts.freeze(node);
            let frozen_for = Duration::from_nanos(rng.range(0..12_000_000_000));
            world.run_until(at + frozen_for);
            world.thaw(node);
            let Timing {
                lost, heartbeat, ..
            } = Timing::default();
            // When it was last seen alive depends on when it last had something to send.
            if nodes == 1 || frozen_for + heartbeat < lost {
                Blame::Nothing
            } else if frozen_for < lost + heartbeat {
                Blame::PerhapsSilent(node)
            } else {
                Blame::Silent(node)
            }
        }
        Misfortune::Partition => {
            world.run_until(at);
            let island: BTreeSet<usize> = (0..nodes).filter(|_| rng.chance(1, 2)).collect();
            world.hosts.network.partition(&island, nodes);
            if island.is_empty() || island.len() == nodes {
                return Blame::Nothing;
            }
            Blame::Across(island)
        }
        Misfortune::Revocation => {
            world.run_until(at);
            world.handle(node, Input::Revoke);
            Blame::Only(Broken::Revoked)
        }
    }
}

/// COLL-2: every node that lives learns that the epoch is over, if it is, and what is to blame.
fn check_causes(world: &mut World, blame: &Blame) {
    let mut settle = world.now() + Duration::from_millis(200);
    if let Blame::Across(_) = blame {
        settle += Timing::default().lost;
    }
    world.run_until(settle);
    let breaks = world.breaks();
    let living = (0..world.nodes()).filter(|&node| world.hosts.runs(node));
    let (living, broken) = (living.count(), breaks.len());
    let right = match blame {
        Blame::Nothing => broken == 0,
        Blame::PerhapsSilent(_) => broken == 0 || broken == living,
        Blame::Only(_) | Blame::Lost(_) | Blame::Silent(_) | Blame::Across(_) => broken == living,
    };
    assert!(right, "{broken} of {living} nodes blame {blame:?}");
    let members: Vec<usize> = (0..world.nodes()).collect();
    let trees = world.trees(&members);
    for (node, (_, broken)) in breaks {
        let allowed = blame.allows(broken, &trees);
        assert!(allowed, "node {node}: {broken}, but {blame:?} happened");
    }
    // The ranks of a node learn what the node has.
    world.check();
}

/// Groups of these sizes are counted together.
fn size_of(nodes: usize) -> &'static str {
    match nodes {
        1 => "1",
        2..=5 => "2 to 5",
        6..=17 => "6 to 17",
        18..=33 => "31 or 33",
        34..=100 => "100",
        _ => "1250",
    }
}

/// Returns what happened, and to how large a group.
fn check_run(rng: &mut Rng) -> (Misfortune, &'static str) {
    let nodes = draw::nodes(rng);
    let mut setup = Setup::random(rng, nodes);
    // The machine does not even need the order of a link's frames.
    setup.conditions.ordered = rng.chance(3, 4);
    let size = setup.layout.world();
    let calls: Vec<Call> = (0..draw::operations(rng, nodes))
        .map(|_| any_reduction(rng, size))
        .collect();
    let mut world = World::new(rng, setup, &calls);
    let misfortune = *rng.pick(&ALL);
    let odd = rng.below(calls.len());
    let rank = rng.below(world.clients.len()) as u32;
    if misfortune == Misfortune::Mismatch {
        world.program(rank)[odd] = any_reduction(rng, size);
    }
    if misfortune == Misfortune::Refusal {
        world.refused.insert((rank, odd as OpId), Reason::Input);
    }
    let agree = |op: usize| {
        let refused = misfortune == Misfortune::Refusal && op == odd;
        let same = world.program(rank)[op] == calls[op] || world.clients.len() == 1;
        !refused && same
    };
    let agreed: Vec<bool> = (0..calls.len()).map(agree).collect();
    world.start();
    let mut blame = cause(&mut world, rng, misfortune);
    world.run(World::all_ended);
    if let Blame::Lost(victim) = blame
        && world.hosts.runs(victim)
    {
        // All ended before its step.
        world.victim = None;
        blame = Blame::Nothing;
    }
    for (op, agreed) in agreed.into_iter().enumerate() {
        let ranks = 0..size;
        let outcomes = ranks.filter_map(|rank| world.outcomes(rank).get(&(op as OpId)));
        let outcomes: Vec<&Outcome> = outcomes.collect();
        let broken = |outcome: &&Outcome| matches!(outcome, Err(Cause::Broken(_)));
        let whole: Vec<&Outcome> = outcomes
            .into_iter()
            .filter(|outcome| blame == Blame::Nothing || !broken(outcome))
            .collect();
        assert!(
            whole.iter().all(|outcome| outcome.is_ok() == agreed),
            "{misfortune:?}: operation {op}"
        );
    }
    check_causes(&mut world, &blame);
    (misfortune, size_of(nodes))
}

// COLL-1: a collective ends the same on all members: the same bits, or the same error naming the cause.
#[test]
fn any_group_under_any_misfortune_ends_with_the_reference_result_or_a_named_cause() {
    let (mut met, mut sizes) = (BTreeMap::new(), BTreeMap::new());
    explore(SEEDS, &[], |rng| {
        let (misfortune, size) = check_run(rng);
        *met.entry(misfortune).or_default() += 1;
        *sizes.entry(size).or_default() += 1;
    });
    for (misfortune, times) in met {
        print_count(&format!("{misfortune:?}"), times);
    }
    for (size, times) in sizes {
        print_count(&format!("nodes {size}"), times);
    }
}
