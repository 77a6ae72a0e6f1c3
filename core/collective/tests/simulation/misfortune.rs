//! Everything at random: any group, any calls, any misfortune at any time. The test that explores.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use collective::machine::{Broken, Cause, Input, Reason, Timing};
use collective::{Call, DoubleTree};
use sim::{Conditions, CrashPoint, Network, Rng, explore, print_count};

use crate::cluster::{Cluster, Outcome};
use crate::fixture::draw;
use crate::group::Group;
use crate::results::check_results;
use crate::{LIMIT, any_call};

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
    /// The authority ends the epoch, heard by one node first.
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
    /// This to the letter: one node sees it and tells all others.
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
        let sees = |by: usize, node: usize| trees.neighbours(node).contains(&by);
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
fn befall(cluster: &mut Cluster, rng: &mut Rng, misfortune: Misfortune) -> Blame {
    let nodes = cluster.group.layout.nodes();
    let node = rng.below(nodes);
    let at = Duration::from_nanos(rng.range(0..40_000_000));
    match misfortune {
        Misfortune::Nothing | Misfortune::Mismatch | Misfortune::Refusal => Blame::Nothing,
        Misfortune::Crash => {
            cluster.victim = Some(node);
            cluster.crash = CrashPoint::at(rng.range(0..400));
            Blame::Lost(node)
        }
        Misfortune::Death => {
            cluster.run_until(at);
            cluster.handle(node, Input::RankLost { rank: 0 });
            let rank = cluster.group.layout.ranks(node).start;
            Blame::Only(Broken::RankLost { rank, by: node })
        }
        Misfortune::Freeze => {
            cluster.run_until(at);
            cluster.frozen.insert(node);
            let frozen_for = Duration::from_nanos(rng.range(0..12_000_000_000));
            cluster.run_until(at + frozen_for);
            cluster.thaw(node);
            let Timing {
                lost, heartbeat, ..
            } = Timing::default();
            // When it was heard last depends on when it last had something to say.
            if nodes == 1 || frozen_for + heartbeat < lost {
                Blame::Nothing
            } else if frozen_for < lost + heartbeat {
                Blame::PerhapsSilent(node)
            } else {
                Blame::Silent(node)
            }
        }
        Misfortune::Partition => {
            cluster.run_until(at);
            let island: BTreeSet<usize> = (0..nodes).filter(|_| rng.chance(1, 2)).collect();
            cluster.network.partition(&island, nodes);
            if island.is_empty() || island.len() == nodes {
                return Blame::Nothing;
            }
            Blame::Across(island)
        }
        Misfortune::Revocation => {
            cluster.run_until(at);
            cluster.handle(node, Input::Revoke);
            Blame::Only(Broken::Revoked)
        }
    }
}

/// COLL-2: every node that lives learns that the epoch is over, if it is, and what its ranks are told is to blame.
fn check_causes(cluster: &mut Cluster, blame: &Blame) {
    let mut settle = cluster.queue.now() + Duration::from_millis(200);
    if let Blame::Across(_) = blame {
        settle += Timing::default().lost;
    }
    cluster.run_until(settle);
    let layout = &cluster.group.layout;
    let living = (0..layout.nodes()).filter(|&node| cluster.is_alive(node));
    let (living, told) = (living.count(), cluster.broken.len());
    let right = match blame {
        Blame::Nothing => told == 0,
        Blame::PerhapsSilent(_) => told == 0 || told == living,
        Blame::Only(_) | Blame::Lost(_) | Blame::Silent(_) | Blame::Across(_) => told == living,
    };
    assert!(right, "{told} of {living} nodes blame {blame:?}");
    for (node, &(_, broken)) in &cluster.broken {
        let allowed = blame.allows(broken, &cluster.group.trees);
        assert!(allowed, "node {node}: {broken}, but {blame:?} happened");
    }
    for (rank, outcomes) in cluster.outcomes.iter().enumerate() {
        let broken = cluster.broken.get(&layout.node_of(rank as u32));
        for outcome in outcomes.values() {
            if let Err(Cause::Broken(cause)) = outcome {
                assert_eq!(Some(cause), broken.map(|(_, broken)| broken), "rank {rank}");
            }
        }
    }
}

/// Groups of these sizes are counted together.
fn size(nodes: usize) -> &'static str {
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
    let group = Group::random(rng, nodes);
    let mut cluster = Cluster::new(rng, group);
    if rng.chance(1, 4) {
        // The machine does not even need the order of a link's frames.
        let conditions = Conditions {
            ordered: false,
            ..Conditions::reliable()
        };
        cluster.network = Network::new(rng.fork(), conditions);
    }
    let world = cluster.group.layout.world();
    let calls: Vec<Call> = (0..draw::operations(rng, nodes))
        .map(|_| any_call(rng, world))
        .collect();
    cluster.program(&calls);
    let misfortune = *rng.pick(&ALL);
    let odd = rng.below(calls.len());
    if misfortune == Misfortune::Mismatch {
        let rank = rng.below(cluster.programs.len());
        cluster.programs[rank][odd] = any_call(rng, world);
    }
    if misfortune == Misfortune::Refusal {
        let rank = rng.below(cluster.programs.len()) as u32;
        cluster.refused.insert((rank, odd), Reason::Input);
    }
    let agree = |op: usize| {
        let refused = cluster.refused.keys().any(|&(_, refused)| refused == op);
        let mut programs = cluster.programs.iter();
        !refused && programs.all(|program| program[op] == cluster.programs[0][op])
    };
    let agreed: Vec<bool> = (0..calls.len()).map(agree).collect();
    cluster.start();
    let mut blame = befall(&mut cluster, rng, misfortune);
    cluster.run(LIMIT);
    if let Blame::Lost(victim) = blame
        && cluster.is_alive(victim)
    {
        // All ended before its step.
        cluster.victim = None;
        blame = Blame::Nothing;
    }
    check_results(&cluster);
    for (op, agreed) in agreed.into_iter().enumerate() {
        let outcomes: Vec<&Outcome> = cluster
            .outcomes
            .iter()
            .filter_map(|outcomes| outcomes.get(&op))
            .collect();
        let broken = |outcome: &&Outcome| matches!(outcome, Err(Cause::Broken(_)));
        let whole: Vec<&Outcome> = outcomes
            .into_iter()
            .filter(|outcome| blame == Blame::Nothing || !broken(outcome))
            .collect();
        assert!(
            whole.iter().all(|outcome| outcome.is_ok() == agreed),
            "{misfortune:?}: operation {op}"
        );
        let mut errors = whole.iter().filter_map(|outcome| outcome.as_ref().err());
        let first = errors.next();
        assert!(
            errors.all(|error| Some(error) == first),
            "one error for all"
        );
    }
    check_causes(&mut cluster, &blame);
    (misfortune, size(nodes))
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
