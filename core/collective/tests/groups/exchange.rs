//! Operations in which each rank gets something of its own: what the ranks bring and expect, and what must hold of the
//! ways that it takes.

use collective::machine::{
    Buffer, Cause, GroupId, Handover, Input, Recovery, Region, Splits, Verdict, WORLD,
};
use collective::{Call, DType, Numerics, OpKind};
use sim::{Rng, explore};
use topology::OnPeerLoss;

use crate::memory::Id;
use crate::world::{MS, World};

const WORD: usize = 8;

impl World {
    /// How many elements a rank of a group has for another in an all-to-all: none, some, or more than a chunk.
    fn part(&self, group: GroupId, from: u32, to: u32, op: usize) -> u64 {
        let salt = group << 40 ^ u64::from(from) << 24 ^ u64::from(to) << 8 ^ op as u64;
        let mut rng = Rng::new(self.inputs_seed ^ salt);
        match rng.below(4) {
            0 => 0,
            1 => rng.range(0..300),
            _ => rng.range(0..20),
        }
    }

    pub(crate) fn splits(&self, group: GroupId, rank: u32, op: usize) -> Splits {
        let ranks = self.lanes[&group].ranks.iter();
        let mut receive: Vec<u64> = ranks
            .clone()
            .map(|&other| self.part(group, other, rank, op))
            .collect();
        if self.odd == Some((group, rank, op)) {
            let first = receive.iter_mut().next().unwrap();
            *first += 1;
        }
        Splits {
            send: ranks
                .map(|&other| self.part(group, rank, other, op))
                .collect(),
            receive,
        }
    }

    /// Bytes of what a rank gets that nobody else gets.
    pub(crate) fn own_bytes(&self, group: GroupId, rank: u32, op: usize) -> u64 {
        let call = self.has(group, rank).unwrap().program[op];
        if let OpKind::AllToAll { .. } = call.kind {
            let receive = self.splits(group, rank, op).receive;
            return receive.iter().sum::<u64>() * WORD as u64;
        }
        let ranks = &self.lanes[&group].ranks;
        let at = ranks.binary_search(&rank).unwrap();
        call.own_bytes(at as u32, ranks.len() as u32)
    }

    /// A place for what a rank gets. What an epoch before has left there may be told.
    pub(crate) fn add_own(&mut self, node: usize, (group, op): Id, rank: usize, bytes: u64) {
        let buffer = Buffer::Own { group, op, rank };
        let node = &mut self.nodes[node];
        if node.own.insert(buffer) {
            node.memory.add_slot(buffer, bytes as u32);
        }
    }

    /// What a rank finds there.
    pub(crate) fn own(&self, node: usize, (group, op): Id, rank: usize, bytes: u64) -> Vec<u8> {
        let region = Region {
            buffer: Buffer::Own { group, op, rank },
            offset: 0,
            bytes,
        };
        self.nodes[node].memory.read(region).to_vec()
    }

    /// A rank calls an operation of this kind.
    pub(crate) fn exchange(
        &mut self,
        node: usize,
        group: GroupId,
        rank: u32,
        local: usize,
        op: usize,
    ) {
        let call = self.has(group, rank).unwrap().program[op];
        let bytes = self.own_bytes(group, rank, op);
        self.add_own(node, (group, op as u64), local, bytes);
        let input = if let OpKind::AllToAll { .. } = call.kind {
            Input::Exchange {
                group,
                rank: local,
                call,
                splits: self.splits(group, rank, op),
            }
        } else {
            Input::Submit {
                group,
                rank: local,
                call,
                ready: self.input(group, rank, op).len() as u64,
            }
        };
        self.handle(node, input);
    }

    /// What a rank gets, by what all others bring.
    pub(crate) fn exchanged(&self, group: GroupId, rank: u32, op: usize) -> Vec<u8> {
        let lane = &self.lanes[&group];
        let call = self.has(group, rank).unwrap().program[op];
        let input = |rank: u32| self.input(group, rank, op);
        let at = lane.ranks.binary_search(&rank).unwrap();
        if let OpKind::AllToAll { .. } = call.kind {
            let part = |&from: &u32| {
                let sent = self.splits(group, from, op).send;
                let before = sent[..at].iter().sum::<u64>() as usize * WORD;
                let bytes = sent[at] as usize * WORD;
                input(from)[before..before + bytes].to_vec()
            };
            return lane.ranks.iter().flat_map(part).collect();
        }
        if let OpKind::Scatter { root } = call.kind {
            let each = call.count as usize * WORD;
            return input(lane.ranks[root as usize])[at * each..(at + 1) * each].to_vec();
        }
        let is_root = matches!(call.kind, OpKind::Gather { root } if root as usize == at);
        let ranks = lane.ranks.iter().filter(|_| is_root);
        ranks.flat_map(|&rank| input(rank)).collect()
    }
}

const ALL_TO_ALL: Call = Call {
    kind: OpKind::AllToAll { with: None },
    dtype: DType::I64,
    count: 0,
    tag: 0,
    numerics: Numerics::Fast,
};

fn gang(rng: &mut Rng, nodes: usize, zones: &[u64], calls: &[Call]) -> World {
    assert_eq!(nodes, zones.len());
    gang_with(rng, Recovery::default(), zones, calls)
}

fn gang_with(rng: &mut Rng, recovery: Recovery, zones: &[u64], calls: &[Call]) -> World {
    let ranks: Vec<u32> = zones.iter().map(|_| rng.range(1..3) as u32).collect();
    let mut world = World::new(rng, &ranks, zones, recovery);
    let everybody: Vec<u32> = (0..world.layout.whole()).collect();
    world.add(WORLD, &everybody, true, calls);
    world
}

/// Bytes that ranks of one node have for ranks of another in an operation.
fn between(world: &World, from: usize, to: usize, op: usize) -> u64 {
    let pairs = world.layout.ranks(from).flat_map(|from| {
        let ranks = world.layout.ranks(to);
        ranks.map(move |to| (from, to))
    });
    let parts = pairs.map(|(from, to)| world.part(WORLD, from, to, op));
    parts.sum::<u64>() * WORD as u64
}

#[test]
fn inside_a_zone_bytes_go_from_node_to_node_once_links_stand() {
    explore(100, &[], |rng| {
        let nodes = 2 + rng.below(8);
        let mut world = gang(rng, nodes, &vec![0; nodes], &[ALL_TO_ALL]);
        world.start();
        world.run(World::all_ended);
        let settled = world.queue.now() + 50 * MS;
        world.run_until(settled);
        world.parts.clear();
        let members = &mut world.lanes.get_mut(&WORLD).unwrap().members;
        members
            .iter_mut()
            .for_each(|one| one.program.push(ALL_TO_ALL));
        world.start();
        world.run(World::all_ended);
        world.check();
        for from in 0..nodes {
            for to in (0..nodes).filter(|&to| to != from) {
                let sent = world.parts.get(&(from, to)).copied().unwrap_or(0);
                let least = between(&world, from, to, 1);
                assert!(sent >= least, "{from} to {to}: {sent} of {least} bytes");
            }
        }
        let all: u64 = world.parts.values().sum();
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
            let mut world = gang(rng, n, &zones, &[ALL_TO_ALL]);
            world.start();
            world.run(World::all_ended);
            world.check();
            let crossing = |from: u64| {
                let pairs = (0..n).flat_map(|from| (0..n).map(move |to| (from, to)));
                let pairs = pairs.filter(|&(one, to)| zones[one] == from && zones[to] != from);
                pairs
                    .map(|(one, to)| between(&world, one, to, 0))
                    .sum::<u64>()
            };
            let (near, far) = world.trees().gateway().unwrap();
            for (from, to) in [(near, far), (far, near)] {
                let carried = world.parts.get(&(from, to)).copied().unwrap_or(0);
                assert_eq!(carried, crossing(zones[from]), "{n} nodes, {from} to {to}");
            }
            let others = world.parts.iter().filter(|((from, to), _)| {
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
        let mut world = gang(
            rng,
            nodes,
            &zones,
            &[ALL_TO_ALL, Call::barrier(), ALL_TO_ALL],
        );
        let odd = rng.below(world.layout.whole() as usize) as u32;
        world.odd = Some((WORLD, odd, 0));
        world.start();
        world.run(World::all_ended);
        world.check();
        let sent = world.part(WORLD, 0, odd, 0);
        for member in &world.lanes[&WORLD].members {
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
fn what_each_node_has_of_its_own_is_told_or_run_again_after_a_loss_of_memory() {
    explore(300, &[], |rng| {
        let nodes = 2 + rng.below(4);
        let recovery = Recovery {
            on_peer_loss: OnPeerLoss::Shrink,
            handover: Handover::Stable,
            ..Recovery::default()
        };
        let zones = vec![0; nodes];
        let mut world = gang_with(rng, recovery, &zones, &[ALL_TO_ALL, ALL_TO_ALL]);
        world.start();
        let at = world.queue.now() + MS * rng.range(0..20) as u32;
        world.run_until(at);
        let lost = rng.below(nodes);
        world.lose(lost, true);
        // What others were told meanwhile is forgotten, and ends the attempt.
        world.run(World::all_ended);
        world.check();
    });
}
