//! When nobody fails: the bits of the reference, the same on every rank, and the same again in another run.

use std::collections::BTreeMap;
use std::time::Duration;

use collective::machine::{
    Cause, Claim, Fence, Frame, Handover, Mark, Mismatch, Reason, Recovery, Refusal, Verdict, WORLD,
};
use collective::{Call, DType, Factor, Numerics, OpKind, ReduceOp};
use sim::{Rng, for_each_seed};
use topology::OnPeerLoss;

use crate::cluster::{Cluster, FENCE, Outcome};
use crate::group::Group;
use crate::{LIMIT, any_call, reference, sum};

/// Every outcome so far that is a result holds the reference's bytes.
pub(crate) fn check_results(cluster: &Cluster) {
    let longest = cluster.programs.iter().map(Vec::len).max().unwrap();
    for op in 0..longest {
        let mut expected = None;
        for (rank, outcomes) in cluster.outcomes.iter().enumerate() {
            let Some(Ok(bytes)) = outcomes.get(&op) else {
                continue;
            };
            if reference::entitled(&cluster.programs[rank][op], rank as u32) {
                let expected =
                    expected.get_or_insert_with(|| reference::result(cluster, op as u64));
                let call = &cluster.programs[rank][op];
                let part = reference::part(call, rank as u32, cluster.group.layout.world());
                assert!(
                    bytes[part.clone()] == expected[part],
                    "rank {rank} has other bytes for operation {op}"
                );
            }
        }
    }
}

pub(crate) fn all_ok(cluster: &Cluster) {
    let failed = cluster
        .all_outcomes()
        .find_map(|outcome| outcome.as_ref().err());
    assert_eq!(failed, None);
    check_results(cluster);
    assert!(cluster.suspects.is_empty() && cluster.broken.is_empty());
}

fn check_random_group(rng: &mut Rng, nodes: usize, calls: usize) {
    let group = Group::random(rng, nodes);
    check_group(rng, group, calls);
}

fn check_group(rng: &mut Rng, group: Group, calls: usize) {
    let mut cluster = Cluster::new(rng, group);
    let world = cluster.group.layout.world();
    let calls: Vec<Call> = (0..calls).map(|_| any_call(rng, world)).collect();
    cluster.program(&calls);
    cluster.start();
    cluster.run(LIMIT);
    all_ok(&cluster);
    // Results that are kept for others are let go when a heartbeat has said that nobody needs them.
    let beats = if cluster.group.recovery.on_peer_loss == OnPeerLoss::Shrink {
        Duration::from_secs(6)
    } else {
        Duration::ZERO
    };
    let settle = cluster.queue.now() + Duration::from_millis(50) + beats;
    cluster.run_until(settle);
    for released in &cluster.released {
        assert_eq!(released.len(), calls.len(), "every operation is released");
    }
}

// COLL-1: the same bits.
#[test]
fn any_calls_on_1_to_17_nodes_with_unequal_ranks_give_the_reference_result() {
    for_each_seed(20, |rng| {
        for nodes in 1..=17 {
            check_random_group(rng, nodes, 6);
        }
    });
}

// REC-10: what is kept for others is let go when nobody can need it.
#[test]
fn results_that_are_kept_for_others_are_let_go_in_the_end() {
    for_each_seed(4, |rng| {
        for nodes in 1..=9 {
            for handover in [Handover::Immediate, Handover::Stable] {
                let mut group = Group::random(rng, nodes);
                group.recovery = Recovery {
                    handover,
                    on_peer_loss: OnPeerLoss::Shrink,
                    replicated: true,
                };
                check_group(rng, group, 40);
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
                    let mut group = Group::uniform(nodes, 2);
                    group.window = window;
                    group.recovery = Recovery {
                        handover,
                        on_peer_loss,
                        replicated: true,
                    };
                    let mut cluster = Cluster::new(rng, group);
                    cluster.program(&[sum(3); 500]);
                    cluster.start();
                    cluster.run(LIMIT);
                    all_ok(&cluster);
                }
            }
        }
    });
}

/// Ends wait for everybody: the price is a mark up and one down each edge of the first tree, and their way.
#[test]
fn an_end_that_waits_for_all_costs_two_frames_an_edge_and_their_way() {
    for_each_seed(3, |rng| {
        for nodes in [2, 3, 8, 33, 100] {
            let run = |handover, rng: &mut Rng| {
                let mut group = Group::uniform(nodes, 1);
                group.window = 1;
                group.recovery.handover = handover;
                let mut cluster = Cluster::new(rng, group);
                cluster.program(&[sum(1); 10]);
                cluster.start();
                cluster.run(LIMIT);
                all_ok(&cluster);
                cluster
            };
            let (mut one, mut other) = (rng.clone(), rng.clone());
            let at_once = run(Handover::Immediate, &mut one);
            let stable = run(Handover::Stable, &mut other);
            let edges = 2 * (nodes as u64 - 1);
            assert_eq!(at_once.marks, 0);
            assert_eq!(stable.marks, 10 * edges);
            // A chunk goes up and down; the marks go the same way again.
            let (fast, slow) = (at_once.queue.now(), stable.queue.now());
            assert!(slow < fast * 5 / 2, "{nodes} nodes: {fast:?}, {slow:?}");
        }
    });
}

#[test]
fn any_calls_on_larger_groups_give_the_reference_result() {
    for_each_seed(3, |rng| {
        for nodes in [31, 33, 100] {
            check_random_group(rng, nodes, 4);
        }
    });
}

/// As many nodes as there may be, each with one rank or two.
#[test]
fn a_sum_over_1250_nodes_with_unequal_ranks_gives_the_reference_result() {
    for_each_seed(1, |rng| {
        let group = Group::random(rng, 1250);
        let ranks: Vec<u32> = (0..1250)
            .map(|node| group.layout.local(node) as u32)
            .collect();
        assert!(ranks.contains(&1) && ranks.contains(&2));
        let mut cluster = Cluster::new(rng, group);
        // Chunks in both trees.
        cluster.program(&[sum(700)]);
        cluster.start();
        cluster.run(LIMIT);
        all_ok(&cluster);
    });
}

#[test]
fn every_type_and_operator_gives_the_reference_result() {
    for_each_seed(1, |rng| {
        let mut cluster = Cluster::new(rng, Group::new(&[3, 1, 2], &[0, 1, 1]));
        let world = cluster.group.layout.world();
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
        let legal = calls.filter(|call| call.check(world).is_ok());
        cluster.program(&legal.collect::<Vec<_>>());
        cluster.start();
        cluster.run(LIMIT);
        all_ok(&cluster);
    });
}

#[test]
fn an_average_that_fits_does_not_overflow_on_its_way() {
    for_each_seed(1, |rng| {
        let large = half::f16::from_f32(40_000.0);
        for (nodes, ranks) in [(2, 1), (2, 2), (5, 1), (9, 8)] {
            let mut cluster = Cluster::new(rng, Group::uniform(nodes, ranks));
            let all = large.to_ne_bytes().repeat(1400);
            cluster.given = vec![all; cluster.programs.len()];
            let call = |kind| Call {
                kind,
                dtype: DType::F16,
                count: 700,
                tag: 0,
                numerics: Numerics::Fast,
            };
            let op = ReduceOp::Avg;
            let kinds = [OpKind::AllReduce { op }, OpKind::Reduce { op, root: 1 }];
            cluster.program(&kinds.map(call));
            cluster.start();
            cluster.run(LIMIT);
            all_ok(&cluster);
            let average = reference::result(&cluster, 0);
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
        let mut cluster = Cluster::new(&mut Rng::new(1), Group::uniform(5, 3));
        cluster.network = sim::Network::new(Rng::new(seed), sim::Conditions::reliable());
        cluster.program(&[sum(1000), sum(77)]);
        cluster.start();
        cluster.run(LIMIT);
        cluster.outcomes
    };
    let first = run(0);
    for seed in 1..100 {
        assert!(run(seed) == first);
    }
}

/// One rank differs in its second of three calls: which, and what all were told.
fn outcomes_of_a_mismatch(
    rng: &mut Rng,
    nodes: usize,
    odd: Call,
    others: Call,
) -> (u32, Vec<BTreeMap<usize, Outcome>>) {
    let group = Group::random(rng, nodes);
    let mut cluster = Cluster::new(rng, group);
    cluster.program(&[sum(300), others, sum(200)]);
    let rank = rng.below(cluster.programs.len());
    cluster.programs[rank][1] = odd;
    cluster.start();
    cluster.run(Duration::from_secs(1));
    let third: Vec<&Outcome> = cluster
        .outcomes
        .iter()
        .map(|outcomes| &outcomes[&2])
        .collect();
    let expected = reference::result(&cluster, 2);
    assert!(
        third
            .iter()
            .all(|outcome| outcome.as_ref().is_ok_and(|bytes| **bytes == expected[..]))
    );
    let settle = cluster.queue.now() + Duration::from_millis(50);
    cluster.run_until(settle);
    assert!(
        cluster.released.iter().all(|released| released.len() == 3),
        "the group goes on unharmed"
    );
    (rank as u32, cluster.outcomes)
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
        let mut cluster = Cluster::new(rng, Group::uniform(1, 4));
        cluster.program(&[sum(10)]);
        cluster.programs[2][0] = sum(11);
        cluster.start();
        cluster.run(LIMIT);
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
        let expected = vec![BTreeMap::from([(0, Err(Verdict::from(mismatch).into()))]); 4];
        assert!(cluster.outcomes == expected);
    });
}

// COLL-1: what one node cannot carry out is nobody's result, and shifts nobody's later calls.
#[test]
fn a_call_that_one_node_refuses_is_one_error_on_every_rank_and_the_next_is_the_next_for_all() {
    for_each_seed(20, |rng| {
        let nodes = 1 + rng.below(12);
        let group = Group::random(rng, nodes);
        let mut cluster = Cluster::new(rng, group);
        // Equal calls: only their order tells them apart.
        cluster.program(&[sum(300); 5]);
        let rank = rng.below(cluster.programs.len()) as u32;
        let reason = Reason::Limit;
        cluster.refused.insert((rank, 1), reason);
        cluster.refused.insert((rank, 2), reason);
        cluster.start();
        cluster.run(Duration::from_secs(1));
        check_results(&cluster);
        let call = sum(300);
        let claim = Claim { rank, call };
        let refused = Verdict::from(Refusal { claim, reason });
        for outcomes in &cluster.outcomes {
            for (op, outcome) in outcomes {
                match op {
                    1 | 2 => assert_eq!(*outcome, Err(refused.into())),
                    _ => assert!(outcome.is_ok()),
                }
            }
        }
        let settle = cluster.queue.now() + Duration::from_millis(50);
        cluster.run_until(settle);
        assert!(
            cluster.released.iter().all(|released| released.len() == 5),
            "the group goes on unharmed"
        );
    });
}

#[test]
fn frames_of_another_attempt_or_epoch_are_dropped_and_counted() {
    for_each_seed(2, |rng| {
        let mut cluster = Cluster::new(rng, Group::uniform(2, 1));
        cluster.program(&[sum(2000), sum(2000)]);
        cluster.start();
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
            let up = Frame::Up {
                group: WORLD,
                tree: 0,
                op: 0,
                chunk: 0,
                slot: 0,
                bytes: 0,
                call: sum(2000),
                rank: 1,
                mark: Mark::default(),
            };
            let abort = Frame::Abort {
                broken: collective::machine::Broken::Revoked,
            };
            for frame in [
                up,
                abort,
                Frame::Down {
                    group: WORLD,
                    tree: 1,
                    op: 0,
                    chunk: 1,
                    bytes: 0,
                    mark: Mark::default(),
                },
            ] {
                cluster.inject(0, 1, fence, frame);
                cluster.inject(1, 0, fence, frame);
            }
        }
        cluster.run(LIMIT);
        all_ok(&cluster);
        assert_eq!(cluster.machine(0).counters().stale_frames, 6);
    });
}
