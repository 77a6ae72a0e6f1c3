//! Operations in which each rank gets something of its own: the ways that it takes, and what ranks learn that disagree.

use collective::machine::{Cause, Handover, Recovery, Verdict, WORLD};
use collective::{Call, DType, Numerics, OpKind};
use sim::{Conditions, Rng, Simulation, explore};
use topology::OnPeerLoss;

use crate::groups::check;
use crate::world::{MS, Setup, World};

const WORD: usize = 8;

const ALL_TO_ALL: Call = Call {
    kind: OpKind::AllToAll { with: None },
    dtype: DType::I64,
    count: 0,
    tag: 0,
    numerics: Numerics::Fast,
};

fn gang(rng: &mut Rng, recovery: Recovery, zones: &[u64], calls: &[Call]) -> World {
    let ranks: Vec<u32> = zones.iter().map(|_| rng.range(1..3) as u32).collect();
    let setup = Setup {
        recovery,
        conditions: Conditions {
            ordered: rng.chance(3, 4),
            ..Conditions::reliable()
        },
        window: 1 + rng.below(4),
        slots: rng.range(1..4) as u8,
        ..Setup::new(&ranks, zones)
    };
    World::new(rng, setup, calls)
}

/// Bytes that ranks of one node have for ranks of another in an operation.
fn between(world: &World, from: usize, to: usize, op: usize) -> u64 {
    let pairs = world.setup.layout.ranks(from).flat_map(|from| {
        let ranks = world.setup.layout.ranks(to);
        ranks.map(move |to| (from, to))
    });
    let parts = pairs.map(|(from, to)| world.part(WORLD, from, to, op));
    parts.sum::<u64>() * WORD as u64
}

#[test]
fn inside_a_zone_bytes_go_from_node_to_node_once_links_are_open() {
    explore(100, &[], |rng| {
        let nodes = 2 + rng.below(8);
        let mut world = gang(rng, Recovery::default(), &vec![0; nodes], &[ALL_TO_ALL]);
        world.start();
        world.run(World::all_ended);
        let settled = world.now() + 50 * MS;
        world.run_until(settled);
        world.seen.parts.clear();
        let members = &mut world.world_mut().members;
        members
            .iter_mut()
            .for_each(|one| one.program.push(ALL_TO_ALL));
        world.start();
        world.run(World::all_ended);
        check(&world);
        for from in 0..nodes {
            for to in (0..nodes).filter(|&to| to != from) {
                let sent = world.seen.parts.get(&(from, to)).copied().unwrap_or(0);
                let least = between(&world, from, to, 1);
                assert!(sent >= least, "{from} to {to}: {sent} of {least} bytes");
            }
        }
        let all: u64 = world.seen.parts.values().sum();
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        let needed: u64 = pairs
            .filter(|(from, to)| from != to)
            .map(|(from, to)| between(&world, from, to, 1))
            .sum();
        assert_eq!(all, needed, "nothing was passed on");
    });
}

// ZONE-2 for what one rank has for another.
#[test]
fn one_pair_of_nodes_carries_what_crosses_the_border_and_nobody_else_any() {
    for n in [2, 3, 4, 5, 7, 8, 12, 17] {
        explore(6, &[], |rng| {
            let split = 1 + rng.below(n - 1);
            let zones: Vec<u64> = (0..n).map(|node| u64::from(node >= split)).collect();
            let mut world = gang(rng, Recovery::default(), &zones, &[ALL_TO_ALL]);
            world.start();
            world.run(World::all_ended);
            check(&world);
            let crossing = |from: u64| {
                let pairs = (0..n).flat_map(|from| (0..n).map(move |to| (from, to)));
                let pairs = pairs.filter(|&(one, to)| zones[one] == from && zones[to] != from);
                pairs
                    .map(|(one, to)| between(&world, one, to, 0))
                    .sum::<u64>()
            };
            let (near, far) = world.trees(&world.members()).gateway().unwrap();
            for (from, to) in [(near, far), (far, near)] {
                let carried = world.seen.parts.get(&(from, to)).copied().unwrap_or(0);
                assert_eq!(carried, crossing(zones[from]), "{n} nodes, {from} to {to}");
            }
            let others = world.seen.parts.iter().filter(|((from, to), _)| {
                zones[*from] != zones[*to] && ![(near, far), (far, near)].contains(&(*from, *to))
            });
            assert_eq!(others.count(), 0);
        });
    }
}

#[test]
fn ranks_that_disagree_about_a_part_are_named_on_all_ranks_and_the_next_operation_runs() {
    explore(300, &[], |rng| {
        let nodes = 1 + rng.below(7);
        let zones: Vec<u64> = (0..nodes).map(|node| (node % 2) as u64).collect();
        let calls = [ALL_TO_ALL, Call::barrier(), ALL_TO_ALL];
        let mut world = gang(rng, Recovery::default(), &zones, &calls);
        let odd = rng.below(world.setup.layout.whole() as usize) as u32;
        world.odd = Some((WORLD, odd, 0));
        world.start();
        world.run(World::all_ended);
        check(&world);
        let sent = world.part(WORLD, 0, odd, 0);
        for member in &world.groups[&WORLD].members {
            let Some(Err(Cause::Verdict(Verdict::Mismatch(mismatch)))) = &member.outcomes.get(&0)
            else {
                panic!("{:?}", member.outcomes.get(&0));
            };
            assert_eq!((mismatch.one.rank, mismatch.other.rank), (0, odd));
            assert_eq!(
                (mismatch.one.call.count, mismatch.other.call.count),
                (sent, sent + 1)
            );
            assert!(member.outcomes[&1].is_ok() && member.outcomes[&2].is_ok());
        }
    });
}

#[test]
fn what_each_node_has_of_its_own_is_delivered_or_run_again_after_a_loss_of_memory() {
    explore(300, &[], |rng| {
        let nodes = 2 + rng.below(4);
        let recovery = Recovery {
            on_peer_loss: OnPeerLoss::Shrink,
            handover: Handover::Stable,
            ..Recovery::default()
        };
        let zones = vec![0; nodes];
        let mut world = gang(rng, recovery, &zones, &[ALL_TO_ALL, ALL_TO_ALL]);
        world.start();
        let at = world.now() + MS * rng.range(0..20) as u32;
        world.run_until(at);
        let lost = rng.below(nodes);
        world.lose(lost, true);
        // What was delivered to others meanwhile is forgotten, and ends the attempt.
        world.run(World::all_ended);
        check(&world);
    });
}
