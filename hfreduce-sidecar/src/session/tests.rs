//! What is said to a process that is gone, and what it said before.

use wire::attach::Listener;

use super::*;

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
