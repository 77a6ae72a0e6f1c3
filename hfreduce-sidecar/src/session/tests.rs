//! What is said to a process that is gone, and what it said before.

use std::time::Instant;

use wire::attach::Listener;
use wire::segment::{Segment, View, Writers};

use super::*;
use crate::pool::ResultBlock;

const STANDING: Standing = Standing {
    attempt: 1,
    epoch: 1,
    node: 0,
    nodes: 1,
    local_rank: 0,
    local_world: 1,
    rank: 0,
    world: 1,
};

/// A session, and the other end of its socket.
fn session() -> (Session, Channel) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    let process = Channel::connect(&path).unwrap();
    let channel = listener.accept().unwrap().unwrap();
    let session = Session::welcome(channel, STANDING, (0, Home::Anywhere), Begin::Afresh, false);
    (session.unwrap(), process)
}

fn barrier(ticket: u64) -> Called {
    Called {
        ticket,
        call: wire::Call::barrier(),
        since: Instant::now(),
        refused: None,
        own_bytes: 0,
    }
}

#[test]
fn a_process_that_gives_nothing_back_is_let_go_before_it_costs_much() {
    let (mut session, process) = session();
    let welcome = process.receive_with_fds::<ToClient>().unwrap().unwrap();
    let (ToClient::Welcome { control_bytes, .. }, mut fds) = welcome else {
        panic!("{welcome:?}");
    };
    let control = Segment::open(fds.remove(0), control_bytes as usize).unwrap();
    let (_, mut outcomes) = wire::ring::client_ends(&Arc::new(control)).unwrap();
    for ticket in 0..calls::MAX_HELD as u64 {
        let told = session.succeed((WORLD, ticket), 1, &barrier(ticket), None);
        told.unwrap();
        assert!(outcomes.pop().unwrap().is_some());
    }
    let ticket = calls::MAX_HELD as u64;
    let refused = session.succeed((WORLD, ticket), 1, &barrier(ticket), None);
    assert!(matches!(refused, Err(Error::HoldsTooMany)), "{refused:?}");
}

#[test]
fn a_process_that_left_while_it_was_told_something_has_left() {
    let (mut session, process) = session();
    process.send(&ToSidecar::Detach, &[]).unwrap();
    drop(process);
    session.tell_members(Members::new(1, &[0], 1)).unwrap();
    assert!(matches!(session.hear(), Ok(Heard::Detached)));
}

#[test]
fn a_process_that_ended_while_it_was_told_something_is_lost() {
    let (mut session, process) = session();
    drop(process);
    session.tell_members(Members::new(1, &[0], 1)).unwrap();
    assert!(matches!(
        session.hear(),
        Err(Error::Socket(attach::Error::Closed))
    ));
}

// T16.
#[test]
fn a_result_can_be_read_by_a_process_and_written_only_by_who_has_mapped_it_before() {
    let (mut session, process) = session();
    let welcome = process.receive_with_fds::<ToClient>().unwrap().unwrap();
    assert!(matches!(welcome, (ToClient::Welcome { .. }, _)));
    let segment = Segment::create("result", 1, Writers::UntilSealed).unwrap();
    let neighbour = segment.fd().try_clone_to_owned().unwrap();
    let mut neighbour = Segment::open(neighbour, segment.len()).unwrap();
    let block = Block::new(segment);
    let result = ResultBlock { number: 3, block };
    let called = barrier(1);
    let told = session.succeed((WORLD, 0), 1, &called, Some((&result, 8)));
    told.unwrap();
    let (message, mut fds) = process.receive_with_fds::<ToClient>().unwrap().unwrap();
    let ToClient::Result { segment: 3, bytes } = message else {
        panic!("{message:?}");
    };
    let fd = fds.remove(0);
    let view = View::open(&fd, bytes as usize).unwrap();
    neighbour.bytes_mut()[0] = 7;
    assert_eq!(view.bytes()[0], 7);
    let refused = Segment::open(fd, bytes as usize).unwrap_err();
    assert!(refused.is_sealed(), "{refused}");
}
