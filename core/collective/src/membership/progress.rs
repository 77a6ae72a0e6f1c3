//! When the members last gave a sign of progress: a finished operation of a rank, or a step that
//! their program reported. Times are this leader's, counted from what it hears: a new leader counts
//! from the first sign that reaches it.

use std::time::Duration;

use topology::{Progress, SignKind};

use super::{Connection, Membership, Stage};

/// A sign of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardSign {
    /// When it was heard.
    pub at: Duration,
    /// Its kind.
    pub kind: SignKind,
}

impl Membership {
    /// The newest sign of progress, as far as this leader has heard any.
    #[must_use]
    pub const fn newest_sign(&self) -> Option<HeardSign> {
        self.newest_sign
    }

    /// The step that was reported last.
    #[must_use]
    pub fn reported_step(&self) -> Option<u64> {
        self.reported.as_ref().map(|progress| progress.step)
    }

    /// Says if silence about progress means something: the members train together, and each of them
    /// is connected to this leader and speaks, or has left in good order. It costs as much as there
    /// are members.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        let trains = match self.stage {
            Stage::Gathering | Stage::Introduced | Stage::Started => true,
            Stage::Stopping | Stage::Proposing => false,
        };
        let is_heard = |rank: &u32| {
            let member = self.members.get(rank);
            let joined = member.filter(|member| self.has_joined(member));
            self.has_left(*rank) || joined.is_some_and(|member| member.connection.is_some())
        };
        trains && self.quiet.is_empty() && self.expected().iter().all(is_heard)
    }

    /// Takes what a heartbeat says of progress. Repetitions of what is known are no sign.
    pub(super) fn note_progress(
        &mut self,
        connection: Connection,
        progress: Option<&Progress>,
        operations: Option<u64>,
    ) {
        let rank = self.connections.get(&connection);
        if let Some(operations) = operations
            && let Some(member) = rank.and_then(|rank| self.members.get_mut(rank))
            && member.operations != operations
        {
            member.operations = operations;
            self.note_sign(SignKind::Operation);
        }
        if let Some(progress) = progress
            && self.reported.as_ref() != Some(progress)
        {
            self.reported = Some(progress.clone());
            self.note_sign(SignKind::Step);
        }
    }

    /// The members have begun to train together: what they did to get there is not held against
    /// them.
    pub(super) fn count_progress_anew(&mut self) {
        if let Some(sign) = &mut self.newest_sign {
            sign.at = self.now;
        }
    }

    fn note_sign(&mut self, kind: SignKind) {
        let at = self.now;
        self.newest_sign = Some(HeardSign { at, kind });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Leader, joined};
    use super::super::{GangPhase, MembershipEvent, QUIET};
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn beat(leader: &mut Leader, connection: Connection, step: Option<u64>, operations: u64) {
        let progress = step.map(|step| Progress {
            step,
            ..Progress::default()
        });
        leader.handle(MembershipEvent::Heartbeat {
            connection,
            progress,
            operations: (operations > 0).then_some(operations),
        });
    }

    fn sign(at: Duration, kind: SignKind) -> HeardSign {
        HeardSign { at, kind }
    }

    #[test]
    fn only_what_has_moved_is_a_sign_of_progress() {
        let (mut leader, all) = Leader::run(2);
        beat(&mut leader, all[0], None, 0);
        assert_eq!(leader.membership.newest_sign(), None);
        leader.now = SECOND;
        beat(&mut leader, all[1], None, 7);
        let first = Some(sign(SECOND, SignKind::Operation));
        assert_eq!(leader.membership.newest_sign(), first);
        leader.now = SECOND * 2;
        beat(&mut leader, all[1], None, 7);
        beat(&mut leader, all[0], None, 0);
        assert_eq!(leader.membership.newest_sign(), first);
        beat(&mut leader, all[0], Some(4), 0);
        let second = Some(sign(SECOND * 2, SignKind::Step));
        assert_eq!(leader.membership.newest_sign(), second);
        leader.now = SECOND * 3;
        beat(&mut leader, all[0], Some(4), 0);
        assert_eq!(leader.membership.newest_sign(), second);
        beat(&mut leader, all[0], Some(5), 0);
        let third = Some(sign(SECOND * 3, SignKind::Step));
        assert_eq!(leader.membership.newest_sign(), third);
    }

    #[test]
    fn a_member_that_dials_again_with_the_same_count_gives_no_sign_and_with_another_one_does() {
        let (mut leader, all) = Leader::run(2);
        leader.now = SECOND;
        beat(&mut leader, all[1], None, 7);
        assert!(leader.membership.is_heard());
        let connection = all[1];
        leader.handle(MembershipEvent::Disconnected { connection });
        assert!(!leader.membership.is_heard(), "it may train unheard");
        leader.now = SECOND * 2;
        let (again, _) = leader.hello(1, Some(1));
        assert!(leader.membership.is_heard());
        beat(&mut leader, again, None, 7);
        let kind = SignKind::Operation;
        assert_eq!(leader.membership.newest_sign(), Some(sign(SECOND, kind)));
        beat(&mut leader, again, None, 8);
        assert_eq!(
            leader.membership.newest_sign(),
            Some(sign(SECOND * 2, kind))
        );
    }

    #[test]
    fn who_joins_and_who_is_quiet_is_not_heard() {
        let mut leader = Leader::new(2);
        let all = [0, 1].map(|rank| leader.hello(rank, None).0);
        leader.handle(joined(all[0], 1));
        assert!(!leader.membership.is_heard());
        leader.handle(joined(all[1], 1));
        assert!(leader.membership.is_heard());
        leader.now = QUIET;
        beat(&mut leader, all[0], None, 0);
        leader.handle(MembershipEvent::Tick);
        assert!(!leader.membership.is_heard());
        beat(&mut leader, all[1], None, 0);
        assert!(leader.membership.is_heard());
        let connection = all[1];
        leader.handle(MembershipEvent::Leaving { connection });
        leader.handle(MembershipEvent::Disconnected { connection });
        assert!(leader.membership.is_heard(), "it has done its part");
    }

    #[test]
    fn a_new_leader_hears_a_gang_of_which_a_rank_has_ended() {
        let (mut leader, all) = Leader::run(2);
        let connection = all[1];
        leader.handle(MembershipEvent::Leaving { connection });
        leader.handle(MembershipEvent::Disconnected { connection });
        assert!(
            leader.membership.is_heard(),
            "by the leader that saw it leave"
        );
        // The next leader: only those who are left dial.
        let mut next = Leader::new(2);
        let (again, _) = next.hello(0, Some(1));
        beat(&mut next, again, Some(41), 7);
        assert!(!next.membership.is_heard(), "the other may train unheard");
        next.handle(MembershipEvent::Completed { rank: 1 });
        assert!(next.membership.is_heard(), "it has done its part");
        assert_eq!(next.view().phase, GangPhase::Running);
    }
}
