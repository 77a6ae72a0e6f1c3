//! What is final in a group: here, in this node's subtree of tree 0, and everywhere. Marks ride up with parts and down
//! with chunks of tree 0, and with heartbeats; where an end waits for everybody they travel at once. A result is kept
//! until every node has told its ranks, because it may have to be served to one that lost its memory.

use std::collections::BTreeMap;

use super::group::Group;
use super::node::Node;
use super::{
    Effect, Frame, Handover, MAX_IN_FLIGHT, Mark, OnPeerLoss, OpId, Recovery, Start, Violation,
};
use crate::recovery::{GroupReport, Held};

/// How far marks may fall behind before they travel on their own: half of what a rank may have in flight.
const URGENT: u64 = MAX_IN_FLIGHT / 2;
/// The tree that marks travel in.
pub(super) const MARKS: usize = 0;

/// What is final.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// Operations that are final here, from the first that somebody may need.
    kept: BTreeMap<OpId, Held>,
    /// For each local rank, the first operation whose end it was not told.
    told: Vec<OpId>,
    /// This node alone: `done` is the first operation that is not final here.
    own: Mark,
    /// The last that each child in tree 0 has said of its subtree.
    below: BTreeMap<usize, Mark>,
    /// Of all nodes, as far as it is known here.
    everywhere: Mark,
    sent_up: Mark,
    sent_down: BTreeMap<usize, Mark>,
}

impl History {
    /// `told`: for each local rank, the first operation whose end it was not told. All before `base` are over.
    pub(super) fn new(base: OpId, told: Vec<OpId>, children: &[usize]) -> Self {
        let mark = Mark {
            done: base,
            told: base,
        };
        let each: BTreeMap<usize, Mark> = children.iter().map(|&child| (child, mark)).collect();
        let mut history = Self {
            kept: BTreeMap::new(),
            told,
            own: mark,
            below: each.clone(),
            everywhere: mark,
            sent_up: mark,
            sent_down: each,
        };
        history.note_told();
        history
    }

    /// An operation is final here.
    pub(super) fn keep(&mut self, held: Held) {
        self.kept.insert(held.op, held);
        while self.kept.contains_key(&self.own.done) {
            self.own.done += 1;
        }
        // Ranks may have been told in an epoch before.
        self.note_told();
    }

    pub(super) fn kept(&self, op: OpId) -> Option<&Held> {
        self.kept.get(&op)
    }

    /// A rank was told the end of an operation.
    pub(super) fn tell(&mut self, rank: usize, op: OpId) {
        self.told[rank] = self.told[rank].max(op + 1);
        self.note_told();
    }

    fn note_told(&mut self) {
        let all = self.told.iter().copied().min().unwrap_or(0);
        self.own.told = all.min(self.own.done).max(self.own.told);
    }

    /// The first operation whose result somebody may still need.
    pub(super) fn released(&self) -> OpId {
        self.everywhere.told
    }

    /// Whether a rank may be told the end of an operation that is final here.
    pub(super) fn may_tell(&self, rank: usize, op: OpId, recovery: &Recovery) -> bool {
        let is_stable = match recovery.handover {
            Handover::Stable => op < self.everywhere.done,
            Handover::Immediate => true,
        };
        // In order, so that one number says what a rank was told.
        let is_next = match recovery.on_peer_loss {
            OnPeerLoss::Hold => self.told[rank] == op,
            OnPeerLoss::Fail => true,
        };
        is_stable && is_next
    }

    /// The operations that need not be kept any more.
    pub(super) fn let_go(&mut self, on_peer_loss: OnPeerLoss) -> Vec<OpId> {
        let end = match on_peer_loss {
            OnPeerLoss::Hold => self.everywhere.told,
            // Nobody is ever served.
            OnPeerLoss::Fail => self.own.told,
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
}

impl Group {
    /// The mark that rides with the next part to the parent in a tree.
    pub(super) fn mark_up(&mut self, tree: usize) -> Mark {
        if tree == MARKS {
            self.history.sent_up = self.history.subtree();
        }
        self.history.sent_up
    }

    /// The mark that rides with the next chunk to a child in a tree.
    pub(super) fn mark_down(&mut self, peer: usize, tree: usize) -> Mark {
        let everywhere = self.history.everywhere;
        if tree == MARKS {
            self.history.sent_down.insert(peer, everywhere);
        }
        everywhere
    }

    /// A neighbour in tree 0 says how far its subtree is, or everybody.
    pub(super) fn marked(&mut self, peer: usize, mark: Mark) -> Result<(), Violation> {
        if mark.told > mark.done || mark.done > self.oldest() + 4 * MAX_IN_FLIGHT {
            return Err(Violation::Operation);
        }
        if let Some(below) = self.history.below.get_mut(&peer) {
            below.done = below.done.max(mark.done);
            below.told = below.told.max(mark.told);
            return Ok(());
        }
        match &self.parents[MARKS] {
            Some((parent, _)) if *parent == peer => {
                self.history.learn(mark);
                Ok(())
            }
            Some(_) | None => Err(Violation::Direction),
        }
    }

    /// Who leaves in good order has told its ranks of all that it had ended, which says that it was final everywhere
    /// where ends wait for that.
    pub(super) fn marked_by_farewell(&mut self, peer: usize, ended: OpId, handover: Handover) {
        let mark = Mark {
            done: ended,
            told: ended,
        };
        if let Some(below) = self.history.below.get_mut(&peer) {
            *below = mark;
        }
        if handover == Handover::Stable {
            self.history.learn(Mark { told: 0, ..mark });
        }
    }

    /// Learns what follows at the root, and sends marks that cannot wait for a chunk or a heartbeat.
    pub(super) fn pass_marks(&mut self, node: &mut Node) {
        if !node.config.recovery.needs_marks() {
            return; // Nobody waits for what they say.
        }
        let subtree = self.history.subtree();
        if self.parents[MARKS].is_none() {
            self.history.learn(subtree);
        }
        let recovery = node.config.recovery;
        if (recovery.handover, recovery.on_peer_loss) == (Handover::Immediate, OnPeerLoss::Fail) {
            return; // Nothing is kept that marks could let go.
        }
        let due = |news: Mark, sent: Mark| match (recovery.handover, recovery.on_peer_loss) {
            (Handover::Stable, OnPeerLoss::Fail) => news.done > sent.done,
            (Handover::Stable, OnPeerLoss::Hold) => {
                news.done > sent.done || news.told >= sent.told + URGENT
            }
            (Handover::Immediate, OnPeerLoss::Hold) => news.told >= sent.told + URGENT,
            (Handover::Immediate, OnPeerLoss::Fail) => false,
        };
        if due(subtree, self.history.sent_up)
            && let Some(peer) = self.parents[MARKS].as_ref().map(|&(peer, _)| peer)
        {
            self.send_mark(node, peer);
        }
        let everywhere = self.history.everywhere;
        let sent = self.history.sent_down.clone();
        for (peer, sent) in sent {
            if due(everywhere, sent) {
                self.send_mark(node, peer);
            }
        }
    }

    /// Says something new to a neighbour in place of a heartbeat. False when there is nothing.
    pub(super) fn beat(&mut self, node: &mut Node, peer: usize) -> bool {
        let Some(peer) = self.part.place(peer) else {
            return false;
        };
        let news = match self.history.sent_down.get(&peer) {
            Some(&sent) => sent != self.history.everywhere,
            None => {
                let is_parent =
                    matches!(&self.parents[MARKS], Some((parent, _)) if *parent == peer);
                is_parent && self.history.sent_up != self.history.subtree()
            }
        };
        if news {
            self.send_mark(node, peer);
        }
        news
    }

    /// The group is over here: those below learn now what they would never hear any more.
    pub(super) fn say_last_marks(&mut self, node: &mut Node) {
        let everywhere = self.history.everywhere;
        for (peer, sent) in self.history.sent_down.clone() {
            if sent != everywhere {
                self.send_mark(node, peer);
            }
        }
    }

    fn send_mark(&mut self, node: &mut Node, peer: usize) {
        let mark = if self.history.below.contains_key(&peer) {
            self.mark_down(peer, MARKS)
        } else {
            self.mark_up(MARKS)
        };
        let group = self.id;
        self.send(node, peer, Frame::Mark { group, mark }, None);
    }

    /// Lets go of results that nobody can need any more.
    pub(super) fn release_kept(&mut self, node: &mut Node) {
        if node.config.recovery.on_peer_loss == OnPeerLoss::Fail {
            self.history.let_go(OnPeerLoss::Fail);
            return;
        }
        // An operation that still moves is released when it is over.
        for op in self.history.let_go(OnPeerLoss::Hold) {
            if self.ops.contains_key(&op) {
                continue;
            }
            self.over |= self.closed == Some(op);
            let group = self.id;
            node.out.push(Effect::Release { group, op });
        }
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
    pub(super) fn report(&self) -> GroupReport {
        let told = &self.history.told;
        GroupReport {
            group: self.id,
            told_all: told.iter().copied().min().unwrap_or(0),
            told_any: told.iter().copied().max().unwrap_or(0),
            held: self.history.kept.values().copied().collect(),
            refused: None,
        }
    }
}
