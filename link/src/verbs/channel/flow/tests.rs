//! Two ends over a simulated reliable connection: writes arrive in order, completions come whenever they like, each
//! side looks whenever it likes.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::toy::{Kind, Toy};
use crate::verbs::channel::slot::USED_BYTES;

/// Where the fixed window of the tests lies.
const WINDOW: u64 = 7;
const WINDOW_BYTES: u64 = 1000;

/// A write on its way: what it does when it arrives, and whether its sender is notified.
struct OnItsWay {
    effect: Effect,
    id: Option<u64>,
}

enum Effect {
    Payload {
        source: u32,
        to: Remote,
    },
    Number {
        number: u32,
        slot: Option<(u64, [u8; USED_BYTES])>,
    },
}

enum Completed {
    Write(u64),
    Received(u32),
}

struct End {
    flow: Flow<u32, Toy>,
    limits: Limits,
    ring: Vec<[u8; USED_BYTES]>,
    receives: u32,
    /// Posted by this end and not arrived.
    way: VecDeque<OnItsWay>,
    under_way: u32,
    queue: VecDeque<Completed>,
    /// What was sent, what came, what left; payloads by (address, source).
    pushed: Vec<(u64, Option<u32>)>,
    came: Vec<(u64, SlotTarget)>,
    landed: Vec<(u64, u32)>,
    left: Vec<u64>,
}

impl End {
    fn new(limits: Limits) -> Self {
        Self {
            flow: Flow::new(limits),
            limits,
            ring: vec![[0; USED_BYTES]; limits.slots as usize],
            receives: limits.receives(),
            way: VecDeque::new(),
            under_way: 0,
            queue: VecDeque::new(),
            pushed: Vec::new(),
            came: Vec::new(),
            landed: Vec::new(),
            left: Vec::new(),
        }
    }

    fn header(number: u64, payload: u32) -> Toy {
        Toy::copied(number, payload)
    }

    fn push(&mut self, window: u64, loaded: bool) {
        let number = self.pushed.len() as u64;
        let source = number as u32;
        let payload = loaded.then_some((
            number,
            source,
            Destination {
                window,
                offset: number % 900,
            },
        ));
        let header = Self::header(number, if loaded { 100 } else { 0 });
        match self.flow.push(header, payload) {
            Ok(()) => self.pushed.push((number, loaded.then_some(source))),
            Err(error) => assert!(matches!(error, FlowViolation::Queue(_)), "{error}"),
        }
    }

    fn flush(&mut self) {
        while let Some(post) = self.flow.next_post().unwrap() {
            self.under_way += 1;
            assert!(
                self.under_way <= self.limits.sends,
                "the send queue overflows"
            );
            let number = post.signal();
            let (effect, id) = match post {
                Post::Payload { source, to } => (Effect::Payload { source, to }, None),
                Post::Slot {
                    number: slot,
                    content,
                    id,
                } => {
                    let slot = Some((slot, content.encode(slot)));
                    let number = number.unwrap();
                    (Effect::Number { number, slot }, id)
                }
                Post::Credit { id, .. } => {
                    let number = number.unwrap();
                    (Effect::Number { number, slot: None }, id)
                }
            };
            self.way.push_back(OnItsWay { effect, id });
        }
    }

    /// The next write arrives at the other end.
    fn arrive(&mut self, other: &mut Self) -> bool {
        let Some(OnItsWay { effect, id }) = self.way.pop_front() else {
            return false;
        };
        match effect {
            Effect::Payload { source, to } => other.landed.push((to.address, source)),
            Effect::Number { number, slot } => {
                if let Some((number, bytes)) = slot {
                    let slots = u64::from(self.limits.slots);
                    assert!(number - other.flow.taken < slots, "a slot is overwritten");
                    other.ring[(number % slots) as usize] = bytes;
                }
                assert!(other.receives > 0, "no receive request is left");
                other.receives -= 1;
                other.queue.push_back(Completed::Received(number));
            }
        }
        if let Some(id) = id {
            self.queue.push_back(Completed::Write(id));
        }
        true
    }

    /// Looks at one completion.
    fn look(&mut self) -> bool {
        match self.queue.pop_front() {
            None => return false,
            Some(Completed::Write(id)) => {
                let before = self.flow.room;
                self.flow.completed(id, &mut self.left).unwrap();
                self.under_way -= self.flow.room - before;
            }
            Some(Completed::Received(number)) => {
                self.receives += 1;
                match self.flow.arrived(number).unwrap() {
                    Arrival::Credit => {}
                    Arrival::Slot(number) => {
                        let index = number % u64::from(self.limits.slots);
                        let content = Content::parse(&self.ring[index as usize], number).unwrap();
                        match self.flow.open(content).unwrap() {
                            Opened::Window => {}
                            Opened::Frame { header, place } => {
                                self.came.push((header.number, place));
                            }
                        }
                    }
                }
            }
        }
        true
    }
}

fn step(ends: &mut [End; 2], choice: u8) {
    let [one, other] = ends;
    let (end, other) = if choice & 1 == 0 {
        (one, other)
    } else {
        (other, one)
    };
    match choice >> 1 & 7 {
        0 => end.push(0, false),
        1 => end.push(WINDOW, true),
        2 => end.push(WINDOW + 1, true),
        3 | 4 => {
            end.arrive(other);
        }
        5 | 6 => {
            end.look();
        }
        _ => end.flush(),
    }
}

fn check(sender: &End, receiver: &End) {
    let came: Vec<u64> = receiver.came.iter().map(|(number, _)| *number).collect();
    let pushed: Vec<u64> = sender.pushed.iter().map(|(number, _)| *number).collect();
    assert_eq!(came, pushed, "frames are lost or out of order");
    let mut left = sender.left.clone();
    left.sort_unstable();
    let loaded: Vec<u64> = sender
        .pushed
        .iter()
        .filter_map(|(number, source)| source.map(|_| *number))
        .collect();
    assert_eq!(left, loaded, "payloads leave once each");
    let placed: Vec<u64> = receiver
        .came
        .iter()
        .filter(|(_, place)| matches!(place, SlotTarget::At(_)))
        .map(|(number, _)| 10_000 + number % 900)
        .collect();
    let landed: Vec<u64> = receiver.landed.iter().map(|(at, _)| *at).collect();
    assert_eq!(landed, placed, "payload lies where its frame says");
}

proptest! {
    #[test]
    fn every_frame_comes_once_in_order_and_nothing_overflows(
        slots in 1u32..9,
        sends in 2u32..20,
        choices in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let limits = Limits { slots: 2 * slots, sends };
        let mut ends = [End::new(limits), End::new(limits)];
        for end in &mut ends {
            let remote = Remote { address: 10_000, bytes: WINDOW_BYTES, key: 1 };
            end.flow.announce(WINDOW, Some(remote)).unwrap();
            end.flow.announce(WINDOW + 1, None).unwrap();
        }
        for choice in choices {
            step(&mut ends, choice);
        }
        // Everybody looks until nothing moves.
        let mut moved = true;
        while moved {
            moved = false;
            let [one, other] = &mut ends;
            for end in [&mut *one, &mut *other] {
                end.flush();
            }
            moved |= one.arrive(other) | other.arrive(one) | one.look() | other.look();
        }
        let [one, other] = &ends;
        prop_assert!(one.flow.is_flushed() && other.flow.is_flushed(), "the channel is stuck");
        check(one, other);
        check(other, one);
    }

    #[test]
    fn a_number_from_a_hostile_peer_is_refused_or_means_what_comes_next(number in any::<u32>()) {
        let mut flow = Flow::<u32, Toy>::new(Limits { slots: 4, sends: 8 });
        match flow.arrived(number) {
            Ok(Arrival::Slot(slot)) => prop_assert_eq!(slot, 0),
            Ok(Arrival::Credit) => prop_assert_eq!(number, 1 << 31),
            Err(_) => {}
        }
    }
}

fn flow() -> Flow<u32, Toy> {
    Flow::new(Limits {
        slots: 4,
        sends: 16,
    })
}

fn to(window: u64, offset: u64) -> Destination {
    Destination { window, offset }
}

#[test]
fn a_frame_waits_for_its_window_with_all_that_comes_later() {
    let mut flow = flow();
    let loaded = (1, 5, to(9, 10));
    flow.push(End::header(0, 100), Some(loaded)).unwrap();
    flow.push(End::header(1, 0), None).unwrap();
    assert_eq!(flow.next_post().unwrap(), None);
    assert_eq!(flow.missing_window(), Some(9));
    let remote = Some(Remote {
        address: 500,
        bytes: 110,
        key: 3,
    });
    flow.open(Content::Window { window: 9, remote }).unwrap();
    assert_eq!(flow.missing_window(), None);
    let to = Remote {
        address: 510,
        bytes: 100,
        key: 3,
    };
    let posted = flow.next_post().unwrap();
    assert_eq!(posted, Some(Post::Payload { source: 5, to }));
    for expected in 0..2 {
        let posted = flow.next_post().unwrap();
        assert!(matches!(posted, Some(Post::Slot { number, .. }) if number == expected));
    }
    assert_eq!(flow.next_post().unwrap(), None);
}

#[test]
fn a_heartbeat_does_not_wait_for_the_window_of_what_is_before_it() {
    let mut flow = flow();
    flow.push(End::header(0, 100), Some((1, 5, to(9, 10))))
        .unwrap();
    flow.push(End::header(1, 0), None).unwrap();
    let heartbeat = Toy {
        kind: Kind::Urgent,
        ..Toy::copied(2, 0)
    };
    for _ in 0..2 {
        flow.push(heartbeat, None).unwrap();
    }
    for _ in 0..2 {
        let posted = flow.next_post().unwrap();
        assert!(
            matches!(
                posted,
                Some(Post::Slot { content: Content::Frame { header, .. }, .. }) if header == heartbeat
            ),
            "{posted:?}"
        );
    }
    assert_eq!(flow.next_post().unwrap(), None, "the others wait, in order");
}

#[test]
fn payload_beyond_a_window_is_neither_sent_nor_taken() {
    let mut flow = flow();
    let remote = Some(Remote {
        address: u64::MAX - 50,
        bytes: 100,
        key: 3,
    });
    flow.open(Content::Window { window: 9, remote }).unwrap();
    flow.announce(9, remote).unwrap();
    for offset in [1, 60, u64::MAX] {
        let place = SlotTarget::At(to(9, offset));
        let frame = Content::Frame {
            header: End::header(0, 100),
            place,
        };
        assert!(matches!(
            flow.open(frame),
            Err(FlowViolation::Window { .. })
        ));
        let mut sending = Flow::new(flow.limits);
        sending.open(Content::Window { window: 9, remote }).unwrap();
        sending
            .push(End::header(0, 100), Some((1, 5u32, to(9, offset))))
            .unwrap();
        assert!(matches!(
            sending.next_post(),
            Err(FlowViolation::Window { .. })
        ));
    }
    flow.forget(9);
    let frame = Content::Frame {
        header: End::header(0, 100),
        place: SlotTarget::At(to(9, 0)),
    };
    assert!(matches!(
        flow.open(frame),
        Err(FlowViolation::Window { .. })
    ));
}

#[test]
fn a_peer_that_announces_without_end_is_refused() {
    let mut flow = flow();
    let window = |window| Content::Window {
        window,
        remote: None,
    };
    for number in 0..RDMA_WINDOWS as u64 {
        flow.open(window(number)).unwrap();
    }
    assert_eq!(flow.open(window(1 << 40)), Err(FlowViolation::Windows));
}

#[test]
fn what_is_abandoned_gives_every_ticket_back() {
    let mut flow = flow();
    let remote = Some(Remote {
        address: 500,
        bytes: 200,
        key: 3,
    });
    flow.open(Content::Window { window: 9, remote }).unwrap();
    for ticket in 0..7 {
        flow.push(End::header(ticket, 100), Some((ticket, 5, to(9, 0))))
            .unwrap();
    }
    while flow.next_post().unwrap().is_some() {}
    let mut left = Vec::new();
    flow.abandon(&mut left);
    left.sort_unstable();
    assert_eq!(left, (0..7).collect::<Vec<_>>());
    assert!(flow.is_flushed());
}
