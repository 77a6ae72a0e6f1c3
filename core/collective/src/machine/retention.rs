//! What is final in a group: here, in this node's subtree of tree 0, and everywhere. Marks ride up with parts and down
//! with chunks of tree 0, and with heartbeats; where an end waits for everybody they travel at once. A result is kept
//! until every node has told its ranks, because it may have to be served to one that lost its memory.

use std::collections::BTreeMap;
use topology::OnPeerLoss;

use super::cause::Violation;
use super::config::{Handover, MAX_IN_FLIGHT, Recovery, Start};
use super::io::{Frame, GroupId, Mark, OpId};
use super::node::Node;
use super::view::GroupView;
use crate::recovery::{GroupReport, Held};

/// How far marks may fall behind before they travel on their own: half of what a rank may have in flight.
const URGENT: u64 = MAX_IN_FLIGHT / 2;
/// The tree that marks travel in.
pub(super) const MARKS: usize = 0;

/// What is final.
#[derive(Clone, Debug)]
pub(super) struct Retention {
    /// Operations that are final here, from the first that somebody may need.
    kept: BTreeMap<OpId, Held>,
    /// For each local rank, the first operation whose end was not delivered to it.
    delivered: Vec<OpId>,
    /// This node alone: `done` is the first operation that is not final here.
    own: Mark,
    /// The last that each child in tree 0 has said of its subtree.
    below: BTreeMap<usize, Mark>,
    /// Of all nodes, as far as it is known here.
    everywhere: Mark,
    sent_up: Mark,
    sent_down: BTreeMap<usize, Mark>,
}

impl Retention {
    /// `delivered`: for each local rank, the first operation whose end was not delivered to it. All before `base` are over.
    pub(super) fn new(base: OpId, delivered: Vec<OpId>, children: &[usize]) -> Self {
        let mark = Mark {
            done: base,
            told: base,
        };
        let each: BTreeMap<usize, Mark> = children.iter().map(|&child| (child, mark)).collect();
        let mut retention = Self {
            kept: BTreeMap::new(),
            delivered,
            own: mark,
            below: each.clone(),
            everywhere: mark,
            sent_up: mark,
            sent_down: each,
        };
        retention.note_delivered();
        retention
    }

    /// An operation is final here.
    pub(super) fn keep(&mut self, held: Held) {
        self.kept.insert(held.op, held);
        while self.kept.contains_key(&self.own.done) {
            self.own.done += 1;
        }
        // It may have been delivered in an epoch before.
        self.note_delivered();
    }

    pub(super) fn kept(&self, op: OpId) -> Option<&Held> {
        self.kept.get(&op)
    }

    /// The end of an operation was delivered to a rank.
    pub(super) fn deliver(&mut self, rank: usize, op: OpId) {
        self.delivered[rank] = self.delivered[rank].max(op + 1);
        self.note_delivered();
    }

    fn note_delivered(&mut self) {
        let all = self.delivered.iter().copied().min().unwrap_or(0);
        self.own.told = all.min(self.own.done).max(self.own.told);
    }

    /// The first operation whose result somebody may still need.
    pub(super) fn released(&self) -> OpId {
        self.everywhere.told
    }

    /// Whether the end of an operation that is final here may be delivered to a rank.
    pub(super) fn may_deliver(&self, rank: usize, op: OpId, recovery: &Recovery) -> bool {
        let is_stable = match recovery.handover {
            Handover::Stable => op < self.everywhere.done,
            Handover::Immediate => true,
        };
        // In order, so that one number says what was delivered to a rank.
        let is_next = match recovery.on_peer_loss {
            OnPeerLoss::Shrink => self.delivered[rank] == op,
            OnPeerLoss::Restart => true,
        };
        is_stable && is_next
    }

    /// Lets go of the operations that need not be kept any more.
    pub(super) fn release(&mut self, on_peer_loss: OnPeerLoss) -> Vec<OpId> {
        let end = match on_peer_loss {
            OnPeerLoss::Shrink => self.everywhere.told,
            // Nobody is ever served.
            OnPeerLoss::Restart => self.own.told,
        };
        if self.kept.first_key_value().is_none_or(|(&op, _)| op >= end) {
            return Vec::new();
        }
        let rest = self.kept.split_off(&end);
        std::mem::replace(&mut self.kept, rest)
            .into_keys()
            .collect()
    }

    fn subtree(&self) -> Mark {
        self.below.values().fold(self.own, |all, &below| Mark {
            done: all.done.min(below.done),
            told: all.told.min(below.told),
        })
    }

    fn learn(&mut self, mark: Mark) {
        self.everywhere.done = self.everywhere.done.max(mark.done);
        self.everywhere.told = self.everywhere.told.max(mark.told);
    }

    /// The mark that rides with the next part to the parent in a tree.
    pub(super) fn mark_up(&mut self, tree: usize) -> Mark {
        if tree == MARKS {
            self.sent_up = self.subtree();
        }
        self.sent_up
    }

    /// The mark that rides with the next chunk to a child in a tree.
    pub(super) fn mark_down(&mut self, peer: usize, tree: usize) -> Mark {
        let everywhere = self.everywhere;
        if tree == MARKS {
            self.sent_down.insert(peer, everywhere);
        }
        everywhere
    }

    /// A neighbour in tree 0 says how far its subtree is, or everybody.
    /// `oldest`: the first operation that is not over here.
    pub(super) fn on_mark(
        &mut self,
        view: &GroupView,
        peer: usize,
        mark: Mark,
        oldest: OpId,
    ) -> Result<(), Violation> {
        if mark.told > mark.done || mark.done > oldest + 4 * MAX_IN_FLIGHT {
            return Err(Violation::Operation);
        }
        if let Some(below) = self.below.get_mut(&peer) {
            below.done = below.done.max(mark.done);
            below.told = below.told.max(mark.told);
            return Ok(());
        }
        if view.parent(MARKS) != Some(peer) {
            return Err(Violation::Direction);
        }
        self.learn(mark);
        Ok(())
    }

    /// A node that leaves in good order has delivered all that it had ended to its ranks, which says that it was final
    /// everywhere where deliveries wait for that.
    pub(super) fn on_leave(&mut self, view: &GroupView, peer: usize, ended: OpId) {
        let mark = Mark {
            done: ended,
            told: ended,
        };
        if let Some(below) = self.below.get_mut(&peer) {
            *below = mark;
        }
        if view.recovery.handover == Handover::Stable {
            self.learn(Mark { told: 0, ..mark });
        }
    }

    /// Learns what follows at the root, and sends marks that cannot wait for a chunk or a heartbeat.
    pub(super) fn pass_marks(&mut self, view: &GroupView, node: &mut Node) {
        let recovery = view.recovery;
        if !recovery.needs_marks() {
            return; // Nobody waits for what they say.
        }
        let subtree = self.subtree();
        if view.parent(MARKS).is_none() {
            self.learn(subtree);
        }
        if (recovery.handover, recovery.on_peer_loss) == (Handover::Immediate, OnPeerLoss::Restart)
        {
            return; // Nothing is kept that marks could let go.
        }
        let due = |news: Mark, sent: Mark| match (recovery.handover, recovery.on_peer_loss) {
            (Handover::Stable, OnPeerLoss::Restart) => news.done > sent.done,
            (Handover::Stable, OnPeerLoss::Shrink) => {
                news.done > sent.done || news.told >= sent.told + URGENT
            }
            (Handover::Immediate, OnPeerLoss::Shrink) => news.told >= sent.told + URGENT,
            (Handover::Immediate, OnPeerLoss::Restart) => false,
        };
        if due(subtree, self.sent_up)
            && let Some(peer) = view.parent(MARKS)
        {
            self.send_mark(view, node, peer);
        }
        let everywhere = self.everywhere;
        let sent = self.sent_down.clone();
        for (peer, sent) in sent {
            if due(everywhere, sent) {
                self.send_mark(view, node, peer);
            }
        }
    }

    /// Says something new to a neighbour in place of a heartbeat. False when there is nothing.
    pub(super) fn beat(&mut self, view: &GroupView, node: &mut Node, peer: usize) -> bool {
        let news = match self.sent_down.get(&peer) {
            Some(&sent) => sent != self.everywhere,
            None => view.parent(MARKS) == Some(peer) && self.sent_up != self.subtree(),
        };
        if news {
            self.send_mark(view, node, peer);
        }
        news
    }

    /// The group is over here: those below learn now what they would never hear any more.
    pub(super) fn send_last_marks(&mut self, view: &GroupView, node: &mut Node) {
        let everywhere = self.everywhere;
        for (peer, sent) in self.sent_down.clone() {
            if sent != everywhere {
                self.send_mark(view, node, peer);
            }
        }
    }

    fn send_mark(&mut self, view: &GroupView, node: &mut Node, peer: usize) {
        let mark = if self.below.contains_key(&peer) {
            self.mark_down(peer, MARKS)
        } else {
            self.mark_up(MARKS)
        };
        let group = view.id;
        view.send(node, peer, Frame::Mark { group, mark }, None);
    }

    /// How far this node is with a group that it has not opened again in this epoch: as far as before.
    pub(super) fn report_of(start: &Start) -> GroupReport {
        GroupReport {
            group: start.resume.group,
            told_all: start.told.iter().copied().min().unwrap_or(0),
            told_any: start.told.iter().copied().max().unwrap_or(0),
            held: start.held.clone(),
            refused: None,
        }
    }

    /// How far this node is.
    pub(super) fn report(&self, group: GroupId) -> GroupReport {
        let delivered = &self.delivered;
        GroupReport {
            group,
            told_all: delivered.iter().copied().min().unwrap_or(0),
            told_any: delivered.iter().copied().max().unwrap_or(0),
            held: self.kept.values().copied().collect(),
            refused: None,
        }
    }
}
