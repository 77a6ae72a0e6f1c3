//! What all groups of a node share: its links and whether they live, time, the work that is out, who has left, and
//! whether the epoch is over. What a group does with a link is in `traffic` and `p2p`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use topology::OnPeerLoss;

use super::cause::Broken;
use super::config::Config;
use super::dispute::MAX_LINKS;
use super::io::{Effect, Frame, GroupId, OpId, Region, Ticket, WORLD};

/// What was dropped, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames of another attempt or epoch.
    pub stale_frames: u64,
    /// Frames for an operation that had failed before.
    pub late_frames: u64,
}

/// A neighbour.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) last_frame: Duration,
    pub(super) sent: Duration,
    pub(super) suspect: bool,
    /// Whether its other end has left in good order.
    pub(super) left: bool,
}

impl Link {
    fn new(now: Duration) -> Self {
        Self {
            last_frame: now,
            sent: now,
            suspect: false,
            left: false,
        }
    }
}

/// What a ticket stands for, in its group.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// A reduction or copy for a chunk.
    Part { op: OpId, chunk: u32 },
    /// A payload on its way to the parent.
    Up { op: OpId, tree: usize, slot: u8 },
    /// A payload on its way to a child.
    Down { op: OpId, tree: usize, peer: usize },
    /// A chunk of a message on its way to the next node, or within this one.
    P2p,
}

/// How this node leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Not at all.
    No,
    /// When nothing is in flight any more.
    Draining,
    /// It has.
    Left,
}

/// What is common to all groups.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) config: Config,
    pub(super) now: Duration,
    pub(super) links: BTreeMap<usize, Link>,
    /// Links that were asked for and are not established yet.
    asked: BTreeSet<usize>,
    pub(super) work: BTreeMap<Ticket, (GroupId, Work)>,
    tickets: u64,
    pub(super) broken: Option<Broken>,
    pub(super) leaving: Leaving,
    /// Local ranks that closed their session.
    pub(super) left: BTreeSet<usize>,
    pub(super) counters: Counters,
    /// Before this nothing about the links is due.
    pub(super) due: Duration,
    /// Effects of the input at hand.
    pub(super) out: Vec<Effect>,
}

impl Node {
    pub(super) fn new(config: Config, now: Duration) -> Self {
        let peers = config.trees.tree_peers(config.node);
        Self {
            now,
            links: peers
                .into_iter()
                .map(|peer| (peer, Link::new(now)))
                .collect(),
            asked: BTreeSet::new(),
            work: BTreeMap::new(),
            tickets: 0,
            broken: None,
            leaving: Leaving::No,
            left: BTreeSet::new(),
            counters: Counters::default(),
            due: Duration::ZERO,
            out: Vec::new(),
            config,
        }
    }

    /// Asks for a link that a group needs, unless it is there.
    pub(super) fn connect(&mut self, peer: usize) {
        if !self.links.contains_key(&peer) && self.asked.insert(peer) {
            self.out.push(Effect::Connect { peer });
        }
    }

    /// Asks for a link that makes a way shorter, as far as links may be had.
    pub(super) fn connect_if_there_is_room(&mut self, peer: usize) {
        if self.count_links() < MAX_LINKS {
            self.connect(peer);
        }
    }

    /// Whether a neighbour has left in good order.
    pub(super) fn has_left(&self, peer: usize) -> bool {
        self.links.get(&peer).is_some_and(|link| link.left)
    }

    /// Links that are there or were asked for.
    pub(super) fn count_links(&self) -> usize {
        self.links.len() + self.asked.len()
    }

    pub(super) fn is_linked(&self, peer: usize) -> bool {
        self.links.contains_key(&peer)
    }

    /// A link is established. What has happened meanwhile is said over it as over the others.
    pub(super) fn linked(&mut self, peer: usize) {
        self.asked.remove(&peer);
        if self.links.contains_key(&peer) || peer >= self.config.layout.nodes() {
            return;
        }
        self.links.insert(peer, Link::new(self.now));
        self.due = Duration::ZERO;
        if let Some(broken) = self.broken {
            let frame = Frame::Abort { broken };
            self.send(peer, frame, None);
        }
        if self.leaving == Leaving::Left {
            let (group, ended) = (WORLD, OpId::MAX);
            self.send(peer, Frame::Leaving { group, ended }, None);
        }
    }

    pub(super) fn peers(&self) -> Vec<usize> {
        self.links.keys().copied().collect()
    }

    /// Whether operations wait for the next epoch: this one has stopped.
    pub(super) fn holds(&self) -> bool {
        self.broken.is_some() && self.config.recovery.on_peer_loss == OnPeerLoss::Shrink
    }

    pub(super) fn ticket(&mut self, group: GroupId, work: Work) -> Ticket {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        self.work.insert(ticket, (group, work));
        ticket
    }

    pub(super) fn send(&mut self, peer: usize, frame: Frame, payload: Option<(Ticket, Region)>) {
        if let Some(link) = self.links.get_mut(&peer) {
            link.sent = self.now;
        }
        self.out.push(Effect::Send {
            peer,
            frame,
            payload,
        });
    }

    /// Ends the epoch: reports it to the shell, and to all neighbours once. `from`: the neighbour who said so, who needs no
    /// answer. The groups stop when the input at hand is dealt with.
    pub(super) fn break_with(&mut self, broken: Broken, from: Option<usize>) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some(broken);
        self.out.push(Effect::Broken { broken });
        // Nobody listens at the other end of a link that is gone.
        let lost = match broken {
            Broken::NodeLost { node, by } if by == self.config.node => Some(node),
            Broken::NodeLost { .. }
            | Broken::NodeSilent { .. }
            | Broken::NodeLeft { .. }
            | Broken::RankLost { .. }
            | Broken::RankLeft { .. }
            | Broken::Protocol { .. }
            | Broken::Revoked => None,
        };
        for peer in self.peers() {
            let left = self.has_left(peer);
            if Some(peer) != from && Some(peer) != lost && !left {
                self.send(peer, Frame::Abort { broken }, None);
            }
        }
    }

    pub(super) fn peer_lost(&mut self, peer: usize) {
        // Once we have left the others close their ends.
        let expected = self.leaving == Leaving::Left;
        let needed = match self.links.get(&peer) {
            Some(link) => !link.left,
            None => self.asked.contains(&peer),
        };
        if !expected && needed {
            let by = self.config.node;
            self.break_with(Broken::NodeLost { node: peer, by }, None);
        }
    }
}
