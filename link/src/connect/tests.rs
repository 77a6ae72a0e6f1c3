//! Acceptors of the toy protocol, in one process.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::authenticate::initiate;
use super::round::propose;
use super::*;
use crate::limits::MESSAGE_TIME;
use crate::toy::{Player, Toy};

fn acceptor(number: u32) -> (Credentials<Player>, Acceptor<Player, Toy>) {
    let credentials = Credentials {
        identity: Player::new(number),
        key: Key::new([7; 32]),
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let negotiator = Negotiator::new(None, 0, Checksum::Auto);
    let acceptor = Acceptor::open(listener, credentials.clone(), negotiator, || {}).unwrap();
    (credentials, acceptor)
}

#[test]
fn an_acceptor_that_is_dropped_closes_its_port() {
    let (_, acceptor) = acceptor(0);
    let address = acceptor.address();
    TcpStream::connect(address).unwrap();
    drop(acceptor);
    // Its thread drops the listener after that.
    let start = Instant::now();
    while TcpListener::bind(address).is_err() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{address} is still taken"
        );
        thread::yield_now();
    }
}

#[test]
fn a_connection_of_another_epoch_is_refused_and_one_of_this_epoch_is_taken() {
    let ((credentials, low), (_, high)) = (acceptor(0), acceptor(1));
    let member = |number, acceptor: &Acceptor<_, _>| -> BTreeMap<Player, SocketAddr> {
        BTreeMap::from([(Player::new(number), acceptor.address())])
    };
    let (to_low, to_high) = (member(0, &low), member(1, &high));
    thread::scope(|scope| {
        let waits = high.begin(5, to_low, None);
        let waiting = scope.spawn(move || waits.connect_all(|| false));
        let mut early = TcpStream::connect(high.address()).unwrap();
        initiate(&mut early, &credentials).unwrap();
        assert!(
            propose(&mut early, 4).is_err(),
            "epoch 4 was taken into epoch 5"
        );
        let dials = low.begin(5, to_high, None);
        assert_eq!(dials.connect_all(|| false).unwrap().len(), 1);
        assert_eq!(waiting.join().unwrap().unwrap().len(), 1);
    });
}

#[test]
fn a_peer_that_says_no_more_after_its_proof_is_closed_after_three_seconds() {
    let ((credentials, low), (_, high)) = (acceptor(0), acceptor(1));
    let members = BTreeMap::from([(Player::new(0), low.address())]);
    let _waits = high.begin(5, members, None);
    let start = Instant::now();
    let mut silent = TcpStream::connect(high.address()).unwrap();
    initiate(&mut silent, &credentials).unwrap();
    silent.set_read_timeout(Some(10 * MESSAGE_TIME)).unwrap();
    assert_eq!(silent.read(&mut [0]).unwrap(), 0);
    let took = start.elapsed();
    assert!(
        (MESSAGE_TIME..10 * MESSAGE_TIME).contains(&took),
        "{took:?}"
    );
}

#[test]
fn who_sends_byte_by_byte_is_not_waited_for_longer() {
    const LIMIT: Duration = Duration::from_millis(300);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    let dripping = thread::spawn(move || {
        let pause = LIMIT / 10;
        while slow.write_all(&[0]).is_ok() {
            thread::sleep(pause);
        }
    });
    // All of it would come after a hundred limits.
    let start = Instant::now();
    let refused = receive(&mut stream, &mut [0; 1000], start + LIMIT).unwrap_err();
    let took = start.elapsed();
    assert!(took < 20 * LIMIT, "{took:?}");
    let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
    assert!(kinds.contains(&refused.kind()), "{refused}");
    drop(stream);
    dripping.join().unwrap();
}
