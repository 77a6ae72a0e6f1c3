//! Ranks that have called and left: what the next sidecar has to know of them, and what each new epoch does for them.

use std::collections::BTreeMap;

use collective::machine::{GroupId, Input, OpId, WORLD};
use tracing::warn;
use wire::attach::Standing;

use super::{Engine, Seat};
use crate::session::{Departed, Lane, Session};
use crate::welcomed::Left;

impl Engine {
    /// A process leaves in good order. One that never called anything may come again.
    pub(super) fn depart(&mut self, rank: usize) {
        let called_any = self.sessions.get(&rank).is_some_and(Session::has_called);
        if let Some(session) = self.sessions.get(&rank) {
            self.kept_bytes[rank] += session.lent_bytes();
        }
        let session = self.close_session(rank);
        let Some(session) = session.filter(|_| called_any) else {
            self.seats[rank] = Seat::Free;
            if let Some(Err(error)) = self.welcomed.as_ref().map(|record| record.strike(rank)) {
                warn!(%error, local_rank = rank, "the next sidecar will wait for a process that left");
            }
            return;
        };
        let departed = Departed::of(session);
        let record = self.welcomed.as_ref();
        let noted = record.map(|record| record.note_left(rank, departed.record()));
        if let Some(Err(error)) = noted {
            warn!(%error, local_rank = rank, "the next sidecar will wait for a process that left");
        }
        self.seats[rank] = Seat::Left;
        self.departed.insert(rank, departed);
        self.handle(Input::RankLeft { rank });
    }

    /// Takes the places of those who left an earlier sidecar. Who cannot be such a one is waited for.
    pub(super) fn take_departed(&mut self, left: &BTreeMap<usize, Left>) {
        for (&rank, left) in left {
            let standing = Standing {
                local_rank: rank as u32,
                rank: self.standing.rank + rank as u32,
                ..self.standing
            };
            match Departed::of_record(left, standing) {
                Ok(departed) => {
                    self.seats[rank] = Seat::Left;
                    self.told[rank] = left.told;
                    self.departed.insert(rank, departed);
                }
                Err(reason) => {
                    warn!(
                        reason,
                        local_rank = rank,
                        "the record of a process that left cannot be true: waiting for it"
                    );
                    self.awaited.get_or_insert_default().insert(rank);
                }
            }
        }
    }

    /// A process in one of its groups, also when it has left.
    pub(super) fn lane(&self, group: GroupId, rank: usize) -> Option<&Lane> {
        match self.sessions.get(&rank) {
            Some(session) => session.lane(group),
            None => self.departed.get(&rank)?.lane(group),
        }
    }

    /// Does in a new epoch for those who left what the others do themselves.
    pub(super) fn go_on_for_departed(&mut self) {
        for rank in self.departed.keys().copied().collect::<Vec<_>>() {
            self.call_again(WORLD, rank);
            let Some(departed) = self.departed.get_mut(&rank) else {
                continue;
            };
            departed.reopen();
            let groups: Vec<GroupId> = departed.groups().filter(|group| *group != WORLD).collect();
            for group in groups {
                self.open(group, rank);
            }
            self.say_left_when_reopened(rank);
        }
    }

    /// A group of one who left stands again, or never will: then for this reason.
    pub(super) fn opened_for_departed(
        &mut self,
        group: GroupId,
        rank: usize,
        outcome: Result<(), String>,
    ) {
        let Some(departed) = self.departed.get_mut(&rank) else {
            return;
        };
        let stands = outcome.is_ok();
        departed.opened(group, outcome);
        if stands {
            self.call_again(group, rank);
        }
        self.say_left_when_reopened(rank);
    }

    /// The machine learns that a rank has left when it has all that the rank called.
    fn say_left_when_reopened(&mut self, rank: usize) {
        if self.departed.get(&rank).is_some_and(Departed::has_reopened) {
            self.handle(Input::RankLeft { rank });
        }
    }

    /// An operation of one who left is over.
    pub(super) fn ended_for_departed(
        &mut self,
        (group, op): (GroupId, OpId),
        rank: usize,
        succeeded: bool,
    ) {
        if let Some(departed) = self.departed.get_mut(&rank) {
            departed.ended(group, op, succeeded);
        }
    }
}
