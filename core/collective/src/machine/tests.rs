//! What one machine does by itself: how much a rank may have in flight, which groups it opens, who has left.

use topology::OnPeerLoss;

use super::config::tests::config;
use super::*;
use crate::op::Call;
use crate::recovery::GroupResume;
use crate::{DType, DoubleTree, Layout, OpKind, ReduceOp};

#[test]
fn a_rank_waits_when_all_it_may_have_in_flight_is_not_released() {
    let mut machine = Machine::new(config(), Duration::ZERO);
    let call = Call {
        kind: OpKind::Broadcast { root: 0 },
        dtype: DType::U8,
        count: 1,
        ..Call::barrier()
    };
    let submit = Input::Submit {
        group: WORLD,
        rank: 0,
        call,
    };
    let mut effects = Vec::new();
    for _ in 0..MAX_IN_FLIGHT {
        assert!(machine.may_submit(WORLD, 0));
        machine.handle(Duration::ZERO, submit.clone(), &mut effects);
    }
    assert!(!machine.may_submit(WORLD, 0), "copies are not reported yet");
    for ticket in 0..MAX_IN_FLIGHT {
        let ticket = Ticket(ticket);
        machine.handle(Duration::ZERO, Input::Done { ticket }, &mut effects);
    }
    assert!(machine.may_submit(WORLD, 0));
    let released = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Release { .. }));
    assert_eq!(released.count() as u64, MAX_IN_FLIGHT);
}

#[test]
fn what_is_in_flight_says_who_has_joined_and_who_is_missing() {
    let config = Config {
        layout: Layout::new(&[2, 1]).unwrap(),
        trees: DoubleTree::build(&[0, 0]),
        ..config()
    };
    let mut machine = Machine::new(config, Duration::ZERO);
    assert_eq!(machine.in_flight(), []);
    let call = Call {
        dtype: DType::I32,
        count: 2,
        ..Call::barrier()
    };
    let mut call_of = |rank, seconds| {
        let now = Duration::from_secs(seconds);
        let submit = Input::Submit {
            group: WORLD,
            rank,
            call,
        };
        machine.handle(now, submit, &mut Vec::new());
        machine.in_flight()
    };
    let status = OperationStatus {
        group: WORLD,
        op: 0,
        call: Some(call),
        age: Duration::ZERO,
        joined: vec![1],
        missing: vec![0],
        waits_for: vec![],
        settled: 0,
        chunks: 0,
    };
    assert_eq!(call_of(1, 1), std::slice::from_ref(&status));
    let all = OperationStatus {
        age: Duration::from_secs(2),
        joined: vec![0, 1],
        missing: vec![],
        waits_for: vec![1],
        chunks: 1,
        ..status
    };
    assert_eq!(call_of(0, 3), [all]);
}

/// The tickets of payloads that are sent, of frames like this.
fn sent(effects: &[Effect], is: impl Fn(&Frame) -> bool) -> Vec<Ticket> {
    let sent = effects.iter().filter_map(|effect| {
        let Effect::Send { frame, payload, .. } = effect else {
            return None;
        };
        payload.filter(|_| is(frame)).map(|(ticket, _)| ticket)
    });
    sent.collect()
}

// A neighbour has as many slots as its own workers need, and takes what comes.
#[test]
fn a_node_fills_its_window_of_a_neighbours_slots_and_takes_as_many_parts_as_there_are_slots() {
    const WINDOW: u8 = 2;
    const SLOTS: u8 = 4;
    let config = Config {
        node: 1,
        layout: Layout::new(&[1, 1]).unwrap(),
        trees: DoubleTree::build(&[0, 0]),
        chunk_bytes: MIN_CHUNK_BYTES,
        slots: SLOTS,
        window: WINDOW,
        ..config()
    };
    let fence = config.fence;
    let mut machine = Machine::new(config, Duration::ZERO);
    let bytes = 16 * u64::from(MIN_CHUNK_BYTES);
    let call = Call::all_reduce(DType::U8, ReduceOp::Sum, bytes);
    let handle = |machine: &mut Machine, input| {
        let mut effects = Vec::new();
        machine.handle(Duration::ZERO, input, &mut effects);
        effects
    };
    let (group, rank) = (WORLD, 0);
    let effects = handle(&mut machine, Input::Submit { group, rank, call });
    let is_part = |frame: &Frame| matches!(frame, Frame::ReduceChunk { .. });
    assert_eq!(sent(&effects, is_part).len(), usize::from(WINDOW));
    // In the other tree it is the parent.
    let mut down = Vec::new();
    for slot in 0..SLOTS {
        let frame = Frame::ReduceChunk {
            group,
            tree: 1,
            op: 0,
            chunk: 2 * u32::from(slot) + 1,
            slot,
            bytes: MIN_CHUNK_BYTES,
            call,
            rank: 0,
            watermark: Watermark::default(),
        };
        let peer = 0;
        let effects = handle(&mut machine, Input::Frame { peer, fence, frame });
        assert_eq!(machine.broken(), None);
        let [Effect::Reduce { ticket, .. }] = effects[..] else {
            panic!("{effects:?}");
        };
        let effects = handle(&mut machine, Input::Done { ticket });
        down.extend(sent(&effects, |frame| {
            matches!(frame, Frame::BroadcastChunk { .. })
        }));
    }
    assert_eq!(down.len(), usize::from(WINDOW));
    let ticket = down[0];
    let effects = handle(&mut machine, Input::Done { ticket });
    assert_eq!(
        sent(&effects, |_| true).len(),
        1,
        "there is room for another"
    );
}

#[test]
fn a_rank_that_left_after_a_group_was_refused_ends_no_epoch() {
    let config = Config {
        node: 1,
        layout: Layout::new(&[1, 2]).unwrap(),
        trees: DoubleTree::build(&[0, 0]),
        ..config()
    };
    let fence = config.fence;
    let mut machine = Machine::new(config, Duration::ZERO);
    let opener = Opener {
        rank: 0,
        size: 3,
        checksum: 7,
    };
    let reason = OpenReason::Links;
    let outcome = Err(Dispute::Refused { opener, reason });
    let open = |rank| Input::Open {
        group: 9,
        rank,
        ranks: vec![0, 1, 2],
        replicated: true,
    };
    let refuse = Input::Frame {
        peer: 0,
        fence,
        frame: Frame::Opened { group: 9, outcome },
    };
    for input in [
        open(0),
        refuse.clone(),
        Input::RankLeft { rank: 0 },
        open(1),
    ] {
        machine.handle(Duration::ZERO, input, &mut Vec::new());
    }
    assert_eq!(machine.broken(), None);
    let mut effects = Vec::new();
    machine.handle(Duration::ZERO, refuse, &mut effects);
    let answer = Effect::Opened {
        group: 9,
        rank: 1,
        outcome: outcome.map_err(OpenError::from),
    };
    assert!(effects.contains(&answer), "{effects:?}");
}

#[test]
fn who_waits_is_not_passed_on_before_the_links_of_a_group_stand() {
    let nodes = 24;
    let group = 9;
    let config = |node| Config {
        node,
        layout: Layout::uniform(nodes, 1).unwrap(),
        trees: DoubleTree::build(&vec![0; nodes]),
        ..config()
    };
    let open = |step: usize| Input::Open {
        group,
        rank: 0,
        ranks: (0..nodes as u32).step_by(step).collect(),
        replicated: true,
    };
    let mut alive_ranks = 0;
    let pairs = || (0..nodes * nodes).map(|pair| (pair / nodes, pair % nodes));
    for (step, (node, peer)) in (2..7).flat_map(|step| pairs().map(move |pair| (step, pair))) {
        let mut machine = Machine::new(config(node), Duration::ZERO);
        let mut effects = Vec::new();
        machine.handle(Duration::ZERO, open(step), &mut effects);
        if !effects.contains(&Effect::Connect { peer }) {
            continue;
        }
        let frame = Frame::Awaiting { group, op: 0 };
        let fence = machine.node.config.fence;
        for input in [Input::Linked { peer }, Input::Frame { peer, fence, frame }] {
            machine.handle(Duration::ZERO, input, &mut effects);
        }
        // Others are no neighbours in the tree that this is said in.
        alive_ranks += usize::from(machine.broken().is_none());
        for effect in effects {
            if let Effect::Send {
                peer: to, frame, ..
            } = effect
            {
                assert!(machine.peers().contains(&to), "{node} to {to}: {frame:?}");
            }
        }
    }
    assert!(alive_ranks > 3, "{alive_ranks}");
}

#[test]
fn a_group_of_other_ranks_does_not_begin_where_one_of_the_same_number_ended() {
    let config = || Config {
        layout: Layout::new(&[2]).unwrap(),
        recovery: Recovery {
            on_peer_loss: OnPeerLoss::Shrink,
            ..Recovery::default()
        },
        ..config()
    };
    let start = |group, delivered| Start {
        resume: GroupResume {
            group,
            base: 3,
            served: Vec::new(),
            refused: None,
        },
        delivered,
        retained: Vec::new(),
    };
    let opens = |ranks: Vec<u32>| {
        let starts = vec![start(WORLD, vec![3, 3]), start(7, vec![3, 3])];
        let mut machine = Machine::resume(config(), starts, Duration::ZERO);
        let mut effects = Vec::new();
        for rank in 0..ranks.len() {
            let open = Input::Open {
                group: 7,
                rank,
                ranks: ranks.clone(),
                replicated: true,
            };
            machine.handle(Duration::ZERO, open, &mut effects);
        }
        let mut answers = Vec::new();
        for effect in effects {
            if let Effect::Opened { outcome, .. } = effect {
                answers.push(outcome);
            }
        }
        answers
    };
    assert_eq!(opens(vec![0, 1]), [Ok(()), Ok(())]);
    let refused = opens(vec![0]);
    assert!(
        matches!(
            refused[..],
            [Err(OpenError::Dispute(Dispute::Refused {
                reason: OpenReason::Taken,
                ..
            }))]
        ),
        "{refused:?}"
    );
}

/// Of a group of ranks on two nodes, of which one is lost, some on the other have the answer that it cannot be opened.
#[test]
fn who_opens_a_group_late_and_alone_on_its_node_gets_the_refusal_that_others_got() {
    let opener = Opener {
        rank: 0,
        size: 3,
        checksum: 7,
    };
    let reason = OpenReason::Gateway;
    let dispute = Dispute::Refused { opener, reason };
    let start = |group, refused| Start {
        resume: GroupResume {
            group,
            base: 0,
            served: Vec::new(),
            refused,
        },
        delivered: if group == WORLD {
            vec![0, 0]
        } else {
            Vec::new()
        },
        retained: Vec::new(),
    };
    let config = Config {
        layout: Layout::new(&[2, 1]).unwrap().of_members(&[0]).unwrap(),
        recovery: Recovery {
            on_peer_loss: OnPeerLoss::Shrink,
            ..Recovery::default()
        },
        ..config()
    };
    let starts = vec![start(WORLD, None), start(7, Some(dispute))];
    let mut machine = Machine::resume(config, starts, Duration::ZERO);
    let mut effects = Vec::new();
    let open = Input::Open {
        group: 7,
        rank: 1,
        ranks: vec![0, 1, 2],
        replicated: true,
    };
    machine.handle(Duration::ZERO, open, &mut effects);
    let answer = Effect::Opened {
        group: 7,
        rank: 1,
        outcome: Err(dispute.into()),
    };
    assert_eq!(effects, [answer]);
}

#[test]
fn a_neighbour_whose_frame_takes_long_to_come_in_is_no_suspect() {
    let config = Config {
        layout: Layout::new(&[1, 1]).unwrap(),
        trees: DoubleTree::build(&[0, 0]),
        ..config()
    };
    let step = config.timing.heartbeat;
    let silences = |receives: bool| {
        let mut machine = Machine::new(config.clone(), Duration::ZERO);
        let mut effects = Vec::new();
        // A chunk for twice as long as silence may last.
        for at in 1..=80 {
            if receives {
                machine.on_alive(at * step, 1, &mut effects);
            }
            machine.handle(at * step, Input::Tick, &mut effects);
        }
        let is_suspect = |effect: &Effect| matches!(effect, Effect::Suspect { .. });
        (effects.iter().any(is_suspect), machine.broken().is_some())
    };
    assert_eq!(silences(true), (false, false));
    assert_eq!(silences(false), (true, true));
}

/// Two ranks on each of two nodes; the machine of the first.
fn first_of_two() -> Machine {
    let config = Config {
        layout: Layout::new(&[2, 2]).unwrap(),
        trees: DoubleTree::build(&[0, 0]),
        ..config()
    };
    Machine::new(config, Duration::ZERO)
}

#[test]
fn what_is_sent_to_a_rank_that_has_left_fails_as_soon_as_its_node_knows() {
    let fence = config().fence;
    let bye = Input::Frame {
        peer: 1,
        fence,
        frame: Frame::Leaving {
            group: WORLD,
            ended: 0,
        },
    };
    for (leaves, to, stays) in [(Input::RankLeft { rank: 1 }, 1, 2), (bye, 3, 1)] {
        let send = |op, to| {
            let kind = OpKind::Send { to };
            let (group, rank, refused) = (WORLD, 0, None);
            Input::SendRecv {
                group,
                rank,
                op,
                call: Call {
                    kind,
                    dtype: DType::I32,
                    count: 3,
                    ..Call::barrier()
                },
                refused,
            }
        };
        let mut machine = first_of_two();
        let mut ends = |input| {
            let mut effects = Vec::new();
            machine.handle(Duration::ZERO, input, &mut effects);
            let end = |effect: &Effect| {
                let Effect::End { op, outcome, .. } = *effect else {
                    return None;
                };
                let text = outcome.unwrap_err().to_string();
                assert!(text.contains("has left"), "{text}");
                Some(op - FIRST_SEND_RECV)
            };
            effects.iter().filter_map(end).collect::<Vec<_>>()
        };
        assert_eq!(ends(send(FIRST_SEND_RECV, to)), [0_u64; 0]);
        assert_eq!(ends(send(FIRST_SEND_RECV + 1, stays)), [0_u64; 0]);
        assert_eq!(ends(leaves), [0]);
        assert_eq!(ends(send(FIRST_SEND_RECV + 2, to)), [2]);
        assert_eq!(machine.broken(), None);
    }
}

#[test]
fn all_messages_that_ranks_may_ask_for_are_asked_before_one_is_sent_and_any_of_them_comes_first() {
    let config = Config {
        layout: Layout::new(&[1, 1]).unwrap(),
        trees: DoubleTree::build(&[0, 0]),
        ..config()
    };
    let fence = config.fence;
    let mut machine = Machine::new(config, Duration::ZERO);
    let mut effects = Vec::new();
    let floats = |kind, tag| Call {
        kind,
        dtype: DType::F32,
        count: 1,
        tag,
        ..Call::barrier()
    };
    for tag in 0..MAX_MESSAGES {
        let message = MessageId {
            from: 0,
            to: 1,
            of: Stream::Tag(tag),
            number: 0,
        };
        let frame = Frame::ReadyToReceive {
            group: WORLD,
            message,
            call: floats(OpKind::Receive { from: 0 }, tag),
            refused: None,
        };
        let input = Input::Frame {
            peer: 1,
            fence,
            frame,
        };
        machine.handle(Duration::ZERO, input, &mut effects);
    }
    assert_eq!(machine.broken(), None);
    effects.clear();
    let tag = MAX_MESSAGES - 1;
    let send = Input::SendRecv {
        group: WORLD,
        rank: 0,
        op: FIRST_SEND_RECV,
        call: floats(OpKind::Send { to: 1 }, tag),
        refused: None,
    };
    machine.handle(Duration::ZERO, send, &mut effects);
    let is_data = |effect: &Effect| {
        let Effect::Send { frame, .. } = effect else {
            return false;
        };
        matches!(frame, Frame::Data { message, .. } if message.of == Stream::Tag(tag))
    };
    assert!(effects.iter().any(is_data), "{effects:?}");
}
