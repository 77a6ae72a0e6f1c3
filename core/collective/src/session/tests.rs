//! Tests of what happens to calls, groups and ranks between epochs.

use std::time::Duration;

use super::*;
use crate::machine::{
    Config, DEFAULT_CHUNK_BYTES, DEFAULT_SLOTS, DEFAULT_WINDOW, Fence, Recovery, Timing,
};
use crate::op::Call;
use crate::recovery::{GroupReport, GroupResume, Resume};
use crate::{DoubleTree, Layout};

const GROUP: GroupId = 9;

/// The second of two nodes with two ranks each.
fn sessions() -> Sessions<char> {
    let mut sessions = Sessions::new(2..4, 4);
    sessions.attach(0, None);
    sessions.attach(1, None);
    sessions
}

/// A machine of one node.
fn machine() -> Machine {
    let config = Config {
        node: 0,
        layout: Layout::new(&[2]).unwrap(),
        trees: DoubleTree::build(&[0]),
        fence: Fence {
            attempt: 1,
            epoch: 1,
        },
        chunk_bytes: DEFAULT_CHUNK_BYTES,
        slots: DEFAULT_SLOTS,
        window: DEFAULT_WINDOW,
        timing: Timing::default(),
        recovery: Recovery::default(),
    };
    Machine::new(config, Duration::ZERO)
}

fn called(call: Call, kept: char) -> Called<char> {
    Called {
        call,
        splits: None,
        refused: None,
        kept,
    }
}

fn barrier(group: GroupId, rank: usize) -> Input {
    let call = Call::barrier();
    Input::Submit { group, rank, call }
}

fn resume(base: OpId) -> Resume {
    vec![GroupResume {
        group: GROUP,
        base,
        served: Vec::new(),
        refused: None,
    }]
}

/// A rank opens the group of all ranks of this node and calls a barrier and its end in it.
fn open_and_call(sessions: &mut Sessions<char>, rank: usize) {
    let open = sessions.open((GROUP, rank), vec![2, 3], (true, 0), 7);
    assert!(matches!(open, Some(Input::Open { group: GROUP, .. })));
    assert_eq!(sessions.opened(GROUP, rank).ticket, Some(7));
    for call in [Call::barrier(), Call::close()] {
        assert!(sessions.call(GROUP, rank, called(call, 'g')));
        sessions.accept(GROUP, rank, None).unwrap().1.unwrap();
    }
}

#[test]
fn calls_are_taken_up_in_their_order_and_called_again_until_they_end() {
    let (mut sessions, machine) = (sessions(), machine());
    for kept in ['a', 'b', 'c'] {
        assert!(sessions.call(WORLD, 0, called(Call::barrier(), kept)));
    }
    for (op, kept) in ['a', 'b'].into_iter().enumerate() {
        let (group, next, _) = sessions.next(&machine, 0, None).unwrap();
        assert_eq!((group, next), (WORLD, op as OpId));
        let (accepted, input) = sessions.accept(WORLD, 0, None).unwrap();
        assert_eq!((accepted.kept, input), (kept, Ok(barrier(WORLD, 0))));
    }
    assert_eq!(sessions.end(WORLD, 0, 0, true).unwrap().kept, 'a');
    assert_eq!(
        sessions.go_on(),
        [barrier(WORLD, 0)],
        "c waits for its turn"
    );
    let report = GroupReport::of_delivered(WORLD, &[1, 0]);
    sessions.expect(BTreeSet::new());
    assert_eq!(sessions.report(&EpochReport::new()), Some(vec![report]));
}

#[test]
fn a_call_in_a_group_that_is_opened_again_waits_for_those_before_it() {
    let (mut sessions, mut machine) = (Sessions::new(0..2, 2), machine());
    sessions.attach(0, None);
    let open = sessions.open((GROUP, 0), vec![0], (true, 0), 7).unwrap();
    machine.handle(Duration::ZERO, open.clone(), &mut Vec::new());
    sessions.opened(GROUP, 0);
    sessions.call(GROUP, 0, called(Call::barrier(), 'a'));
    sessions.accept(GROUP, 0, None).unwrap().1.unwrap();
    sessions.call(GROUP, 0, called(Call::barrier(), 'b'));
    assert!(sessions.next(&machine, 0, None).is_some());
    assert_eq!(sessions.go_on(), [open]);
    assert!(sessions.next(&machine, 0, None).is_none());
    let answer = sessions.opened(GROUP, 0);
    assert_eq!((answer.ticket, answer.inputs.len()), (None, 1));
    assert!(sessions.next(&machine, 0, None).is_some());
}

#[test]
fn a_call_without_memory_keeps_those_behind_it_in_its_group_only() {
    let (mut sessions, machine) = (sessions(), machine());
    sessions.open((GROUP, 0), vec![2, 3], (true, 0), 7);
    assert!(
        !sessions.call(GROUP, 0, called(Call::barrier(), 'g')),
        "it is not open"
    );
    sessions.opened(GROUP, 0);
    sessions.call(WORLD, 0, called(Call::barrier(), 'w'));
    assert!(sessions.stall(WORLD, 0) && !sessions.stall(WORLD, 0));
    assert!(sessions.is_stalled(0) && sessions.waiting(0) == 1);
    assert!(sessions.next(&machine, 0, Some(WORLD)).is_none());
    sessions.accept(WORLD, 0, None).unwrap().1.unwrap();
    assert!(!sessions.is_stalled(0) && sessions.waiting(0) == 0);
}

#[test]
fn what_is_called_in_a_group_that_has_failed_fails() {
    let (mut sessions, machine) = (sessions(), machine());
    open_and_call(&mut sessions, 0);
    let failed = sessions.fail(GROUP, 0, "lost").failed;
    assert_eq!(failed.len(), 2);
    sessions.call(GROUP, 0, called(Call::barrier(), 'x'));
    assert!(sessions.next(&machine, 0, None).is_some());
    let (_, input) = sessions.accept(GROUP, 0, None).unwrap();
    assert_eq!(input, Err("lost".to_owned()));
    sessions.end(GROUP, 2, 0, false).unwrap();
    assert_eq!(sessions.lane(GROUP, 0).unwrap().delivered(), 0);
}

#[test]
fn after_the_end_of_everything_each_call_fails_for_the_same_reason() {
    let (mut sessions, machine) = (sessions(), machine());
    open_and_call(&mut sessions, 1);
    let answers = sessions.give_up("out".to_owned());
    let failed: usize = answers.iter().map(|(_, answer)| answer.failed.len()).sum();
    assert_eq!(failed, 2);
    sessions.call(WORLD, 0, called(Call::barrier(), 'x'));
    assert!(sessions.next(&machine, 0, None).is_some());
    let (_, input) = sessions.accept(WORLD, 0, None).unwrap();
    assert_eq!(input, Err("out".to_owned()));
}

#[test]
fn a_group_is_forgotten_when_all_that_closed_it_got_the_outcome() {
    let mut sessions = sessions();
    for rank in [0, 1] {
        open_and_call(&mut sessions, rank);
        sessions.end(GROUP, 0, rank, true).unwrap();
    }
    sessions.end(GROUP, 1, 0, true).unwrap();
    assert!(
        !sessions.call(GROUP, 0, called(Call::barrier(), 'x')),
        "closed"
    );
    let begun = sessions.begin(Some(&resume(1)), &[0, 1]);
    assert!(begun.over.is_empty());
    assert_eq!(begun.starts.unwrap()[0].delivered, [2, 1]);
    sessions.end(GROUP, 1, 1, true).unwrap();
    assert!(sessions.begin(Some(&resume(1)), &[0, 1]).over.is_empty());
    assert_eq!(sessions.begin(Some(&resume(2)), &[0, 1]).over, [GROUP]);
    sessions.open((GROUP + 1, 0), vec![2], (true, 0), 8);
    assert_eq!(sessions.opened(GROUP + 1, 0).over, [GROUP]);
}

#[test]
fn who_left_is_called_again_for_and_leaves_again_when_its_groups_stand() {
    let mut sessions = sessions();
    assert_eq!(sessions.detach(1), None, "it has called nothing");
    assert_eq!(sessions.presence(1), Some(Presence::Absent));
    open_and_call(&mut sessions, 0);
    let (record, left) = sessions.detach(0).unwrap();
    assert_eq!(left, Some(Input::RankLeft { rank: 0 }));
    let group = &record.groups[0];
    assert_eq!(
        (record.delivered, group.delivered, group.closed),
        (0, 2, true)
    );
    let again = sessions.go_on();
    assert!(matches!(again[..], [Input::Open { .. }]), "{again:?}");
    let mut inputs = sessions.opened(GROUP, 0).inputs;
    assert_eq!(inputs.pop(), Some(Input::RankLeft { rank: 0 }));
    assert_eq!(inputs.len(), 2, "what it had called");
    assert!(sessions.end(GROUP, 0, 0, true).is_none(), "nobody gets it");

    let mut next = Sessions::<char>::new(2..4, 4);
    next.expect(BTreeSet::from([1]));
    next.restore(0, record.clone()).unwrap();
    assert_eq!(next.report(&EpochReport::new()), None, "a rank is expected");
    next.attach(1, Some(5));
    next.returned(1);
    let report = next.report(&EpochReport::new()).unwrap();
    let delivered = [
        GroupReport::of_delivered(WORLD, &[0, 5]),
        GroupReport::of_delivered(GROUP, &[2, 2]),
    ];
    assert_eq!(report, delivered);
    let mut foreign = record;
    foreign.groups[0].ranks = vec![0, 1];
    assert!(next.restore(0, foreign).is_err());
    assert!(next.expects(0) && next.presence(0) == Some(Presence::Absent));
}

#[test]
fn what_a_rank_has_called_is_taken_up_although_it_has_left() {
    let (mut sessions, machine) = (sessions(), machine());
    for retained in ['a', 'b'] {
        sessions.call(WORLD, 0, called(Call::barrier(), retained));
    }
    sessions.accept(WORLD, 0, None).unwrap().1.unwrap();
    let (record, left) = sessions.detach(0).unwrap();
    assert_eq!((record.delivered, left), (2, None), "it has called both");
    assert_eq!(sessions.go_on(), [barrier(WORLD, 0)], "the first");
    let (group, op, _) = sessions.next(&machine, 0, None).unwrap();
    assert_eq!((group, op), (WORLD, 1));
    let input = sessions.accept(WORLD, 0, None).unwrap().1;
    assert_eq!(input, Ok(barrier(WORLD, 0)));
    assert_eq!(sessions.left(0), Some(Input::RankLeft { rank: 0 }));
}

#[test]
fn a_group_that_a_rank_opened_before_it_left_is_opened_again_for_it() {
    let mut sessions = sessions();
    let open = sessions.open((GROUP, 0), vec![0, 2], (true, 0), 7).unwrap();
    let no_group = sessions
        .open((GROUP + 1, 0), vec![0, 9], (true, 0), 8)
        .unwrap();
    let (record, left) = sessions.detach(0).unwrap();
    let leaves = Input::RankLeft { rank: 0 };
    assert_eq!(left, Some(leaves.clone()));
    // Nobody waits for its calls in a group that others do not open.
    assert_eq!(sessions.go_on(), [open.clone(), no_group, leaves.clone()]);
    assert_eq!(
        sessions.fail(GROUP + 1, 0, "no group").inputs,
        std::slice::from_ref(&leaves)
    );
    assert_eq!(
        sessions.opened(GROUP, 0).inputs,
        std::slice::from_ref(&leaves)
    );
    assert_eq!(sessions.go_on(), [open.clone(), leaves.clone()]);

    let mut next = Sessions::<char>::new(2..4, 4);
    next.restore(0, record).unwrap();
    assert_eq!(next.go_on(), [open, leaves]);
}

#[test]
fn who_is_lost_has_not_left() {
    let mut sessions = sessions();
    sessions.call(WORLD, 0, called(Call::barrier(), 'w'));
    sessions.accept(WORLD, 0, None).unwrap().1.unwrap();
    sessions.end(WORLD, 0, 0, true).unwrap();
    sessions.lose(0);
    assert_eq!(sessions.detach(0), None);
    assert_eq!(sessions.presence(0), Some(Presence::Lost));
    assert_eq!(sessions.go_on(), []);
}

#[test]
fn a_group_that_cannot_be_is_not_remembered() {
    let mut sessions = sessions();
    let group = Remembered {
        group: GROUP,
        ranks: vec![2, 3],
        replicated: true,
        priority: 0,
        delivered: 4,
        closed: true,
        failed: false,
    };
    let wrong = [
        Remembered {
            group: WORLD,
            ..group.clone()
        },
        Remembered {
            ranks: vec![3, 2],
            ..group.clone()
        },
        Remembered {
            ranks: vec![2, 4],
            ..group.clone()
        },
        Remembered {
            ranks: vec![1, 3],
            ..group.clone()
        },
        Remembered {
            delivered: 0,
            ..group.clone()
        },
        Remembered {
            delivered: FIRST_SEND_RECV,
            ..group.clone()
        },
        Remembered {
            failed: true,
            ..group.clone()
        },
    ];
    for wrong in wrong {
        let refused = sessions.remember(0, wrong.clone());
        assert!(refused.is_err(), "{wrong:?}");
    }
    sessions.remember(0, group.clone()).unwrap();
    assert_eq!(
        sessions.remember(0, group),
        Err(RememberError::Twice(GROUP))
    );
}
