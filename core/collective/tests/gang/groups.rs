//! Several groups at once in one gang: opened, used and closed in a different order on every rank, with messages between
//! ranks, and nodes that are lost or lose their memory. The test decides who is a member.

use collective::machine::{Cause, Dispute, Handover, OpenError, OpenReason, Recovery, WORLD};
use collective::{Call, OpKind};
use sim::{Rng, Simulation, explore};
use topology::OnPeerLoss;

use crate::calls::{any_call, any_ranks};
use crate::fixture::draw;
use crate::world::{MS, Setup, World};

fn any_recovery(rng: &mut Rng) -> Recovery {
    Recovery {
        handover: *rng.pick(&[Handover::Stable, Handover::Stable, Handover::Immediate]),
        on_peer_loss: *rng.pick(&[OnPeerLoss::Shrink, OnPeerLoss::Shrink, OnPeerLoss::Restart]),
        replicated: true,
    }
}

pub(crate) fn any_world(rng: &mut Rng) -> World {
    // What the ranks of more have for each other in an all-to-all is millions of parts.
    let nodes = draw::nodes(rng).min(100);
    let mut setup = Setup::random(rng, nodes);
    if rng.chance(1, 2) {
        // In one zone no group is refused.
        setup.zones.fill(0);
    }
    setup.recovery = any_recovery(rng);
    setup.conditions.ordered = rng.chance(3, 4);
    let all = setup.layout.world();
    let calls = |rng: &mut Rng, size: usize, ends: bool| -> Vec<Call> {
        let mut calls: Vec<Call> = (0..1 + rng.below(5))
            .map(|_| any_call(rng, size as u32, 3, 4))
            .collect();
        calls.extend(ends.then(Call::close));
        calls
    };
    let program = calls(rng, all as usize, false);
    let mut world = World::new(rng, setup, &program);
    for group in 0..rng.below(6) as u64 {
        let ranks = any_ranks(rng, all);
        let program = calls(rng, ranks.len(), true);
        let replicated = rng.chance(2, 3);
        world.add_group(1000 - group, ranks, replicated, &program);
    }
    if rng.chance(1, 2) {
        world.add_messages(rng);
    }
    world
}

fn check_run(rng: &mut Rng) {
    let mut world = any_world(rng);
    if rng.chance(1, 8) {
        add_mismatch(rng, &mut world, 3, 4);
    } else if rng.chance(1, 6) {
        // One rank expects other parts than it is sent.
        let groups: Vec<_> = world.groups.keys().copied().collect();
        let group = *rng.pick(&groups);
        let of = &world.groups[&group];
        let odd = rng.below(of.members[0].program.len());
        world.odd = Some((group, *rng.pick(&of.ranks), odd));
    }
    world.start();
    let losses = rng.below(3);
    let mut forgot = None;
    for _ in 0..losses {
        world.run_until(world.now() + MS * rng.range(0..60) as u32);
        let mut members = world.members();
        members.retain(|&node| world.sidecars[node].machine.is_some());
        if members.len() < 2 {
            continue;
        }
        // That one node loses its memory is what ends that wait for everybody are proof against.
        let shrinks = world.setup.recovery.on_peer_loss == OnPeerLoss::Shrink;
        let stable = world.setup.recovery.handover == Handover::Stable;
        let node = *rng.pick(&members);
        let alone = forgot.is_none_or(|forgetful| forgetful == node);
        let comes_back = alone && stable && shrinks && rng.chance(1, 2);
        if comes_back {
            forgot = Some(node);
        }
        world.lose(node, comes_back);
        if rng.chance(1, 2) && shrinks {
            // One after another, or in the middle of what follows.
            let epochs = world.store.len();
            world.run(|world| world.store.len() > epochs || world.broken.is_some());
        }
    }
    world.run(World::all_ended);
    check(&world);
    check_openings(&world);
    let shrinks = world.setup.recovery.on_peer_loss == OnPeerLoss::Shrink;
    if world.broken.is_none() && (shrinks || losses == 0) {
        check_that_groups_end(&mut world);
    }
}

/// Everything holds, and an epoch ends only of losses.
pub(crate) fn check(world: &World) {
    world.check();
    world.check_messages();
    for outcome in world.all_outcomes() {
        if let Err(Cause::Broken(broken)) = outcome {
            assert!(world.ends_of(*broken), "{broken}");
        }
    }
}

/// One rank calls something else once.
pub(crate) fn add_mismatch(rng: &mut Rng, world: &mut World, sums: usize, own: usize) {
    let groups: Vec<_> = world.groups.keys().copied().collect();
    let of = world.groups.get_mut(rng.pick(&groups)).unwrap();
    let size = of.ranks.len();
    let program = &mut of.members[rng.below(size)].program;
    let odd = rng.below(program.len());
    if program[odd].kind != OpKind::Close {
        program[odd] = any_call(rng, size as u32, sums, own);
    }
}

/// A group is not opened for one reason alone here: the nodes that join the zones are not its.
pub(crate) fn check_openings(world: &World) {
    for of in world.groups.values() {
        for (&rank, member) in of.ranks.iter().zip(&of.members) {
            if let Some(Err(OpenError::Dispute(dispute))) = member.opened {
                let reason = OpenReason::Gateway;
                assert!(matches!(dispute, Dispute::Refused { reason: why, .. } if why == reason));
                assert!(of.ranks.len() > 1, "{rank}: {dispute}");
            }
        }
    }
}

/// REC-10 for groups: nothing is left of a group that all have closed.
fn check_that_groups_end(world: &mut World) {
    world.run_until(world.now() + 8000 * MS);
    if world.broken.is_some() {
        return; // The last loss came when all had ended, and the attempt with it.
    }
    for (&group, of) in world.groups.iter().filter(|(group, _)| **group != WORLD) {
        for (&rank, member) in of.ranks.iter().zip(&of.members) {
            let node = world.setup.layout.node_of(rank);
            let known = world.groups_at(node).contains(&group);
            let lives = world.hosts.runs(node) && member.opened == Some(Ok(()));
            assert!(!lives || !known, "rank {rank} has closed group {group}");
        }
    }
    for sidecar in &world.sidecars {
        let left = sidecar.memory.groups();
        assert!(left.iter().all(|&group| group == WORLD), "left: {left:?}");
    }
}

// COLL-1, REC-1, REC-3, REC-10, ZONE-2 for groups.
#[test]
fn any_groups_end_alike_whatever_is_lost() {
    explore(2000, &[10_431_462_393_979_601_351], check_run);
}
