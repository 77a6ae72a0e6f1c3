//! What the engine does by itself: with a link that fails, and with a setup that cannot work.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use collective::machine::{
    Broken, Config, DEFAULT_SLOTS, Fence, Frame, GroupId, MIN_CHUNK_BYTES, Recovery, Timing,
    Watermark,
};
use collective::session::Called;
use collective::{Call, DType, DoubleTree, Layout, OpKind, ReduceOp};
use rustix::net::sockopt::{set_socket_linger, set_socket_send_buffer_size};

use link::block::Block;
use link::segment::{Segment, Writers};
use link::transport::{Tcp, Transport};
use topology::OnPeerLoss;

use super::*;
use crate::bench::protocol::link::pair;
use crate::frame::{FencedFrame, Link};
use crate::inspect::Inspector;
use crate::memory::InputMemory;
use crate::session::PendingCall;

const PEER: usize = 1;
const PATIENCE: Duration = Duration::from_secs(20);
const FENCE: Fence = Fence {
    attempt: 1,
    epoch: 1,
};

/// What the first of two nodes starts with, and the other node's end of the link between them.
fn setup() -> (EngineSetup, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let theirs = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    // So that a link is soon behind.
    set_socket_send_buffer_size(&ours, 1 << 14).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = Config {
        node: 0,
        layout: Layout::uniform(2, 1).unwrap(),
        trees: DoubleTree::build(&["", ""]),
        fence: FENCE,
        chunk_bytes: MIN_CHUNK_BYTES,
        slots: DEFAULT_SLOTS,
        window: DEFAULT_SLOTS,
        timing: Timing::default(),
        recovery: Recovery::default(),
    };
    let link: Link = Box::new(Tcp::new(ours, false).unwrap());
    let setup = EngineSetup {
        before_memory: Before::default(),
        workers: WorkerOptions::default(),
        epoch: Epoch {
            config,
            members: vec![0, 1],
            links: BTreeMap::from([(PEER, link)]),
            linker: None,
            resume: None,
        },
        names: vec![String::new(); 2],
        listener: Listener::bind(&dir.path().join("socket")).unwrap(),
        limit_bytes: 0,
        places: Places::default(),
        attached_ranks: None,
        found: None,
        commands: channel().1,
        notices: channel().0,
        snapshots: Inspector::new().1,
        flight: dir.path().join("flight.json"),
    };
    (setup, theirs)
}

fn parts() -> (Stop, Metrics, Reporter) {
    let registry = daemon::Registry::new("test").unwrap();
    (
        Stop::new().unwrap(),
        Metrics::new(&registry).unwrap(),
        Reporter::nowhere().unwrap(),
    )
}

// COLL-1: the cause that the peer has named, not that the peer is gone.
#[test]
fn what_a_peer_said_last_counts_although_a_write_found_it_gone_first() {
    let (setup, mut theirs) = setup();
    let (stop, metrics, reporter) = parts();
    let mut engine = Engine::new(setup, stop, metrics, reporter).unwrap();
    let cause = Broken::RankLost { rank: 1, by: 1 };
    let abort = Frame::Abort { broken: cause };
    let bytes = collective::encoding::encode(FENCE, &abort);
    theirs.write_all(&bytes).unwrap();
    // The end of a process that has not read everything: the connection is reset.
    set_socket_linger(&theirs, Some(Duration::ZERO)).unwrap();
    drop(theirs);
    let heartbeat = FencedFrame {
        fence: FENCE,
        frame: Frame::Heartbeat,
    };
    let since = Instant::now();
    while engine.links.push(PEER, &heartbeat, None).unwrap() {
        assert!(since.elapsed() < Duration::from_secs(20), "it never failed");
        engine.carry_out();
    }
    engine.dispatch(LINK | PEER as u64);
    assert_eq!(engine.driver.machine().broken(), Some(cause));
    assert!(engine.links.is_empty(), "it was read to its end");
}

#[test]
fn a_chunk_that_does_not_fit_into_a_frame_is_refused_with_the_largest_that_does() {
    let (mut setup, _theirs) = setup();
    setup.epoch.config.chunk_bytes = PAYLOAD_LIMIT_BYTES + 64;
    let (stop, metrics, reporter) = parts();
    let refused = Engine::new(setup, stop, metrics, reporter).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("at most 16777216"), "{refused}");
}

/// A call as a process has made it, without input.
fn called(ticket: u64, call: Call) -> Called<PendingCall> {
    Called {
        call,
        splits: None,
        refused: None,
        kept: PendingCall {
            ticket,
            since: Instant::now(),
            own_bytes: 0,
            input: Ok(None),
        },
    }
}

#[test]
fn what_a_process_has_called_is_taken_up_after_it_has_left() {
    let (setup, _theirs) = setup();
    let (stop, metrics, reporter) = parts();
    let mut engine = Engine::new(setup, stop, metrics, reporter).unwrap();
    let called = called(1, Call::barrier());
    let ranks = engine.local.ranks_mut();
    ranks.attach(0, None);
    assert!(ranks.call(WORLD, 0, called));
    ranks.detach(0).unwrap();
    assert!(engine.look_at_rings());
    assert_eq!(engine.driver.machine().in_flight()[0].joined, [0]);
}

/// Workers that begin nothing before what comes with them is dropped: before the engine, which waits for its workers.
fn held_workers() -> (WorkerOptions, Sender<()>) {
    let (allow, allowed) = channel();
    let allowed = Mutex::new(allowed);
    let options = WorkerOptions {
        threads: Some(2),
        from_bytes: 0,
        before: Before::call(move || {
            allowed.lock().unwrap().recv().ok();
        }),
        pace: None,
    };
    (options, allow)
}

/// Has the engine end its epoch, and say all that it has to say.
fn revoke(engine: &mut Engine) {
    engine.handle(Input::Revoke);
    let since = Instant::now();
    while !engine.has_said_all() {
        engine.carry_out();
        assert!(since.elapsed() < PATIENCE, "it is never said");
    }
    engine.on_command().unwrap();
}

/// The notice that the epoch has ended.
fn ended(engine: &mut Engine, noticed: &Receiver<Notice>) -> Notice {
    let since = Instant::now();
    loop {
        engine.take_finished().unwrap();
        engine.on_command().unwrap();
        if let Ok(notice) = noticed.try_recv() {
            return notice;
        }
        assert!(since.elapsed() < PATIENCE, "it never ends");
    }
}

// The next epoch may give memory to others that this one still writes to.
#[test]
fn an_epoch_has_ended_when_workers_have_done_what_they_were_given() {
    const BYTES: usize = 1000;
    let (workers, allow) = held_workers();
    let (notices, noticed) = channel();
    let (mut setup, _theirs) = setup();
    setup.epoch.config.layout = Layout::uniform(2, 2).unwrap();
    setup.epoch.config.recovery.on_peer_loss = OnPeerLoss::Shrink;
    setup.limit_bytes = 1 << 20;
    setup.notices = notices;
    setup.workers = workers;
    let (stop, metrics, reporter) = parts();
    let mut engine = Engine::new(setup, stop, metrics, reporter).unwrap();
    engine.memory.hurry(true);
    let allow = allow; // Dropped before the engine.
    let block = Block::new(Segment::create("input", BYTES, Writers::Everybody).unwrap());
    for rank in 0..2 {
        let call = Call::all_reduce(DType::U8, ReduceOp::Sum, BYTES as u64);
        let mut called = called(1, call);
        called.kept.input = Ok(Some(InputMemory {
            block: block.clone(),
            offset: 0,
            bytes: BYTES,
        }));
        let ranks = engine.local.ranks_mut();
        ranks.attach(rank, None);
        assert!(ranks.call(WORLD, rank, called));
    }
    assert!(engine.look_at_rings() && engine.carry_out());
    assert!(!engine.driver.machine().is_idle(), "nothing is computed");
    revoke(&mut engine);
    assert!(noticed.try_recv().is_err(), "it has ended too early");
    assert!(block.write(0..BYTES).is_err(), "its input is not read");
    drop(allow);
    let notice = ended(&mut engine, &noticed);
    assert!(
        matches!(notice, Notice::Stopped { epoch: 1, .. }),
        "{notice:?}"
    );
    block.write(0..BYTES).unwrap();
}

// The same of what links have brought, which the machine does not wait for.
#[test]
fn an_epoch_has_ended_when_what_came_over_its_links_is_copied() {
    const BYTES: u64 = 2 * MIN_CHUNK_BYTES as u64;
    let (workers, allow) = held_workers();
    let (notices, noticed) = channel();
    let (mut setup, _theirs) = setup();
    let [ours, mut theirs] = pair(MIN_CHUNK_BYTES).unwrap();
    setup.epoch.links = BTreeMap::from([(PEER, Box::new(ours) as Link)]);
    setup.epoch.config.recovery.on_peer_loss = OnPeerLoss::Shrink;
    setup.limit_bytes = 1 << 20;
    setup.notices = notices;
    setup.workers = workers;
    let (stop, metrics, reporter) = parts();
    let mut engine = Engine::new(setup, stop, metrics, reporter).unwrap();
    engine.memory.hurry(true);
    let allow = allow; // Dropped before the engine.
    let segment = Segment::create("input", BYTES as usize, Writers::Everybody).unwrap();
    let mut called = called(1, Call::all_reduce(DType::U8, ReduceOp::Sum, BYTES));
    called.kept.input = Ok(Some(InputMemory {
        block: Block::new(segment),
        offset: 0,
        bytes: BYTES as usize,
    }));
    let ranks = engine.local.ranks_mut();
    ranks.attach(0, None);
    assert!(ranks.call(WORLD, 0, called));
    assert!(engine.look_at_rings() && engine.carry_out());
    // Its second chunk takes the tree in which this node has a parent.
    let frame = Frame::BroadcastChunk {
        group: WORLD,
        tree: 1,
        op: 0,
        chunk: 1,
        bytes: MIN_CHUNK_BYTES,
        watermark: Watermark::default(),
    };
    let fence = FENCE;
    theirs.push(&FencedFrame { fence, frame }, None).unwrap();
    theirs.flush(&mut Vec::new()).unwrap();
    assert!(engine.look_at_links() && !engine.inbound.is_empty());
    assert!(engine.driver.machine().is_idle(), "it does not wait for it");
    revoke(&mut engine);
    assert!(noticed.try_recv().is_err(), "it has ended too early");
    drop(allow);
    let notice = ended(&mut engine, &noticed);
    let Notice::Stopped { report, .. } = notice else {
        panic!("{notice:?}");
    };
    let mut retained = report.iter().flat_map(|of| &of.retained);
    assert!(!retained.any(|one| one.complete), "{report:?}");
}

#[test]
fn calls_in_a_group_that_has_failed_fail_and_take_no_memory() {
    const GROUP: GroupId = 5;
    let (mut setup, _theirs) = setup();
    setup.limit_bytes = 1 << 20;
    let (stop, metrics, reporter) = parts();
    let mut engine = Engine::new(setup, stop, metrics, reporter).unwrap();
    engine.memory.hurry(true);
    let ranks = engine.local.ranks_mut();
    ranks.attach(0, None);
    ranks.open((GROUP, 0), vec![0], (true, 0), 1).unwrap();
    assert_eq!(ranks.opened(GROUP, 0).ticket, Some(1));
    ranks.fail(GROUP, 0, "its nodes were lost");
    let call = Call::all_reduce(DType::U8, ReduceOp::Sum, 1 << 20);
    for ticket in [2, 3] {
        let called = called(ticket, call);
        assert!(engine.local.ranks_mut().call(GROUP, 0, called));
    }
    engine.take_entries(0);
    assert_eq!(engine.local.ranks().waiting(0), 0, "both have failed");
}

#[test]
fn a_burst_of_messages_waits_for_a_busy_neighbour_and_overflows_no_link() {
    const CALLED: u64 = 20_000;
    let (setup, mut theirs) = setup();
    theirs.set_nonblocking(true).unwrap();
    let (stop, metrics, reporter) = parts();
    let mut engine = Engine::new(setup, stop, metrics, reporter).unwrap();
    let receive = Call::new(OpKind::Receive { from: 1 }, DType::U8, 0);
    let ranks = engine.local.ranks_mut();
    ranks.attach(0, None);
    for ticket in 0..CALLED {
        assert!(ranks.call(WORLD, 0, called(ticket, receive)));
    }
    let turn = |engine: &mut Engine| {
        engine.take_entries(0);
        while engine.carry_out() {}
        engine.local.ranks().waiting(0)
    };
    // As many as the sockets hold, and some more.
    let mut waiting = [usize::MAX, turn(&mut engine)];
    while waiting[1] < waiting[0] {
        waiting = [waiting[1], turn(&mut engine)];
    }
    assert!(waiting[1] > 0, "its neighbour reads nothing");
    assert!(engine.links.most_queued() <= calls::QUESTIONS_LIMIT);
    let mut bytes = vec![0; 1 << 16];
    let since = Instant::now();
    while turn(&mut engine) > 0 {
        assert!(since.elapsed() < Duration::from_secs(20), "they stay");
        while theirs.read(&mut bytes).is_ok() {}
        engine.dispatch(LINK | PEER as u64);
    }
    assert_eq!(engine.driver.machine().broken(), None);
    assert!(engine.links.has(PEER));
}
