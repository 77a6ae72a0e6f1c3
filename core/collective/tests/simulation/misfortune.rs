//! Everything at random: any group, any calls, any misfortune at any time. The test that explores.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use collective::Call;
use collective::machine::{Cause, Input, Reason};
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

/// Lets it happen. Returns whether the epoch may end of it.
fn befall(cluster: &mut Cluster, rng: &mut Rng, misfortune: Misfortune) -> bool {
    let nodes = cluster.group.layout.nodes();
    let node = rng.below(nodes);
    let at = Duration::from_nanos(rng.range(0..40_000_000));
    match misfortune {
        Misfortune::Nothing | Misfortune::Mismatch | Misfortune::Refusal => return false,
        Misfortune::Crash => {
            cluster.victim = Some(node);
            cluster.crash = CrashPoint::at(rng.range(0..400));
        }
        Misfortune::Death => {
            cluster.run_until(at);
            cluster.handle(node, Input::RankLost { rank: 0 });
        }
        Misfortune::Freeze => {
            cluster.run_until(at);
            cluster.frozen.insert(node);
            let thaw = at + Duration::from_nanos(rng.range(0..12_000_000_000));
            cluster.run_until(thaw);
            cluster.thaw(node);
        }
        Misfortune::Partition => {
            cluster.run_until(at);
            let island: BTreeSet<usize> = (0..nodes).filter(|_| rng.chance(1, 2)).collect();
            cluster.network.partition(&island, nodes);
        }
        Misfortune::Revocation => {
            cluster.run_until(at);
            cluster.handle(node, Input::Revoke);
        }
    }
    true
}

fn check_run(rng: &mut Rng) -> Misfortune {
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
    let may_end = befall(&mut cluster, rng, misfortune);
    cluster.run(LIMIT);
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
            .filter(|outcome| !may_end || !broken(outcome))
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
    misfortune
}

// COLL-1: a collective ends the same on all members: the same bits, or the same error naming the cause.
#[test]
fn any_group_under_any_misfortune_ends_with_the_reference_result_or_a_named_cause() {
    let mut met = BTreeMap::new();
    explore(SEEDS, |rng| *met.entry(check_run(rng)).or_default() += 1);
    for (misfortune, times) in met {
        print_count(&format!("{misfortune:?}"), times);
    }
}
