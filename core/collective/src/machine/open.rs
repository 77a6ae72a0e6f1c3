//! How a group comes to stand. Each of its ranks says with which ranks it opens it; that goes up the world's tree 0 to
//! the root, which finds that all have said the same or who has not, and the answer goes down the same ways. Then the
//! links that the group's trees need are asked for, and when they are up its ranks get the answer. A group whose ranks are all
//! on one node needs nobody else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::cause::Broken;
use super::dispute::{Claimed, Dispute, MAX_GROUPS, MAX_LINKS, OpenError, OpenReason, Opener};
use super::group::Group;
use super::view::GroupView;
use super::{Effect, Frame, GroupId, Machine, ProtocolViolation, Start, WORLD};
use crate::recovery::GroupReport;

/// Groups that may be about to open, as far as one node knows of them.
const MAX_OPENING: usize = 1 << 16;
/// Groups that were not opened of which a node remembers why, for those who come late.
const MAX_DISPUTES: usize = 1024;
/// The last of those that it reports at the end of the epoch.
const MAX_REPORTED: usize = 64;
/// The tree that openings travel in.
const OPENINGS: usize = 0;

/// Groups that are about to open.
#[derive(Debug, Default)]
pub(super) struct Openings {
    open: BTreeMap<GroupId, Opening>,
    /// Groups that were not opened, oldest first.
    disputes: VecDeque<(GroupId, Dispute)>,
}

/// A group that is about to open.
#[derive(Debug)]
struct Opening {
    began: Duration,
    /// Whether local ranks that are missing have been named.
    named: bool,
    /// Local ranks that wait for the answer.
    ranks: BTreeSet<usize>,
    /// What the first of them meant.
    meant: Option<Meant>,
    /// Whether this node has begun the group.
    begun: bool,
    /// What local ranks have said and nobody else needs to know as long as they agree.
    unsaid: Vec<Claimed>,
    /// Children that have passed something up.
    below: BTreeSet<usize>,
    /// At the root: what was said first, and who has said it.
    first: Option<Claimed>,
    last_frame: BTreeSet<u32>,
    /// All have said the same.
    agreed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Meant {
    ranks: Vec<u32>,
    replicated: bool,
    /// Local ranks of the group.
    locals: BTreeSet<usize>,
}

impl Opening {
    fn new(began: Duration) -> Self {
        Self {
            began,
            named: false,
            ranks: BTreeSet::new(),
            meant: None,
            begun: false,
            unsaid: Vec::new(),
            below: BTreeSet::new(),
            first: None,
            last_frame: BTreeSet::new(),
            agreed: false,
        }
    }

    /// Local ranks that others wait for.
    fn missing(&self) -> Vec<usize> {
        let meant = self.meant.as_ref().filter(|_| !self.begun);
        let locals = meant.map(|meant| meant.locals.difference(&self.ranks));
        locals.into_iter().flatten().copied().collect()
    }
}

impl Openings {
    /// When missing ranks have to be named.
    pub(super) fn due(&self, late: Duration) -> Option<Duration> {
        let waiting = self.open.values().filter(|one| !one.named);
        let waiting = waiting.filter(|one| !one.missing().is_empty());
        waiting.map(|one| one.began + late).min()
    }

    /// What is known from epochs before of groups that were not opened.
    pub(super) fn of_refused(starts: impl Iterator<Item = Start>) -> Self {
        let refused = starts.filter_map(|start| Some((start.resume.group, start.resume.refused?)));
        Self {
            disputes: refused.collect(),
            ..Self::default()
        }
    }

    /// Groups that were not opened and never will be.
    pub(super) fn refused(&self) -> impl Iterator<Item = GroupReport> {
        let is_lasting = |dispute: &Dispute| {
            // Another group has the number.
            let reason = OpenReason::Taken;
            !matches!(dispute, Dispute::Refused { reason: why, .. } if *why == reason)
        };
        let lasting = self.disputes.iter().filter(move |(_, why)| is_lasting(why));
        let last = lasting.rev().take(MAX_REPORTED);
        last.map(|&(id, dispute)| GroupReport::of_refused(id, dispute))
    }

    fn remember(&mut self, id: GroupId, dispute: Dispute) {
        if self.dispute(id).is_some() {
            return;
        }
        if self.disputes.len() == MAX_DISPUTES {
            self.disputes.pop_front();
        }
        self.disputes.push_back((id, dispute));
    }

    pub(super) fn dispute(&self, id: GroupId) -> Option<Dispute> {
        let mut disputes = self.disputes.iter();
        disputes.find(|(of, _)| *of == id).map(|(_, why)| *why)
    }
}

impl Machine {
    /// A local rank opens a group.
    pub(super) fn open(&mut self, id: GroupId, rank: usize, ranks: Vec<u32>, replicated: bool) {
        if self.node.holds() {
            return; // The shell hands it to the next machine.
        }
        let config = &self.node.config;
        let own = config.layout.ranks(config.node);
        let opener = Opener {
            rank: own.start + rank as u32,
            size: ranks.len() as u32,
            checksum: checksum(&ranks, replicated),
        };
        let waits = |one: &Opening| one.begun || one.ranks.contains(&rank);
        let taken = self.groups.contains_key(&id) || self.openings.open.get(&id).is_some_and(waits);
        let failed = match self.node.broken {
            Some(broken) => Some(broken.into()),
            None if taken => {
                let reason = OpenReason::Taken;
                Some(Dispute::Refused { opener, reason }.into())
            }
            None => None,
        };
        if let Some(error) = failed {
            self.answer_rank(id, rank, Err(error));
            return;
        }
        let present = ranks.iter().filter(|&&rank| config.layout.has_rank(rank));
        let present = present.count() as u32;
        let ascends = ranks.windows(2).all(|pair| pair[0] < pair[1]);
        let exists = ranks.last().is_some_and(|&last| last < config.ranks());
        let holds = ranks.binary_search(&opener.rank).is_ok();
        let mut refused = (!ascends || !exists || !holds).then_some(OpenReason::Ranks);
        let here = ranks.iter().filter(|rank| own.contains(rank));
        let locals: BTreeSet<usize> = here.map(|&one| (one - own.start) as usize).collect();
        let is_local = locals.len() == present as usize;
        let meant = Meant {
            ranks,
            replicated,
            locals,
        };
        let now = self.node.now;
        let opening = self.openings.open.entry(id);
        let opening = opening.or_insert_with(|| Opening::new(now));
        opening.ranks.insert(rank);
        let same = *opening.meant.get_or_insert_with(|| meant.clone()) == meant;
        if same && refused.is_none() && opening.missing().is_empty() {
            refused = self.begin(id, meant).err();
        }
        let claim = Claimed {
            opener,
            present,
            refused,
        };
        // Of those that it would need, some may have the answer that it is none: the root knows.
        let is_refused = self.openings.dispute(id).is_some();
        let Some(opening) = self.openings.open.get_mut(&id) else {
            return;
        };
        opening.unsaid.push(claim);
        if is_local && same && refused.is_none() && !is_refused {
            opening.agreed = opening.begun;
            self.stand(id);
        } else {
            for claim in std::mem::take(&mut opening.unsaid) {
                self.claim(id, claim);
            }
        }
        self.check_left();
    }

    /// All local ranks have opened a group alike.
    fn begin(&mut self, id: GroupId, meant: Meant) -> Result<(), OpenReason> {
        if self.groups.len() > MAX_GROUPS {
            return Err(OpenReason::Groups);
        }
        let config = &self.node.config;
        let view = GroupView::of_ranks(config, id, meant.ranks, meant.replicated);
        let view = view.ok_or(OpenReason::Gateway)?;
        let peers: Vec<usize> = view.peers().collect();
        let more = peers.iter().filter(|&&peer| !self.node.is_linked(peer));
        if self.node.count_links() + more.count() > MAX_LINKS {
            return Err(OpenReason::Links);
        }
        let start = self.starts.get(&id);
        if start.is_some_and(|start| start.delivered.len() != view.locals.len()) {
            return Err(OpenReason::Taken); // By other ranks, which have not closed it.
        }
        let start = self.starts.remove(&id);
        let group = Group::new(view, start.as_ref());
        self.groups.insert(id, group);
        self.node.out.push(Effect::Begin { group: id });
        for peer in peers {
            self.node.connect(peer);
        }
        if let Some(opening) = self.openings.open.get_mut(&id) {
            opening.begun = true;
        }
        Ok(())
    }

    /// What a rank here or below says goes on to the root.
    fn claim(&mut self, group: GroupId, claim: Claimed) {
        let config = &self.node.config;
        match config.trees.trees[OPENINGS].parent[config.node] {
            Some(parent) => self.node.send(parent, Frame::Open { group, claim }, None),
            None => self.decide(group, claim),
        }
    }

    /// At the root: whether all have said the same.
    fn decide(&mut self, id: GroupId, claim: Claimed) {
        if let Some(dispute) = self.openings.dispute(id) {
            self.opened(id, Err(dispute));
            return;
        }
        let Some(opening) = self.openings.open.get_mut(&id) else {
            return;
        };
        let opener = claim.opener;
        let first = opening.first.get_or_insert(claim);
        let same = (first.opener.size, first.opener.checksum) == (opener.size, opener.checksum);
        let dispute = match claim.refused {
            Some(reason) => Some(Dispute::Refused { opener, reason }),
            None if !same => {
                let one = first.opener;
                Some(Dispute::Mismatch { one, other: opener })
            }
            None => None,
        };
        opening.last_frame.insert(opener.rank);
        let all = opening.last_frame.len() >= first.present as usize;
        match dispute {
            Some(dispute) => self.opened(id, Err(dispute)),
            None if all => self.opened(id, Ok(())),
            None => {}
        }
    }

    /// The root's answer: to those below who wait for it, and to the ranks here.
    fn opened(&mut self, id: GroupId, outcome: Result<(), Dispute>) {
        let Some(opening) = self.openings.open.get_mut(&id) else {
            return; // Answered before.
        };
        for peer in std::mem::take(&mut opening.below) {
            let frame = Frame::Opened { group: id, outcome };
            self.node.send(peer, frame, None);
        }
        match outcome {
            Ok(()) if opening.ranks.is_empty() => {
                self.openings.open.remove(&id);
            }
            Ok(()) => {
                opening.agreed = true;
                self.stand(id);
            }
            Err(dispute) => {
                let opening = self.openings.open.remove(&id);
                self.openings.remember(id, dispute);
                if opening.as_ref().is_some_and(|opening| opening.begun) {
                    self.groups.remove(&id);
                    self.node.out.push(Effect::Closed { group: id });
                }
                for rank in opening.into_iter().flat_map(|opening| opening.ranks) {
                    self.answer_rank(id, rank, Err(dispute.into()));
                }
            }
        }
    }

    /// Reports to the ranks of a group that all have opened, once its links are up.
    fn stand(&mut self, id: GroupId) {
        let agreed = self.openings.open.get(&id).is_some_and(|one| one.agreed);
        let Some(group) = self.groups.get_mut(&id).filter(|_| agreed) else {
            return;
        };
        if !group.peers().all(|peer| self.node.is_linked(peer)) {
            return;
        }
        group.open();
        let opening = self.openings.open.remove(&id);
        for rank in opening.into_iter().flat_map(|opening| opening.ranks) {
            self.answer_rank(id, rank, Ok(()));
        }
    }

    fn answer_rank(&mut self, group: GroupId, rank: usize, outcome: Result<(), OpenError>) {
        self.node.out.push(Effect::Opened {
            group,
            rank,
            outcome,
        });
    }

    /// A link stands: groups may have waited for it.
    pub(super) fn linked(&mut self, peer: usize) {
        self.node.linked(peer);
        for id in self.openings.open.keys().copied().collect::<Vec<_>>() {
            self.stand(id);
        }
    }

    /// A frame that is about a group which is not open yet.
    pub(super) fn note_opening(
        &mut self,
        peer: usize,
        frame: &Frame,
    ) -> Result<(), ProtocolViolation> {
        let config = &self.node.config;
        let parent = &config.trees.trees[OPENINGS].parent;
        let is = |node: usize, child: usize| parent.get(child).is_some_and(|up| *up == Some(node));
        match *frame {
            Frame::Open { group, claim } => {
                if !is(config.node, peer) {
                    return Err(ProtocolViolation::Direction);
                }
                if group == WORLD || self.openings.open.len() > MAX_OPENING {
                    return Err(ProtocolViolation::Group);
                }
                let now = self.node.now;
                let opening = self.openings.open.entry(group);
                let opening = opening.or_insert_with(|| Opening::new(now));
                opening.below.insert(peer);
                self.claim(group, claim);
                Ok(())
            }
            Frame::Opened { group, outcome } if is(peer, config.node) => {
                self.opened(group, outcome);
                Ok(())
            }
            Frame::Opened { .. }
            | Frame::ReduceChunk { .. }
            | Frame::Refuse { .. }
            | Frame::BroadcastChunk { .. }
            | Frame::Fail { .. }
            | Frame::ReadyToReceive { .. }
            | Frame::Data { .. }
            | Frame::ReceiveRejected { .. }
            | Frame::Credit { .. }
            | Frame::Awaiting { .. }
            | Frame::Abort { .. }
            | Frame::Watermark { .. }
            | Frame::Heartbeat
            | Frame::Leaving { .. } => Err(ProtocolViolation::Direction),
        }
    }

    /// Names local ranks that keep others waiting for a group.
    pub(super) fn name_who_does_not_open(&mut self) {
        let (now, late) = (self.node.now, self.node.config.timing.late);
        for (&group, opening) in &mut self.openings.open {
            let ranks = opening.missing();
            if opening.named || ranks.is_empty() || now < opening.began + late {
                continue;
            }
            opening.named = true;
            let op = 0;
            self.node.out.push(Effect::Late { group, op, ranks });
        }
    }

    /// A group that needs a rank of this node which has left never opens: say so instead of waiting. Of one that was not
    /// opened it may have learnt that before it left.
    pub(super) fn check_left(&mut self) {
        let missing = |(&id, one): (&GroupId, &Opening)| {
            let mut missing = one.missing().into_iter();
            let left = missing.find(|rank| self.node.left.contains(rank));
            left.filter(|_| self.openings.dispute(id).is_none())
        };
        let Some(rank) = self.openings.open.iter().find_map(missing) else {
            return;
        };
        let by = self.node.config.node;
        let rank = self.node.config.layout.ranks(by).start + rank as u32;
        let op = 0;
        self.node
            .break_with(Broken::RankLeft { rank, by, op }, None);
    }

    /// The epoch is over, and with it what was about to open.
    pub(super) fn close_openings(&mut self, broken: Broken) {
        let holds = self.node.holds();
        for (id, opening) in std::mem::take(&mut self.openings.open) {
            for rank in opening.ranks.into_iter().filter(|_| !holds) {
                self.answer_rank(id, rank, Err(broken.into()));
            }
        }
    }
}

/// FNV-1a over the ranks: distinguishes lists that differ by mistake.
fn checksum(ranks: &[u32], replicated: bool) -> u64 {
    let words = ranks.iter().copied().chain([u32::from(replicated)]);
    words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
        (sum ^ u64::from(word))
            .wrapping_mul(0x0100_0000_01b3)
            .rotate_left(23)
    })
}
