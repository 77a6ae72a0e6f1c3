//! What goes wrong, and what every rank is told: disagreements, dead and frozen sidecars, dead processes,
//! strangers. Sidecars that die are processes of their own; the times asserted are ten times the target,
//! because the machine may be busy.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

mod gang;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use gang::{Gang, PATIENCE, f32s, filled, run};
use hfreduce_sidecar::join::{Credentials, initiate};
use rustix::process::{Pid, Signal, kill_process};
use wire::attach::{Channel, ToClient, ToSidecar};
use wire::client::{Client, Error};
use wire::entry::FailureKind;
use wire::handshake::{Identity, JobId, Key, Party};
use wire::ring::Bell;
use wire::segment::Segment;
use wire::{Call, DType, OpKind, ReduceOp};

/// Ten times the 2 s in which a frozen node has to be named, and far above what a dead one takes.
const NAMED_WITHIN: Duration = Duration::from_secs(20);

fn sum(count: u64) -> Call {
    Call::all_reduce(DType::F32, ReduceOp::Sum, count)
}

fn failure(result: Result<impl Sized, Error>) -> (FailureKind, String) {
    match result {
        Err(Error::Operation { kind, text, .. }) => (kind, text),
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("it succeeded"),
    }
}

// COLL-1: the same error, naming both sides, on every rank; and the group is usable afterwards.
#[test]
fn ranks_that_disagree_are_both_named_on_every_rank_and_the_next_operation_runs() {
    let gang = Gang::start(3, 2);
    let texts = gang.each(|client| {
        let rank = client.standing().rank;
        let odd_one = if rank == 3 { sum(100) } else { sum(101) };
        let (kind, text) = failure(run(&client, odd_one, &f32s(&[1.0; 101])));
        assert_eq!(kind, FailureKind::Mismatch);
        let output = run(&client, sum(1), &f32s(&[1.0])).unwrap();
        assert_eq!(output.result[..], f32s(&[6.0]));
        text
    });
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    let text = &texts[0];
    assert!(
        text.contains("rank 3 called") && text.contains("100 x f32"),
        "{text}"
    );
    assert!(text.contains("101 x f32"), "{text}");
}

#[test]
fn a_call_that_cannot_be_is_refused_alone_and_takes_no_place() {
    let gang = Gang::start(2, 1);
    gang.each(|client| {
        if client.standing().rank == 0 {
            let mut call = Call::new(OpKind::Broadcast, DType::F32, 1);
            call.root = 7;
            let (kind, text) = failure(run(&client, call, &[]));
            assert_eq!(kind, FailureKind::Refused);
            assert!(text.contains("root 7"), "{text}");
        }
        let output = run(&client, sum(1), &f32s(&[1.0])).unwrap();
        assert_eq!(output.result[..], f32s(&[2.0]));
    });
}

// COLL-2: a process that dies is named at once, on every rank of every node.
#[test]
fn a_process_that_dies_in_an_operation_is_named_on_every_rank() {
    let gang = Gang::start(3, 2);
    let doomed = Channel::connect(&gang.nodes[1].socket()).unwrap();
    let version = wire::attach::VERSION;
    let local_rank = 1;
    doomed
        .send(
            &ToSidecar::Attach {
                version,
                local_rank,
            },
            &[],
        )
        .unwrap();
    let called = Barrier::new(6);
    let texts = std::thread::scope(|scope| {
        let ranks: Vec<_> = [0, 1, 2, 4, 5]
            .map(|rank| {
                let (gang, called) = (&gang, &called);
                scope.spawn(move || {
                    let client = gang.client(rank);
                    let input = filled(&client, &f32s(&[1.0; 100_000]));
                    let ticket = client.submit(sum(100_000), Some(input), PATIENCE).unwrap();
                    called.wait();
                    let start = Instant::now();
                    let (kind, text) = failure(client.wait(ticket, PATIENCE));
                    assert_eq!(kind, FailureKind::Broken);
                    assert!(start.elapsed() < NAMED_WITHIN / 4, "{:?}", start.elapsed());
                    // Whatever is called later fails with the same cause.
                    assert_eq!(failure(run(&client, sum(1), &f32s(&[1.0]))).1, text);
                    text
                })
            })
            .into();
        called.wait();
        // As the kernel does it for a killed process: the socket ends without a word.
        drop(doomed);
        let texts: Vec<String> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        texts
    });
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert!(
        texts[0].contains("rank 3") && texts[0].contains("worker-1"),
        "{}",
        texts[0]
    );
}

/// Sidecars as processes, at loopback addresses that no other process of this machine uses.
struct Processes {
    dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Processes {
    fn start(nodes: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // 127/8 is ours: an address by process, gang and rank is taken by nobody else.
        static GANGS: AtomicU8 = AtomicU8::new(0);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let first = GANGS.fetch_add(8, Ordering::Relaxed) + 1;
        let entry = |rank: u32| {
            let address = Ipv4Addr::new(127, high | 1, low, first + rank as u8);
            format!(r#"{{"rank":{rank},"address":"{address}","port":9404,"name":"worker-{rank}"}}"#)
        };
        let entries: Vec<String> = (0..nodes).map(entry).collect();
        let roster = dir.path().join("roster");
        std::fs::write(&roster, format!(r#"{{"nodes":[{}]}}"#, entries.join(","))).unwrap();
        let children = (0..nodes)
            .map(|rank| {
                let run_dir = dir.path().join(rank.to_string());
                std::fs::create_dir(&run_dir).unwrap();
                Command::new(env!("CARGO_BIN_EXE_hfreduce-sidecar"))
                    .args([
                        "serve",
                        "--metrics-listen",
                        "127.0.0.1:0",
                        "--rank",
                        &rank.to_string(),
                    ])
                    .arg("--roster")
                    .arg(&roster)
                    .arg("--run-dir")
                    .arg(&run_dir)
                    .stderr(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let processes = Self { dir, children };
        for rank in 0..nodes {
            let dir = processes.dir.path().join(rank.to_string());
            gang::wait_until(|| {
                Command::new(env!("CARGO_BIN_EXE_hfreduce-sidecar"))
                    .args(["ready", "--run-dir"])
                    .arg(&dir)
                    .stdout(Stdio::null())
                    .status()
                    .unwrap()
                    .success()
            });
        }
        processes
    }

    fn client(&self, rank: u32) -> Client {
        let socket = self
            .dir
            .path()
            .join(rank.to_string())
            .join(wire::run_dir::SOCKET);
        Client::attach(&socket, 0, PATIENCE).unwrap()
    }

    fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_child(&self.children[rank]);
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

// COLL-2: a dead sidecar is named at once.
#[test]
fn a_sidecar_that_is_killed_is_named_by_all_others() {
    let gang = Processes::start(4);
    let clients: Vec<Client> = (0..4).map(|rank| gang.client(rank)).collect();
    let call = sum(5_000_000);
    let tickets: Vec<_> = [0, 1, 3]
        .map(|rank| {
            let client = &clients[rank];
            let input = client.buffer(20_000_000, PATIENCE).unwrap();
            (client, client.submit(call, Some(input), PATIENCE).unwrap())
        })
        .into();
    let start = Instant::now();
    gang.signal(2, Signal::KILL);
    for (client, ticket) in tickets {
        let (kind, text) = failure(client.wait(ticket, PATIENCE));
        assert_eq!(kind, FailureKind::Broken);
        assert!(
            text.contains("node 2 was lost") && text.contains("worker-2"),
            "{text}"
        );
    }
    let lost = run(&clients[2], Call::barrier(), &[]).unwrap_err();
    assert!(matches!(lost, Error::SidecarLost { .. }), "{lost}");
    assert!(start.elapsed() < NAMED_WITHIN / 4, "{:?}", start.elapsed());
}

// COLL-2: a frozen sidecar is named within 2 s, and given up later.
#[test]
fn a_sidecar_that_is_frozen_is_named_and_then_given_up() {
    let mut gang = Processes::start(3);
    let clients: Vec<Client> = (0..3).map(|rank| gang.client(rank)).collect();
    let ticket = clients[0]
        .submit(sum(1), Some(filled(&clients[0], &f32s(&[1.0]))), PATIENCE)
        .unwrap();
    let other = clients[1]
        .submit(sum(1), Some(filled(&clients[1], &f32s(&[1.0]))), PATIENCE)
        .unwrap();
    // Kept to the end: a sidecar whose log nobody reads any more would die of it.
    let mut log = BufReader::new(gang.children[0].stderr.take().unwrap()).lines();
    gang.signal(2, Signal::STOP);
    let start = Instant::now();
    let suspicion = Iterator::by_ref(&mut log)
        .map(Result::unwrap)
        .find(|line| line.contains("suspect"));
    assert!(suspicion.unwrap().contains("worker-2"));
    // It is given up after 10 s; naming it must not have waited for that.
    assert!(start.elapsed() < NAMED_WITHIN / 3, "{:?}", start.elapsed());
    for (client, ticket) in [(&clients[0], ticket), (&clients[1], other)] {
        let (_, text) = failure(client.wait(ticket, PATIENCE));
        assert!(
            text.contains("node 2 fell silent") && text.contains("worker-2"),
            "{text}"
        );
    }
    drop(log);
}

#[test]
fn a_sidecar_leaves_within_a_second_of_being_told() {
    let mut gang = Processes::start(2);
    let clients: Vec<Client> = (0..2).map(|rank| gang.client(rank)).collect();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| run(client, sum(1000), &f32s(&[1.0; 1000])).unwrap());
        }
    });
    drop(clients);
    let start = Instant::now();
    for rank in 0..2 {
        gang.signal(rank, Signal::TERM);
    }
    for child in &mut gang.children {
        assert!(child.wait().unwrap().success());
    }
    assert!(
        start.elapsed() < Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
}

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
        let socket = wire::attach::Channel::connect(&node.socket()).unwrap();
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

#[test]
fn a_process_that_leaves_without_a_call_may_come_again() {
    let gang = Gang::start(1, 1);
    drop(gang.client(0));
    gang::wait_until(|| Client::attach(&gang.nodes[0].socket(), 0, PATIENCE).is_ok());
}

/// Attaches by hand: the socket, the process's ends of the rings, and the sidecar's bell.
fn attach_by_hand(socket: &std::path::Path, local_rank: u32) -> (Channel, Arc<Segment>, Bell) {
    let channel = Channel::connect(socket).unwrap();
    let version = wire::attach::VERSION;
    channel
        .send(
            &ToSidecar::Attach {
                version,
                local_rank,
            },
            &[],
        )
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some((message, mut fds)) = channel.receive_with_fds::<ToClient>().unwrap() {
            let ToClient::Welcome { control_bytes, .. } = message else {
                panic!("not welcome: {message:?}")
            };
            let control = Segment::open(fds.remove(0), control_bytes as usize).unwrap();
            return (channel, Arc::new(control), Bell::from_fd(fds.remove(0)));
        }
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
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
        if at == 3 {
            // Well formed, so it is answered, and takes no place in the order.
            let deadline = Instant::now() + PATIENCE;
            while outcomes.pop().unwrap().is_none() {
                assert!(Instant::now() < deadline, "no answer");
                std::thread::yield_now();
            }
            continue;
        }
        let (kind, text) = failure(run(&honest, Call::barrier(), &[]));
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
