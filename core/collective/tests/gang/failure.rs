//! When somebody fails: everybody ends, with the name of who failed, and on time.

use std::collections::BTreeSet;
use std::time::Duration;

use collective::machine::{Broken, Cause, Frame, Input, ProtocolViolation, WORLD, Watermark};
use sim::{CrashPoint, Rng, Simulation, for_each_seed};

use crate::calls::{any_reduction, sum};
use crate::results::all_ok;
use crate::world::groups::Outcomes;
use crate::world::{FENCE, MS, Setup, World};

fn crash_run(seed: u64, nodes: usize, victim: usize, crash: CrashPoint) -> World {
    let mut rng = Rng::new(seed);
    let ranks: Vec<u32> = (0..nodes as u32).map(|node| 1 + node % 3).collect();
    let setup = Setup::new(&ranks, &vec![0; nodes]);
    let size = setup.layout.world();
    let calls = [
        sum(400),
        any_reduction(&mut rng, size),
        any_reduction(&mut rng, size),
    ];
    let mut world = World::new(&mut rng, setup, &calls);
    world.victim = Some(victim);
    world.crash = crash;
    world.start();
    world.run(World::all_ended);
    world
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
                let mut world = crash_run(seed, nodes, victim, CrashPoint::at(step));
                world.check();
                let settle = world.now() + 200 * MS;
                world.run_until(settle);
                assert_eq!(world.breaks().len(), nodes - 1, "every survivor knows");
                for (node, (_, broken)) in world.breaks() {
                    let named = matches!(broken, Broken::NodeLost { node, .. } if node == victim);
                    assert!(named, "node {node} blames {broken}");
                }
                let causes = world
                    .all_outcomes()
                    .filter_map(|outcome| outcome.as_ref().err());
                assert!(
                    causes
                        .into_iter()
                        .all(|cause| matches!(cause, Cause::Broken(_)))
                );
                assert_eq!(world.seen.suspects, []);
            }
        }
    });
}

#[test]
fn a_death_reaches_a_hundred_nodes_in_a_tenth_of_a_second() {
    for_each_seed(2, |rng| {
        let mut world = World::new(rng, Setup::uniform(100, 1), &vec![sum(1000); 200]);
        world.start();
        world.run_until(20 * MS);
        let victim = rng.below(100);
        world.kill_node(victim);
        world.run_until(120 * MS);
        assert_eq!(world.breaks().len(), 99);
        world.run(World::all_ended);
    });
}

// COLL-2: a silent peer is named within 2 s.
#[test]
fn a_silent_node_is_named_within_two_seconds_by_every_neighbour_to_the_nanosecond() {
    for_each_seed(10, |rng| {
        let nodes = 2 + rng.below(9);
        let mut world = World::new(rng, Setup::uniform(nodes, 2), &vec![sum(3000); 10_000]);
        world.start();
        let silent = rng.below(nodes);
        let frozen_at = Duration::from_nanos(rng.range(0..2_000_000_000));
        world.run_until(frozen_at);
        let peers = world.machine(silent).peers();
        world.hosts.freeze(silent);
        world.run_until(frozen_at + 2000 * MS);
        for neighbour in &peers {
            let named: Vec<Duration> = world
                .seen
                .suspects
                .iter()
                .filter(|&&(_, by, suspect)| (by, suspect) == (*neighbour, silent))
                .map(|&(at, ..)| at)
                .collect();
            let last = world.sidecars[*neighbour]
                .last_frame
                .get(&silent)
                .copied()
                .unwrap_or_default();
            assert_eq!(named, [last + 1750 * MS], "once, exactly when it is due");
        }
        assert_eq!(
            world.seen.suspects.len(),
            peers.len(),
            "nobody else is suspected"
        );
        assert!(world.breaks().is_empty(), "suspected is not dead");
        world.run_until(frozen_at + 10_300 * MS);
        assert_eq!(world.breaks().len(), nodes - 1);
        let named =
            |broken: &Broken| matches!(broken, Broken::NodeSilent { node, .. } if *node == silent);
        assert!(world.breaks().values().all(|(_, broken)| named(broken)));
    });
}

#[test]
fn a_node_that_wakes_up_in_time_is_forgiven_and_the_operation_completes() {
    for_each_seed(6, |rng| {
        let mut world = World::new(rng, Setup::uniform(4, 2), &[sum(2000), sum(2000)]);
        world.start();
        world.run_until(3 * MS);
        world.hosts.freeze(2);
        world.run_until(6000 * MS);
        let suspected = world.seen.suspects.len();
        assert!(suspected > 0);
        world.thaw(2);
        world.run(World::all_ended);
        world.check();
        assert!(world.all_outcomes().all(Result::is_ok));
        assert_eq!(world.seen.recovered.len(), suspected);
        let blamed_by_sleeper = world.seen.suspects.iter().filter(|&&(_, by, _)| by == 2);
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
        let mut world = World::new(rng, Setup::uniform(nodes, 2), &[sum(2000), sum(2000)]);
        world.start();
        world.run_until(Duration::from_nanos(rng.range(0..6_000_000)));
        (0..nodes).for_each(|node| world.hosts.freeze(node));
        let later = world.now() + rng.range(1..4000) as u32 * 1000 * MS;
        world.run_until(later);
        // They wake up one after the other, within a second.
        for node in 0..nodes {
            let soon = world.now() + rng.range(0..100) as u32 * MS;
            world.run_until(soon);
            world.thaw(node);
        }
        world.run(World::all_ended);
        world.check();
        assert!(world.all_outcomes().all(Result::is_ok));
        assert!(world.breaks().is_empty() && world.seen.suspects.is_empty());
    });
}

#[test]
fn a_partition_ends_the_operation_on_both_sides() {
    for_each_seed(4, |rng| {
        let nodes = 4 + rng.below(8);
        let mut world = World::new(rng, Setup::uniform(nodes, 1), &vec![sum(3000); 10_000]);
        world.start();
        world.run_until(5 * MS);
        let island: BTreeSet<usize> = (0..1 + rng.below(nodes - 1)).collect();
        world.hosts.network.partition(&island, nodes);
        world.run(World::all_ended);
        assert!(world.now() < Duration::from_secs(12));
        assert_eq!(world.breaks().len(), nodes);
        assert!(
            world
                .breaks()
                .values()
                .all(|(_, broken)| matches!(broken, Broken::NodeSilent { .. }))
        );
    });
}

#[test]
fn ranks_that_are_late_are_named_after_a_second_wherever_they_are_and_nobody_dies() {
    for_each_seed(6, |rng| {
        let nodes = 1 + rng.below(9);
        let mut world = World::new(rng, Setup::uniform(nodes, 3), &[sum(100)]);
        let ranks = world.setup.layout.world();
        let late = [rng.range(0..u64::from(ranks)) as u32, ranks - 1];
        world.held.extend(late);
        world.start();
        world.run_until(30_000 * MS);
        let mut named: Vec<u32> = Vec::new();
        for (at, node, op, ranks) in &world.seen.late {
            assert_eq!(*op, (WORLD, 0));
            assert!((1000 * MS..1020 * MS).contains(at), "named at {at:?}");
            named.extend(
                ranks
                    .iter()
                    .map(|&rank| world.setup.layout.ranks(*node).start + rank as u32),
            );
        }
        named.sort_unstable();
        let held: Vec<u32> = world.held.iter().copied().collect();
        assert_eq!(named, held, "each late rank once, nobody else");
        assert!(world.breaks().is_empty() && world.seen.suspects.is_empty());
        world.held.clear();
        late.into_iter().for_each(|rank| world.call_soon(rank));
        world.run(World::all_ended);
        all_ok(&world);
    });
}

#[test]
fn a_rank_that_dies_is_named_to_all() {
    for_each_seed(4, |rng| {
        let nodes = 1 + rng.below(9);
        let mut world = World::new(rng, Setup::uniform(nodes, 2), &vec![sum(5000); 100]);
        world.start();
        world.run_until(8 * MS);
        let node = rng.below(nodes);
        world.handle(node, Input::RankLost { rank: 1 });
        world.run(World::all_ended);
        let expected = Broken::RankLost {
            rank: 2 * node as u32 + 1,
            by: node,
        };
        assert_eq!(world.breaks().len(), nodes);
        assert!(
            world
                .breaks()
                .values()
                .all(|(_, broken)| *broken == expected)
        );
    });
}

#[test]
fn a_group_that_leaves_in_good_order_harms_nobody_whatever_the_order() {
    for_each_seed(10, |rng| {
        let nodes = 2 + rng.below(9);
        let calls = [sum(700), any_reduction(rng, 2 * nodes as u32)];
        let mut world = World::new(rng, Setup::uniform(nodes, 2), &calls);
        world.start();
        let mut left = vec![false; nodes];
        while left.contains(&false) {
            world.step();
            for (node, left) in left.iter_mut().enumerate() {
                let ended = world
                    .setup
                    .layout
                    .ranks(node)
                    .all(|rank| world.outcomes(rank).len() == 2);
                if ended && !std::mem::replace(left, true) {
                    world.handle(node, Input::RankLeft { rank: 0 });
                    world.handle(node, Input::Leave);
                }
            }
        }
        let settle = world.now() + 3000 * MS;
        world.run_until(settle);
        assert!(world.all_outcomes().all(Result::is_ok));
        assert!(world.breaks().is_empty() && world.seen.suspects.is_empty());
    });
}

#[test]
fn a_node_that_leaves_before_the_others_are_done_is_named() {
    for_each_seed(4, |rng| {
        let nodes = 2 + rng.below(6);
        let mut world = World::new(rng, Setup::uniform(nodes, 1), &[sum(700), sum(700)]);
        let leaver = rng.below(nodes);
        world.program(leaver as u32).truncate(1);
        world.start();
        while world.outcomes(leaver as u32).is_empty() {
            world.step();
        }
        world.handle(leaver, Input::Leave);
        world.run(World::all_ended);
        let named = |broken: &Broken| matches!(broken, Broken::NodeLeft { node, op: 1, .. } if *node == leaver);
        assert!(world.breaks().iter().all(|(_, (_, broken))| named(broken)));
        for rank in (0..nodes as u32).filter(|&rank| rank as usize != leaver) {
            let outcomes = world.outcomes(rank);
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
        let mut world = World::new(rng, Setup::uniform(3, 2), &[sum(700)]);
        world.held.insert(3);
        world.start();
        world.run_until(100 * MS);
        world.handle(1, Input::RankLeft { rank: 1 });
        world.program(3).clear();
        world.run(World::all_ended);
        let expected = Broken::RankLeft {
            rank: 3,
            by: 1,
            op: 0,
        };
        assert!(
            world.breaks().len() == 3
                && world
                    .breaks()
                    .values()
                    .all(|(_, broken)| *broken == expected)
        );
    });
}

#[test]
fn a_frame_that_may_not_come_ends_the_epoch_with_its_senders_name() {
    let up = |tree| Frame::ReduceChunk {
        group: WORLD,
        tree,
        op: 0,
        chunk: 0,
        slot: 0,
        bytes: 0,
        call: sum(9),
        rank: 0,
        watermark: Watermark::default(),
    };
    let cases = [
        (
            Frame::Credit {
                group: WORLD,
                tree: 0,
                slot: 0,
            },
            ProtocolViolation::Slot,
        ),
        (
            Frame::Credit {
                group: WORLD,
                tree: 3,
                slot: 0,
            },
            ProtocolViolation::Tree,
        ),
        (
            Frame::BroadcastChunk {
                group: WORLD,
                tree: 0,
                op: 0,
                chunk: 0,
                bytes: 4,
                watermark: Watermark::default(),
            },
            ProtocolViolation::Chunk,
        ),
        (up(0), ProtocolViolation::Direction),
        (up(7), ProtocolViolation::Tree),
        (
            Frame::Awaiting {
                group: WORLD,
                op: 1000,
            },
            ProtocolViolation::Operation,
        ),
    ];
    for (frame, violation) in cases {
        // In a pair, node 0 is the root of tree 0 and node 1 its child.
        let mut world = World::new(&mut Rng::new(0), Setup::uniform(2, 1), &[]);
        world.inject(1, 0, FENCE, frame);
        world.run_until(100 * MS);
        let expected = Broken::Protocol {
            node: 0,
            by: 1,
            violation,
        };
        let broken: Vec<Broken> = world.breaks().values().map(|&(_, broken)| broken).collect();
        assert_eq!(broken, [expected, expected], "{frame:?}");
    }
}

// Of two that call different things the one that learns of it first may be done with the group while the other's parts
// are on their way.
#[test]
fn frames_of_a_group_that_is_closed_are_dropped_and_counted() {
    let mut world = World::new(&mut Rng::new(0), Setup::uniform(2, 1), &[]);
    let late = Frame::BroadcastChunk {
        group: 1,
        tree: 0,
        op: 0,
        chunk: 0,
        bytes: 0,
        watermark: Watermark::default(),
    };
    world.inject(1, 0, FENCE, late);
    world.run_until(100 * MS);
    assert!(world.breaks().is_empty());
    assert_eq!(world.machine(1).counters().late_frames, 1);
}

#[test]
fn a_call_after_the_end_of_the_epoch_fails_at_once_with_its_cause() {
    let mut world = World::new(&mut Rng::new(0), Setup::uniform(2, 1), &[]);
    world.handle(0, Input::Revoke);
    world.run_until(10 * MS);
    (0..2).for_each(|rank| world.program(rank).push(sum(1)));
    world.start();
    world.run_until(20 * MS);
    for rank in 0..2 {
        let expected = Outcomes::from([(0, Err(Cause::Broken(Broken::Revoked)))]);
        assert_eq!(*world.outcomes(rank), expected);
    }
}
