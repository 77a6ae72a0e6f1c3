//! When nobody fails: the bits of the reference, the same on every rank, and the same again in another run.

use std::time::Duration;

use collective::machine::{
    CallRefusal, Cause, Claim, Fence, Frame, Handover, Mismatch, Reason, Recovery, Verdict, WORLD,
    Watermark,
};
use collective::{Call, DType, Factor, Numerics, OpKind, ReduceOp};
use sim::{Conditions, Network, Rng, Simulation, for_each_seed};
use topology::OnPeerLoss;

use crate::calls::{any_reduction, sum};
use crate::world::groups::{Outcome, Outcomes};
use crate::world::{FENCE, MS, Setup, World};

pub(crate) fn all_ok(world: &World) {
    let failed = world
        .all_outcomes()
        .find_map(|outcome| outcome.as_ref().err());
    assert_eq!(failed, None);
    world.check();
    assert!(world.seen.suspects.is_empty() && world.breaks().is_empty());
}

/// All ranks call this, and all of it succeeds.
pub(crate) fn run(rng: &mut Rng, setup: Setup, calls: &[Call]) -> World {
    let mut world = World::new(rng, setup, calls);
    world.start();
    world.run(World::all_ended);
    all_ok(&world);
    world
}

/// So many operations are released on all nodes soon.
fn all_are_released(world: &mut World, operations: usize) {
    // Results that are kept for others are released when a heartbeat has said that nobody needs them.
    let beats = match world.setup.recovery.on_peer_loss {
        OnPeerLoss::Shrink => Duration::from_secs(6),
        OnPeerLoss::Restart => Duration::ZERO,
    };
    world.run_until(world.now() + 50 * MS + beats);
    for sidecar in &world.sidecars {
        assert_eq!(sidecar.released.len(), operations, "all are released");
    }
}

fn check_random_gang(rng: &mut Rng, nodes: usize, calls: usize) {
    let setup = Setup::random(rng, nodes);
    check_gang(rng, setup, calls);
}

fn check_gang(rng: &mut Rng, setup: Setup, calls: usize) {
    let ranks = setup.layout.world();
    let drawn = (0..calls).map(|_| any_reduction(rng, ranks));
    let drawn: Vec<Call> = drawn.collect();
    let mut world = run(rng, setup, &drawn);
    all_are_released(&mut world, calls);
}

// COLL-1: the same bits.
#[test]
fn any_calls_on_1_to_17_nodes_with_unequal_ranks_give_the_reference_result() {
    for_each_seed(20, |rng| {
        for nodes in 1..=17 {
            check_random_gang(rng, nodes, 6);
        }
    });
}

// REC-10: what is kept for others is released when nobody can need it.
#[test]
fn results_that_are_kept_for_others_are_released_in_the_end() {
    for_each_seed(4, |rng| {
        for nodes in 1..=9 {
            for handover in [Handover::Immediate, Handover::Stable] {
                let mut setup = Setup::random(rng, nodes);
                setup.recovery = Recovery {
                    handover,
                    on_peer_loss: OnPeerLoss::Shrink,
                    replicated: true,
                };
                check_gang(rng, setup, 40);
            }
        }
    });
}

#[test]
fn a_rank_calls_on_and_on_whatever_is_kept() {
    for_each_seed(2, |rng| {
        for on_peer_loss in [OnPeerLoss::Restart, OnPeerLoss::Shrink] {
            for handover in [Handover::Immediate, Handover::Stable] {
                for (nodes, window) in [(1, 80), (3, 1), (5, 200)] {
                    let mut setup = Setup::uniform(nodes, 2);
                    setup.window = window;
                    setup.recovery = Recovery {
                        handover,
                        on_peer_loss,
                        replicated: true,
                    };
                    run(rng, setup, &[sum(3); 500]);
                }
            }
        }
    });
}

/// Ends wait for everybody: the price is a watermark up and one down each edge of the first tree, and their way.
#[test]
fn an_end_that_waits_for_all_costs_two_frames_an_edge_and_their_way() {
    for_each_seed(3, |rng| {
        for nodes in [2, 3, 8, 33, 100] {
            let run_with = |handover, rng: &mut Rng| {
                let mut setup = Setup::uniform(nodes, 1);
                setup.window = 1;
                setup.recovery.handover = handover;
                run(rng, setup, &[sum(1); 10])
            };
            let (mut one, mut other) = (rng.clone(), rng.clone());
            let at_once = run_with(Handover::Immediate, &mut one);
            let stable = run_with(Handover::Stable, &mut other);
            let edges = 2 * (nodes as u64 - 1);
            assert_eq!(at_once.seen.watermarks, 0);
            assert_eq!(stable.seen.watermarks, 10 * edges);
            // A chunk goes up and down; the watermarks go the same way again.
            let (fast, slow) = (at_once.now(), stable.now());
            assert!(slow < fast * 5 / 2, "{nodes} nodes: {fast:?}, {slow:?}");
        }
    });
}

#[test]
fn any_calls_on_larger_groups_give_the_reference_result() {
    for_each_seed(3, |rng| {
        for nodes in [31, 33, 100] {
            check_random_gang(rng, nodes, 4);
        }
    });
}

/// As many nodes as there may be, each with one rank or two.
#[test]
fn a_sum_over_1250_nodes_with_unequal_ranks_gives_the_reference_result() {
    for_each_seed(1, |rng| {
        let setup = Setup::random(rng, 1250);
        let ranks: Vec<u32> = (0..1250)
            .map(|node| setup.layout.local(node) as u32)
            .collect();
        assert!(ranks.contains(&1) && ranks.contains(&2));
        // Chunks in both trees.
        run(rng, setup, &[sum(700)]);
    });
}

#[test]
fn every_type_and_operator_gives_the_reference_result() {
    for_each_seed(1, |rng| {
        let setup = Setup::new(&[3, 1, 2], &[0, 1, 1]);
        let ranks = setup.layout.world();
        let calls = DType::ALL.into_iter().flat_map(|dtype| {
            let kind = |op| OpKind::AllReduce { op };
            ReduceOp::ALL.into_iter().map(move |op| Call {
                kind: kind(op),
                dtype,
                count: 333,
                tag: 0,
                numerics: Numerics::Fast,
            })
        });
        let legal = calls.filter(|call| call.check(ranks).is_ok());
        run(rng, setup, &legal.collect::<Vec<_>>());
    });
}

#[test]
fn an_average_that_fits_does_not_overflow_on_its_way() {
    for_each_seed(1, |rng| {
        let large = half::f16::from_f32(40_000.0);
        for (nodes, ranks) in [(2, 1), (2, 2), (5, 1), (9, 8)] {
            let call = |kind| Call {
                kind,
                dtype: DType::F16,
                count: 700,
                tag: 0,
                numerics: Numerics::Fast,
            };
            let op = ReduceOp::Avg;
            let kinds = [OpKind::AllReduce { op }, OpKind::Reduce { op, root: 1 }];
            let setup = Setup::uniform(nodes, ranks);
            let mut world = World::new(rng, setup, &kinds.map(call));
            let all = large.to_ne_bytes().repeat(1400);
            world.given = vec![all; world.clients.len()];
            world.start();
            world.run(World::all_ended);
            all_ok(&world);
            let (average, _) = world.outcomes(0)[&0].as_ref().unwrap();
            for element in average.chunks_exact(2) {
                let element = half::f16::from_ne_bytes([element[0], element[1]]);
                // Each of the nodes rounds once, by half of the type's 2^-10 at most.
                let error = (element.to_f32() / large.to_f32() - 1.0).abs();
                assert!(error <= nodes as f32 / 2048.0, "{element}");
            }
        }
    });
}

// Trap T12.
#[test]
fn delays_do_not_change_a_single_bit() {
    let run = |seed| {
        let calls = [sum(1000), sum(77)];
        let mut world = World::new(&mut Rng::new(1), Setup::uniform(5, 3), &calls);
        world.hosts.network = Network::new(Rng::new(seed), Conditions::reliable());
        world.start();
        world.run(World::all_ended);
        let ranks = 0..world.clients.len() as u32;
        ranks
            .map(|rank| world.outcomes(rank).clone())
            .collect::<Vec<_>>()
    };
    let first = run(0);
    for seed in 1..100 {
        assert!(run(seed) == first);
    }
}

/// One rank differs in its second of three calls: which, and the ends that all know.
fn outcomes_of_a_mismatch(
    rng: &mut Rng,
    nodes: usize,
    odd: Call,
    others: Call,
) -> (u32, Vec<Outcomes>) {
    let setup = Setup::random(rng, nodes);
    let mut world = World::new(rng, setup, &[sum(300), others, sum(200)]);
    let ranks = 0..world.clients.len() as u32;
    let rank = rng.below(world.clients.len()) as u32;
    world.program(rank)[1] = odd;
    world.start();
    world.run(World::all_ended);
    assert!(world.now() < Duration::from_secs(1));
    world.check();
    let third = |rank| world.outcomes(rank)[&2].is_ok();
    assert!(ranks.clone().all(third), "the gang goes on unharmed");
    all_are_released(&mut world, 3);
    let outcomes = ranks.map(|rank| world.outcomes(rank).clone());
    (rank, outcomes.collect())
}

// COLL-1: the same error naming the cause.
#[test]
fn a_call_that_differs_in_any_field_is_one_error_naming_both_sides_on_every_rank() {
    let base = Call {
        kind: OpKind::AllReduce { op: ReduceOp::Sum },
        dtype: DType::F32,
        count: 700,
        tag: 5,
        numerics: Numerics::Fast,
    };
    let precise = Call {
        numerics: Numerics::Precise,
        ..base
    };
    let scaled = |factor| Call {
        kind: OpKind::AllReduce {
            op: ReduceOp::PremulSum(Factor::new(factor)),
        },
        ..base
    };
    let reduce = |root| Call {
        kind: OpKind::Reduce {
            op: ReduceOp::Sum,
            root,
        },
        ..base
    };
    let broadcast = |root| Call {
        kind: OpKind::Broadcast { root },
        ..base
    };
    let pairs = [
        (
            base,
            Call {
                dtype: DType::I32,
                ..base
            },
        ),
        (base, Call { count: 701, ..base }),
        (base, Call { count: 1, ..base }),
        (base, Call { tag: 6, ..base }),
        (precise, base),
        (
            base,
            Call {
                kind: OpKind::AllReduce { op: ReduceOp::Max },
                ..base
            },
        ),
        (base, Call::barrier()),
        (scaled(0.5), base),
        (scaled(0.5), scaled(0.25)),
        (base, broadcast(0)),
        (
            base,
            Call {
                kind: OpKind::AllGather,
                count: 100,
                ..base
            },
        ),
        (reduce(0), reduce(1)),
        (broadcast(0), broadcast(1)),
    ];
    for_each_seed(3, |rng| {
        for (one, other) in pairs
            .into_iter()
            .flat_map(|(one, other)| [(one, other), (other, one)])
        {
            let nodes = 2 + rng.below(12);
            let (odd, outcomes) = outcomes_of_a_mismatch(rng, nodes, one, other);
            let first = outcomes[0][&1].clone();
            let Err(Cause::Verdict(Verdict::Mismatch(mismatch))) = first else {
                panic!("{first:?} is no mismatch");
            };
            let sides = [mismatch.one, mismatch.other];
            let (at_odds, among) = match sides.map(|side| side.rank == odd) {
                [true, false] => (sides[0], sides[1]),
                [false, true] => (sides[1], sides[0]),
                _ => panic!("rank {odd} is not one of the two sides: {mismatch}"),
            };
            assert_eq!((at_odds.call, among.call), (one, other), "{mismatch}");
            assert!(
                outcomes.iter().all(|outcomes| outcomes[&1] == first),
                "one error for all"
            );
        }
    });
}

#[test]
fn ranks_of_one_node_are_compared_too() {
    for_each_seed(2, |rng| {
        let mut world = World::new(rng, Setup::uniform(1, 4), &[sum(10)]);
        world.program(2)[0] = sum(11);
        world.start();
        world.run(World::all_ended);
        let mismatch = Mismatch {
            one: Claim {
                rank: 0,
                call: sum(10),
            },
            other: Claim {
                rank: 2,
                call: sum(11),
            },
        };
        let expected: Outcome = Err(Verdict::from(mismatch).into());
        for rank in 0..4 {
            assert_eq!(
                *world.outcomes(rank),
                Outcomes::from([(0, expected.clone())])
            );
        }
    });
}

// COLL-1: what one node cannot carry out is nobody's result, and shifts nobody's later calls.
#[test]
fn a_call_that_one_node_refuses_is_one_error_on_every_rank_and_the_next_is_the_next_for_all() {
    for_each_seed(20, |rng| {
        let nodes = 1 + rng.below(12);
        let setup = Setup::random(rng, nodes);
        // Equal calls: only their order distinguishes them.
        let mut world = World::new(rng, setup, &[sum(300); 5]);
        let ranks = 0..world.clients.len() as u32;
        let rank = rng.below(world.clients.len()) as u32;
        let reason = Reason::Limit;
        world.refused.insert((rank, 1), reason);
        world.refused.insert((rank, 2), reason);
        world.start();
        world.run(World::all_ended);
        assert!(world.now() < Duration::from_secs(1));
        world.check();
        let call = sum(300);
        let claim = Claim { rank, call };
        let refused = Verdict::from(CallRefusal { claim, reason });
        for rank in ranks {
            for (op, outcome) in world.outcomes(rank) {
                match op {
                    1 | 2 => assert_eq!(*outcome, Err(refused.into())),
                    _ => assert!(outcome.is_ok()),
                }
            }
        }
        all_are_released(&mut world, 5);
    });
}

#[test]
fn frames_of_another_attempt_or_epoch_are_dropped_and_counted() {
    for_each_seed(2, |rng| {
        let calls = [sum(2000), sum(2000)];
        let mut world = World::new(rng, Setup::uniform(2, 1), &calls);
        world.start();
        let stale = [
            Fence {
                epoch: FENCE.epoch - 1,
                ..FENCE
            },
            Fence {
                attempt: FENCE.attempt - 1,
                ..FENCE
            },
        ];
        for fence in stale {
            let up = Frame::ReduceChunk {
                group: WORLD,
                tree: 0,
                op: 0,
                chunk: 0,
                slot: 0,
                bytes: 0,
                call: sum(2000),
                rank: 1,
                watermark: Watermark::default(),
            };
            let abort = Frame::Abort {
                broken: collective::machine::Broken::Revoked,
            };
            for frame in [
                up,
                abort,
                Frame::BroadcastChunk {
                    group: WORLD,
                    tree: 1,
                    op: 0,
                    chunk: 1,
                    bytes: 0,
                    watermark: Watermark::default(),
                },
            ] {
                world.inject(0, 1, fence, frame);
                world.inject(1, 0, fence, frame);
            }
        }
        world.run(World::all_ended);
        all_ok(&world);
        assert_eq!(world.machine(0).counters().stale_frames, 6);
    });
}
