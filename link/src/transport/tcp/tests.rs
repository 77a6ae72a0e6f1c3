//! Links over loopback, and what their other ends may do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};

use rustix::net::sockopt::{ip_tos, ipv6_tclass};

use super::*;
use crate::block::Block;
use crate::segment::{Segment, Writers};
use crate::toy::Toy;

const HEADER_BYTES: usize = Toy::BYTES;

fn bytes_of(header: &Toy) -> Vec<u8> {
    encoded(header)[..HEADER_BYTES].to_vec()
}

#[test]
fn packets_get_the_traffic_class_on_both_kinds_of_addresses() {
    for address in [
        IpAddr::from(Ipv4Addr::LOCALHOST),
        Ipv6Addr::LOCALHOST.into(),
    ] {
        let Ok(listener) = TcpListener::bind((address, 0)) else {
            assert!(address.is_ipv6(), "a machine without IPv4");
            continue;
        };
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        tune(&stream, 0x20).unwrap();
        let class = match address {
            IpAddr::V4(_) => ip_tos(&stream).unwrap().into(),
            IpAddr::V6(_) => ipv6_tclass(&stream).unwrap(),
        };
        assert_eq!(class, 0x20);
    }
}

#[test]
fn an_abandoned_link_gives_what_has_come_and_ends_although_the_other_side_is_open() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    let bye = Toy::copied(3, 0);
    theirs.write_all(&bytes_of(&bye)).unwrap();
    while ours.peek(&mut [0; HEADER_BYTES]).unwrap() < HEADER_BYTES {}
    let mut link = Tcp::<Toy>::new(ours, false).unwrap();
    link.abandon(&mut Vec::new());
    assert!(!link.can_send() && link.is_flushed());
    let mut receive = || link.receive(&mut |_| Ok(PayloadTarget::Discard));
    let said = receive().unwrap();
    assert!(matches!(said, Received::Frame(header, None) if header == bye));
    assert!(matches!(receive(), Err(Error::Closed)));
}

#[test]
fn nobody_falls_asleep_over_a_frame_that_was_read_ahead() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    let frame = bytes_of(&Toy::copied(1, 0));
    let (bytes, part) = (frame.repeat(2), &frame[..8]);
    theirs.write_all(&[&bytes, part].concat()).unwrap();
    while ours.peek(&mut [0; 3 * HEADER_BYTES]).unwrap() < bytes.len() + part.len() {}
    let mut link = Tcp::<Toy>::new(ours, false).unwrap();
    for may_sleep in [false, true] {
        let said = link.receive(&mut |_| Ok(PayloadTarget::Discard)).unwrap();
        assert!(matches!(said, Received::Frame(..)));
        assert_eq!(link.sleep().unwrap(), may_sleep);
    }
}

/// Two links to each other.
fn pair(has_sums: bool) -> (Tcp<Toy>, Tcp<Toy>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    [one, other]
        .map(|stream| Tcp::new(stream, has_sums).unwrap())
        .into()
}

fn down(bytes: usize) -> Toy {
    Toy::copied(1, bytes as u32)
}

#[test]
fn frames_of_every_size_come_whole_and_in_order_however_they_are_read() {
    frames_come_whole(false);
}

#[test]
fn frames_with_checksums_come_whole_and_in_order_however_they_are_read() {
    frames_come_whole(true);
}

// T23.
#[test]
fn a_bit_that_is_flipped_on_the_way_is_found_wherever_it_is() {
    let payload: Vec<u8> = (0..20_000).map(|at| (at % 251) as u8).collect();
    let header = Toy::copied(5, payload.len() as u32);
    let frame = [
        &bytes_of(&header)[..],
        &payload,
        &crc32c(&payload).to_le_bytes(),
    ]
    .concat();
    let bits = [None, Some(0), Some(77_777), Some(159_999), Some(160_031)];
    for (bit, wanted) in bits.iter().flat_map(|bit| [(bit, true), (bit, false)]) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut link = Tcp::new(listener.accept().unwrap().0, true).unwrap();
        let mut sent = frame.clone();
        if let Some(bit) = *bit {
            sent[HEADER_BYTES + bit / 8] ^= 1 << (bit % 8);
        }
        theirs.write_all(&sent).unwrap();
        let into = Block::new(Segment::create("test", payload.len(), Writers::Creator).unwrap());
        let came = loop {
            let mut place = |header: &Toy| {
                Ok(match wanted {
                    true => PayloadTarget::Into(into.write(0..header.payload as usize).unwrap()),
                    false => PayloadTarget::Discard,
                })
            };
            match link.receive(&mut place) {
                Ok(Received::Part | Received::Nothing) => {}
                came => break came,
            }
        };
        match bit {
            None => assert!(matches!(came, Ok(Received::Frame(came, None)) if came == header)),
            Some(bit) => assert_eq!(
                came.unwrap_err().to_string(),
                "toy 5 was damaged on the way: it does not match its checksum",
                "{bit}"
            ),
        }
    }
}

fn frames_come_whole(has_sums: bool) {
    let (mut one, mut other) = pair(has_sums);
    // Around what is read ahead, and beyond what one call of the kernel takes.
    let near = |size: usize| (size - 2)..(size + 2);
    let mut sizes: Vec<usize> = vec![0; 100];
    sizes.extend(
        (1..4)
            .chain(near(AHEAD_BYTES - HEADER_BYTES))
            .chain(near(AHEAD_BYTES)),
    );
    sizes.extend([0, 1 << 20, 5, 0, 3 << 20]);
    let content = |at: usize| (at % 251) as u8;
    for (token, size) in sizes.iter().enumerate() {
        let payload = (*size > 0).then(|| {
            let segment = Segment::create("test", *size, Writers::Creator).unwrap();
            let block = Block::new(segment);
            block.write(0..*size).unwrap().fill(content(token));
            let bytes = block.read(0..*size).unwrap();
            Outgoing {
                token: token as u64,
                bytes,
            }
        });
        one.push(&down(*size), payload).unwrap();
    }
    let into = Block::new(Segment::create("test", 3 << 20, Writers::Creator).unwrap());
    let (mut left, mut at) = (Vec::new(), 0);
    while at < sizes.len() {
        one.flush(&mut left).unwrap();
        let mut place = |header: &Toy| {
            // Every third is unwanted.
            if at.is_multiple_of(3) {
                return Ok(PayloadTarget::Discard);
            }
            Ok(PayloadTarget::Into(
                into.write(0..header.payload as usize).unwrap(),
            ))
        };
        let received = other.receive(&mut place).unwrap();
        if let Received::Frame(header, None) = received {
            assert_eq!(header, down(sizes[at]));
            if !at.is_multiple_of(3) {
                let bytes = into.read(0..sizes[at]).unwrap();
                assert!(bytes.iter().all(|byte| *byte == content(at)), "{at}");
            }
            at += 1;
        }
    }
    let loaded = (0..sizes.len()).filter(|at| sizes[*at] > 0);
    assert_eq!(left, loaded.map(|at| at as u64).collect::<Vec<_>>());
    assert!(!other.has_more());
}

// Traps T2 and T6.
#[test]
fn a_connection_is_not_paced_and_the_kernel_sizes_its_buffers() {
    use rustix::net::sockopt;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let buffers = |stream: &TcpStream| {
        let send = sockopt::socket_send_buffer_size(stream).unwrap();
        (send, sockopt::socket_recv_buffer_size(stream).unwrap())
    };
    let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    let allowed = allowed.unwrap();
    let allowed: Vec<&str> = allowed.split_whitespace().collect();
    // Another one than it has to have, where there is another, so that it shows if nobody sets it.
    let (best, others) = (
        CONGESTION[0],
        allowed.iter().filter(|name| **name != CONGESTION[0]),
    );
    for other in others {
        sockopt::set_tcp_congestion(&stream, other).unwrap();
    }
    let before = buffers(&stream);
    let may_choose = tune(&stream, 0).unwrap();
    let control = sockopt::tcp_congestion(&stream).unwrap();
    let chosen = CONGESTION.contains(&control.as_str());
    assert_eq!(may_choose, chosen, "{control}");
    if allowed.iter().any(|name| CONGESTION.contains(name)) {
        assert!(chosen, "{control} is left, of {allowed:?}");
    }
    if allowed.contains(&best) {
        assert_eq!(control, best);
    }
    assert!(stream.nodelay().unwrap());
    assert_eq!(
        buffers(&stream),
        before,
        "set once, they are not tuned any more"
    );
}
