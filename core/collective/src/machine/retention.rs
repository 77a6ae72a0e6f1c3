//! What is final in a group: here, in this node's subtree of tree 0, and everywhere. Watermarks ride up with parts and down
//! with chunks of tree 0, and with heartbeats; where an end waits for everybody they travel at once. A result is kept
//! until it was delivered to all ranks of every node, because it may have to be served to one that lost its memory.

use std::collections::BTreeMap;
use topology::OnPeerLoss;

use super::cause::ProtocolViolation;
use super::config::{Handover, MAX_IN_FLIGHT, Recovery, Start};
use super::io::{Frame, GroupId, OpId, Watermark};
use super::node::Node;
use super::view::GroupView;
use crate::recovery::{GroupReport, Retained};

/// How far watermarks may fall behind before they travel on their own: half of what a rank may have in flight.
const URGENT: u64 = MAX_IN_FLIGHT / 2;
/// The tree that watermarks travel in.
pub(super) const WATERMARK_TREE: usize = 0;

/// What is final.
#[derive(Clone, Debug)]
pub(super) struct Retention {
    /// Operations that are final here, from the first that somebody may need.
    retained: BTreeMap<OpId, Retained>,
    /// For each local rank, the first operation whose end was not delivered to it.
    delivered: Vec<OpId>,
    /// This node alone: `done` is the first operation that is not final here.
    own: Watermark,
    /// The last that each child in tree 0 has said of its subtree.
    below: BTreeMap<usize, Watermark>,
    /// Of all nodes, as far as it is known here.
    everywhere: Watermark,
    sent_up: Watermark,
    sent_down: BTreeMap<usize, Watermark>,
}

impl Retention {
    /// `delivered`: for each local rank, the first operation whose end was not delivered to it. All before `base` are over.
    pub(super) fn new(base: OpId, delivered: Vec<OpId>, children: &[usize]) -> Self {
        let watermark = Watermark {
            completed: base,
            delivered: base,
        };
        let each: BTreeMap<usize, Watermark> =
            children.iter().map(|&child| (child, watermark)).collect();
        let mut retention = Self {
            retained: BTreeMap::new(),
            delivered,
            own: watermark,
            below: each.clone(),
            everywhere: watermark,
            sent_up: watermark,
            sent_down: each,
        };
        retention.note_delivered();
        retention
    }

    /// An operation is final here.
    pub(super) fn keep(&mut self, held: Retained) {
        self.retained.insert(held.op, held);
        while self.retained.contains_key(&self.own.completed) {
            self.own.completed += 1;
        }
        // It may have been delivered in an epoch before.
        self.note_delivered();
    }

    pub(super) fn kept(&self, op: OpId) -> Option<&Retained> {
        self.retained.get(&op)
    }

    /// The end of an operation was delivered to a rank.
    pub(super) fn deliver(&mut self, rank: usize, op: OpId) {
        self.delivered[rank] = self.delivered[rank].max(op + 1);
        self.note_delivered();
    }

    fn note_delivered(&mut self) {
        let all = self.delivered.iter().copied().min().unwrap_or(0);
        self.own.delivered = all.min(self.own.completed).max(self.own.delivered);
    }

    /// The first operation whose result somebody may still need.
    pub(super) fn released(&self) -> OpId {
        self.everywhere.delivered
    }

    /// Whether the end of an operation that is final here may be delivered to a rank.
    pub(super) fn may_deliver(&self, rank: usize, op: OpId, recovery: &Recovery) -> bool {
        let is_stable = match recovery.handover {
            Handover::Stable => op < self.everywhere.completed,
            Handover::Immediate => true,
        };
        // In order, so that one number says what was delivered to a rank.
        let is_next = match recovery.on_peer_loss {
            OnPeerLoss::Shrink => self.delivered[rank] == op,
            OnPeerLoss::Restart => true,
        };
        is_stable && is_next
    }

    /// Lets go of the operations that need not be kept any more. One that still `moves` here is kept until it does not: if
    /// the epoch ends before, the report names it, and the machine of the next one releases it.
    pub(super) fn release(
        &mut self,
        on_peer_loss: OnPeerLoss,
        moves: impl Fn(OpId) -> bool,
    ) -> Vec<OpId> {
        let end = match on_peer_loss {
            OnPeerLoss::Shrink => self.everywhere.delivered,
            // Nobody is ever served.
            OnPeerLoss::Restart => self.own.delivered,
        };
        let over = self.retained.range(..end).map(|(&op, _)| op);
        let over: Vec<OpId> = over.filter(|&op| !moves(op)).collect();
        for op in &over {
            self.retained.remove(op);
        }
        over
    }

    fn subtree(&self) -> Watermark {
        self.below.values().fold(self.own, |all, &below| Watermark {
            completed: all.completed.min(below.completed),
            delivered: all.delivered.min(below.delivered),
        })
    }

    fn learn(&mut self, watermark: Watermark) {
        self.everywhere.completed = self.everywhere.completed.max(watermark.completed);
        self.everywhere.delivered = self.everywhere.delivered.max(watermark.delivered);
    }

    /// The watermark that rides with the next part to the parent in a tree.
    pub(super) fn watermark_up(&mut self, tree: usize) -> Watermark {
        if tree == WATERMARK_TREE {
            self.sent_up = self.subtree();
        }
        self.sent_up
    }

    /// The watermark that rides with the next chunk to a child in a tree.
    pub(super) fn watermark_down(&mut self, peer: usize, tree: usize) -> Watermark {
        let everywhere = self.everywhere;
        if tree == WATERMARK_TREE {
            self.sent_down.insert(peer, everywhere);
        }
        everywhere
    }

    /// A neighbour in tree 0 says how far its subtree is, or everybody.
    /// `oldest`: the first operation that is not over here.
    pub(super) fn on_watermark(
        &mut self,
        view: &GroupView,
        peer: usize,
        watermark: Watermark,
        oldest: OpId,
    ) -> Result<(), ProtocolViolation> {
        if watermark.delivered > watermark.completed
            || watermark.completed > oldest + 4 * MAX_IN_FLIGHT
        {
            return Err(ProtocolViolation::Operation);
        }
        if let Some(below) = self.below.get_mut(&peer) {
            below.completed = below.completed.max(watermark.completed);
            below.delivered = below.delivered.max(watermark.delivered);
            return Ok(());
        }
        if view.parent(WATERMARK_TREE) != Some(peer) {
            return Err(ProtocolViolation::Direction);
        }
        self.learn(watermark);
        Ok(())
    }

    /// A node that leaves in good order has delivered all that it had ended to its ranks, which says that it was final
    /// everywhere where deliveries wait for that.
    pub(super) fn on_leave(&mut self, view: &GroupView, peer: usize, ended: OpId) {
        let watermark = Watermark {
            completed: ended,
            delivered: ended,
        };
        if let Some(below) = self.below.get_mut(&peer) {
            *below = watermark;
        }
        if view.recovery.handover == Handover::Stable {
            self.learn(Watermark {
                delivered: 0,
                ..watermark
            });
        }
    }

    /// Learns what follows at the root, and sends watermarks that cannot wait for a chunk or a heartbeat.
    pub(super) fn pass_watermarks(&mut self, view: &GroupView, node: &mut Node) {
        let recovery = view.recovery;
        if !recovery.needs_watermarks() {
            return; // Nobody waits for what they say.
        }
        let subtree = self.subtree();
        if view.parent(WATERMARK_TREE).is_none() {
            self.learn(subtree);
        }
        if (recovery.handover, recovery.on_peer_loss) == (Handover::Immediate, OnPeerLoss::Restart)
        {
            return; // Nothing is kept that watermarks could let go.
        }
        let due =
            |news: Watermark, sent: Watermark| match (recovery.handover, recovery.on_peer_loss) {
                (Handover::Stable, OnPeerLoss::Restart) => news.completed > sent.completed,
                (Handover::Stable, OnPeerLoss::Shrink) => {
                    news.completed > sent.completed || news.delivered >= sent.delivered + URGENT
                }
                (Handover::Immediate, OnPeerLoss::Shrink) => {
                    news.delivered >= sent.delivered + URGENT
                }
                (Handover::Immediate, OnPeerLoss::Restart) => false,
            };
        if due(subtree, self.sent_up)
            && let Some(peer) = view.parent(WATERMARK_TREE)
        {
            self.send_watermark(view, node, peer);
        }
        let everywhere = self.everywhere;
        let sent = self.sent_down.clone();
        for (peer, sent) in sent {
            if due(everywhere, sent) {
                self.send_watermark(view, node, peer);
            }
        }
    }

    /// Says something new to a neighbour in place of a heartbeat. False when there is nothing.
    pub(super) fn beat(&mut self, view: &GroupView, node: &mut Node, peer: usize) -> bool {
        let news = match self.sent_down.get(&peer) {
            Some(&sent) => sent != self.everywhere,
            None => view.parent(WATERMARK_TREE) == Some(peer) && self.sent_up != self.subtree(),
        };
        if news {
            self.send_watermark(view, node, peer);
        }
        news
    }

    /// The group is over here: those below learn now what nobody would send them any more.
    pub(super) fn send_last_watermarks(&mut self, view: &GroupView, node: &mut Node) {
        let everywhere = self.everywhere;
        for (peer, sent) in self.sent_down.clone() {
            if sent != everywhere {
                self.send_watermark(view, node, peer);
            }
        }
    }

    fn send_watermark(&mut self, view: &GroupView, node: &mut Node, peer: usize) {
        let watermark = if self.below.contains_key(&peer) {
            self.watermark_down(peer, WATERMARK_TREE)
        } else {
            self.watermark_up(WATERMARK_TREE)
        };
        let group = view.id;
        view.send(node, peer, Frame::Watermark { group, watermark }, None);
    }

    /// How far this node is with a group that it has not opened again in this epoch: as far as before.
    pub(super) fn report_of(start: &Start) -> GroupReport {
        let mut retained = start.retained.clone();
        retained.extend(start.forgotten());
        retained.sort_unstable_by_key(|held| held.op);
        GroupReport {
            group: start.resume.group,
            delivered_to_all: start.delivered.iter().copied().min().unwrap_or(0),
            delivered_to_any: start.delivered.iter().copied().max().unwrap_or(0),
            retained,
            refused: None,
        }
    }

    /// How far this node is.
    pub(super) fn report(&self, group: GroupId) -> GroupReport {
        let delivered = &self.delivered;
        GroupReport {
            group,
            delivered_to_all: delivered.iter().copied().min().unwrap_or(0),
            delivered_to_any: delivered.iter().copied().max().unwrap_or(0),
            retained: self.retained.values().copied().collect(),
            refused: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Call;

    /// Whoever lost its memory may still ask for what the slowest rank of a node does not have.
    #[test]
    fn a_node_has_delivered_what_its_slowest_rank_has() {
        let mut retention = Retention::new(0, vec![0, 0], &[]);
        for op in 0..2 {
            retention.keep(Retained {
                op,
                epoch: 1,
                call: Call::barrier(),
                bytes: 0,
                complete: true,
                verdict: None,
            });
            retention.deliver(0, op);
        }
        assert_eq!(retention.watermark_up(WATERMARK_TREE).delivered, 0);
        retention.deliver(1, 0);
        assert_eq!(retention.watermark_up(WATERMARK_TREE).delivered, 1);
    }
}
