//! Going on after a loss, step by step: what the simulation meets rarely.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use topology::OnPeerLoss;

use super::*;
use crate::recovery::GroupReport;

const S: Duration = Duration::from_secs(1);

/// A leader and a gang that runs; connection numbers are ranks plus 100.
struct Gang {
    membership: Membership,
    now: Duration,
    nodes: u32,
}

impl Gang {
    fn new(nodes: u32) -> Self {
        let mut gang = Self::proposing(nodes);
        let effects = gang.handle(MembershipEvent::Committed { epoch: 1 });
        let go = MembershipMessage::Go { epoch: 1 };
        assert_eq!(sent(&effects).len(), nodes as usize);
        assert!(sent(&effects).iter().all(|(_, message)| **message == go));
        gang
    }

    /// All have joined, and that is not written down yet.
    fn proposing(nodes: u32) -> Self {
        let policy = RecoveryPolicy {
            on_peer_loss: OnPeerLoss::Shrink,
            least: 1,
            ..RecoveryPolicy::default()
        };
        let mut gang = Self {
            membership: Membership::resume(nodes, policy, None, Duration::ZERO),
            now: Duration::ZERO,
            nodes,
        };
        (0..nodes).for_each(|rank| drop(gang.hello(rank, None)));
        (0..nodes).for_each(|rank| drop(gang.joined(rank, 1)));
        assert_eq!(gang.phase(), GangPhase::Proposing);
        gang
    }

    fn handle(&mut self, event: MembershipEvent) -> Vec<MembershipEffect> {
        let mut effects = Vec::new();
        self.membership.handle(self.now, event, &mut effects);
        effects
    }

    fn hello(&mut self, rank: u32, joined: Option<u64>) -> Vec<MembershipEffect> {
        let endpoint = Endpoint {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 9404,
        };
        self.handle(MembershipEvent::Hello {
            connection: connection(rank),
            rank,
            endpoint,
            joined,
        })
    }

    fn joined(&mut self, rank: u32, epoch: u64) -> Vec<MembershipEffect> {
        let connection = connection(rank);
        self.handle(MembershipEvent::Joined { connection, epoch })
    }

    /// It reaches all it asks but these.
    fn stopped(&mut self, rank: u32, epoch: u64, unreached: &[u32]) -> Vec<MembershipEffect> {
        let all: Vec<u32> = (0..self.nodes).collect();
        let (unreached, reached) = probes(&all, rank)
            .into_iter()
            .partition(|other| unreached.contains(other));
        let report = GroupReport {
            group: 0,
            delivered_to_all: 5,
            delivered_to_any: 5,
            retained: Vec::new(),
            refused: None,
        };
        self.handle(MembershipEvent::Stopped {
            connection: connection(rank),
            epoch,
            report: vec![report],
            reach: Reach { reached, unreached },
        })
    }

    fn phase(&self) -> GangPhase {
        self.membership.view().phase
    }

    /// A leader that runs looks at the time every second.
    fn pass(&mut self, time: Duration) -> Vec<MembershipEffect> {
        let mut effects = Vec::new();
        for _ in 0..time.as_secs() {
            self.now += S;
            effects.extend(self.handle(MembershipEvent::Tick));
        }
        effects
    }

    /// It was stopped meanwhile.
    fn pause(&mut self, time: Duration) -> Vec<MembershipEffect> {
        self.now += time;
        self.handle(MembershipEvent::Tick)
    }
}

fn connection(rank: u32) -> Connection {
    Connection(u64::from(rank) + 100)
}

fn sent(effects: &[MembershipEffect]) -> Vec<(Connection, &MembershipMessage)> {
    let message = |effect| match effect {
        &MembershipEffect::Send {
            connection,
            ref message,
        } => Some((connection, &**message)),
        MembershipEffect::Changed | MembershipEffect::Commit { .. } => None,
    };
    effects.iter().filter_map(message).collect()
}

/// Members and predecessor of what is proposed.
fn proposed(effects: &[MembershipEffect]) -> Option<(u64, Vec<u32>, Option<u64>)> {
    effects.iter().find_map(|effect| match effect {
        MembershipEffect::Commit { commit, after } => {
            Some((commit.epoch, commit.members.clone(), *after))
        }
        MembershipEffect::Send { .. } | MembershipEffect::Changed => None,
    })
}

#[test]
fn nobody_goes_before_the_start_is_written_down() {
    let mut gang = Gang::new(3);
    assert_eq!(gang.phase(), GangPhase::Running);
    let effects = gang.handle(MembershipEvent::RankLost {
        connection: connection(1),
    });
    let revoked = |(_, message): &(Connection, &MembershipMessage)| {
        matches!(message, MembershipMessage::Revoke { epoch: 1, .. })
    };
    assert_eq!(sent(&effects).iter().filter(|one| revoked(one)).count(), 3);
    assert_eq!(proposed(&gang.stopped(0, 1, &[])), None);
    let effects = gang.stopped(2, 1, &[]);
    assert_eq!(proposed(&effects), Some((2, vec![0, 2], Some(1))));
    assert_eq!(sent(&effects), [], "before the commit nobody learns of it");
    let effects = gang.handle(MembershipEvent::Committed { epoch: 2 });
    let out = MembershipMessage::Refused(HelloRefusal::Out { rank: 1, epoch: 2 });
    assert!(sent(&effects).contains(&(connection(1), &out)));
    gang.joined(0, 2);
    let effects = gang.joined(2, 2);
    assert_eq!(sent(&effects).len(), 2);
    assert_eq!(gang.membership.view().members, [0, 2]);
}

// REC-9: who only this leader does not reach is not put out at once.
#[test]
fn a_member_that_lost_only_the_operator_has_its_time_to_dial_again() {
    let mut gang = Gang::new(4);
    gang.handle(MembershipEvent::Disconnected {
        connection: connection(3),
    });
    gang.pass(30 * S);
    (0..3).for_each(|rank| {
        gang.handle(MembershipEvent::Heartbeat {
            connection: connection(rank),
            progress: None,
            operations: None,
        });
    });
    gang.handle(MembershipEvent::RankLost {
        connection: connection(0),
    });
    gang.stopped(1, 1, &[]);
    assert_eq!(proposed(&gang.stopped(2, 1, &[])), None, "it is reached");
    gang.hello(3, Some(1));
    let effects = gang.stopped(3, 1, &[]);
    assert_eq!(proposed(&effects), Some((2, vec![1, 2, 3], Some(1))));
    // Had the others not reached it either, nobody would have waited.
    let mut gang = Gang::new(4);
    gang.handle(MembershipEvent::Disconnected {
        connection: connection(3),
    });
    gang.pass(30 * S);
    gang.handle(MembershipEvent::RankLost {
        connection: connection(0),
    });
    gang.stopped(1, 1, &[3]);
    let effects = gang.stopped(2, 1, &[3]);
    assert_eq!(proposed(&effects), Some((2, vec![1, 2], Some(1))));
}

// A suspended leader does not put everybody out.
#[test]
fn a_leader_that_was_stopped_for_a_while_listens_before_it_gives_anybody_up() {
    let mut gang = Gang::new(3);
    gang.stopped(0, 1, &[]);
    assert_eq!(proposed(&gang.pause(60 * S)), None);
    assert_eq!(proposed(&gang.pass(S)), None);
    gang.stopped(1, 1, &[]);
    let effects = gang.stopped(2, 1, &[]);
    assert_eq!(proposed(&effects), Some((2, vec![0, 1, 2], Some(1))));
    // Without a pause the time passes second by second.
    let mut gang = Gang::new(3);
    gang.stopped(0, 1, &[]);
    gang.stopped(1, 1, &[]);
    let limit = (0..11).find_map(|_| proposed(&gang.pass(S)));
    assert_eq!(limit, Some((2, vec![0, 1], Some(1))));
}

#[test]
fn a_member_that_never_joins_stays_out_in_the_end() {
    let mut gang = Gang::new(3);
    gang.stopped(0, 1, &[]);
    gang.stopped(1, 1, &[]);
    let effects = gang.stopped(2, 1, &[]);
    assert_eq!(proposed(&effects), Some((2, vec![0, 1, 2], Some(1))));
    for epoch in [2, 3] {
        gang.handle(MembershipEvent::Committed { epoch });
        gang.joined(0, epoch);
        gang.joined(2, epoch);
        gang.pass(6 * S);
        assert!(matches!(gang.phase(), GangPhase::Stopping { .. }));
        gang.stopped(0, epoch, &[]);
        gang.stopped(1, epoch, &[]);
        let effects = gang.stopped(2, epoch, &[]);
        let members = if epoch == 2 {
            vec![0, 1, 2]
        } else {
            vec![0, 2]
        };
        assert_eq!(proposed(&effects), Some((epoch + 1, members, Some(epoch))));
    }
}

#[test]
fn epochs_that_lead_nowhere_end_the_attempt() {
    let mut gang = Gang::new(2);
    let mut epoch = 1;
    while gang.membership.view().broken.is_none() {
        gang.stopped(0, epoch, &[]);
        gang.stopped(1, epoch, &[]);
        epoch += 1;
        assert!(epoch < 20);
        gang.handle(MembershipEvent::Committed { epoch });
        gang.joined(0, epoch);
        gang.joined(1, epoch);
    }
    assert_eq!(
        gang.membership.view().broken,
        Some(Break::Fruitless { epochs: 10 })
    );
}

#[test]
fn a_commit_that_was_stored_without_an_answer_is_taken_over() {
    let mut gang = Gang::new(2);
    gang.stopped(0, 1, &[]);
    let effects = gang.stopped(1, 1, &[]);
    let commit = effects.iter().find_map(|effect| match effect {
        MembershipEffect::Commit { commit, .. } => Some(commit.clone()),
        MembershipEffect::Send { .. } | MembershipEffect::Changed => None,
    });
    let again = gang.pass(S);
    assert!(proposed(&again).is_some(), "no answer: once more");
    let current = commit;
    let effects = gang.handle(MembershipEvent::CommitFailed { current });
    let next = |(_, message): &(Connection, &MembershipMessage)| {
        matches!(message, MembershipMessage::Next { epoch: 2, .. })
    };
    assert_eq!(sent(&effects).iter().filter(|one| next(one)).count(), 2);
    gang.joined(0, 2);
    assert_eq!(sent(&gang.joined(1, 2)).len(), 2);
}

// REC-5: a leader without memory.
#[test]
fn a_new_leader_learns_from_the_store_and_from_what_members_say_again() {
    let policy = RecoveryPolicy {
        on_peer_loss: OnPeerLoss::Shrink,
        ..RecoveryPolicy::default()
    };
    let commit = Commit {
        epoch: 4,
        members: vec![0, 2],
        resume: Vec::new(),
    };
    let mut gang = Gang {
        membership: Membership::resume(3, policy, Some(commit), Duration::ZERO),
        now: Duration::ZERO,
        nodes: 3,
    };
    let effects = gang.hello(1, Some(3));
    let out = MembershipMessage::Refused(HelloRefusal::Out { rank: 1, epoch: 4 });
    assert_eq!(sent(&effects), [(connection(1), &out)]);
    assert_eq!(sent(&gang.hello(0, Some(4))), []);
    let effects = gang.hello(2, Some(3));
    let next =
        |message: &MembershipMessage| matches!(message, MembershipMessage::Next { epoch: 4, .. });
    assert!(sent(&effects).iter().all(|(_, message)| next(message)));
    let effects = gang.joined(2, 4);
    assert_eq!(sent(&effects).len(), 2, "both go");
    // One that forgot everything makes the others stop.
    let effects = gang.hello(2, None);
    assert!(matches!(gang.phase(), GangPhase::Stopping { .. }));
    assert!(!sent(&effects).is_empty());
}

#[test]
fn a_report_that_cannot_be_true_is_not_believed() {
    let mut gang = Gang::new(2);
    let report = GroupReport {
        group: 0,
        delivered_to_all: 6,
        delivered_to_any: 5,
        retained: Vec::new(),
        refused: None,
    };
    gang.handle(MembershipEvent::Stopped {
        connection: connection(0),
        epoch: 1,
        report: vec![report],
        reach: Reach::default(),
    });
    assert_eq!(gang.phase(), GangPhase::Running);
}

#[test]
fn what_a_sidecar_has_reported_counts_no_more_when_it_has_restarted() {
    let mut gang = Gang::new(3);
    gang.stopped(1, 1, &[]);
    gang.hello(1, None);
    gang.stopped(0, 1, &[]);
    let effects = gang.stopped(2, 1, &[]);
    assert_eq!(proposed(&effects), None);
    assert_eq!(gang.phase(), GangPhase::Stopping { missing: vec![1] });
    let effects = gang.stopped(1, 1, &[]);
    assert_eq!(proposed(&effects), Some((2, vec![0, 1, 2], Some(1))));
}

#[test]
fn what_a_sidecar_has_reported_counts_only_while_it_is_connected() {
    let mut gang = Gang::new(3);
    gang.stopped(1, 1, &[]);
    let connection = connection(1);
    gang.handle(MembershipEvent::Disconnected { connection });
    gang.stopped(0, 1, &[]);
    let effects = gang.stopped(2, 1, &[]);
    assert_eq!(proposed(&effects), None);
    assert_eq!(gang.phase(), GangPhase::Stopping { missing: vec![1] });
    // Only its way to the operator was lost: what it has said holds.
    let effects = gang.hello(1, Some(1));
    assert_eq!(proposed(&effects), Some((2, vec![0, 1, 2], Some(1))));
}

#[test]
fn what_is_said_of_an_epoch_before_ends_no_later_one() {
    let mut gang = Gang::new(2);
    gang.stopped(0, 1, &[]);
    gang.stopped(1, 1, &[]);
    gang.handle(MembershipEvent::Committed { epoch: 2 });
    let late = gang.stopped(0, 1, &[]);
    assert_eq!(sent(&late), []);
    gang.joined(0, 2);
    gang.joined(1, 2);
    let late = gang.stopped(1, 1, &[]);
    assert_eq!(sent(&late), []);
    assert_eq!(gang.phase(), GangPhase::Running);
}

#[test]
fn a_sidecar_that_restarts_while_the_start_is_written_down_has_lost_its_memory() {
    let mut gang = Gang::proposing(2);
    let effects = gang.hello(1, None);
    assert_eq!(sent(&effects), []);
    gang.handle(MembershipEvent::Committed { epoch: 1 });
    assert_eq!(
        gang.phase(),
        GangPhase::Stopping {
            missing: vec![0, 1]
        }
    );
}

#[test]
fn who_says_that_it_asked_more_than_anybody_asks_has_not_reported() {
    let mut gang = Gang::new(3);
    gang.stopped(0, 1, &[]);
    let many = |from: u32| (from..=from + MOST_ASKED).collect();
    for (reached, unreached) in [
        (many(0), many(0)),
        (many(0), [].into()),
        ([].into(), many(7)),
    ] {
        gang.handle(MembershipEvent::Stopped {
            connection: connection(1),
            epoch: 1,
            report: Vec::new(),
            reach: Reach { reached, unreached },
        });
    }
    assert_eq!(gang.membership.recovery.stopped(), 1);
    gang.stopped(1, 1, &[]);
    assert_eq!(gang.membership.recovery.stopped(), 2);
}

#[test]
fn a_rank_suspects_no_more_others_than_it_can_have_links_to() {
    let most = crate::machine::MAX_LINKS;
    let mut gang = Gang::new(2 * most as u32);
    let suspects = |gang: &Gang| gang.membership.view().suspects.len();
    let suspect = |gang: &mut Gang, by: u32, rank: u32| {
        gang.handle(MembershipEvent::Suspect {
            connection: connection(by),
            epoch: 1,
            rank,
            reason: SuspicionReason::Frozen,
        });
    };
    for rank in 0..gang.nodes {
        suspect(&mut gang, 0, rank);
    }
    assert_eq!(suspects(&gang), most);
    suspect(&mut gang, 1, 500);
    assert_eq!(suspects(&gang), most + 1, "others have their own");
    gang.handle(MembershipEvent::Recovered {
        connection: connection(0),
        epoch: 1,
        rank: 1,
    });
    assert_eq!(suspects(&gang), most);
    suspect(&mut gang, 0, 501);
    assert_eq!(
        suspects(&gang),
        most + 1,
        "whom it reaches again makes room"
    );
}

#[test]
fn a_sidecar_that_restarts_beside_a_rank_that_ended_well_ends_no_attempt() {
    let mut gang = Gang::new(2);
    gang.membership.recovery.policy.least = 2;
    gang.handle(MembershipEvent::Leaving {
        connection: connection(1),
    });
    gang.handle(MembershipEvent::Disconnected {
        connection: connection(1),
    });
    gang.pass(5 * S);
    assert_eq!(gang.phase(), GangPhase::Running);
    gang.handle(MembershipEvent::Disconnected {
        connection: connection(0),
    });
    let _revoked = gang.hello(0, None);
    gang.stopped(0, 1, &[1]);
    let effects = gang.pass(3 * S);
    let (_, members, _) = proposed(&effects).unwrap();
    assert_eq!(members, [0]);
    assert_eq!(gang.membership.broken(), None);
}
