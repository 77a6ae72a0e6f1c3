//! Who is not trusted: strangers at the sockets, and processes that break the protocol of their rings. They are
//! let go or refused, and everybody else goes on.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod gang;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gang::{Gang, PATIENCE, f32s, failure, run, sum, wait_until, wait_until_some};
use hfreduce_sidecar::introduce::{Credentials, initiate};
use rustix::fs::{OFlags, fcntl_setfl};
use wire::Call;
use wire::attach::{Channel, ToClient, ToSidecar};
use wire::client::Client;
use wire::entry::{FailureKind, Place, Submission};
use wire::handshake::{Identity, JobId, Key, Party};
use wire::ring::{Bell, Depth, SUBMISSION_WORDS, Sleep};
use wire::segment::Segment;

/// An answer takes a millisecond; a sidecar that is kept busy or asleep never answers.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

#[test]
fn strangers_on_the_sockets_change_nothing() {
    let gang = Gang::start(2, 1);
    for node in &gang.nodes {
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 4096], b""] {
            let mut stream = TcpStream::connect(node.address).unwrap();
            stream.write_all(garbage).ok();
            stream.shutdown(std::net::Shutdown::Write).ok();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).ok();
            assert!(answer.is_empty());
        }
        let socket = Channel::connect(&node.socket()).unwrap();
        rustix::net::send(&socket, &[0x80; 1000], rustix::net::SendFlags::NOSIGNAL).unwrap();
    }
    gang.each(|client| run(&client, sum(10), &f32s(&[1.0; 10])).map(drop).unwrap());
}

#[test]
fn who_has_another_key_or_attempt_or_comes_too_late_is_refused() {
    let gang = Gang::start(2, 1);
    let identity = Identity {
        job: JobId::new(gang::UID),
        attempt: 1,
        party: Party::Sidecar { rank: 0 },
    };
    let dial = |identity, key| {
        let mut stream = TcpStream::connect(gang.nodes[1].address).unwrap();
        initiate(&mut stream, &Credentials { identity, key })
    };
    let wrong_key = Key::derive(b"another master secret", gang::UID, 1);
    assert!(dial(identity, wrong_key).is_err());
    let stale = Identity {
        attempt: 0,
        ..identity
    };
    assert!(dial(stale, gang::key()).is_err());
    assert!(
        dial(identity, gang::key()).is_err(),
        "rank 0 is connected already"
    );
    gang.each(|client| run(&client, sum(10), &f32s(&[1.0; 10])).map(drop).unwrap());
}

#[test]
fn a_local_rank_that_is_none_or_taken_is_refused_with_the_reason() {
    let gang = Gang::start(1, 2);
    let attach = |rank| Client::attach(&gang.nodes[0].socket(), rank, PATIENCE);
    let _first = attach(0).unwrap();
    let refused = attach(0).unwrap_err().to_string();
    assert!(refused.contains("attached already"), "{refused}");
    let refused = attach(2).unwrap_err().to_string();
    assert!(refused.contains("no local rank 2"), "{refused}");
}

/// Attaches by hand: the socket, the control segment, and the process's end of the bell.
fn attach_by_hand(socket: &std::path::Path, local_rank: u32) -> (Channel, Arc<Segment>, Bell) {
    let channel = Channel::connect(socket).unwrap();
    let version = wire::attach::VERSION;
    channel
        .send(
            &ToSidecar::Attach {
                version,
                local_rank,
                again: None,
            },
            &[],
        )
        .unwrap();
    let (message, fds) = wait_until_some(|| channel.receive_with_fds::<ToClient>().unwrap());
    let ToClient::Welcome { control_bytes, .. } = message else {
        panic!("not welcome: {message:?}")
    };
    let [control, bell] = <[_; 2]>::try_from(fds).unwrap();
    let control = Segment::open(control, control_bytes as usize).unwrap();
    (channel, Arc::new(control), Bell::from_fd(bell))
}

#[test]
fn a_process_that_breaks_its_ring_is_let_go_and_the_sidecar_goes_on() {
    let submissions: [[u64; 16]; 4] = [
        // No such kind, no such call, a release of nothing, an input that is not lent.
        [9; 16],
        [1, 1, u64::MAX, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [2, 77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [
            1,
            1,
            0x0001_0101,
            0,
            1 << 60,
            0,
            5,
            u64::MAX,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
            0,
        ],
    ];
    for (at, submission) in submissions.iter().enumerate() {
        let gang = Gang::start(1, 2);
        let socket = gang.nodes[0].socket();
        let honest = Client::attach(&socket, 0, PATIENCE).unwrap();
        let (channel, control, bell) = attach_by_hand(&socket, 1);
        let (mut calls, mut outcomes) = wire::ring::client_ends(&control).unwrap();
        calls.push(submission).unwrap();
        bell.ring();
        let (kind, text) = failure(run(&honest, Call::barrier(), &[]));
        if at == 3 {
            // Well formed, so it fails alone, for both.
            assert_eq!(kind, FailureKind::Refused);
            assert!(text.contains("rank 1"), "{text}");
            wait_until_some(|| outcomes.pop().unwrap());
            continue;
        }
        assert_eq!(kind, FailureKind::Broken);
        assert!(text.contains("rank 1"), "{text}");
        drop(channel);
    }
}

#[test]
fn whatever_lies_in_the_control_segment_the_sidecar_goes_on() {
    let gang = Gang::start(1, 2);
    let socket = gang.nodes[0].socket();
    let (_channel, control, bell) = attach_by_hand(&socket, 1);
    let honest = Client::attach(&socket, 0, PATIENCE).unwrap();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    for word in control.words() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        word.store(seed, Ordering::SeqCst);
    }
    bell.ring();
    let (_, text) = failure(run(&honest, Call::barrier(), &[]));
    assert!(text.contains("rank 1"), "{text}");
}

/// A call that is refused: its input is not lent.
fn refused_call(ticket: u64) -> [u64; SUBMISSION_WORDS] {
    let input = Place {
        segment: 77,
        offset: 0,
    };
    let call = sum(1);
    Submission::Call {
        ticket,
        call,
        input,
    }
    .encode()
}

#[test]
fn a_process_that_takes_the_flags_off_its_descriptors_stops_nobody_else() {
    let gang = Gang::start(1, 2);
    let socket = gang.nodes[0].socket();
    let honest = Client::attach(&socket, 0, PATIENCE).unwrap();
    let (channel, control, bell) = attach_by_hand(&socket, 1);
    for fd in [channel.as_fd(), bell.as_fd()] {
        fcntl_setfl(fd, OFlags::empty()).unwrap();
    }
    // If it is a counter, it is full now, and who rings again waits.
    rustix::io::write(&bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let (mut calls, mut outcomes) = wire::ring::client_ends(&control).unwrap();
    for ticket in 0..1000 {
        // It sleeps, and never hears the bell.
        outcomes.sleep(Sleep::Bell, Depth::Light).unwrap();
        calls.push(&refused_call(ticket)).unwrap();
        bell.ring();
        let ticket = honest.submit(Call::barrier(), None, PATIENCE).unwrap();
        let (kind, _) = failure(honest.wait(ticket, ANSWERED_WITHIN));
        assert_eq!(kind, FailureKind::Refused);
        wait_until_some(|| outcomes.pop().unwrap());
    }
}

#[test]
fn a_process_that_closes_its_bell_is_let_go_when_it_leaves() {
    let gang = Gang::start(1, 1);
    let (channel, _control, bell) = attach_by_hand(&gang.nodes[0].socket(), 0);
    drop(bell);
    channel.send(&ToSidecar::Detach, &[]).unwrap();
    drop(channel);
    wait_until(|| Client::attach(&gang.nodes[0].socket(), 0, PATIENCE).is_ok());
}
