//! The engine's groups: what its processes open, the memory and the links that groups need, and their end.

use collective::machine::{Cause, Dispute, GroupId, Input, OpenError, OpenReason, Reason, Verdict};
use collective::session::OpeningAnswer;
use hfreduce_client::entry::FailureKind;
use tracing::{debug, error, info};

use super::{Engine, epoch};
use crate::session::PendingCall;

impl Engine {
    /// A process opens a group.
    pub(super) fn open(&mut self, group: GroupId, rank: usize, open: Input) {
        match self.local.ranks().over().map(str::to_owned) {
            Some(over) => self.fail_open(group, rank, FailureKind::Broken, &over),
            None => self.hand_in([open]),
        }
    }

    /// Hands inputs to the machine, openings with their priority.
    pub(super) fn hand_in(&mut self, inputs: impl IntoIterator<Item = Input>) {
        for input in inputs {
            if let Input::Open { group, rank, .. } = input
                && let Some(lane) = self.local.ranks().lane(group, rank)
            {
                self.driver.prefer(group, lane.priority());
            }
            self.handle(input);
        }
    }

    /// The answer to that.
    pub(super) fn opened(&mut self, group: GroupId, rank: usize, outcome: Result<(), OpenError>) {
        let kind = match outcome {
            Ok(()) => {
                let epoch = self.driver.config().fence.epoch;
                let answer = self.local.ranks_mut().opened(group, rank);
                if let Some(ticket) = answer.ticket
                    && let Some(session) = self.local.session(rank)
                {
                    debug!(group, local_rank = rank, "a group is open");
                    if let Err(error) = session.opened(ticket, &answer.over, epoch) {
                        self.lose_session(rank, &error);
                        return;
                    }
                }
                self.hand_in(answer.inputs);
                return;
            }
            Err(OpenError::Dispute(Dispute::Mismatch { .. })) => FailureKind::Mismatch,
            Err(OpenError::Dispute(Dispute::Refused { .. })) => FailureKind::Refused,
            Err(OpenError::Broken(_)) => FailureKind::Broken,
        };
        let text = match outcome {
            Err(OpenError::Broken(broken)) => self.members.text(&broken.into()),
            Err(OpenError::Dispute(dispute)) => dispute.to_string(),
            Ok(()) => return,
        };
        info!(group, local_rank = rank, text, "a group was not opened");
        let taken = OpenReason::Taken;
        if !matches!(outcome, Err(OpenError::Dispute(Dispute::Refused { reason, .. })) if reason == taken)
        {
            self.memory.drop_results(group);
        }
        self.fail_open(group, rank, kind, &text);
    }

    fn fail_open(&mut self, group: GroupId, rank: usize, kind: FailureKind, text: &str) {
        let answer = self.local.ranks_mut().fail(group, rank, text);
        self.deliver_failure(rank, kind, text, answer);
    }

    /// Delivers to a process that its opening has failed, or all that it called in a group.
    pub(super) fn deliver_failure(
        &mut self,
        rank: usize,
        kind: FailureKind,
        text: &str,
        answer: OpeningAnswer<PendingCall>,
    ) {
        if let Some(session) = self.local.session(rank) {
            let called = answer.failed.iter().map(|called| called.kept.ticket);
            let called = called.map(|ticket| (ticket, FailureKind::Broken));
            let opening = answer.ticket.map(|ticket| (ticket, kind));
            let mut all = opening.into_iter().chain(called);
            let sent = all.try_for_each(|(ticket, kind)| session.fail(ticket, kind, text.into()));
            if let Err(error) = sent {
                self.lose_session(rank, &error);
            }
        }
        self.hand_in(answer.inputs);
    }

    /// A group needs its slots.
    pub(super) fn begin_group(&mut self, group: GroupId) {
        let mut sizes = epoch::sizes(&self.driver, group, &self.links);
        // Links that keep payload in their own memory may come later; until then nothing is written to these.
        sizes.receives.append(&mut sizes.borrows);
        if let Err(error) = self.memory.add_edges(group, &sizes) {
            error!(%error, group, "no memory for the slots of a group; ending the epoch");
            self.handle(Input::Revoke);
        }
    }

    /// A group is over here, or never was.
    pub(super) fn forget_group(&mut self, group: GroupId) {
        self.memory.forget_group(group);
        self.driver.forget_group(group);
        self.local.ranks_mut().forget_group(group);
    }

    /// Who was lost, in words that follow those of a cause that is about it; nothing for others. A refusal itself names
    /// who called.
    pub(super) fn lost_for(&self, (group, rank): (GroupId, usize), cause: &Cause) -> String {
        let Cause::Verdict(Verdict::Refusal(refusal)) = cause else {
            return String::new();
        };
        let lane = self.local.ranks().lane(group, rank);
        let Some(lane) = lane.filter(|_| is_about_a_loss(refusal.reason)) else {
            return String::new();
        };
        self.members.lost(lane.ranks(), self.local.each().max(1))
    }

    /// A group needs a link to a member.
    pub(super) fn connect(&mut self, peer: usize) {
        let rank = self.members.rank_of(peer);
        info!(
            node = rank,
            name = self.members.name(peer),
            "linking for a group"
        );
        self.links.connect(rank);
    }

    /// Takes the links that stand since.
    pub(super) fn take_links(&mut self) {
        let ends = self.control.stopping().is_some();
        let (poller, members) = (&self.poller, &self.members);
        for (peer, watched) in
            self.links
                .take_established(ends, poller, members, self.telemetry.metrics())
        {
            if let Err(error) = watched {
                error!(%error, node = self.members.rank_of(peer), "failed to poll a link");
                self.handle(Input::PeerLost { peer });
            } else {
                self.handle(Input::Linked { peer });
            }
        }
    }
}

fn is_about_a_loss(reason: Reason) -> bool {
    match reason {
        Reason::RootLost | Reason::RanksLost | Reason::NotReplicated => true,
        Reason::Root
        | Reason::Size
        | Reason::Factor
        | Reason::Bits
        | Reason::Parts
        | Reason::Input
        | Reason::Limit
        | Reason::Memory
        | Reason::Splits
        | Reason::Closed
        | Reason::Left
        | Reason::Tags => false,
    }
}
