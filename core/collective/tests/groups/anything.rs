//! Any gang, any groups, any calls, any losses at any time. The test that explores.

use collective::machine::{Dispute, Handover, OpenError, OpenReason, Recovery, WORLD};
use collective::{Call, DType, Numerics, OpKind, ReduceOp};
use sim::{Rng, explore};
use topology::OnPeerLoss;

use crate::draw;
use crate::world::{MS, World};

pub(crate) fn any_call(rng: &mut Rng, ranks: u32) -> Call {
    let op = *rng.pick(&[ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min]);
    let root = rng.range(0..u64::from(ranks)) as u32;
    if rng.chance(1, 4) {
        return any_exchange(rng, root);
    }
    let kind = *rng.pick(&[
        OpKind::AllReduce { op },
        OpKind::AllReduce { op },
        OpKind::Reduce { op, root },
        OpKind::Broadcast { root },
        OpKind::AllGather,
        OpKind::ReduceScatter { op },
        OpKind::Barrier,
    ]);
    let most = if kind == OpKind::Barrier {
        1
    } else if kind == OpKind::AllGather {
        30
    } else if let OpKind::ReduceScatter { .. } = kind {
        60
    } else {
        300
    };
    let parts = if let OpKind::ReduceScatter { .. } = kind {
        u64::from(ranks)
    } else {
        1
    };
    Call {
        kind,
        dtype: DType::I64,
        count: rng.range(0..most) * parts,
        tag: 0,
        numerics: Numerics::Fast,
    }
}

fn any_exchange(rng: &mut Rng, root: u32) -> Call {
    let all = OpKind::AllToAll { with: None };
    let kind = *rng.pick(&[OpKind::Gather { root }, OpKind::Scatter { root }, all, all]);
    Call {
        kind,
        dtype: DType::I64,
        count: if kind == all { 0 } else { rng.range(0..200) },
        tag: 0,
        numerics: Numerics::Fast,
    }
}

fn any_recovery(rng: &mut Rng) -> Recovery {
    Recovery {
        handover: *rng.pick(&[Handover::Stable, Handover::Stable, Handover::Immediate]),
        on_peer_loss: *rng.pick(&[OnPeerLoss::Shrink, OnPeerLoss::Shrink, OnPeerLoss::Restart]),
        replicated: true,
    }
}

/// Some of the ranks: every so many, neighbours, or any.
fn any_ranks(rng: &mut Rng, world: u32) -> Vec<u32> {
    let from = rng.range(0..u64::from(world)) as u32;
    let ranks: Vec<u32> = match rng.below(4) {
        0 => {
            let step = 1 + rng.below(4);
            (from..world).step_by(step).collect()
        }
        1 => (from..world.min(from + 1 + rng.below(6) as u32)).collect(),
        2 => (0..world).collect(),
        _ => (0..world).filter(|_| rng.chance(1, 2)).collect(),
    };
    if ranks.is_empty() { vec![from] } else { ranks }
}

pub(crate) fn any_world(rng: &mut Rng) -> World {
    // What the ranks of more have for each other in an all-to-all is millions of parts.
    let nodes = draw::nodes(rng).min(100);
    let ranks = draw::ranks(rng, nodes);
    let split = if rng.chance(1, 2) {
        nodes
    } else {
        rng.below(nodes + 1)
    };
    let zones: Vec<u64> = (0..nodes).map(|node| u64::from(node >= split)).collect();
    let recovery = any_recovery(rng);
    let mut world = World::new(rng, &ranks, &zones, recovery);
    let all = world.layout.whole();
    let everybody: Vec<u32> = (0..all).collect();
    let calls = |rng: &mut Rng, size: usize, ends: bool| -> Vec<Call> {
        let mut calls: Vec<Call> = (0..1 + rng.below(5))
            .map(|_| any_call(rng, size as u32))
            .collect();
        calls.extend(ends.then(Call::close));
        calls
    };
    let program = calls(rng, everybody.len(), false);
    world.add(WORLD, &everybody, true, &program);
    for group in 0..rng.below(6) as u64 {
        let ranks = any_ranks(rng, all);
        let program = calls(rng, ranks.len(), true);
        let replicated = rng.chance(2, 3);
        world.add(1000 - group, &ranks, replicated, &program);
    }
    if rng.chance(1, 2) {
        world.add_messages(rng);
    }
    world
}

fn check_run(rng: &mut Rng) {
    let mut world = any_world(rng);
    if rng.chance(1, 8) {
        // One rank calls something else once.
        let groups: Vec<_> = world.lanes.keys().copied().collect();
        let lane = world.lanes.get_mut(rng.pick(&groups)).unwrap();
        let (at, size) = (rng.below(lane.members.len()), lane.members.len() as u32);
        let program = &mut lane.members[at].program;
        let odd = rng.below(program.len());
        if program[odd].kind != OpKind::Close {
            program[odd] = any_call(rng, size);
        }
    } else if rng.chance(1, 6) {
        // One rank expects other parts than it is sent.
        let groups: Vec<_> = world.lanes.keys().copied().collect();
        let group = *rng.pick(&groups);
        let lane = &world.lanes[&group];
        let odd = rng.below(lane.members[0].program.len());
        world.odd = Some((group, *rng.pick(&lane.ranks), odd));
    }
    world.start();
    let losses = rng.below(3);
    let mut forgot = None;
    for _ in 0..losses {
        let at = world.queue.now() + MS * rng.range(0..60) as u32;
        world.run_until(at);
        let here = |&node: &usize| world.nodes[node].machine.is_some();
        let members: Vec<usize> = world.present().iter().copied().filter(here).collect();
        if members.len() < 2 {
            continue;
        }
        // That one node loses its memory is what ends that wait for everybody are proof against.
        let holds = world.recovery.on_peer_loss == OnPeerLoss::Shrink;
        let stable = world.recovery.handover == Handover::Stable;
        let node = *rng.pick(&members);
        let alone = forgot.is_none_or(|forgetful| forgetful == node);
        let comes_back = alone && stable && holds && rng.chance(1, 2);
        if comes_back {
            forgot = Some(node);
        }
        world.lose(node, comes_back);
        if rng.chance(1, 2) {
            // One after another, or in the middle of what follows.
            let epoch = world.epoch;
            if holds {
                world.run(|world| world.epoch > epoch || world.forgotten);
            }
        }
    }
    world.run(World::all_ended);
    world.check();
    world.check_messages();
    check_openings(&world);
    if world.forgotten {
        return;
    }
    if world.recovery.on_peer_loss == OnPeerLoss::Shrink || losses == 0 {
        check_that_groups_end(&mut world);
    }
}

/// A group is not opened for one reason alone here: the nodes that join the zones are not its.
fn check_openings(world: &World) {
    for lane in world.lanes.values() {
        for (&rank, member) in lane.ranks.iter().zip(&lane.members) {
            if let Some(Err(OpenError::Dispute(dispute))) = member.opened {
                let reason = OpenReason::Gateway;
                assert!(matches!(dispute, Dispute::Refused { reason: why, .. } if why == reason));
                assert!(lane.ranks.len() > 1, "{rank}: {dispute}");
            }
        }
    }
}

/// REC-10 for groups: nothing is left of a group that all have closed.
fn check_that_groups_end(world: &mut World) {
    let settled = world.queue.now() + 8000 * MS;
    world.run_until(settled);
    if world.forgotten {
        return; // The last loss came when all had ended, and the attempt with it.
    }
    for (&group, lane) in world.lanes.iter().filter(|(group, _)| **group != WORLD) {
        for (&rank, member) in lane.ranks.iter().zip(&lane.members) {
            let node = &world.nodes[world.layout.node_of(rank)];
            if let Some(machine) = &node.machine
                && member.opened == Some(Ok(()))
            {
                let report = machine.report();
                let of = report.iter().find(|of| of.group == group);
                assert!(
                    member.closed,
                    "rank {rank} has closed group {group}: {of:?}"
                );
            }
        }
    }
    for node in &world.nodes {
        let left = node.memory.groups();
        assert!(left.iter().all(|&group| group == WORLD), "left: {left:?}");
    }
}

// COLL-1, REC-1, REC-3, REC-10, ZONE-2 for groups.
#[test]
fn any_groups_end_alike_whatever_is_lost() {
    explore(2000, &[], check_run);
}
