//! Links over RDMA, on the stand-in library: two in one process, which behave as links over TCP and through shared
//! memory do. `everything_crosses` runs on real devices, too.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use link::block::{Block, Reading};
use link::segment::{Segment, Writers};
use link::transport::verbs::{Adapter, AdapterChoice, Opening, Shape};
use link::transport::{Outgoing, PayloadTarget, Received, Transport, Verbs};
use link::verbs::{VerbsLibrary, abi};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::fake::{Fake, REGISTER_REFUSED, SHUFFLE, STATUS};
use crate::nodes::LIMIT;
use crate::toy::{Kind, Toy};

const CHUNK: u32 = 10_000;
const SHAPE: Shape = Shape {
    payload_bytes: CHUNK,
    places: 8,
};

pub(crate) fn adapter(library: &Arc<VerbsLibrary>, device: &str) -> Arc<Adapter> {
    adapter_with(library, device, |error| panic!("{error}"))
}

fn adapter_with(
    library: &Arc<VerbsLibrary>,
    device: &str,
    trouble: impl Fn(&link::verbs::Error) + Send + Sync + 'static,
) -> Arc<Adapter> {
    let wanted = AdapterChoice {
        device: Some(device.to_owned()),
        ..AdapterChoice::default()
    };
    Adapter::open(library, &wanted, Box::new(trouble)).unwrap()
}

/// Two links to each other.
fn link(adapters: [&Arc<Adapter>; 2]) -> [Verbs<Toy>; 2] {
    let [mut one, mut other] =
        [0, 1].map(|at: usize| Opening::new(adapters[at], SHAPE, at == 0).unwrap());
    let invitations = [&one, &other].map(|end| end.invitation().unwrap());
    one.connect(&invitations[1]).unwrap();
    other.connect(&invitations[0]).unwrap();
    let start = Instant::now();
    while ![&mut one, &mut other]
        .map(|end| end.look().unwrap())
        .iter()
        .all(|done| *done)
    {
        assert!(start.elapsed() < LIMIT, "the ends do not reach each other");
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (answered, _) = listener.accept().unwrap();
    [
        one.finish(dialled).unwrap(),
        other.finish(answered).unwrap(),
    ]
}

/// Two links on the stand-in's two devices.
fn links(fake: &Fake) -> [Verbs<Toy>; 2] {
    let adapters = ["fake0", "fake1"].map(|device| adapter(&fake.library, device));
    link([&adapters[0], &adapters[1]])
}

pub(crate) fn block(content: &[u8]) -> Arc<Block> {
    let block = Block::new(Segment::create("test", content.len(), Writers::Creator).unwrap());
    let mut whole = block.write(0..content.len()).unwrap();
    whole.copy_from_slice(content);
    drop(whole);
    block
}

fn up(number: u64, payload: u32) -> Toy {
    Toy {
        kind: Kind::ReadInPlace,
        ..Toy::copied(number, payload)
    }
}

const fn down(number: u64, payload: u32) -> Toy {
    Toy::copied(number, payload)
}

fn push(link: &mut Verbs<Toy>, header: &Toy, payload: Option<(u64, Reading)>) {
    let payload = payload.map(|(token, bytes)| Outgoing { token, bytes });
    link.push(header, payload).unwrap();
}

/// Lets both work until there is a frame for the second, whose payload goes there if the link does not keep it.
fn receive(links: &mut [Verbs<Toy>; 2], into: &Arc<Block>) -> (Toy, Option<Reading>, Vec<u64>) {
    let [from, to] = links;
    let (start, mut left) = (Instant::now(), Vec::new());
    loop {
        assert!(start.elapsed() < LIMIT, "nothing comes");
        from.flush(&mut left).unwrap();
        assert!(matches!(
            from.receive(&mut |_| Ok(PayloadTarget::Discard)).unwrap(),
            Received::Nothing
        ));
        let mut place = |header: &Toy| {
            Ok(PayloadTarget::Into(
                into.write(0..header.payload as usize).unwrap(),
            ))
        };
        if let Received::Frame(header, payload) = to.receive(&mut place).unwrap() {
            to.flush(&mut Vec::new()).unwrap();
            return (header, payload, left);
        }
        to.flush(&mut Vec::new()).unwrap();
    }
}

#[test]
fn what_goes_up_is_read_in_place_and_what_goes_down_is_put_in_its_place() {
    let fake = Fake::new();
    let mut links = links(&fake);
    let (part, result) = (block(b"a part"), block(&[0; 100]));
    push(
        &mut links[0],
        &up(0, 6),
        Some((7, part.read(0..6).unwrap())),
    );
    let (header, payload, _) = receive(&mut links, &result);
    assert_eq!(header, up(0, 6));
    assert_eq!(payload.as_deref(), Some(&b"a part"[..]));
    push(
        &mut links[0],
        &down(1, 4),
        Some((8, part.read(2..6).unwrap())),
    );
    let (header, none, _) = receive(&mut links, &result);
    assert!(header == down(1, 4) && none.is_none());
    assert_eq!(&result.read(0..4).unwrap()[..], b"part");
    assert_eq!(
        payload.as_deref(),
        Some(&b"a part"[..]),
        "it is overwritten"
    );
    assert!(links[0].is_flushed() && links[0].receives_in_place() && links[0].is_polled());
    let (sent, received) = (links[0].take_traffic(), links[1].take_traffic());
    assert!(sent.0 > 10 && sent.0 == received.1, "{sent:?} {received:?}");
}

/// Many frames in both directions, of which the receiver keeps some for a while.
pub(crate) fn everything_crosses(library: &Arc<VerbsLibrary>, devices: [&str; 2]) {
    const FRAMES: u64 = 120;
    let adapters = devices.map(|device| adapter(library, device));
    let mut links = link([&adapters[0], &adapters[1]]);
    let content: Vec<u8> = (0..2 * CHUNK).map(|at| (at * 7 % 251) as u8).collect();
    let sources = [block(&content), block(&content)];
    let result = block(&[0; CHUNK as usize]);
    let range = |number: u64| {
        let start = (number * 131) as usize % CHUNK as usize;
        start..start + (CHUNK - (number % 100) as u32) as usize
    };
    let (mut sent, mut came, mut left) = ([0; 2], [0; 2], [0; 2]);
    let mut kept = [BTreeMap::new(), BTreeMap::new()];
    let start = Instant::now();
    while came != [FRAMES; 2] || left != [2 * FRAMES / 3; 2] {
        assert!(
            start.elapsed() < LIMIT,
            "sent {sent:?}, came {came:?}, left {left:?}"
        );
        for at in [0, 1] {
            // A sender is ahead of its receiver, as far as slots allow, and more.
            while sent[at] < FRAMES && sent[at] < came[1 - at] + 20 {
                let number = sent[at];
                let bytes = sources[at].read(range(number)).unwrap();
                let length = bytes.len() as u32;
                match number % 3 {
                    0 => push(&mut links[at], &up(number, length), Some((number, bytes))),
                    1 => push(&mut links[at], &down(number, length), Some((number, bytes))),
                    _ => push(&mut links[at], &down(number, 0), None),
                }
                sent[at] += 1;
            }
            let mut tokens = Vec::new();
            links[at].flush(&mut tokens).unwrap();
            left[at] += tokens.len() as u64;
            let mut place = |header: &Toy| {
                Ok(PayloadTarget::Into(
                    result.write(0..header.payload as usize).unwrap(),
                ))
            };
            let Received::Frame(header, payload) = links[at].receive(&mut place).unwrap() else {
                continue;
            };
            let number = came[at];
            assert_eq!(header.number, number, "frames are out of order");
            let expected = &content[range(number)];
            match payload {
                Some(payload) => drop(kept[at].insert(number, payload)),
                None if header.payload > 0 => {
                    let into = result.read(0..expected.len()).unwrap();
                    assert!(into[..] == *expected, "frame {number} is damaged");
                }
                None => {}
            }
            // Looked at late: nobody has written there since.
            while let Some(oldest) = kept[at].first_entry()
                && oldest.key() + 30 < number
            {
                let (number, payload) = oldest.remove_entry();
                assert!(
                    payload[..] == content[range(number)],
                    "frame {number} is damaged"
                );
            }
            came[at] += 1;
        }
    }
    while !links.iter().all(Transport::is_flushed) {
        assert!(start.elapsed() < LIMIT, "something never arrives");
        for link in &mut links {
            link.flush(&mut Vec::new()).unwrap();
            let nothing = link.receive(&mut |_| Ok(PayloadTarget::Discard)).unwrap();
            assert!(matches!(nothing, Received::Nothing));
        }
    }
}

#[test]
fn frames_cross_in_order_whole_and_are_kept_as_long_as_they_are_read() {
    let fake = Fake::new();
    everything_crosses(&fake.library, ["fake0", "fake1"]);
    let fake = Fake::new();
    fake.inject(SHUFFLE, 11);
    everything_crosses(&fake.library, ["fake1", "fake1"]);
    assert_eq!(fake.alive(), 0, "something is left behind");
}

#[test]
fn what_cannot_be_registered_is_copied_and_reported() {
    let fake = Fake::new();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let says = Arc::clone(&reported);
    let one = adapter_with(&fake.library, "fake0", move |error| {
        says.lock().unwrap().push(error.to_string());
    });
    let other = adapter(&fake.library, "fake1");
    let mut links = link([&one, &other]);
    let (part, result) = (block(b"0123456789"), block(&[0; 100]));
    fake.inject(REGISTER_REFUSED, 0);
    // More than there are places for copies.
    for number in 0..6 {
        let at = number as usize;
        let bytes = part.read(at..at + 2).unwrap();
        push(&mut links[0], &down(number, 2), Some((number, bytes)));
    }
    let mut left = Vec::new();
    for number in 0..6u8 {
        let (header, _, tokens) = receive(&mut links, &result);
        left.extend(tokens);
        assert_eq!(header, down(number.into(), 2));
        let expected = [b'0' + number, b'1' + number];
        assert_eq!(result.read(0..2).unwrap()[..], expected);
    }
    while left.len() < 6 {
        links[0]
            .receive(&mut |_| Ok(PayloadTarget::Discard))
            .unwrap();
        links[0].flush(&mut left).unwrap();
    }
    assert_eq!(left, [0, 1, 2, 3, 4, 5]);
    let reported = reported.lock().unwrap();
    assert_eq!(reported.len(), 1, "asked for once: {reported:?}");
    assert!(reported[0].starts_with("failed to "), "{reported:?}");
}

/// Of both sides' memory that peers write to: the flags of landings, and those of rings.
fn written_by_peers(relaxed_ordering: bool) -> [Vec<u32>; 2] {
    let fake = Fake::new();
    let adapters = ["fake0", "fake1"].map(|device| {
        let wanted = AdapterChoice {
            device: Some(device.to_owned()),
            relaxed_ordering,
            ..AdapterChoice::default()
        };
        Adapter::open(&fake.library, &wanted, Box::new(|error| panic!("{error}"))).unwrap()
    });
    let _links = link([&adapters[0], &adapters[1]]);
    let (mut landings, mut rings) = (Vec::new(), Vec::new());
    // Rings have slots for headers, landings have places for chunks: those of two trees, up and down.
    let places = SHAPE.places as u64 * u64::from(CHUNK);
    for (bytes, flags) in fake.registered() {
        if flags & abi::ACCESS_REMOTE_WRITE == 0 {
            assert_eq!(flags, abi::ACCESS_LOCAL_WRITE, "what is only sent from");
        } else if bytes >= places {
            landings.push(flags);
        } else {
            rings.push(flags);
        }
    }
    [landings, rings]
}

// What says that payload is there, the slot of its header, must come after it.
#[test]
fn payload_may_be_written_in_any_order_unless_that_is_off_and_headers_never() {
    const ORDERED: u32 = abi::ACCESS_LOCAL_WRITE | abi::ACCESS_REMOTE_WRITE;
    // IBV_ACCESS_RELAXED_ORDERING.
    const RELAXED: u32 = ORDERED | 1 << 20;
    assert_eq!(written_by_peers(true), [[RELAXED; 2], [ORDERED; 2]]);
    assert_eq!(written_by_peers(false), [[ORDERED; 2], [ORDERED; 2]]);
    assert!(AdapterChoice::default().relaxed_ordering);
}

#[test]
fn a_side_that_is_gone_ends_the_link_once_all_that_came_is_read() {
    let fake = Fake::new();
    let [mut one, mut other] = links(&fake);
    let part = block(b"a part");
    push(&mut one, &down(3, 0), None);
    one.flush(&mut Vec::new()).unwrap();
    drop(one);
    wait(&other);
    other.wake().unwrap();
    let said = other.receive(&mut |_| Ok(PayloadTarget::Discard)).unwrap();
    assert!(matches!(said, Received::Frame(header, None) if header == down(3, 0)));
    let over = other
        .receive(&mut |_| Ok(PayloadTarget::Discard))
        .unwrap_err();
    assert_eq!(over.to_string(), "the connection was closed");
    push(&mut other, &down(4, 6), Some((9, part.read(0..6).unwrap())));
    assert!(other.flush(&mut Vec::new()).is_err());
    let mut left = Vec::new();
    other.abandon(&mut left);
    assert_eq!(left, [9]);
    assert!(!other.can_send());
    drop(other);
    assert_eq!(fake.alive(), 0, "something is left behind");
}

#[test]
fn a_request_that_fails_ends_the_link_with_the_reason_and_every_token_comes_back() {
    let fake = Fake::new();
    let [mut one, _other] = links(&fake);
    let part = block(b"a part");
    fake.inject(STATUS, 12);
    for token in 0..40 {
        push(
            &mut one,
            &down(0, 6),
            Some((token, part.read(0..6).unwrap())),
        );
    }
    let mut left = Vec::new();
    one.flush(&mut left).ok();
    let failed = one
        .receive(&mut |_| Ok(PayloadTarget::Discard))
        .unwrap_err();
    assert!(
        failed.to_string().contains("the peer does not answer"),
        "{failed}"
    );
    one.abandon(&mut left);
    left.sort_unstable();
    assert_eq!(left, (0..40).collect::<Vec<_>>());
    // What others own is theirs again.
    part.write(0..6).unwrap();
}

fn wait(link: &Verbs<Toy>) {
    let limit = Timespec {
        tv_sec: LIMIT.as_secs() as i64,
        tv_nsec: 0,
    };
    let mut ready = [PollFd::from_borrowed_fd(link.socket(), PollFlags::IN)];
    assert_eq!(poll(&mut ready, Some(&limit)), Ok(1), "nobody is woken");
}

#[test]
fn a_frame_wakes_whoever_sleeps_on_the_socket_and_what_has_come_keeps_it_awake() {
    let fake = Fake::new();
    let [mut one, mut other] = links(&fake);
    for number in 0..3 {
        while !other.sleep().unwrap() {
            other.receive(&mut |_| Ok(PayloadTarget::Discard)).unwrap();
            other.flush(&mut Vec::new()).unwrap();
        }
        push(&mut one, &down(number, 0), None);
        one.flush(&mut Vec::new()).unwrap();
        wait(&other);
        other.wake().unwrap();
        assert!(!other.sleep().unwrap());
        let came = other.receive(&mut |_| Ok(PayloadTarget::Discard)).unwrap();
        assert!(matches!(came, Received::Frame(header, None) if header == down(number, 0)));
    }
}

#[test]
fn a_block_is_registered_once_and_forgotten_when_it_is_gone() {
    let fake = Fake::new();
    let adapters = ["fake0", "fake1"].map(|device| adapter(&fake.library, device));
    let mut links = link([&adapters[0], &adapters[1]]);
    let result = block(&[0; 100]);
    let before = fake.alive();
    let part = block(b"a part");
    for number in 0..3 {
        push(
            &mut links[0],
            &down(number, 6),
            Some((number, part.read(0..6).unwrap())),
        );
        receive(&mut links, &result);
        assert_eq!(fake.alive(), before + 1);
    }
    while !links[0].is_flushed() {
        links[0]
            .receive(&mut |_| Ok(PayloadTarget::Discard))
            .unwrap();
    }
    drop(part);
    adapters[0].forget_gone();
    assert_eq!(fake.alive(), before, "the device keeps what is gone");
}

// Each place is a chunk of locked memory: what waits for a processor of this node makes the peer wait, not more of them.
#[test]
fn what_its_receiver_copies_lies_there_until_then_and_makes_the_peer_wait_for_a_place() {
    const FRAMES: u64 = 20;
    let fake = Fake::new();
    let mut links = links(&fake);
    let content: Vec<u8> = (0..FRAMES as u8).collect();
    let source = block(&content);
    for number in 0..FRAMES {
        let at = number as usize;
        let bytes = source.read(at..at + 1).unwrap();
        let header = Toy {
            kind: Kind::CopiedLater,
            ..Toy::copied(number, 1)
        };
        push(&mut links[0], &header, Some((number, bytes)));
    }
    let (mut came, mut kept, start) = (Vec::new(), Vec::new(), Instant::now());
    let alive = fake.alive();
    while came.len() < FRAMES as usize {
        assert!(start.elapsed() < LIMIT, "{came:?}");
        let before = came.len();
        for _ in 0..50 {
            for link in &mut links {
                link.flush(&mut Vec::new()).unwrap();
                let mut nowhere = |header: &Toy| panic!("a place is asked for {header:?}");
                if let Received::Frame(header, payload) = link.receive(&mut nowhere).unwrap() {
                    came.push(header.number);
                    kept.push(payload.unwrap());
                }
            }
        }
        assert!(
            kept.len() <= SHAPE.places,
            "more are there than there are places"
        );
        let bytes: Vec<u8> = kept.drain(..).map(|payload| payload[0]).collect();
        assert_eq!(bytes, content[before..came.len()], "some are overwritten");
    }
    assert_eq!(came, (0..FRAMES).collect::<Vec<_>>());
    assert_eq!(fake.alive(), alive + 1, "only the source is registered");
}
