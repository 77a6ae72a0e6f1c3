//! The rendezvous seen from outside: what is sent to each sidecar, and what the scheduler learns.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::*;

/// A leader with sidecars that connect to it; connection numbers count up.
pub(super) struct Leader {
    pub(super) membership: Membership,
    pub(super) now: Duration,
    pub(super) connections: u64,
}

impl Leader {
    pub(super) fn new(nodes: u32) -> Self {
        Self {
            membership: Membership::new(nodes),
            now: Duration::ZERO,
            connections: 0,
        }
    }

    pub(super) fn handle(&mut self, event: MembershipEvent) -> Vec<MembershipEffect> {
        let mut effects = Vec::new();
        self.membership.handle(self.now, event, &mut effects);
        effects
    }

    pub(super) fn hello(
        &mut self,
        rank: u32,
        joined: Option<u64>,
    ) -> (Connection, Vec<MembershipEffect>) {
        self.connections += 1;
        let connection = Connection(self.connections);
        let event = MembershipEvent::Hello {
            connection,
            rank,
            endpoint: endpoint(rank),
            joined,
        };
        (connection, self.handle(event))
    }

    /// Everybody says hello and joins.
    pub(super) fn run(nodes: u32) -> (Self, Vec<Connection>) {
        let mut leader = Self::new(nodes);
        let all: Vec<Connection> = (0..nodes).map(|rank| leader.hello(rank, None).0).collect();
        for &connection in &all {
            leader.handle(joined(connection, 1));
        }
        assert_eq!(leader.view().phase, GangPhase::Running);
        (leader, all)
    }

    pub(super) fn view(&self) -> GangView {
        self.membership.view()
    }
}

pub(super) fn endpoint(rank: u32) -> Endpoint {
    let last = u8::try_from(rank).unwrap();
    Endpoint {
        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)),
        port: 9404,
    }
}

/// What is sent to whom, without the news for the scheduler.
pub(super) fn sent(effects: &[MembershipEffect]) -> Vec<(u64, &MembershipMessage)> {
    let message = |effect| match effect {
        &MembershipEffect::Send {
            connection,
            ref message,
        } => Some((connection.0, &**message)),
        MembershipEffect::Changed | MembershipEffect::Commit { .. } => None,
    };
    effects.iter().filter_map(message).collect()
}

pub(super) fn joined(connection: Connection, epoch: u64) -> MembershipEvent {
    MembershipEvent::Joined { connection, epoch }
}

#[test]
fn nobody_gets_a_roster_before_everybody_said_hello() {
    let mut leader = Leader::new(3);
    assert_eq!(sent(&leader.hello(2, None).1), []);
    assert_eq!(sent(&leader.hello(0, None).1), []);
    assert_eq!(
        leader.view().phase,
        GangPhase::Gathering { missing: vec![1] }
    );
    let roster = MembershipMessage::Roster {
        epoch: 1,
        endpoints: (0..3).map(endpoint).collect(),
    };
    let (_, effects) = leader.hello(1, None);
    assert_eq!(sent(&effects), [(2, &roster), (3, &roster), (1, &roster)]);
    assert_eq!(
        leader.view().phase,
        GangPhase::Connecting {
            missing: vec![0, 1, 2]
        }
    );
}

// GANG-2: trainers start on `Go`.
#[test]
fn nobody_goes_before_everybody_joined() {
    let mut leader = Leader::new(2);
    let (one, _) = leader.hello(0, None);
    let (two, _) = leader.hello(1, None);
    assert_eq!(sent(&leader.handle(joined(one, 1))), []);
    let effects = leader.handle(joined(two, 1));
    let go = MembershipMessage::Go { epoch: 1 };
    assert_eq!(sent(&effects), [(1, &go), (2, &go)]);
    assert!(effects.contains(&MembershipEffect::Changed));
    assert_eq!(sent(&leader.handle(joined(two, 1))), [], "once");
}

#[test]
fn a_sidecar_that_moved_before_the_start_makes_all_connect_anew() {
    let mut leader = Leader::new(2);
    let (one, _) = leader.hello(0, None);
    leader.hello(1, None);
    leader.handle(joined(one, 1));
    // What comes over the connection before is not read any more.
    leader.now = QUIET;
    let moved = Endpoint {
        port: 9999,
        ..endpoint(1)
    };
    let event = MembershipEvent::Hello {
        connection: Connection(7),
        rank: 1,
        endpoint: moved,
        joined: None,
    };
    let effects = leader.handle(event);
    let roster = MembershipMessage::Roster {
        epoch: 2,
        endpoints: vec![endpoint(0), moved],
    };
    let replaced = MembershipMessage::Refused(HelloRefusal::Replaced { rank: 1 });
    assert_eq!(
        sent(&effects),
        [(2, &replaced), (1, &roster), (7, &roster)],
        "rank 0 is connected to where rank 1 was"
    );
}

#[test]
fn a_sidecar_that_restarts_after_it_joined_and_before_the_start_delays_it_only_until_it_is_back() {
    let mut leader = Leader::new(3);
    let all: Vec<Connection> = (0..3).map(|rank| leader.hello(rank, None).0).collect();
    leader.handle(joined(all[0], 1));
    leader.handle(joined(all[1], 1));
    // Rank 1 restarts. That rank 2 joins meanwhile starts nobody.
    leader.handle(MembershipEvent::Disconnected { connection: all[1] });
    assert_eq!(sent(&leader.handle(joined(all[2], 1))), []);
    let (again, effects) = leader.hello(1, None);
    let roster = MembershipMessage::Roster {
        epoch: 2,
        endpoints: (0..3).map(endpoint).collect(),
    };
    assert_eq!(sent(&effects), [(1, &roster), (4, &roster), (3, &roster)]);
    assert_eq!(leader.view().broken, None);
    // What was said about the epoch before counts for nothing, and refuses nobody.
    assert_eq!(sent(&leader.handle(joined(all[2], 1))), []);
    leader.handle(joined(all[0], 2));
    leader.handle(joined(again, 2));
    let go = MembershipMessage::Go { epoch: 2 };
    let effects = leader.handle(joined(all[2], 2));
    assert_eq!(sent(&effects), [(1, &go), (4, &go), (3, &go)]);
}

#[test]
fn a_sidecar_that_only_lost_its_connection_before_the_start_is_waited_for() {
    let mut leader = Leader::new(2);
    let (one, _) = leader.hello(0, None);
    let (two, _) = leader.hello(1, None);
    leader.handle(joined(one, 1));
    leader.handle(MembershipEvent::Disconnected { connection: one });
    assert_eq!(sent(&leader.handle(joined(two, 1))), []);
    let (again, effects) = leader.hello(0, Some(1));
    let go = MembershipMessage::Go { epoch: 1 };
    assert_eq!(sent(&effects), [(again.0, &go), (two.0, &go)]);
}

#[test]
fn whoever_dials_again_with_an_epoch_that_was_given_up_gets_the_new_roster() {
    let mut leader = Leader::new(2);
    let (one, _) = leader.hello(0, None);
    leader.hello(1, None);
    leader.handle(joined(one, 1));
    leader.handle(MembershipEvent::Disconnected { connection: one });
    leader.now = QUIET;
    leader.hello(1, None);
    let (again, effects) = leader.hello(0, Some(1));
    let sent = sent(&effects);
    assert!(
        matches!(sent[0], (to, MembershipMessage::Roster { epoch: 3, .. }) if to == again.0),
        "{sent:?}"
    );
}

#[test]
fn a_new_leader_learns_a_running_gang_from_those_who_dial_again() {
    let mut leader = Leader::new(3);
    for rank in [1, 0] {
        assert_eq!(sent(&leader.hello(rank, Some(1)).1), []);
    }
    assert_eq!(
        leader.view().phase,
        GangPhase::Gathering { missing: vec![2] }
    );
    let (_, effects) = leader.hello(2, Some(1));
    let go = MembershipMessage::Go { epoch: 1 };
    assert_eq!(
        sent(&effects)
            .iter()
            .filter(|(_, message)| *message == &go)
            .count(),
        3
    );
    let view = leader.view();
    assert_eq!((view.phase, view.broken), (GangPhase::Running, None));
}

#[test]
fn a_new_leader_finishes_a_start_that_its_predecessor_began() {
    let mut leader = Leader::new(2);
    leader.hello(0, Some(1));
    let (late, effects) = leader.hello(1, None);
    let roster = MembershipMessage::Roster {
        epoch: 2,
        endpoints: vec![endpoint(0), endpoint(1)],
    };
    assert_eq!(
        sent(&effects),
        [(1, &roster), (late.0, &roster)],
        "rank 1 may have dropped the link that rank 0 believes in"
    );
    for connection in [Connection(1), late] {
        leader.handle(joined(connection, 2));
    }
    assert_eq!(leader.view().phase, GangPhase::Running);
}

#[test]
fn a_new_leader_goes_on_in_a_later_epoch_and_fences_those_behind() {
    let mut leader = Leader::new(3);
    leader.hello(0, Some(4));
    let (_, effects) = leader.hello(1, Some(3));
    let refused = MembershipMessage::Refused(HelloRefusal::Epoch { theirs: 3, ours: 4 });
    assert_eq!(sent(&effects), [(2, &refused)]);
    assert_eq!(leader.view().epoch, 4);
}

#[test]
fn a_sidecar_that_lost_its_memory_breaks_a_running_gang() {
    let (mut leader, all) = Leader::run(3);
    leader.handle(MembershipEvent::Disconnected { connection: all[1] });
    let (_, effects) = leader.hello(1, None);
    let reason = Break::Restarted { rank: 1 };
    assert_eq!(
        sent(&effects),
        [(4, &MembershipMessage::Refused(HelloRefusal::Broken(reason)))]
    );
    assert_eq!(leader.view().broken, Some(reason));
}

#[test]
fn a_running_gang_survives_the_loss_of_every_connection() {
    let (mut leader, all) = Leader::run(2);
    for connection in all {
        leader.handle(MembershipEvent::Disconnected { connection });
    }
    for rank in 0..2 {
        let (connection, effects) = leader.hello(rank, Some(1));
        assert_eq!(
            sent(&effects),
            [(connection.0, &MembershipMessage::Go { epoch: 1 })]
        );
    }
    let view = leader.view();
    assert_eq!((view.phase, view.broken), (GangPhase::Running, None));
}
