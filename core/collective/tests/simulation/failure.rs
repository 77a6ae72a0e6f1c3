//! When somebody fails: everybody ends, with the name of who failed, and on time.

use std::collections::BTreeMap;
use std::time::Duration;

use collective::machine::{Broken, Cause, Frame, Input, Mark, Violation, WORLD};
use sim::{CrashPoint, Rng, for_each_seed};

use crate::cluster::{Cluster, FENCE};
use crate::group::Group;
use crate::results::{all_ok, check_results};
use crate::{LIMIT, any_call, sum};

const MS: Duration = Duration::from_millis(1);

fn crash_run(seed: u64, nodes: usize, victim: usize, crash: CrashPoint) -> Cluster {
    let mut rng = Rng::new(seed);
    let ranks: Vec<u32> = (0..nodes as u32).map(|node| 1 + node % 3).collect();
    let mut cluster = Cluster::new(&mut rng, Group::new(&ranks, &vec![0; nodes]));
    let world = cluster.group.layout.world();
    let calls = [
        sum(400),
        any_call(&mut rng, world),
        any_call(&mut rng, world),
    ];
    cluster.program(&calls);
    cluster.victim = Some(victim);
    cluster.crash = crash;
    cluster.start();
    cluster.run(LIMIT);
    cluster
}

// COLL-2: a dead peer is named at once.
#[test]
fn a_node_that_dies_at_any_step_is_named_to_every_other_and_nobody_hangs() {
    for_each_seed(8, |rng| {
        let seed = rng.next_u64();
        for nodes in [2, 3, 5, 8] {
            let victim = rng.below(nodes);
            let steps = crash_run(seed, nodes, victim, CrashPoint::never())
                .crash
                .passed();
            assert!(steps > 10);
            for step in 0..steps {
                let mut cluster = crash_run(seed, nodes, victim, CrashPoint::at(step));
                check_results(&cluster);
                let settle = cluster.queue.now() + 200 * MS;
                cluster.run_until(settle);
                assert_eq!(cluster.broken.len(), nodes - 1, "every survivor knows");
                for (node, (_, broken)) in &cluster.broken {
                    let named = matches!(broken, Broken::NodeLost { node, .. } if *node == victim);
                    assert!(named, "node {node} blames {broken}");
                }
                let causes = cluster
                    .all_outcomes()
                    .filter_map(|outcome| outcome.as_ref().err());
                assert!(
                    causes
                        .into_iter()
                        .all(|cause| matches!(cause, Cause::Broken(_)))
                );
                assert_eq!(cluster.suspects, []);
            }
        }
    });
}

#[test]
fn a_death_reaches_a_hundred_nodes_in_a_tenth_of_a_second() {
    for_each_seed(2, |rng| {
        let mut cluster = Cluster::new(rng, Group::uniform(100, 1));
        cluster.program(&vec![sum(1000); 200]);
        cluster.start();
        cluster.run_until(20 * MS);
        let victim = rng.below(100);
        cluster.kill(victim);
        cluster.run_until(120 * MS);
        assert_eq!(cluster.broken.len(), 99);
        cluster.run(LIMIT);
    });
}

// COLL-2: a silent peer is named within 2 s.
#[test]
fn a_silent_node_is_named_within_two_seconds_by_every_neighbour_to_the_nanosecond() {
    for_each_seed(10, |rng| {
        let nodes = 2 + rng.below(9);
        let mut cluster = Cluster::new(rng, Group::uniform(nodes, 2));
        cluster.program(&vec![sum(3000); 10_000]);
        cluster.start();
        let silent = rng.below(nodes);
        let frozen_at = Duration::from_nanos(rng.range(0..2_000_000_000));
        cluster.run_until(frozen_at);
        let neighbours = cluster.machine(silent).peers();
        cluster.frozen.insert(silent);
        cluster.run_until(frozen_at + 2000 * MS);
        for neighbour in &neighbours {
            let named: Vec<Duration> = cluster
                .suspects
                .iter()
                .filter(|&&(_, by, suspect)| (by, suspect) == (*neighbour, silent))
                .map(|&(at, ..)| at)
                .collect();
            let heard = cluster
                .heard
                .get(&(*neighbour, silent))
                .copied()
                .unwrap_or_default();
            assert_eq!(named, [heard + 1750 * MS], "once, exactly when it is due");
        }
        assert_eq!(
            cluster.suspects.len(),
            neighbours.len(),
            "nobody else is suspected"
        );
        assert!(cluster.broken.is_empty(), "suspected is not dead");
        cluster.run_until(frozen_at + 10_300 * MS);
        assert_eq!(cluster.broken.len(), nodes - 1);
        let named =
            |broken: &Broken| matches!(broken, Broken::NodeSilent { node, .. } if *node == silent);
        assert!(cluster.broken.values().all(|(_, broken)| named(broken)));
    });
}

#[test]
fn a_node_that_wakes_up_in_time_is_forgiven_and_the_operation_completes() {
    for_each_seed(6, |rng| {
        let mut cluster = Cluster::new(rng, Group::uniform(4, 2));
        cluster.program(&[sum(2000), sum(2000)]);
        cluster.start();
        cluster.run_until(3 * MS);
        cluster.frozen.insert(2);
        cluster.run_until(6000 * MS);
        let suspected = cluster.suspects.len();
        assert!(suspected > 0);
        cluster.thaw(2);
        cluster.run(LIMIT);
        check_results(&cluster);
        assert!(cluster.all_outcomes().all(Result::is_ok));
        assert_eq!(cluster.recovered.len(), suspected);
        let blamed_by_sleeper = cluster.suspects.iter().filter(|&&(_, by, _)| by == 2);
        assert_eq!(
            blamed_by_sleeper.count(),
            0,
            "who slept itself blames nobody"
        );
    });
}

// Trap T29: a clock that jumps, as that of machines that were suspended together, is nobody's silence.
#[test]
fn nobody_is_given_up_because_all_stood_still_together() {
    for_each_seed(6, |rng| {
        let nodes = 2 + rng.below(7);
        let mut cluster = Cluster::new(rng, Group::uniform(nodes, 2));
        cluster.program(&[sum(2000), sum(2000)]);
        cluster.start();
        cluster.run_until(Duration::from_nanos(rng.range(0..6_000_000)));
        cluster.frozen.extend(0..nodes);
        let later = cluster.queue.now() + rng.range(1..4000) as u32 * 1000 * MS;
        cluster.run_until(later);
        // They wake up one after the other, within a second.
        for node in 0..nodes {
            let soon = cluster.queue.now() + rng.range(0..100) as u32 * MS;
            cluster.run_until(soon);
            cluster.thaw(node);
        }
        cluster.run(later + LIMIT);
        check_results(&cluster);
        assert!(cluster.all_outcomes().all(Result::is_ok));
        assert!(cluster.broken.is_empty() && cluster.suspects.is_empty());
    });
}

#[test]
fn a_partition_ends_the_operation_on_both_sides() {
    for_each_seed(4, |rng| {
        let nodes = 4 + rng.below(8);
        let mut cluster = Cluster::new(rng, Group::uniform(nodes, 1));
        cluster.program(&vec![sum(3000); 10_000]);
        cluster.start();
        cluster.run_until(5 * MS);
        let island = (0..1 + rng.below(nodes - 1)).collect();
        cluster.network.partition(&island, nodes);
        cluster.run(Duration::from_secs(12));
        assert_eq!(cluster.broken.len(), nodes);
        assert!(
            cluster
                .broken
                .values()
                .all(|(_, broken)| matches!(broken, Broken::NodeSilent { .. }))
        );
    });
}

#[test]
fn ranks_that_are_late_are_named_after_a_second_wherever_they_are_and_nobody_dies() {
    for_each_seed(6, |rng| {
        let nodes = 1 + rng.below(9);
        let mut cluster = Cluster::new(rng, Group::uniform(nodes, 3));
        cluster.program(&[sum(100)]);
        let world = cluster.group.layout.world();
        let late = [rng.range(0..u64::from(world)) as u32, world - 1];
        cluster.held.extend(late);
        cluster.start();
        cluster.run_until(30_000 * MS);
        let mut named: Vec<u32> = Vec::new();
        for (at, node, op, ranks) in &cluster.late {
            assert_eq!(*op, 0);
            assert!((1000 * MS..1020 * MS).contains(at), "named at {at:?}");
            named.extend(
                ranks
                    .iter()
                    .map(|&rank| cluster.group.layout.ranks(*node).start + rank as u32),
            );
        }
        named.sort_unstable();
        let held: Vec<u32> = cluster.held.iter().copied().collect();
        assert_eq!(named, held, "each late rank once, nobody else");
        assert!(cluster.broken.is_empty() && cluster.suspects.is_empty());
        cluster.held.clear();
        late.into_iter().for_each(|rank| cluster.call_soon(rank));
        cluster.run(LIMIT);
        all_ok(&cluster);
    });
}

#[test]
fn a_rank_that_dies_is_named_to_all() {
    for_each_seed(4, |rng| {
        let nodes = 1 + rng.below(9);
        let mut cluster = Cluster::new(rng, Group::uniform(nodes, 2));
        cluster.program(&vec![sum(5000); 100]);
        cluster.start();
        cluster.run_until(8 * MS);
        let node = rng.below(nodes);
        cluster.handle(node, Input::RankLost { rank: 1 });
        cluster.run(LIMIT);
        let expected = Broken::RankLost {
            rank: 2 * node as u32 + 1,
            by: node,
        };
        assert_eq!(cluster.broken.len(), nodes);
        assert!(
            cluster
                .broken
                .values()
                .all(|(_, broken)| *broken == expected)
        );
    });
}

#[test]
fn a_group_that_leaves_in_good_order_harms_nobody_whatever_the_order() {
    for_each_seed(10, |rng| {
        let nodes = 2 + rng.below(9);
        let mut cluster = Cluster::new(rng, Group::uniform(nodes, 2));
        cluster.program(&[sum(700), any_call(rng, 2 * nodes as u32)]);
        cluster.start();
        let mut left = vec![false; nodes];
        while left.contains(&false) {
            cluster.step_once();
            for (node, left) in left.iter_mut().enumerate() {
                let ended = cluster
                    .group
                    .layout
                    .ranks(node)
                    .all(|rank| cluster.outcomes[rank as usize].len() == 2);
                if ended && !std::mem::replace(left, true) {
                    cluster.handle(node, Input::RankLeft { rank: 0 });
                    cluster.handle(node, Input::Leave);
                }
            }
        }
        let settle = cluster.queue.now() + 3000 * MS;
        cluster.run_until(settle);
        assert!(cluster.all_outcomes().all(Result::is_ok));
        assert!(cluster.broken.is_empty() && cluster.suspects.is_empty());
    });
}

#[test]
fn a_node_that_leaves_before_the_others_are_done_is_named() {
    for_each_seed(4, |rng| {
        let nodes = 2 + rng.below(6);
        let mut cluster = Cluster::new(rng, Group::uniform(nodes, 1));
        cluster.program(&[sum(700), sum(700)]);
        let leaver = rng.below(nodes);
        cluster.programs[leaver].truncate(1);
        cluster.start();
        while cluster.outcomes[leaver].is_empty() {
            cluster.step_once();
        }
        cluster.handle(leaver, Input::Leave);
        cluster.run(LIMIT);
        let named = |broken: &Broken| matches!(broken, Broken::NodeLeft { node, op: 1, .. } if *node == leaver);
        assert!(cluster.broken.iter().all(|(_, (_, broken))| named(broken)));
        for (rank, outcomes) in cluster
            .outcomes
            .iter()
            .enumerate()
            .filter(|&(rank, _)| rank != leaver)
        {
            // Where the first had not come down yet, the end of the epoch overtakes it.
            let first = &outcomes[&0];
            assert!(
                first.is_ok() || matches!(first, Err(Cause::Broken(broken)) if named(broken)),
                "rank {rank}: {first:?}"
            );
            assert!(matches!(outcomes[&1], Err(Cause::Broken(broken)) if named(&broken)));
        }
    });
}

#[test]
fn a_rank_that_leaves_while_it_is_needed_is_named() {
    for_each_seed(4, |rng| {
        let mut cluster = Cluster::new(rng, Group::uniform(3, 2));
        cluster.program(&[sum(700)]);
        cluster.held.insert(3);
        cluster.start();
        cluster.run_until(100 * MS);
        cluster.handle(1, Input::RankLeft { rank: 1 });
        cluster.programs[3].clear();
        cluster.run(LIMIT);
        let expected = Broken::RankLeft {
            rank: 3,
            by: 1,
            op: 0,
        };
        assert!(
            cluster.broken.len() == 3
                && cluster
                    .broken
                    .values()
                    .all(|(_, broken)| *broken == expected)
        );
    });
}

#[test]
fn a_frame_that_may_not_come_ends_the_epoch_with_its_senders_name() {
    let up = |tree| Frame::Up {
        group: WORLD,
        tree,
        op: 0,
        chunk: 0,
        slot: 0,
        bytes: 0,
        call: sum(9),
        rank: 0,
        mark: Mark::default(),
    };
    let cases = [
        (
            Frame::Credit {
                group: WORLD,
                tree: 0,
                slot: 0,
            },
            Violation::Slot,
        ),
        (
            Frame::Credit {
                group: WORLD,
                tree: 3,
                slot: 0,
            },
            Violation::Tree,
        ),
        (
            Frame::Down {
                group: WORLD,
                tree: 0,
                op: 0,
                chunk: 0,
                bytes: 4,
                mark: Mark::default(),
            },
            Violation::Chunk,
        ),
        (up(0), Violation::Direction),
        (up(7), Violation::Tree),
        (
            Frame::Awaiting {
                group: WORLD,
                op: 1000,
            },
            Violation::Operation,
        ),
    ];
    for (frame, violation) in cases {
        // In a pair, node 0 is the root of tree 0 and node 1 its child.
        let mut cluster = Cluster::new(&mut Rng::new(0), Group::uniform(2, 1));
        cluster.inject(1, 0, FENCE, frame);
        cluster.run_until(100 * MS);
        let expected = Broken::Protocol {
            node: 0,
            by: 1,
            violation,
        };
        let broken: Vec<Broken> = cluster.broken.values().map(|&(_, broken)| broken).collect();
        assert_eq!(broken, [expected, expected], "{frame:?}");
    }
}

// Of two that call different things the one that hears of it first may be done with the group while the other's parts are
// on their way.
#[test]
fn what_is_said_of_a_group_that_is_closed_is_dropped_and_counted() {
    let mut cluster = Cluster::new(&mut Rng::new(0), Group::uniform(2, 1));
    let late = Frame::Down {
        group: 1,
        tree: 0,
        op: 0,
        chunk: 0,
        bytes: 0,
        mark: Mark::default(),
    };
    cluster.inject(1, 0, FENCE, late);
    cluster.run_until(100 * MS);
    assert!(cluster.broken.is_empty());
    assert_eq!(cluster.machine(1).counters().late_frames, 1);
}

#[test]
fn a_call_after_the_end_of_the_epoch_fails_at_once_with_its_cause() {
    let mut cluster = Cluster::new(&mut Rng::new(0), Group::uniform(2, 1));
    cluster.handle(0, Input::Revoke);
    cluster.run_until(10 * MS);
    cluster.program(&[sum(1)]);
    cluster.start();
    cluster.run_until(20 * MS);
    let expected = Err(Cause::Broken(Broken::Revoked));
    assert!(
        cluster
            .outcomes
            .iter()
            .all(|outcomes| *outcomes == BTreeMap::from([(0, expected.clone())]))
    );
}
