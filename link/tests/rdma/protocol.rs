//! What a protocol gets for a header and an identity: links over TCP and RDMA, checksums, authentication. The toy
//! protocol has nothing else.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use link::connect::{Acceptor, Checksum, Credentials, Negotiator, Round, Shape, initiate, nonce};
use link::handshake::{CHALLENGE_BYTES, Initiator, Key, PROOF_BYTES};
use link::transport::verbs::Adapter;
use link::transport::{BoxedLink, Outgoing, PayloadTarget, Received};

use crate::fake::Fake;
use crate::links::{adapter, block};
use crate::nodes::LIMIT;
use crate::toy::{Player, Toy};

const SHAPE: Shape = Shape {
    payload_bytes: 10_000,
    slots: 2,
    flows: 4,
};

/// A player and its port, and how many it has turned away.
struct Side {
    player: Player,
    acceptor: Acceptor<Player, Toy>,
    refused: Arc<AtomicU32>,
}

impl Side {
    fn new(player: Player, key: u8, rdma: Option<Arc<Adapter>>, checksum: Checksum) -> Self {
        let refused = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&refused);
        let credentials = Credentials {
            identity: player,
            key: Key::new([key; 32]),
        };
        let acceptor = Acceptor::open(
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
            credentials,
            Negotiator::new(rdma.map(|adapter| (adapter, SHAPE)), 0, checksum),
            move || {
                count.fetch_add(1, Ordering::Relaxed);
            },
        );
        Self {
            player,
            acceptor: acceptor.unwrap(),
            refused,
        }
    }

    fn begin(&self, peer: &Self) -> Round<Player, Toy> {
        let members = BTreeMap::from([(peer.player, peer.acceptor.address())]);
        self.acceptor.begin(1, members, None)
    }
}

/// Links two sides, and sends a frame with five bytes. The bytes that crossed for it.
fn exchange(sides: &[Side; 2]) -> (&'static str, u64) {
    let [low, high] = sides;
    let rounds = [low.begin(high), high.begin(low)];
    let start = Instant::now();
    let late = move || start.elapsed() > LIMIT;
    let links = rounds.map(|round| thread::spawn(move || round.connect_all(late)));
    let links = links.map(|links| links.join().unwrap().unwrap().pop_first());
    let [mut from, mut to]: [BoxedLink<Toy>; 2] = links.map(|link| link.unwrap().1);
    let (source, target) = (block(b"hello"), block(&[0; 5]));
    let bytes = source.read(0..5).unwrap();
    let payload = Outgoing { token: 1, bytes };
    from.push(&Toy::copied(7, 5), Some(payload)).unwrap();
    loop {
        assert!(start.elapsed() < LIMIT, "nothing comes");
        from.flush(&mut Vec::new()).unwrap();
        let none = from.receive(&mut |_| Ok(PayloadTarget::Discard)).unwrap();
        assert!(matches!(none, Received::Nothing));
        let place = &mut |_: &Toy| Ok(PayloadTarget::Into(target.write(0..5).unwrap()));
        if let Received::Frame(header, _) = to.receive(place).unwrap() {
            assert_eq!(header, Toy::copied(7, 5));
            assert_eq!(&target.read(0..5).unwrap()[..], b"hello");
            return (from.name(), from.take_traffic().0);
        }
    }
}

fn sides(rdma: [Option<Arc<Adapter>>; 2], checksums: [Checksum; 2]) -> [Side; 2] {
    let [one, other] = rdma;
    [
        Side::new(Player::new(0), 7, one, checksums[0]),
        Side::new(Player::new(1), 7, other, checksums[1]),
    ]
}

#[test]
fn a_protocol_gets_tcp_with_checksums_where_a_side_wants_them_and_none_has_them_off() {
    let plain = exchange(&sides([None, None], [Checksum::Auto; 2]));
    assert_eq!(plain, ("tcp", 16 + 5), "one machine: nothing is damaged");
    let summed = exchange(&sides([None, None], [Checksum::On, Checksum::Auto]));
    assert_eq!(summed, ("tcp", 16 + 5 + 4));
    let off = exchange(&sides([None, None], [Checksum::Off, Checksum::Auto]));
    assert_eq!(off, ("tcp", 16 + 5));
}

#[test]
fn a_protocol_gets_rdma_where_both_sides_have_it() {
    let fake = Fake::new();
    let adapters = ["fake0", "fake1"].map(|device| Some(adapter(&fake.library, device)));
    let [one, _] = adapters.clone();
    assert_eq!(exchange(&sides(adapters, [Checksum::Auto; 2])).0, "verbs");
    assert_eq!(exchange(&sides([one, None], [Checksum::Auto; 2])).0, "tcp");
}

#[test]
fn who_has_another_key_or_plays_another_game_is_not_let_in() {
    let [low, high] = &sides([None, None], [Checksum::Auto; 2]);
    let waits = high.begin(low);
    let dial = |player, key| {
        let mut stream = TcpStream::connect(high.acceptor.address()).unwrap();
        let key = Key::new([key; 32]);
        let identity = player;
        let error = initiate(&mut stream, &Credentials { identity, key }).unwrap_err();
        (stream, error.to_string())
    };
    let (_, error) = dial(low.player.elsewhere(), 7);
    assert!(error.contains("exchange the handshake"), "{error}");
    let (_, error) = dial(low.player, 8);
    assert!(error.contains("does not hold the same key"), "{error}");
    // One that does not care who answers.
    let (_, hello) = Initiator::new(Key::new([8; 32]), low.player, nonce().unwrap());
    let mut stream = TcpStream::connect(high.acceptor.address()).unwrap();
    stream.write_all(&hello).unwrap();
    stream.read_exact(&mut [0; CHALLENGE_BYTES]).unwrap();
    stream.write_all(&[0; PROOF_BYTES]).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it is closed");
    assert!(waits.established().next().is_none());
    let start = Instant::now();
    while high.refused.load(Ordering::Relaxed) < 2 {
        assert!(start.elapsed() < LIMIT, "two were refused, and not counted");
        thread::yield_now();
    }
}
