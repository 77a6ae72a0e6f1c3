//! Operations in which each rank gets something of its own: what ranks bring for each other, and what each has to get.

use collective::machine::{Buffer, GroupId, Region, Splits, WORLD};
use collective::{Call, OpKind};
use sim::Rng;

use super::World;
use crate::fixture::draw;
use crate::fixture::memory::{Id, Payload};

impl World {
    /// How many elements a rank of a group has for another in an all-to-all: mostly none or some, at times several chunks.
    pub(crate) fn part(&self, group: GroupId, from: u32, to: u32, op: usize) -> u64 {
        let salt = group << 40 ^ u64::from(from) << 24 ^ u64::from(to) << 8 ^ op as u64;
        let mut rng = Rng::new(self.inputs_seed ^ salt);
        match rng.below(8) {
            0 => rng.range(0..300),
            1..4 => 0,
            _ => rng.range(0..20),
        }
    }

    pub(crate) fn splits(&self, group: GroupId, rank: u32, op: usize) -> Splits {
        let ranks = || self.groups[&group].ranks.iter();
        let send = ranks().map(|&other| self.part(group, rank, other, op));
        let receive = ranks().map(|&other| self.part(group, other, rank, op));
        let mut splits = Splits {
            send: send.collect(),
            receive: receive.collect(),
        };
        if self.odd == Some((group, rank, op)) {
            splits.receive[0] += 1;
        }
        splits
    }

    /// What a rank brings to an operation.
    pub(crate) fn brought(&self, group: GroupId, rank: u32, op: usize, call: &Call) -> Vec<u8> {
        if let Some(given) = self.given.get(rank as usize).filter(|_| group == WORLD) {
            let before = &self.groups[&WORLD].members[rank as usize].program[..op];
            let start = before.iter().map(|call| call.input_bytes() as usize).sum();
            return given[start..][..call.input_bytes() as usize].to_vec();
        }
        let count = self.count_brought(group, rank, op, call);
        let salt = group << 48 | u64::from(rank) << 32 | op as u64;
        let mut rng = Rng::new(self.inputs_seed ^ salt);
        draw::input(&mut rng, &Call { count, ..*call })
    }

    fn count_brought(&self, group: GroupId, rank: u32, op: usize, call: &Call) -> u64 {
        let ranks = &self.groups[&group].ranks;
        match call.kind {
            OpKind::AllToAll { .. } => self.splits(group, rank, op).send.iter().sum(),
            OpKind::Scatter { root } if ranks[root as usize] == rank => {
                call.count * ranks.len() as u64
            }
            OpKind::Scatter { .. } => 0,
            OpKind::Gather { .. }
            | OpKind::Send { .. }
            | OpKind::Receive { .. }
            | OpKind::AllReduce { .. }
            | OpKind::Reduce { .. }
            | OpKind::Broadcast { .. }
            | OpKind::AllGather
            | OpKind::ReduceScatter { .. }
            | OpKind::Barrier
            | OpKind::Close => call.count,
        }
    }

    /// Bytes of what a rank gets that nobody else gets.
    fn own_bytes(&self, group: GroupId, rank: u32, op: usize, call: &Call) -> u64 {
        if let OpKind::AllToAll { .. } = call.kind {
            let receive = self.splits(group, rank, op).receive;
            return receive.iter().sum::<u64>() * call.dtype.size() as u64;
        }
        let ranks = &self.groups[&group].ranks;
        let at = ranks.binary_search(&rank).unwrap();
        call.own_bytes(at as u32, ranks.len() as u32)
    }

    /// A place for what a rank gets from an operation, if it gets something of its own.
    pub(crate) fn add_own(&mut self, node: usize, id: Id, rank: u32, call: &Call) {
        if call.kind.exchanges() {
            let bytes = self.own_bytes(id.0, rank, id.1 as usize, call);
            self.add_own_bytes(node, id, rank, bytes);
        }
    }

    /// A place for what a rank gets. What an epoch before has left there may be delivered.
    pub(crate) fn add_own_bytes(&mut self, node: usize, (group, op): Id, rank: u32, bytes: u64) {
        let rank = self.local(rank);
        let buffer = Buffer::Own { group, op, rank };
        let sidecar = &mut self.sidecars[node];
        if sidecar.own.insert(buffer) {
            sidecar.memory.add_slot(buffer, bytes as u32);
        }
    }

    /// What a rank finds where it gets something of its own.
    pub(crate) fn deliver_own(&self, node: usize, id: Id, rank: u32, call: &Call) -> Payload {
        let bytes = self.own_bytes(id.0, rank, id.1 as usize, call);
        self.deliver_bytes(node, id, self.local(rank), bytes)
    }

    pub(crate) fn deliver_bytes(
        &self,
        node: usize,
        (group, op): Id,
        rank: usize,
        bytes: u64,
    ) -> Payload {
        let region = Region {
            buffer: Buffer::Own { group, op, rank },
            offset: 0,
            bytes,
        };
        Payload::from(self.sidecars[node].memory.read(region))
    }

    /// What a rank has to get, from what all others bring.
    pub(crate) fn exchanged(&self, group: GroupId, rank: u32, op: usize, call: &Call) -> Vec<u8> {
        let ranks = &self.groups[&group].ranks;
        let at = ranks.binary_search(&rank).unwrap();
        let size = call.dtype.size();
        let input = |rank: u32| self.brought(group, rank, op, call);
        match call.kind {
            OpKind::AllToAll { .. } => {
                let part = |&from: &u32| {
                    let sent = self.splits(group, from, op).send;
                    let before = sent[..at].iter().sum::<u64>() as usize * size;
                    input(from)[before..][..sent[at] as usize * size].to_vec()
                };
                ranks.iter().flat_map(part).collect()
            }
            OpKind::Scatter { root } => {
                let each = call.count as usize * size;
                input(ranks[root as usize])[at * each..][..each].to_vec()
            }
            OpKind::Gather { root } if root as usize == at => {
                ranks.iter().flat_map(|&rank| input(rank)).collect()
            }
            OpKind::Gather { .. }
            | OpKind::Send { .. }
            | OpKind::Receive { .. }
            | OpKind::AllReduce { .. }
            | OpKind::Reduce { .. }
            | OpKind::Broadcast { .. }
            | OpKind::AllGather
            | OpKind::ReduceScatter { .. }
            | OpKind::Barrier
            | OpKind::Close => Vec::new(),
        }
    }
}
