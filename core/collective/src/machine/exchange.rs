//! What the ranks of a node send and get in one operation in which each gets something of its own: the messages between
//! pairs of ranks that it consists of. How messages travel is in `mail`.

use std::collections::BTreeMap;

use super::cause::Verdict;
use super::group::Group;
use super::message::{Incoming, Outgoing, Want};
use super::node::Node;
use super::operation::Stage;
use super::{MessageId, OpId, Splits, Stream};
use crate::op::{Call, OpKind};

/// How far it is on this node.
#[derive(Clone, Debug, Default)]
pub(super) struct Exchange {
    /// Of each local rank, where they are not equal.
    splits: BTreeMap<usize, Splits>,
    begun: bool,
    /// Messages from and to ranks here that are not over.
    pub(super) left: u32,
    /// Two ranks that do not agree about what one sends the other.
    pub(super) dispute: Option<Verdict>,
    /// Whether that was passed on to the parent.
    pub(super) is_refused: bool,
}

impl Exchange {
    /// A local rank has called it.
    pub(super) fn bring(&mut self, rank: usize, splits: Splits) {
        if splits != Splits::default() {
            self.splits.insert(rank, splits);
        }
    }

    /// Whether all that ranks here send has left, and all that they get is in its place.
    pub(super) const fn is_over(&self) -> bool {
        self.begun && self.left == 0
    }

    /// What a rank sends and gets.
    fn parts(&self, call: &Call, local: usize, rank: u32, world: u32) -> Parts {
        let everybody = || (0..world).map(|other| (other, call.count)).collect();
        let if_root = |root| {
            if root == rank {
                everybody()
            } else {
                Vec::new()
            }
        };
        match call.kind {
            OpKind::Gather { root } => Parts {
                send: vec![(root, call.count)],
                receive: if_root(root),
            },
            OpKind::Scatter { root } => Parts {
                send: if_root(root),
                receive: vec![(root, call.count)],
            },
            OpKind::AllToAll { .. }
            | OpKind::AllReduce { .. }
            | OpKind::Reduce { .. }
            | OpKind::Broadcast { .. }
            | OpKind::AllGather
            | OpKind::ReduceScatter { .. }
            | OpKind::Barrier
            | OpKind::Close
            | OpKind::Send { .. }
            | OpKind::Receive { .. } => {
                let splits = self.splits.get(&local);
                let of = |counts: Option<&Vec<u64>>| {
                    let counts = counts.map_or(&[][..], |counts| counts);
                    (0..world).zip(counts.iter().copied()).collect()
                };
                Parts {
                    send: of(splits.map(|splits| &splits.send)),
                    receive: of(splits.map(|splits| &splits.receive)),
                }
            }
        }
    }
}

/// (other rank, elements), one after another in memory.
struct Parts {
    send: Vec<(u32, u64)>,
    receive: Vec<(u32, u64)>,
}

impl Group {
    /// All local ranks have called it alike and what they bring is there: their messages go out.
    pub(super) fn begin_exchange(&mut self, node: &mut Node, id: OpId) {
        let Some(operation) = self.ops.get_mut(&id) else {
            return;
        };
        let plan = operation
            .plan
            .as_ref()
            .filter(|_| operation.served.is_none());
        let Some(call) = plan
            .map(|plan| *plan.call())
            .filter(|call| call.kind.exchanges())
        else {
            return;
        };
        if operation.exchange.begun || operation.stage != Stage::Open {
            return;
        }
        let size = call.dtype.size() as u64;
        let (world, first) = (
            self.part.layout.whole(),
            self.part.layout.ranks(self.part.node).start,
        );
        let parts: Vec<(usize, u32, Parts)> = (0..operation.brought.len())
            .map(|local| {
                let rank = first + local as u32;
                (
                    local,
                    rank,
                    operation.exchange.parts(&call, local, rank, world),
                )
            })
            .collect();
        let is_there = |(local, _, parts): &(usize, u32, Parts)| {
            let bytes: u64 = parts.send.iter().map(|(_, count)| count * size).sum();
            operation.brought[*local].is_some_and(|brought| brought.ready >= bytes)
        };
        if !parts.iter().all(is_there) {
            return;
        }
        let messages = parts
            .iter()
            .map(|(.., parts)| parts.send.len() + parts.receive.len());
        operation.exchange.left = messages.sum::<usize>() as u32;
        operation.exchange.begun = true;
        let of_pair = |with, count| Call {
            kind: if let OpKind::AllToAll { .. } = call.kind {
                OpKind::AllToAll { with: Some(with) }
            } else {
                call.kind
            },
            count,
            ..call
        };
        let message = |from, to| MessageId {
            from,
            to,
            of: Stream::Operation,
            number: id,
        };
        for (local, rank, Parts { send, receive }) in parts {
            let mut offset = 0;
            for (other, count) in receive {
                let bytes = count * size;
                let call = of_pair(other, count);
                let incoming = Incoming::new(id, local, offset, call, bytes, self.chunk_bytes);
                self.expect(message(other, rank), incoming);
                offset += bytes;
            }
            let mut offset = 0;
            for (other, count) in send {
                let want = Want {
                    call: of_pair(other, count),
                    refused: None,
                };
                let bytes = count * size;
                let outgoing = Outgoing::new(id, local, offset, want, bytes, self.chunk_bytes);
                self.offer(node, message(rank, other), outgoing);
                offset += bytes;
            }
        }
    }
}
