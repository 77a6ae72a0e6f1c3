//! The rendezvous seen from outside: what is sent to each sidecar, and what the scheduler learns.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use sim::Rng;
use topology::{CheckpointRef, OnPeerLoss};

use super::*;

/// A leader with sidecars that connect to it; connection numbers count up.
struct Stage {
    membership: Membership,
    now: Duration,
    connections: u64,
}

impl Stage {
    fn new(nodes: u32) -> Self {
        Self {
            membership: Membership::new(nodes),
            now: Duration::ZERO,
            connections: 0,
        }
    }

    fn handle(&mut self, event: MembershipEvent) -> Vec<MembershipEffect> {
        let mut effects = Vec::new();
        self.membership.handle(self.now, event, &mut effects);
        effects
    }

    fn hello(&mut self, rank: u32, joined: Option<u64>) -> (Connection, Vec<MembershipEffect>) {
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
    fn run(nodes: u32) -> (Self, Vec<Connection>) {
        let mut stage = Self::new(nodes);
        let all: Vec<Connection> = (0..nodes).map(|rank| stage.hello(rank, None).0).collect();
        for &connection in &all {
            stage.handle(joined(connection, 1));
        }
        assert_eq!(stage.view().phase, GangPhase::Running);
        (stage, all)
    }

    fn view(&self) -> GangView {
        self.membership.view()
    }
}

fn endpoint(rank: u32) -> Endpoint {
    let last = u8::try_from(rank).unwrap();
    Endpoint {
        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, last)),
        port: 9404,
    }
}

/// What is sent to whom, without the news for the scheduler.
fn sent(effects: &[MembershipEffect]) -> Vec<(u64, &MembershipMessage)> {
    let message = |effect| match effect {
        &MembershipEffect::Send {
            connection,
            ref message,
        } => Some((connection.0, &**message)),
        MembershipEffect::Changed | MembershipEffect::Commit { .. } => None,
    };
    effects.iter().filter_map(message).collect()
}

fn joined(connection: Connection, epoch: u64) -> MembershipEvent {
    MembershipEvent::Joined { connection, epoch }
}

#[test]
fn nobody_gets_a_roster_before_everybody_said_hello() {
    let mut stage = Stage::new(3);
    assert_eq!(sent(&stage.hello(2, None).1), []);
    assert_eq!(sent(&stage.hello(0, None).1), []);
    assert_eq!(
        stage.view().phase,
        GangPhase::Gathering { missing: vec![1] }
    );
    let roster = MembershipMessage::Roster {
        epoch: 1,
        endpoints: (0..3).map(endpoint).collect(),
    };
    let (_, effects) = stage.hello(1, None);
    assert_eq!(sent(&effects), [(2, &roster), (3, &roster), (1, &roster)]);
    assert_eq!(
        stage.view().phase,
        GangPhase::Connecting {
            missing: vec![0, 1, 2]
        }
    );
}

// GANG-2: trainers start on `Go`.
#[test]
fn nobody_goes_before_everybody_joined() {
    let mut stage = Stage::new(2);
    let (one, _) = stage.hello(0, None);
    let (two, _) = stage.hello(1, None);
    assert_eq!(sent(&stage.handle(joined(one, 1))), []);
    let effects = stage.handle(joined(two, 1));
    let go = MembershipMessage::Go { epoch: 1 };
    assert_eq!(sent(&effects), [(1, &go), (2, &go)]);
    assert!(effects.contains(&MembershipEffect::Changed));
    assert_eq!(sent(&stage.handle(joined(two, 1))), [], "once");
}

#[test]
fn a_sidecar_that_moved_before_the_start_makes_all_connect_anew() {
    let mut stage = Stage::new(2);
    let (one, _) = stage.hello(0, None);
    stage.hello(1, None);
    stage.handle(joined(one, 1));
    // What comes over the connection before is not read any more.
    stage.now = QUIET;
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
    let effects = stage.handle(event);
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
    let mut stage = Stage::new(3);
    let all: Vec<Connection> = (0..3).map(|rank| stage.hello(rank, None).0).collect();
    stage.handle(joined(all[0], 1));
    stage.handle(joined(all[1], 1));
    // Rank 1 restarts. That rank 2 joins meanwhile starts nobody.
    stage.handle(MembershipEvent::Disconnected { connection: all[1] });
    assert_eq!(sent(&stage.handle(joined(all[2], 1))), []);
    let (again, effects) = stage.hello(1, None);
    let roster = MembershipMessage::Roster {
        epoch: 2,
        endpoints: (0..3).map(endpoint).collect(),
    };
    assert_eq!(sent(&effects), [(1, &roster), (4, &roster), (3, &roster)]);
    assert_eq!(stage.view().broken, None);
    // What was said about the epoch before counts for nothing, and refuses nobody.
    assert_eq!(sent(&stage.handle(joined(all[2], 1))), []);
    stage.handle(joined(all[0], 2));
    stage.handle(joined(again, 2));
    let go = MembershipMessage::Go { epoch: 2 };
    let effects = stage.handle(joined(all[2], 2));
    assert_eq!(sent(&effects), [(1, &go), (4, &go), (3, &go)]);
}

#[test]
fn a_sidecar_that_only_lost_its_connection_before_the_start_is_waited_for() {
    let mut stage = Stage::new(2);
    let (one, _) = stage.hello(0, None);
    let (two, _) = stage.hello(1, None);
    stage.handle(joined(one, 1));
    stage.handle(MembershipEvent::Disconnected { connection: one });
    assert_eq!(sent(&stage.handle(joined(two, 1))), []);
    let (again, effects) = stage.hello(0, Some(1));
    let go = MembershipMessage::Go { epoch: 1 };
    assert_eq!(sent(&effects), [(again.0, &go), (two.0, &go)]);
}

#[test]
fn whoever_dials_again_with_an_epoch_that_was_given_up_gets_the_new_roster() {
    let mut stage = Stage::new(2);
    let (one, _) = stage.hello(0, None);
    stage.hello(1, None);
    stage.handle(joined(one, 1));
    stage.handle(MembershipEvent::Disconnected { connection: one });
    stage.now = QUIET;
    stage.hello(1, None);
    let (again, effects) = stage.hello(0, Some(1));
    let sent = sent(&effects);
    assert!(
        matches!(sent[0], (to, MembershipMessage::Roster { epoch: 3, .. }) if to == again.0),
        "{sent:?}"
    );
}

#[test]
fn a_new_leader_learns_a_running_gang_from_those_who_dial_again() {
    let mut stage = Stage::new(3);
    for rank in [1, 0] {
        assert_eq!(sent(&stage.hello(rank, Some(1)).1), []);
    }
    assert_eq!(
        stage.view().phase,
        GangPhase::Gathering { missing: vec![2] }
    );
    let (_, effects) = stage.hello(2, Some(1));
    let go = MembershipMessage::Go { epoch: 1 };
    assert_eq!(
        sent(&effects)
            .iter()
            .filter(|(_, message)| *message == &go)
            .count(),
        3
    );
    let view = stage.view();
    assert_eq!((view.phase, view.broken), (GangPhase::Running, None));
}

#[test]
fn a_new_leader_finishes_a_start_that_its_predecessor_began() {
    let mut stage = Stage::new(2);
    stage.hello(0, Some(1));
    let (late, effects) = stage.hello(1, None);
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
        stage.handle(joined(connection, 2));
    }
    assert_eq!(stage.view().phase, GangPhase::Running);
}

#[test]
fn a_new_leader_goes_on_in_a_later_epoch_and_fences_those_behind() {
    let mut stage = Stage::new(3);
    stage.hello(0, Some(4));
    let (_, effects) = stage.hello(1, Some(3));
    let refused = MembershipMessage::Refused(HelloRefusal::Epoch { theirs: 3, ours: 4 });
    assert_eq!(sent(&effects), [(2, &refused)]);
    assert_eq!(stage.view().epoch, 4);
}

#[test]
fn a_sidecar_that_lost_its_memory_breaks_a_running_gang() {
    let (mut stage, all) = Stage::run(3);
    stage.handle(MembershipEvent::Disconnected { connection: all[1] });
    let (_, effects) = stage.hello(1, None);
    let reason = Break::Restarted { rank: 1 };
    assert_eq!(
        sent(&effects),
        [(4, &MembershipMessage::Refused(HelloRefusal::Broken(reason)))]
    );
    assert_eq!(stage.view().broken, Some(reason));
}

#[test]
fn a_running_gang_survives_the_loss_of_every_connection() {
    let (mut stage, all) = Stage::run(2);
    for connection in all {
        stage.handle(MembershipEvent::Disconnected { connection });
    }
    for rank in 0..2 {
        let (connection, effects) = stage.hello(rank, Some(1));
        assert_eq!(
            sent(&effects),
            [(connection.0, &MembershipMessage::Go { epoch: 1 })]
        );
    }
    let view = stage.view();
    assert_eq!((view.phase, view.broken), (GangPhase::Running, None));
}

#[test]
fn suspicions_say_who_by_whom_and_a_frozen_peer_is_not_yet_lost() {
    let (mut stage, all) = Stage::run(3);
    let suspect = |by: usize, rank, reason| MembershipEvent::Suspect {
        connection: all[by],
        epoch: 1,
        rank,
        reason,
    };
    stage.handle(suspect(0, 1, SuspicionReason::Frozen));
    assert_eq!(
        stage.view().suspects,
        [Suspicion {
            rank: 1,
            by: 0,
            reason: SuspicionReason::Frozen
        }]
    );
    assert_eq!(stage.view().broken, None);
    stage.handle(suspect(2, 1, SuspicionReason::Dead));
    stage.handle(suspect(0, 1, SuspicionReason::Silent));
    assert_eq!(
        stage.view().broken,
        Some(Break::Lost { rank: 1, by: 2 }),
        "the first reason stays"
    );
    let reasons: Vec<SuspicionReason> = stage.view().suspects.iter().map(|s| s.reason).collect();
    assert_eq!(reasons, [SuspicionReason::Silent, SuspicionReason::Dead]);
}

#[test]
fn a_frozen_peer_that_is_heard_again_is_no_suspect_and_a_lost_one_stays() {
    let (mut stage, all) = Stage::run(3);
    let suspect = |by: usize, rank, reason| MembershipEvent::Suspect {
        connection: all[by],
        epoch: 1,
        rank,
        reason,
    };
    let recovered = |by: usize, epoch, rank| MembershipEvent::Recovered {
        connection: all[by],
        epoch,
        rank,
    };
    stage.handle(suspect(0, 1, SuspicionReason::Frozen));
    stage.handle(suspect(2, 1, SuspicionReason::Frozen));
    stage.handle(suspect(0, 2, SuspicionReason::Silent));
    for said in [recovered(0, 1, 1), recovered(2, 9, 1), recovered(0, 1, 2)] {
        stage.handle(said);
    }
    let left = |rank, by, reason| Suspicion { rank, by, reason };
    assert_eq!(
        stage.view().suspects,
        [
            left(1, 2, SuspicionReason::Frozen),
            left(2, 0, SuspicionReason::Silent)
        ],
        "each speaks for itself, of its epoch"
    );
    assert_eq!(
        stage.handle(recovered(2, 1, 1)),
        [MembershipEffect::Changed],
        "the planner gets it"
    );
    assert_eq!(stage.view().suspects, [left(2, 0, SuspicionReason::Silent)]);
}

#[test]
fn a_new_connection_says_anew_who_is_frozen() {
    let (mut stage, all) = Stage::run(2);
    let suspect = |connection| MembershipEvent::Suspect {
        connection,
        epoch: 1,
        rank: 1,
        reason: SuspicionReason::Frozen,
    };
    stage.handle(suspect(all[0]));
    stage.handle(MembershipEvent::Disconnected { connection: all[0] });
    assert_eq!(stage.view().suspects.len(), 1, "nobody has recovered");
    // It sent again while there was no connection to say so.
    let (again, _) = stage.hello(0, Some(1));
    assert_eq!(stage.view().suspects, []);
    stage.handle(suspect(again));
    assert_eq!(stage.view().suspects.len(), 1);
}

#[test]
fn suspicions_of_another_epoch_of_strangers_and_of_oneself_do_not_count() {
    let (mut stage, all) = Stage::run(2);
    for (epoch, rank) in [(2, 1), (1, 9), (1, 0)] {
        let reason = SuspicionReason::Dead;
        stage.handle(MembershipEvent::Suspect {
            connection: all[0],
            epoch,
            rank,
            reason,
        });
    }
    assert_eq!(stage.view().suspects, []);
    assert_eq!(stage.view().broken, None);
}

#[test]
fn a_rank_is_quiet_exactly_after_the_limit_and_until_it_is_heard_again() {
    let (mut stage, all) = Stage::run(2);
    stage.now = Duration::from_secs(1);
    let beat = |connection| MembershipEvent::Heartbeat {
        connection,
        progress: None,
    };
    stage.handle(beat(all[0]));
    assert_eq!(stage.membership.wake_at(), Some(QUIET));
    stage.now = QUIET - Duration::from_nanos(1);
    assert_eq!(stage.handle(MembershipEvent::Tick), []);
    stage.now = QUIET;
    assert_eq!(
        stage.handle(MembershipEvent::Tick),
        [MembershipEffect::Changed]
    );
    assert_eq!(stage.view().quiet, [1]);
    stage.handle(beat(all[1]));
    assert_eq!(stage.view().quiet, [0; 0]);
}

#[test]
fn the_newest_checkpoint_wins_whatever_the_order_of_reports() {
    let (mut stage, all) = Stage::run(2);
    let report = |step, durable| {
        let checkpoint = CheckpointRef {
            attempt: 1,
            step: durable,
            digest: String::new(),
        };
        let progress = Some(Progress {
            step,
            loss: None,
            checkpoint: Some(checkpoint),
            passed_over: (step == 20).then(|| "an older one".to_owned()),
        });
        MembershipEvent::Heartbeat {
            connection: all[0],
            progress,
        }
    };
    stage.handle(report(20, 10));
    stage.handle(report(12, 5));
    let progress = stage.view().progress;
    assert_eq!(
        (progress.step, progress.checkpoint.map(|c| c.step)),
        (20, Some(10))
    );
    assert_eq!(progress.passed_over.as_deref(), Some("an older one"));
}

#[test]
fn a_stranger_and_an_old_connection_are_not_listened_to() {
    let mut stage = Stage::new(2);
    let (unknown, effects) = stage.hello(2, None);
    let refused = MembershipMessage::Refused(HelloRefusal::Rank { rank: 2, nodes: 2 });
    assert_eq!(sent(&effects), [(unknown.0, &refused)]);
    let (old, _) = stage.hello(0, None);
    stage.now = QUIET;
    let (new, _) = stage.hello(0, None);
    stage.handle(MembershipEvent::Disconnected { connection: old });
    stage.hello(1, None);
    stage.handle(joined(old, 1));
    assert_eq!(
        stage.view().phase,
        GangPhase::Connecting {
            missing: vec![0, 1]
        }
    );
    stage.handle(joined(new, 1));
    assert_eq!(
        stage.view().phase,
        GangPhase::Connecting { missing: vec![1] }
    );
}

#[test]
fn a_rank_that_left_in_good_order_is_not_quiet() {
    let (mut stage, all) = Stage::run(1);
    stage.handle(MembershipEvent::Leaving { connection: all[0] });
    stage.now = QUIET * 2;
    stage.handle(MembershipEvent::Tick);
    let view = stage.view();
    assert_eq!((view.left, view.quiet), (vec![0], vec![]));
}

#[test]
fn a_second_connection_of_a_rank_waits_while_the_first_is_heard_and_then_replaces_it() {
    let (mut stage, all) = Stage::run(2);
    let retry = MembershipMessage::Refused(HelloRefusal::Connected { rank: 1 });
    stage.now = Duration::from_secs(1);
    stage.handle(MembershipEvent::Heartbeat {
        connection: all[1],
        progress: None,
    });
    stage.now = Duration::from_secs(1) + QUIET - Duration::from_nanos(1);
    // Whoever has the key may say so, also with a memory that is none.
    for joined in [Some(1), None] {
        let (second, effects) = stage.hello(1, joined);
        assert_eq!(sent(&effects), [(second.0, &retry)]);
        assert_eq!(effects.len(), 1, "nothing has changed");
    }
    assert_eq!(stage.view().broken, None);
    stage.now = Duration::from_secs(1) + QUIET;
    let (third, effects) = stage.hello(1, Some(1));
    let replaced = MembershipMessage::Refused(HelloRefusal::Replaced { rank: 1 });
    let go = MembershipMessage::Go { epoch: 1 };
    assert_eq!(sent(&effects), [(all[1].0, &replaced), (third.0, &go)]);
}

#[test]
fn a_connection_whose_end_is_known_makes_room_at_once() {
    let (mut stage, all) = Stage::run(2);
    stage.handle(MembershipEvent::Disconnected { connection: all[1] });
    let (second, effects) = stage.hello(1, Some(1));
    assert_eq!(
        sent(&effects),
        [(second.0, &MembershipMessage::Go { epoch: 1 })]
    );
}

#[test]
fn a_step_alone_is_no_news_for_the_planner_and_a_checkpoint_is() {
    let (mut stage, all) = Stage::run(2);
    let progress = |step, durable: Option<u64>| MembershipEvent::Heartbeat {
        connection: all[0],
        progress: Some(Progress {
            step,
            loss: None,
            checkpoint: durable.map(|step| CheckpointRef {
                attempt: 1,
                step,
                digest: String::new(),
            }),
            passed_over: None,
        }),
    };
    assert_eq!(stage.handle(progress(1, None)), []);
    assert_eq!(
        stage.handle(progress(2, Some(1))),
        [MembershipEffect::Changed]
    );
    assert_eq!(stage.handle(progress(3, Some(1))), []);
    assert_eq!(stage.view().progress.step, 3);
}

#[test]
fn of_what_goes_to_all_there_is_one() {
    let mut stage = Stage::new(3);
    stage.hello(0, None);
    stage.hello(1, None);
    let (_, effects) = stage.hello(2, None);
    let rosters: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            MembershipEffect::Send { message, .. } => Some(message),
            MembershipEffect::Changed | MembershipEffect::Commit { .. } => None,
        })
        .collect();
    assert_eq!(rosters.len(), 3);
    assert!(rosters.iter().all(|one| Arc::ptr_eq(one, rosters[0])));
}

/// One thing that may happen, whoever is connected.
fn anything(membership: &Membership, rng: &mut Rng, connections: &mut u64) -> MembershipEvent {
    let rank = rng.below(4) as u32;
    let connection = membership.members.get(&rank).and_then(|one| one.connection);
    let connection = connection.unwrap_or(Connection(9999));
    let epoch = membership.epoch;
    match rng.below(10) {
        0 | 1 => {
            *connections += 1;
            MembershipEvent::Hello {
                connection: Connection(*connections),
                rank,
                endpoint: endpoint(rank),
                joined: rng.chance(1, 2).then(|| 1 + rng.below(4) as u64),
            }
        }
        2..=4 => MembershipEvent::Joined { connection, epoch },
        5 => MembershipEvent::Disconnected { connection },
        6 if rng.chance(1, 4) => MembershipEvent::Leaving { connection },
        6 => MembershipEvent::Heartbeat {
            connection,
            progress: None,
        },
        7 => MembershipEvent::Stopped {
            connection,
            epoch,
            report: Vec::new(),
            reach: Reach {
                reached: (0..4).filter(|&other| other != rank).collect(),
                unreached: [].into(),
            },
        },
        8 if rng.chance(1, 4) => MembershipEvent::RankLost { connection },
        8 => MembershipEvent::Committed {
            epoch: epoch + rng.below(2) as u64,
        },
        _ => MembershipEvent::Tick,
    }
}

#[test]
fn what_is_counted_is_what_is_there() {
    sim::for_each_seed(300, |rng| {
        let policy = RecoveryPolicy {
            on_peer_loss: match rng.chance(1, 2) {
                true => OnPeerLoss::Shrink,
                false => OnPeerLoss::Restart,
            },
            least: 1,
            ..RecoveryPolicy::default()
        };
        let mut membership = Membership::resume(4, policy, None, Duration::ZERO);
        let (mut now, mut connections) = (Duration::ZERO, 0);
        for _ in 0..120 {
            now += Duration::from_millis(700);
            let event = anything(&membership, rng, &mut connections);
            membership.handle(now, event, &mut Vec::new());
            let counted = (membership.joined, membership.there, membership.left);
            assert_eq!(counted, membership.counted());
            let mut ranks = membership.members.keys();
            assert!(ranks.all(|&rank| membership.is_member(rank)));
        }
    });
}
