//! Who is there: members are counted as they come, join, leave and fall silent, so that no event costs a look at all.

use super::{Break, Connection, Member, Membership, QUIET, Stage};

/// What [`Effect::Changed`] is about, so small that it is compared after each event: lists are as new as their counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    epoch: u64,
    stage: Option<Stage>,
    known: usize,
    joined: usize,
    left: usize,
    stopped: usize,
    out: usize,
    broken: Option<Break>,
    changes: u64,
}

impl Membership {
    pub(super) fn summary(&self) -> Summary {
        Summary {
            epoch: self.epoch,
            stage: Some(self.stage),
            known: self.members.len(),
            joined: self.joined,
            left: self.left,
            stopped: self.recovery.stopped(),
            out: self.recovery.out(),
            broken: self.broken,
            changes: self.changes,
        }
    }

    /// Who has sent nothing for too long. Time passes by ticks.
    pub(super) fn look_who_is_quiet(&mut self) {
        for (&rank, member) in &self.members {
            if !member.left && self.now >= member.last_heartbeat + QUIET && self.quiet.insert(rank)
            {
                self.changes += 1;
            }
        }
    }

    /// The connection by which a member speaks: while it does, another one is not let in its place.
    pub(super) fn connection_of(&self, rank: u32) -> Option<Connection> {
        let member = self.members.get(&rank)?;
        let speaks = self.now < member.last_heartbeat + QUIET;
        member.connection.filter(|_| speaks && !member.left)
    }

    /// Notes a sign of life, and says whose; `None` for a connection that was replaced or never said hello.
    pub(super) fn note_alive(&mut self, connection: Connection) -> Option<u32> {
        let rank = *self.connections.get(&connection)?;
        self.members.get_mut(&rank)?.last_heartbeat = self.now;
        if self.quiet.remove(&rank) {
            self.changes += 1;
        }
        Some(rank)
    }

    /// A member begins, again or for the first time.
    pub(super) fn insert(&mut self, rank: u32, member: Member) -> Option<Member> {
        if self.quiet.remove(&rank) {
            self.changes += 1;
        }
        let earlier = self.members.insert(rank, member);
        if let Some(earlier) = &earlier {
            self.take_off(&earlier.clone());
        }
        self.put_on(rank);
        earlier
    }

    /// Changes a member, and what is counted.
    pub(super) fn change(&mut self, rank: u32, change: impl FnOnce(&mut Member)) {
        let Some(member) = self.members.get(&rank).cloned() else {
            return;
        };
        self.take_off(&member);
        if let Some(member) = self.members.get_mut(&rank) {
            change(member);
            if member.left && self.quiet.remove(&rank) {
                self.changes += 1;
            }
        }
        self.put_on(rank);
    }

    pub(super) fn take_off(&mut self, member: &Member) {
        let joined = self.has_joined(member);
        self.joined = self.joined.saturating_sub(usize::from(joined));
        self.there = self
            .there
            .saturating_sub(usize::from(joined && member.connection.is_some()));
        self.left = self.left.saturating_sub(usize::from(member.left));
    }

    pub(super) fn put_on(&mut self, rank: u32) {
        let Some(member) = self.members.get(&rank) else {
            return;
        };
        let joined = self.has_joined(member);
        self.there += usize::from(joined && member.connection.is_some());
        self.left += usize::from(member.left);
        self.joined += usize::from(joined);
    }

    /// Counts anew: the epoch, or who belongs to it, is another one.
    pub(super) fn count(&mut self) {
        (self.joined, self.there, self.left) = self.counted();
    }

    pub(super) fn counted(&self) -> (usize, usize, usize) {
        let joined = self.members.values().filter(|one| self.has_joined(one));
        let there = joined.clone().filter(|member| member.connection.is_some());
        let left = self.members.values().filter(|member| member.left);
        (joined.count(), there.count(), left.count())
    }
}
