//! What is said to a process that is gone, and what it said before.

use std::time::Instant;

use collective::machine::WORLD;
use hfreduce_client::attach::Listener;
use link::memory_policy::MemoryPolicy;
use link::segment::Segment;

use super::*;
use crate::background::Before;
use crate::stop::Stop;

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
fn session() -> (Session, AttachChannel) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = Listener::bind(&path).unwrap();
    let process = AttachChannel::connect(&path).unwrap();
    let channel = listener.accept().unwrap().unwrap();
    let room = Room {
        limit_bytes: 1 << 20,
        kept_bytes: 0,
        home: MemoryPolicy::Anywhere,
    };
    let session = Session::attach(channel, STANDING, room, Begin::Afresh, false);
    (session.unwrap(), process)
}

fn background() -> Background {
    Background::new("test", Stop::new().unwrap(), Before::default())
}

fn barrier(ticket: u64) -> PendingCall {
    PendingCall {
        ticket,
        since: Instant::now(),
        own_bytes: 0,
        input: Ok(None),
    }
}

/// One rank, which is the world.
fn ranks() -> Ranks {
    Ranks::new(0..1, 1)
}

#[test]
fn a_process_that_gives_nothing_back_is_let_go_before_it_costs_much() {
    let (mut session, process) = session();
    let attachment = process
        .receive_with_fds::<SidecarAnswer>()
        .unwrap()
        .unwrap();
    let (SidecarAnswer::Attached { control_bytes, .. }, mut fds) = attachment else {
        panic!("{attachment:?}");
    };
    let control = Segment::open(fds.remove(0), control_bytes as usize).unwrap();
    let (_, mut outcomes) = link::ring::client_ends(&Arc::new(control)).unwrap();
    for ticket in 0..calls::MAX_UNRETURNED as u64 {
        let sent = session.succeed((WORLD, ticket), 1, &barrier(ticket), None);
        sent.unwrap();
        assert!(outcomes.pop().unwrap().is_some());
    }
    let ticket = calls::MAX_UNRETURNED as u64;
    let refused = session.succeed((WORLD, ticket), 1, &barrier(ticket), None);
    assert!(matches!(refused, Err(Error::HoldsTooMany)), "{refused:?}");
}

#[test]
fn a_process_that_left_during_a_delivery_has_left() {
    let (mut session, process) = session();
    process.send(&ClientMessage::Detach, &[]).unwrap();
    drop(process);
    session.send_members(Members::new(1, &[0], 1)).unwrap();
    assert!(matches!(
        session.read_socket(&mut ranks(), &mut background()),
        Ok(SessionEvent::Detached)
    ));
}

#[test]
fn a_process_that_ended_during_a_delivery_is_lost() {
    let (mut session, process) = session();
    drop(process);
    session.send_members(Members::new(1, &[0], 1)).unwrap();
    assert!(matches!(
        session.read_socket(&mut ranks(), &mut background()),
        Err(Error::Socket(attach::Error::Closed))
    ));
}

/// The next answer, and what came with it.
fn answer(
    session: &mut Session,
    process: &AttachChannel,
) -> (SidecarAnswer, Vec<std::os::fd::OwnedFd>) {
    let start = Instant::now();
    loop {
        session.answer_requests().unwrap();
        if let Some(answer) = process.receive_with_fds::<SidecarAnswer>().unwrap() {
            return answer;
        }
        assert!(start.elapsed().as_secs() < 60, "waited too long");
        std::thread::yield_now();
    }
}

#[test]
fn requests_are_answered_in_their_order_and_too_many_are_refused() {
    let (mut session, process) = session();
    let (allow, allowed) = std::sync::mpsc::channel::<()>();
    let allowed = std::sync::Mutex::new(allowed);
    let held = Before::call(move || {
        allowed.lock().unwrap().recv().ok();
    });
    let mut background = Background::new("test", Stop::new().unwrap(), held);
    answer(&mut session, &process); // Attached.
    // The second one does not fit beside the first, which is not made yet.
    for bytes in [1 << 19, 1 << 20, 1 << 18] {
        process
            .send(&ClientMessage::Allocate { bytes }, &[])
            .unwrap();
    }
    assert!(matches!(
        session.read_socket(&mut ranks(), &mut background),
        Ok(SessionEvent::Nothing)
    ));
    assert!(process.receive::<SidecarAnswer>().unwrap().is_none());
    drop(allow);
    let mut answers = || answer(&mut session, &process).0;
    assert!(matches!(answers(), SidecarAnswer::Input { segment: 0, .. }));
    let refused = answers();
    assert!(
        matches!(&refused, SidecarAnswer::Refused { reason } if reason.contains("524288 of the 1048576")),
        "{refused:?}"
    );
    assert!(matches!(answers(), SidecarAnswer::Input { segment: 1, .. }));

    let (_allow, allowed) = std::sync::mpsc::channel::<()>();
    let allowed = std::sync::Mutex::new(allowed);
    let held = Before::call(move || {
        allowed.lock().unwrap().recv().ok();
    });
    let mut background = Background::new("test", Stop::new().unwrap(), held);
    let asked = (0..).find_map(|asked| {
        let bytes = if asked == 0 { 1 } else { u64::MAX };
        process
            .send(&ClientMessage::Allocate { bytes }, &[])
            .unwrap();
        Some((
            asked,
            session.read_socket(&mut ranks(), &mut background).err()?,
        ))
    });
    let (asked, error) = asked.unwrap();
    assert!(matches!(error, Error::AsksTooMuch), "{error}");
    assert_eq!(asked, inputs::REQUEST_LIMIT);
}

#[test]
fn what_is_given_back_holds_no_memory_though_its_descriptor_is_kept() {
    let (mut session, process) = session();
    answer(&mut session, &process); // Attached.
    let mut background = background();
    let bytes = 1 << 18;
    let mut kept = Vec::new();
    for _ in 0..3 {
        process
            .send(&ClientMessage::Allocate { bytes }, &[])
            .unwrap();
        session.read_socket(&mut ranks(), &mut background).unwrap();
        let (answered, mut fds) = answer(&mut session, &process);
        let SidecarAnswer::Input { segment, .. } = answered else {
            panic!("{answered:?}");
        };
        let fd = fds.remove(0);
        let blocks = || rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512;
        assert!(blocks() >= bytes, "its pages are there from the start");
        process.send(&ClientMessage::Free { segment }, &[]).unwrap();
        session.read_socket(&mut ranks(), &mut background).unwrap();
        let start = Instant::now();
        while blocks() > 0 {
            assert!(start.elapsed().as_secs() < 60, "{} bytes stay", blocks());
            std::thread::yield_now();
        }
        kept.push(fd);
    }
    assert_eq!(session.input_bytes(), 0);
}
