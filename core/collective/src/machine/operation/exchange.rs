//! What the ranks of a node send and get in one operation in which each gets something of its own: the messages between
//! pairs of ranks that it consists of. How messages travel is in `p2p`.

use std::collections::BTreeMap;

use super::Operation;
use crate::machine::cause::Verdict;
use crate::machine::io::{MessageId, Splits, Stream};
use crate::machine::p2p::Transfer;
use crate::machine::view::GroupView;
use crate::op::{Call, OpKind};

/// How far it is on this node.
#[derive(Clone, Debug, Default)]
pub(super) struct Exchange {
    /// Of each local rank, where they are not equal.
    splits: BTreeMap<usize, Splits>,
    begun: bool,
    /// Messages from and to ranks here that are not over.
    left: u32,
    /// Two ranks that do not agree about what one sends the other.
    pub(super) mismatch: Option<Verdict>,
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

    pub(super) const fn message_over(&mut self) {
        self.left -= 1;
    }

    pub(super) fn mismatch(&mut self, verdict: Verdict) {
        self.mismatch.get_or_insert(verdict);
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

/// The messages of an operation that ranks here receive and send.
pub(in crate::machine) struct Transfers {
    pub(in crate::machine) receives: Vec<Transfer>,
    pub(in crate::machine) sends: Vec<Transfer>,
}

impl Operation {
    /// The messages go out when all local ranks have called it alike and what they bring is there: once.
    pub(in crate::machine) fn begin_exchange(&mut self, view: &GroupView) -> Option<Transfers> {
        let plan = self.plan.as_ref().filter(|_| !self.is_served());
        let call = plan.map(|plan| *plan.call());
        let call = call.filter(|call| call.kind.exchanges())?;
        if !self.is_open() {
            return None;
        }
        let size = call.dtype.size() as u64;
        let world = view.layout.whole();
        let parts: Vec<(usize, u32, Parts)> = (0..self.brought.len())
            .map(|local| {
                let rank = view.rank(local);
                (local, rank, self.exchange.parts(&call, local, rank, world))
            })
            .collect();
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
            number: self.id,
        };
        let (mut receives, mut sends) = (Vec::new(), Vec::new());
        for (local, rank, Parts { send, receive }) in parts {
            let mut offset = 0;
            for (other, count) in receive {
                receives.push(Transfer {
                    message: message(other, rank),
                    rank: local,
                    offset,
                    call: of_pair(other, count),
                });
                offset += count * size;
            }
            let mut offset = 0;
            for (other, count) in send {
                sends.push(Transfer {
                    message: message(rank, other),
                    rank: local,
                    offset,
                    call: of_pair(other, count),
                });
                offset += count * size;
            }
        }
        self.exchange.left = (receives.len() + sends.len()) as u32;
        self.exchange.begun = true;
        Some(Transfers { receives, sends })
    }
}
