//! A wire that damages what it carries: the checksum behind each payload finds it, and without one it goes into the sum.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use collective::encoding::HEADER_BYTES;
use gang::{Gang, PATIENCE, encode, failure, filled, run, sum};
use hfreduce_client::DType;
use hfreduce_client::entry::FailureKind;
use hfreduce_sidecar::member::MemberOptions;
use hfreduce_sidecar::negotiate::{Checksum, Preference};

const ELEMENTS: u64 = 1_000_000;

/// A connection's way to a node, on which one bit is flipped on request.
struct Wire {
    address: SocketAddr,
    flips: Arc<AtomicBool>,
}

impl Wire {
    fn to(node: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let flips = Arc::new(AtomicBool::new(false));
        let ours = Arc::clone(&flips);
        thread::spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(node).unwrap());
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let flips = Arc::clone(&ours);
                    thread::spawn(move || carry(from, to, &flips));
                }
            }
        });
        Self { address, flips }
    }
}

/// Carries what comes, and flips a bit in the middle of a piece on request: not in a header, which has a sum of
/// its own.
fn carry(mut from: TcpStream, mut to: TcpStream, flips: &AtomicBool) {
    let mut piece = vec![0; 256 << 10];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        let middle = bytes / 2;
        if middle > 4096 && flips.swap(false, Ordering::AcqRel) {
            let before = &piece[middle - HEADER_BYTES..middle + 4];
            let in_header = before.windows(4).any(|word| word == b"FFRM");
            // More than the rounding of a sum hides.
            piece[middle + if in_header { 2 * HEADER_BYTES } else { 0 }] ^= 0x40;
        }
        if to.write_all(&piece[..bytes]).is_err() {
            break;
        }
    }
    to.shutdown(Shutdown::Both).ok();
}

/// Two nodes, of which the first reaches the second over the wire.
fn gang(checksums: [Checksum; 2]) -> (Gang, Wire) {
    let mut wire = None;
    let gang = Gang::over(
        2,
        1,
        |options, rank| MemberOptions {
            transport: Preference::Tcp,
            checksum: checksums[rank as usize],
            ..options
        },
        |peers| {
            let node = SocketAddr::new(peers[1].address, peers[1].port);
            let wire = wire.get_or_insert_with(|| Wire::to(node));
            peers[1].port = wire.address.port();
        },
    );
    (gang, wire.unwrap())
}

fn damaged(gang: &Gang) -> u64 {
    let counts = gang.nodes.iter().map(|node| {
        let metrics = node.registry.text().unwrap();
        let mut lines = metrics.lines();
        let name = "fireflyer_hfreduce_damaged_payloads_total ";
        let value = lines.find_map(|line| line.strip_prefix(name));
        value.unwrap().parse::<u64>().unwrap()
    });
    counts.sum()
}

// T23.
#[test]
fn a_flipped_bit_ends_the_link_and_no_rank_gets_a_wrong_sum() {
    for checksums in [
        [Checksum::On, Checksum::On],
        // One that would use them if asked.
        [Checksum::On, Checksum::Auto],
    ] {
        let (gang, wire) = gang(checksums);
        let one_done = Barrier::new(2);
        let texts = gang.each(|client| {
            let output = run(&client, sum(1), &encode(DType::F32, [1].into_iter())).unwrap();
            assert_eq!(output.result[..], encode(DType::F32, [2].into_iter()));
            one_done.wait();
            wire.flips.store(true, Ordering::Release);
            let input = filled(&client, &encode(DType::F32, 0..ELEMENTS as i64));
            let ticket = client.submit(sum(ELEMENTS), Some(input), PATIENCE).unwrap();
            let (kind, text) = failure(client.wait(ticket, PATIENCE));
            assert_eq!(kind, FailureKind::Broken);
            text
        });
        assert!(
            texts.iter().all(|text| text.contains("was lost")),
            "{texts:?}"
        );
        assert_eq!(damaged(&gang), 1);
    }
}

#[test]
fn without_checksums_a_flipped_bit_goes_unseen() {
    let (gang, wire) = gang([Checksum::Auto, Checksum::Off]);
    wire.flips.store(true, Ordering::Release);
    let right = encode(DType::F32, (0..ELEMENTS as i64).map(|at| 2 * at));
    let rights = gang.each(|client| {
        let input = encode(DType::F32, 0..ELEMENTS as i64);
        run(&client, sum(ELEMENTS), &input).unwrap().result[..] == right[..]
    });
    assert!(rights.contains(&false), "nothing was damaged");
    assert_eq!(damaged(&gang), 0);
}
