//! What the members of a running gang report: suspicions, silence, checkpoints, and over which connection.

use sim::Rng;
use topology::{CheckpointRef, OnPeerLoss};

use super::tests::*;
use super::*;

#[test]
fn suspicions_say_who_by_whom_and_a_frozen_peer_is_not_yet_lost() {
    let (mut leader, all) = Leader::run(3);
    let suspect = |by: usize, rank, reason| MembershipEvent::Suspect {
        connection: all[by],
        epoch: 1,
        rank,
        reason,
    };
    leader.handle(suspect(0, 1, SuspicionReason::Frozen));
    assert_eq!(
        leader.view().suspects,
        [Suspicion {
            rank: 1,
            by: 0,
            reason: SuspicionReason::Frozen
        }]
    );
    assert_eq!(leader.view().broken, None);
    leader.handle(suspect(2, 1, SuspicionReason::Dead));
    leader.handle(suspect(0, 1, SuspicionReason::Silent));
    assert_eq!(
        leader.view().broken,
        Some(Break::Lost { rank: 1, by: 2 }),
        "the first reason stays"
    );
    let reasons: Vec<SuspicionReason> = leader.view().suspects.iter().map(|s| s.reason).collect();
    assert_eq!(reasons, [SuspicionReason::Silent, SuspicionReason::Dead]);
}

#[test]
fn a_frozen_peer_that_sends_again_is_no_suspect_and_a_lost_one_stays() {
    let (mut leader, all) = Leader::run(3);
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
    leader.handle(suspect(0, 1, SuspicionReason::Frozen));
    leader.handle(suspect(2, 1, SuspicionReason::Frozen));
    leader.handle(suspect(0, 2, SuspicionReason::Silent));
    for said in [recovered(0, 1, 1), recovered(2, 9, 1), recovered(0, 1, 2)] {
        leader.handle(said);
    }
    let left = |rank, by, reason| Suspicion { rank, by, reason };
    assert_eq!(
        leader.view().suspects,
        [
            left(1, 2, SuspicionReason::Frozen),
            left(2, 0, SuspicionReason::Silent)
        ],
        "each speaks for itself, of its epoch"
    );
    assert_eq!(
        leader.handle(recovered(2, 1, 1)),
        [MembershipEffect::Changed],
        "the planner gets it"
    );
    assert_eq!(
        leader.view().suspects,
        [left(2, 0, SuspicionReason::Silent)]
    );
}

#[test]
fn a_new_connection_says_anew_who_is_frozen() {
    let (mut leader, all) = Leader::run(2);
    let suspect = |connection| MembershipEvent::Suspect {
        connection,
        epoch: 1,
        rank: 1,
        reason: SuspicionReason::Frozen,
    };
    leader.handle(suspect(all[0]));
    leader.handle(MembershipEvent::Disconnected { connection: all[0] });
    assert_eq!(leader.view().suspects.len(), 1, "nobody has recovered");
    // It sent again while there was no connection to say so.
    let (again, _) = leader.hello(0, Some(1));
    assert_eq!(leader.view().suspects, []);
    leader.handle(suspect(again));
    assert_eq!(leader.view().suspects.len(), 1);
}

#[test]
fn suspicions_of_another_epoch_of_other_gangs_and_of_oneself_do_not_count() {
    let (mut leader, all) = Leader::run(2);
    for (epoch, rank) in [(2, 1), (1, 9), (1, 0)] {
        let reason = SuspicionReason::Dead;
        leader.handle(MembershipEvent::Suspect {
            connection: all[0],
            epoch,
            rank,
            reason,
        });
    }
    assert_eq!(leader.view().suspects, []);
    assert_eq!(leader.view().broken, None);
}

#[test]
fn a_rank_is_quiet_exactly_after_the_limit_and_until_it_sends_again() {
    let (mut leader, all) = Leader::run(2);
    leader.now = Duration::from_secs(1);
    let beat = |connection| MembershipEvent::Heartbeat {
        connection,
        progress: None,
        operations: None,
    };
    leader.handle(beat(all[0]));
    assert_eq!(leader.membership.wake_at(), Some(QUIET));
    leader.now = QUIET - Duration::from_nanos(1);
    assert_eq!(leader.handle(MembershipEvent::Tick), []);
    leader.now = QUIET;
    assert_eq!(
        leader.handle(MembershipEvent::Tick),
        [MembershipEffect::Changed]
    );
    assert_eq!(leader.view().quiet, [1]);
    leader.handle(beat(all[1]));
    assert_eq!(leader.view().quiet, [0; 0]);
}

#[test]
fn the_newest_checkpoint_wins_whatever_the_order_of_reports() {
    let (mut leader, all) = Leader::run(2);
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
            operations: None,
        }
    };
    leader.handle(report(20, 10));
    leader.handle(report(12, 5));
    let progress = leader.view().progress;
    assert_eq!(
        (progress.step, progress.checkpoint.map(|c| c.step)),
        (20, Some(10))
    );
    assert_eq!(progress.passed_over.as_deref(), Some("an older one"));
}

#[test]
fn messages_of_an_unknown_and_of_an_old_connection_are_ignored() {
    let mut leader = Leader::new(2);
    let (unknown, effects) = leader.hello(2, None);
    let refused = MembershipMessage::Refused(HelloRefusal::Rank { rank: 2, nodes: 2 });
    assert_eq!(sent(&effects), [(unknown.0, &refused)]);
    let (old, _) = leader.hello(0, None);
    leader.now = QUIET;
    let (new, _) = leader.hello(0, None);
    leader.handle(MembershipEvent::Disconnected { connection: old });
    leader.hello(1, None);
    leader.handle(joined(old, 1));
    assert_eq!(
        leader.view().phase,
        GangPhase::Connecting {
            missing: vec![0, 1]
        }
    );
    leader.handle(joined(new, 1));
    assert_eq!(
        leader.view().phase,
        GangPhase::Connecting { missing: vec![1] }
    );
}

#[test]
fn a_rank_that_left_in_good_order_is_not_quiet() {
    let (mut leader, all) = Leader::run(1);
    leader.handle(MembershipEvent::Leaving { connection: all[0] });
    leader.now = QUIET * 2;
    leader.handle(MembershipEvent::Tick);
    let view = leader.view();
    assert_eq!((view.left, view.quiet), (vec![0], vec![]));
}

#[test]
fn a_second_connection_of_a_rank_waits_while_the_first_is_alive_and_then_replaces_it() {
    let (mut leader, all) = Leader::run(2);
    let retry = MembershipMessage::Refused(HelloRefusal::Connected { rank: 1 });
    leader.now = Duration::from_secs(1);
    leader.handle(MembershipEvent::Heartbeat {
        connection: all[1],
        progress: None,
        operations: None,
    });
    leader.now = Duration::from_secs(1) + QUIET - Duration::from_nanos(1);
    // Whoever has the key may say so, also with a memory that is none.
    for joined in [Some(1), None] {
        let (second, effects) = leader.hello(1, joined);
        assert_eq!(sent(&effects), [(second.0, &retry)]);
        assert_eq!(effects.len(), 1, "nothing has changed");
    }
    assert_eq!(leader.view().broken, None);
    leader.now = Duration::from_secs(1) + QUIET;
    let (third, effects) = leader.hello(1, Some(1));
    let replaced = MembershipMessage::Refused(HelloRefusal::Replaced { rank: 1 });
    let go = MembershipMessage::Go { epoch: 1 };
    assert_eq!(sent(&effects), [(all[1].0, &replaced), (third.0, &go)]);
}

#[test]
fn a_connection_whose_end_is_known_makes_room_at_once() {
    let (mut leader, all) = Leader::run(2);
    leader.handle(MembershipEvent::Disconnected { connection: all[1] });
    let (second, effects) = leader.hello(1, Some(1));
    assert_eq!(
        sent(&effects),
        [(second.0, &MembershipMessage::Go { epoch: 1 })]
    );
}

#[test]
fn a_step_alone_is_no_news_for_the_planner_and_a_checkpoint_is() {
    let (mut leader, all) = Leader::run(2);
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
        operations: None,
    };
    assert_eq!(leader.handle(progress(1, None)), []);
    assert_eq!(
        leader.handle(progress(2, Some(1))),
        [MembershipEffect::Changed]
    );
    assert_eq!(leader.handle(progress(3, Some(1))), []);
    assert_eq!(leader.view().progress.step, 3);
}

#[test]
fn of_what_goes_to_all_there_is_one() {
    let mut leader = Leader::new(3);
    leader.hello(0, None);
    leader.hello(1, None);
    let (_, effects) = leader.hello(2, None);
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
            operations: None,
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
