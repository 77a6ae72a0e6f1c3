//! What a machine begins an epoch with, and what it leaves to the next one.

use topology::OnPeerLoss;

use super::config::tests::config;
use super::*;
use crate::op::Call;
use crate::recovery::{GroupResume, Retained, Served};
use crate::{DType, DoubleTree, Layout, OpKind};

fn held(bytes: u64) -> Retained {
    Retained {
        op: 4,
        epoch: 1,
        call: Call {
            dtype: DType::I32,
            count: bytes / 4,
            ..Call::barrier()
        },
        bytes,
        complete: true,
        verdict: None,
    }
}

/// Two nodes of one rank each, that go on without each other.
fn two_nodes() -> Config {
    Config {
        layout: Layout::new(&[1, 1]).unwrap(),
        trees: DoubleTree::build(&[0, 0]),
        recovery: Recovery {
            on_peer_loss: OnPeerLoss::Shrink,
            ..Recovery::default()
        },
        ..config()
    }
}

/// The second of two nodes in an epoch that serves operation 4, which was delivered to its rank before.
fn second_of_two(served: Served, mine: Option<Retained>) -> Machine {
    let start = Start {
        resume: GroupResume {
            group: WORLD,
            base: 4,
            served: vec![served],
            refused: None,
        },
        delivered: vec![5],
        retained: mine.into_iter().collect(),
    };
    let config = Config {
        node: 1,
        ..two_nodes()
    };
    Machine::resume(config, vec![start], Duration::ZERO)
}

fn served(bytes: u64, spread: bool) -> Served {
    Served {
        retained: held(bytes),
        holder: 0,
        spread,
    }
}

/// The only chunk of the served operation, from the root of tree 0.
fn down() -> Frame {
    Frame::BroadcastChunk {
        group: WORLD,
        tree: 0,
        op: 4,
        chunk: 0,
        bytes: 8,
        watermark: Watermark::default(),
    }
}

#[test]
fn what_is_served_is_written_only_where_it_is_not_yet() {
    let place = |complete| {
        let mine = Retained {
            complete,
            ..held(8)
        };
        let machine = second_of_two(served(8, true), Some(mine));
        machine.place(0, machine.node.config.fence, &down())
    };
    assert_eq!(place(true), Placement::Discard);
    // Its rank had the outcome before the node lost its memory: it forwards what it has not.
    assert!(matches!(place(false), Placement::Into(_)));
}

/// Everybody has the outcome of operation 4.
fn delivered_to_all() -> Frame {
    let watermark = Watermark {
        completed: 5,
        delivered: 5,
    };
    let group = WORLD;
    Frame::Watermark { group, watermark }
}

/// Everybody else may have it and have delivered it while it is still on its way to one that holds it.
#[test]
fn what_is_served_is_not_written_where_it_lay_before_although_it_was_delivered_to_all() {
    let mut machine = second_of_two(served(8, true), Some(held(8)));
    let fence = machine.node.config.fence;
    let (peer, frame) = (0, delivered_to_all());
    let all = Input::Frame { peer, fence, frame };
    machine.handle(Duration::ZERO, all, &mut Vec::new());
    assert_eq!(machine.place(0, fence, &down()), Placement::Discard);
}

/// What the machine reports when its epoch ends. The one of the next epoch, where all of that was delivered to all ranks,
/// has to release it.
fn is_released_in_the_next_epoch(machine: &mut Machine, op: OpId) -> Vec<Retained> {
    let mut effects = Vec::new();
    machine.handle(Duration::ZERO, Input::Revoke, &mut effects);
    let report = |effect: &Effect| {
        let Effect::Stopped { report } = effect else {
            return None;
        };
        Some(report[0].clone())
    };
    let report = effects.iter().find_map(report).unwrap();
    let start = Start {
        resume: GroupResume {
            group: WORLD,
            base: op + 1,
            served: Vec::new(),
            refused: None,
        },
        delivered: vec![op + 1],
        retained: report.retained.clone(),
    };
    let config = machine.node.config.clone();
    let mut next = Machine::resume(config, vec![start], Duration::ZERO);
    next.handle(Duration::ZERO, Input::Tick, &mut effects);
    let release = Effect::Release { group: WORLD, op };
    let releases = effects.iter().filter(|effect| **effect == release);
    assert_eq!(releases.count(), 1, "{effects:?}");
    report.retained
}

// REC-10
#[test]
fn what_is_still_on_its_way_to_one_that_holds_it_is_released_although_the_epoch_ends() {
    let mut machine = second_of_two(served(8, true), Some(held(8)));
    let fence = machine.node.config.fence;
    let (peer, frame) = (0, delivered_to_all());
    let mut effects = Vec::new();
    let all = Input::Frame { peer, fence, frame };
    machine.handle(Duration::ZERO, all, &mut effects);
    let releases = |effect: &Effect| matches!(effect, Effect::Release { .. });
    assert!(!effects.iter().any(releases), "it is sent on from there");
    let retained = is_released_in_the_next_epoch(&mut machine, 4);
    assert_eq!(retained, [held(8)]);
}

// REC-10
#[test]
fn what_is_still_being_sent_when_all_have_it_is_released_although_the_epoch_ends() {
    let config = two_nodes();
    let fence = config.fence;
    let mut machine = Machine::new(config, Duration::ZERO);
    let call = Call {
        kind: OpKind::Broadcast { root: 0 },
        ..held(8).call
    };
    let group = WORLD;
    let submit = Input::Submit {
        group,
        rank: 0,
        call,
    };
    let part = Frame::ReduceChunk {
        group,
        tree: 0,
        op: 0,
        chunk: 0,
        slot: 0,
        bytes: 0,
        call,
        rank: 1,
        watermark: Watermark::default(),
    };
    let watermark = Watermark {
        completed: 1,
        delivered: 1,
    };
    let all = Frame::Watermark { group, watermark };
    let frame = |frame| Input::Frame {
        peer: 1,
        fence,
        frame,
    };
    let copied = Ticket(0);
    let mut effects = Vec::new();
    for input in [
        submit,
        frame(part),
        Input::Done { ticket: copied },
        frame(all),
    ] {
        machine.handle(Duration::ZERO, input, &mut effects);
    }
    assert_eq!((machine.broken(), machine.is_idle()), (None, false));
    let retained = is_released_in_the_next_epoch(&mut machine, 0);
    assert_eq!((retained.len(), retained[0].complete), (1, true));
}

/// Its ranks have the outcome, it has lost the result, and gets it to send it on: where the epoch ends before, nobody may
/// need it any more.
// REC-10
#[test]
fn what_a_node_gets_only_to_send_it_on_is_released_although_the_epoch_ends() {
    let mut machine = second_of_two(served(8, true), None);
    let retained = is_released_in_the_next_epoch(&mut machine, 4);
    let lacking = Retained {
        complete: false,
        ..held(8)
    };
    assert_eq!(retained, [lacking]);
    // So it is in a group that the epoch's end leaves unopened.
    let start = Start {
        resume: GroupResume {
            group: 7,
            base: 4,
            served: vec![served(8, true)],
            refused: None,
        },
        delivered: vec![5],
        retained: Vec::new(),
    };
    let unopened = Machine::resume(config(), vec![start], Duration::ZERO);
    assert_eq!(unopened.report()[1].retained, [lacking]);
}

// REC-10: who serves others has what it says it has.
#[test]
fn who_forgot_what_was_delivered_to_its_ranks_holds_it_only_where_there_are_no_bytes() {
    for (bytes, complete) in [(8, false), (0, true)] {
        let machine = second_of_two(served(bytes, false), None);
        let report = &machine.report()[0];
        assert_eq!((report.delivered_to_all, report.retained.len()), (5, 1));
        assert_eq!(report.retained[0].complete, complete);
    }
}

#[test]
fn a_served_operation_is_over_where_it_was_delivered_to_all_ranks_before() {
    let mut machine = second_of_two(served(8, true), Some(held(8)));
    let fence = machine.node.config.fence;
    let mut effects = Vec::new();
    for input in [
        Input::Tick,
        Input::Frame {
            peer: 0,
            fence,
            frame: down(),
        },
        Input::Leave,
    ] {
        machine.handle(Duration::ZERO, input, &mut effects);
    }
    let delivers = |effect: &Effect| matches!(effect, Effect::End { .. });
    assert!(!effects.iter().any(delivers), "nothing is delivered twice");
    let bye = Effect::Send {
        peer: 0,
        frame: Frame::Leaving {
            group: WORLD,
            ended: 5,
        },
        payload: None,
    };
    assert!(effects.contains(&bye), "{effects:?}");
}

#[test]
fn what_was_delivered_everywhere_before_it_arrived_is_released() {
    let mut machine = second_of_two(served(8, true), Some(held(8)));
    let fence = machine.node.config.fence;
    let group = WORLD;
    let mut effects = Vec::new();
    for frame in [delivered_to_all(), down()] {
        let peer = 0;
        let frame = Input::Frame { peer, fence, frame };
        machine.handle(Duration::ZERO, frame, &mut effects);
    }
    let release = Effect::Release { group, op: 4 };
    assert!(effects.contains(&release), "{effects:?}");
    assert_eq!(machine.groups[&WORLD].oldest(), 5);
}

/// What is served moves before ranks have called again what comes before it: with one slot an edge two neighbours would
/// wait for each other if it took that.
#[test]
fn what_is_served_leaves_the_only_slot_to_what_comes_before_it() {
    let start = Start {
        resume: GroupResume {
            group: WORLD,
            base: 3,
            served: vec![Served {
                holder: 1,
                ..served(8, true)
            }],
            refused: None,
        },
        delivered: vec![3],
        retained: vec![held(8)],
    };
    let config = Config {
        node: 1,
        layout: Layout::new(&[1, 1]).unwrap(),
        trees: DoubleTree::build(&[0, 0]),
        slots: 1,
        window: 1,
        recovery: Recovery {
            on_peer_loss: OnPeerLoss::Shrink,
            ..Recovery::default()
        },
        ..config()
    };
    let mut machine = Machine::resume(config, vec![start], Duration::ZERO);
    let mut uses_of_the_slot = |input| {
        let mut effects = Vec::new();
        machine.handle(Duration::ZERO, input, &mut effects);
        let op = |effect: &Effect| {
            let Effect::Send {
                frame: Frame::ReduceChunk { op, .. },
                ..
            } = effect
            else {
                return None;
            };
            Some(*op)
        };
        let copies = |effect: &Effect| matches!(effect, Effect::Copy { .. });
        let copied = effects.iter().any(copies);
        (effects.iter().find_map(op), copied)
    };
    assert_eq!(uses_of_the_slot(Input::Tick), (None, false));
    let submit = Input::Submit {
        group: WORLD,
        rank: 0,
        call: Call::barrier(),
    };
    assert_eq!(uses_of_the_slot(submit), (Some(3), false));
}
