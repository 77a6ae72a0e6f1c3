//! What a client asks in several attempts, each with too little time: it is asked once, and its answer serves the next.

use std::os::fd::AsFd as _;

use super::tests::{PATIENCE, bytes_of, standing};
use super::*;
use crate::attach::{AttachChannel, Listener, SidecarAnswer};
use link::segment::{Segment, Writers};
use link::wake_fd::WakeFd;

/// A sidecar that does what its test says, and the client's attempt to attach to it.
struct ByHand {
    _dir: tempfile::TempDir,
    listener: Listener,
    attaching: Attaching,
    control: Arc<Segment>,
}

impl ByHand {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hfreduce.sock");
        Self {
            listener: Listener::bind(&path).unwrap(),
            attaching: Attaching::new(&path, 0),
            control: Arc::new(ring::control().unwrap()),
            _dir: dir,
        }
    }

    /// Its answer to a process that attaches.
    fn accept_attach(&self, channel: &AttachChannel) {
        let attached = SidecarAnswer::Attached {
            control_bytes: self.control.len() as u64,
            standing: standing(0),
            patience_seconds: 0,
        };
        let (_wake_fd, clients_end) = WakeFd::pair().unwrap();
        let fds = [self.control.fd(), clients_end.as_fd()];
        channel.send(&attached, &fds).unwrap();
    }

    fn attach(mut self) -> (Client, AttachChannel) {
        is_late(self.attaching.go_on(Duration::ZERO).unwrap_err());
        let channel = self.listener.accept().unwrap().unwrap();
        self.accept_attach(&channel);
        let client = self.attaching.go_on(PATIENCE).unwrap();
        assert!(asked(&channel).len() == 1);
        (client, channel)
    }
}

fn is_late(error: Error) {
    assert!(error.is_late(), "{error}");
}

/// What the client has said over its socket.
fn asked(channel: &AttachChannel) -> Vec<ClientMessage> {
    std::iter::from_fn(|| channel.receive().unwrap()).collect()
}

fn give(channel: &AttachChannel, number: u32, bytes: usize) {
    let segment = Segment::create("input", bytes, Writers::Everybody).unwrap();
    let message = SidecarAnswer::Input {
        segment: number,
        bytes: segment.len() as u64,
    };
    channel.send(&message, &[segment.fd()]).unwrap();
}

#[test]
fn a_sidecar_that_answers_late_is_asked_to_attach_once() {
    let mut hand = ByHand::new();
    for _ in 0..3 {
        is_late(hand.attaching.go_on(Duration::ZERO).unwrap_err());
    }
    let channel = hand.listener.accept().unwrap().unwrap();
    assert!(hand.listener.accept().unwrap().is_none(), "one connection");
    hand.accept_attach(&channel);
    let client = hand.attaching.go_on(PATIENCE).unwrap();
    assert_eq!(client.standing(), standing(0));
    let said = asked(&channel);
    assert!(
        matches!(said[..], [ClientMessage::Attach { .. }]),
        "{said:?}"
    );
}

#[test]
fn a_segment_that_comes_late_was_asked_for_once() {
    let (client, channel) = ByHand::new().attach();
    for _ in 0..3 {
        is_late(client.buffer(100, Duration::ZERO).unwrap_err());
    }
    let said = asked(&channel);
    assert_eq!(said, [ClientMessage::Allocate { bytes: 100 }]);
    give(&channel, 0, 100);
    assert_eq!(client.buffer(100, PATIENCE).unwrap().len(), 100);
    assert_eq!(asked(&channel), []);
}

#[test]
fn a_segment_that_comes_late_does_not_pass_for_a_larger_one() {
    const LARGE: usize = 1 << 20;
    let (client, channel) = ByHand::new().attach();
    is_late(client.buffer(100, Duration::ZERO).unwrap_err());
    give(&channel, 0, 100);
    is_late(client.buffer(LARGE, Duration::ZERO).unwrap_err());
    let bytes = LARGE as u64;
    let both = [
        ClientMessage::Allocate { bytes: 100 },
        ClientMessage::Allocate { bytes },
    ];
    assert_eq!(asked(&channel), both);
    give(&channel, 1, LARGE);
    assert_eq!(client.buffer(LARGE, PATIENCE).unwrap().len(), LARGE);
    assert_eq!(client.idle_buffer(100).unwrap().unwrap().len(), 100);
}

#[test]
fn who_opens_a_group_in_several_attempts_asks_for_it_once() {
    let (client, channel) = ByHand::new().attach();
    give(&channel, 0, 4);
    let opening = client.begin_open(7, &[0], (true, 0), PATIENCE).unwrap();
    for _ in 0..3 {
        let error = client.finish_open(&opening, Duration::ZERO).unwrap_err();
        assert!(matches!(error, Error::GroupTimeout { .. }), "{error}");
        is_late(error);
    }
}

#[test]
fn the_input_of_a_call_that_finds_no_room_stays_with_the_caller() {
    let (client, channel) = ByHand::new().attach();
    for _ in 0..IN_FLIGHT_LIMIT {
        client.submit(Call::barrier(), None, PATIENCE).unwrap();
    }
    give(&channel, 0, 100);
    let mut input = Some(client.buffer(100, PATIENCE).unwrap());
    let busy = client.submit_from(client.world(), bytes_of(100), &mut input, Duration::ZERO);
    let busy = busy.unwrap_err().after(Duration::from_secs(7));
    assert!(busy.to_string().contains("after 7s"), "{busy}");
    is_late(busy);
    assert_eq!(input.unwrap().len(), 100);
}

#[test]
fn a_process_without_descriptors_left_gets_an_error_with_what_to_do_and_goes_on() {
    let (client, channel) = ByHand::new().attach();
    let (segment, bytes) = (0, 1 << 16);
    let refused = std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.buffer(100, PATIENCE).unwrap_err());
        let start = Instant::now();
        while asked(&channel).is_empty() {
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        // So it looks where the kernel has dropped the descriptor.
        let given = SidecarAnswer::Input { segment, bytes };
        channel.send(&given, &[]).unwrap();
        asking.join().unwrap().to_string()
    });
    assert!(refused.contains("ulimit -n"), "{refused}");
    assert_eq!(asked(&channel), [ClientMessage::Free { segment }]);
    give(&channel, 1, 100);
    client.buffer(100, PATIENCE).unwrap();
}

#[test]
fn operations_and_messages_of_each_way_find_room_beside_each_other() {
    let (client, _channel) = ByHand::new().attach();
    let floats = |kind| Call::new(kind, crate::DType::F32, 0);
    let kinds = [
        (Call::barrier(), IN_FLIGHT_LIMIT),
        (floats(crate::OpKind::Receive { from: 1 }), MESSAGE_LIMIT),
        (floats(crate::OpKind::Send { to: 1 }), MESSAGE_LIMIT),
    ];
    let state = || client.shared.lock().unwrap();
    for (call, limit) in kinds {
        for _ in 0..limit {
            assert!(state().has_room(&call), "{call}");
            let ticket = state().next_ticket;
            state().next_ticket += 1;
            let submission = Submission::Release { ticket };
            state().called(ticket, call, submission, None, None);
        }
        assert!(!state().has_room(&call), "{call}");
        let busy = client.submit(call, None, Duration::ZERO).unwrap_err();
        assert!(busy.to_string().contains(&limit.to_string()), "{busy}");
    }
}
