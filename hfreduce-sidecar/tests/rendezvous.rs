//! Joining by the operator: real sidecar processes with the files of a pod, against an operator of a few
//! lines that says what the test wants. The real one's rules are `collective::membership`'s.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use collective::membership::SuspicionReason;
use collective::membership::encoding::{Peer, ToOperator, ToSidecar, encode};
use contract::run_dir::{self, Roster};
use contract::{CheckpointRef, Progress};
use flate2::Compression;
use flate2::write::GzEncoder;
use gang::pods::{Caller, Pods, Streams, sum};
use gang::processes::get;
use gang::{PATIENCE, f32s, failure, filled, wait_until};
use hfreduce_client::client::Client;
use hfreduce_client::entry::FailureKind;
use hfreduce_client::{Call, DType, ReduceOp};
use hfreduce_sidecar::node::not_ready;
use rustix::process::Signal;
use topology::OnPeerLoss;

/// A connection of a sidecar: what it says comes out of `received` with its rank.
struct Operator {
    address: SocketAddr,
    incoming: Streams,
    streams: BTreeMap<u32, TcpStream>,
}

impl Operator {
    fn start() -> Self {
        let streams = Streams::start();
        Self {
            address: streams.address,
            incoming: streams,
            streams: BTreeMap::new(),
        }
    }

    /// The next message for which there is an answer to give, heartbeats aside.
    fn next(&mut self, wanted: impl Fn(&ToOperator) -> bool) -> (u32, ToOperator) {
        let asked = std::time::Instant::now();
        loop {
            assert!(asked.elapsed() < PATIENCE, "nothing but heartbeats");
            let (caller, message) = self.incoming.received.recv_timeout(PATIENCE).unwrap();
            let rank = caller.rank;
            while let Ok((Caller { rank, .. }, stream)) = self.incoming.connections.try_recv() {
                self.streams.insert(rank, stream);
            }
            if let Some(message) = message.filter(&wanted) {
                return (rank, message);
            }
        }
    }

    fn say(&self, rank: u32, message: &ToSidecar) {
        (&self.streams[&rank])
            .write_all(&encode(message).unwrap())
            .unwrap();
    }

    /// Receives the hellos of all: where each is, and which epoch it has joined.
    fn hellos(&mut self, nodes: u32) -> Vec<(Peer, Option<u64>)> {
        let mut hellos = BTreeMap::new();
        while hellos.len() < nodes as usize {
            let (rank, hello) = self.next(|message| matches!(message, ToOperator::Hello { .. }));
            let ToOperator::Hello {
                address,
                port,
                joined_epoch,
                ..
            } = hello
            else {
                unreachable!("only hellos are taken")
            };
            let peer = Peer {
                rank,
                address,
                port,
            };
            hellos.insert(rank, (peer, joined_epoch));
        }
        hellos.into_values().collect()
    }

    /// Receives all hellos and answers with the roster.
    fn introduce(&mut self, nodes: u32) -> Vec<Option<u64>> {
        let (peers, joined) = self.hellos(nodes).into_iter().unzip();
        let roster = ToSidecar::Roster {
            epoch: 5,
            nodes: peers,
        };
        for rank in 0..nodes {
            self.say(rank, &roster);
        }
        joined
    }

    fn await_joined(&mut self, nodes: u32) {
        for _ in 0..nodes {
            self.next(|message| *message == ToOperator::Joined { epoch: 5 });
        }
    }

    fn go(&self, nodes: u32) {
        for rank in 0..nodes {
            self.say(rank, &ToSidecar::Go { epoch: 5 });
        }
    }

    /// A gang that has made its first operation, with a client of each node.
    fn run_gang(&mut self, nodes: u32) -> (Pods, Vec<Client>) {
        self.run_gang_at(Ipv4Addr::LOCALHOST.into(), nodes)
    }

    /// The same, where nodes reach each other at this address.
    fn run_gang_at(&mut self, address: IpAddr, nodes: u32) -> (Pods, Vec<Client>) {
        let pods = Pods::start_at(address, nodes, self.address, OnPeerLoss::Restart, "auto");
        self.introduce(nodes);
        self.await_joined(nodes);
        self.go(nodes);
        let clients: Vec<Client> = (0..nodes).map(|rank| pods.client(rank)).collect();
        sum(&clients);
        (pods, clients)
    }

    /// Epoch, rank and reason of the next suspicion, which another node must have named.
    fn next_suspicion(&mut self) -> (u64, u32, SuspicionReason) {
        let (by, message) = self.next(|message| matches!(message, ToOperator::Suspect { .. }));
        let ToOperator::Suspect {
            epoch,
            rank,
            reason,
            detail,
        } = message
        else {
            unreachable!("only a suspicion is taken")
        };
        let name = format!("worker-{rank}");
        assert!(by != rank && detail.contains(&name), "{detail}");
        (epoch, rank, reason)
    }
}

#[test]
fn nodes_that_reach_each_other_over_ipv6_join() {
    let address = IpAddr::from(Ipv6Addr::LOCALHOST);
    if TcpListener::bind((address, 0)).is_err() {
        eprintln!("not run: this machine has no {address}");
        return;
    }
    Operator::start().run_gang_at(address, 2);
}

// GANG-2: no trainer starts, because `ready` fails, before the operator has said that all joined.
#[test]
fn a_node_is_ready_when_the_whole_gang_has_joined_and_not_before() {
    let mut operator = Operator::start();
    let pods = Pods::start(3, operator.address);
    assert_eq!(operator.introduce(3), [None; 3]);
    operator.await_joined(3);
    for rank in 0..3 {
        assert!(
            not_ready(&pods.run_dir(rank))
                .unwrap()
                .contains("not joined")
        );
        assert!(!pods.run_dir(rank).join(contract::run_dir::SOCKET).exists());
        assert!(
            pods.run_dir(rank)
                .join(contract::run_dir::LAUNCHER)
                .exists()
        );
        let answer = get(pods.metrics_address(rank), "/ready");
        assert!(
            answer.starts_with("HTTP/1.1 503") && answer.contains("the gang"),
            "{answer}"
        );
    }
    operator.go(3);
    for rank in 0..3 {
        wait_until(|| not_ready(&pods.run_dir(rank)).is_none());
        wait_until(|| get(pods.metrics_address(rank), "/ready").starts_with("HTTP/1.1 200"));
        let roster = Roster::read(&pods.run_dir(rank)).unwrap().unwrap();
        assert_eq!(
            (roster.attempt, roster.epoch, roster.master_port),
            (3, 5, 29_400)
        );
        assert_eq!(roster.nodes[2].name, "worker-2");
    }
    pods.sum(3);
}

#[test]
fn the_node_whose_rank_tells_how_far_training_is_passes_it_on_whichever_it_is() {
    let mut operator = Operator::start();
    let (pods, clients) = operator.run_gang(2);
    let progress = Progress {
        step: 7,
        loss: None,
        checkpoint: None,
        passed_over: Some("an older one".to_owned()),
    };
    run_dir::write(&pods.run_dir(1).join(run_dir::PROGRESS), &progress).unwrap();
    let sent = Some(progress);
    let (rank, _) = operator.next(
        |message| matches!(message, ToOperator::Heartbeat { progress, .. } if *progress == sent),
    );
    assert_eq!(rank, 1);
    sum(&clients);
}

#[test]
fn a_finished_collective_is_told_and_a_question_for_stacks_reaches_the_launchers_folder() {
    let mut operator = Operator::start();
    let (pods, clients) = operator.run_gang(2);
    let finished = |message: &ToOperator| match message {
        ToOperator::Heartbeat { operations, .. } => *operations,
        ToOperator::Hello { .. }
        | ToOperator::Joined { .. }
        | ToOperator::Suspect { .. }
        | ToOperator::Recovered { .. }
        | ToOperator::Stopped { .. }
        | ToOperator::RankLost
        | ToOperator::Leaving => None,
    };
    let (rank, before) = operator.next(|message| finished(message).is_some());
    let before = finished(&before);
    sum(&clients);
    operator.next(|message| finished(message) > before);
    let reason = "no progress for 600 s".to_owned();
    operator.say(rank, &ToSidecar::Stacks { reason });
    let file = pods.run_dir(rank).join(run_dir::STACKS);
    wait_until(|| file.exists());
    assert_eq!(
        std::fs::read_to_string(file).unwrap(),
        "no progress for 600 s"
    );
    sum(&clients);
}

#[test]
fn a_running_gang_outlives_its_operator_and_tells_the_next_one_where_it_stands() {
    let mut operator = Operator::start();
    let mut leader = Operator::start();
    let (pods, clients) = operator.run_gang(2);
    let progress = Progress {
        step: 7,
        loss: Some(0.5),
        checkpoint: Some(CheckpointRef {
            attempt: 3,
            step: 5,
            digest: "abc".to_owned(),
        }),
        passed_over: None,
    };
    run_dir::write(&pods.run_dir(0).join(run_dir::PROGRESS), &progress).unwrap();
    let sent = Some(progress);
    operator.next(
        |message| matches!(message, ToOperator::Heartbeat { progress, .. } if *progress == sent),
    );
    // The replica steps down: it sends everybody to the new leader.
    for rank in 0..2 {
        operator.say(
            rank,
            &ToSidecar::Redirect {
                address: leader.address,
            },
        );
    }
    let mut joined = BTreeMap::new();
    while joined.len() < 2 {
        let (rank, message) = leader.next(|message| matches!(message, ToOperator::Hello { .. }));
        if let ToOperator::Hello { joined_epoch, .. } = message {
            joined.insert(rank, joined_epoch);
        }
    }
    assert_eq!(joined.into_values().collect::<Vec<_>>(), [Some(5), Some(5)]);
    sum(&clients);
    // And that one dies.
    for stream in leader.streams.values() {
        stream.shutdown(std::net::Shutdown::Both).unwrap();
    }
    sum(&clients);
    let (_, again) = operator.next(|message| matches!(message, ToOperator::Hello { .. }));
    assert!(matches!(
        again,
        ToOperator::Hello {
            joined_epoch: Some(5),
            ..
        }
    ));
}

#[test]
fn a_later_roster_replaces_one_that_nobody_can_reach() {
    let mut operator = Operator::start();
    let pods = Pods::start(2, operator.address);
    let (nodes, _): (Vec<Peer>, Vec<_>) = operator.hellos(2).into_iter().unzip();
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let wrong = nodes
        .iter()
        .map(|peer| Peer {
            port: closed,
            ..peer.clone()
        })
        .collect();
    for (epoch, nodes) in [(4, wrong), (5, nodes)] {
        for rank in 0..2 {
            let nodes = Vec::clone(&nodes);
            operator.say(rank, &ToSidecar::Roster { epoch, nodes });
        }
    }
    operator.await_joined(2);
    operator.go(2);
    pods.sum(2);
}

// A new leader says the roster again: node 0 is done by then and would not connect to node 2 once more.
#[test]
fn the_same_roster_said_again_disturbs_nobody_who_is_connecting() {
    let mut operator = Operator::start();
    let pods = Pods::start(4, operator.address);
    let (nodes, _): (Vec<Peer>, Vec<_>) = operator.hellos(4).into_iter().unzip();
    let roster = ToSidecar::Roster { epoch: 5, nodes };
    // Without node 3, which is no neighbour of node 0, the two in between wait.
    for rank in 0..3 {
        operator.say(rank, &roster);
    }
    let (first, _) = operator.next(|message| *message == ToOperator::Joined { epoch: 5 });
    assert_eq!(first, 0);
    operator.say(2, &roster);
    operator.streams[&2]
        .shutdown(std::net::Shutdown::Write)
        .unwrap();
    // Node 2 dials again, so it has read the roster.
    let (again, hello) = operator.next(|message| matches!(message, ToOperator::Hello { .. }));
    assert_eq!(again, 2);
    assert!(
        matches!(
            hello,
            ToOperator::Hello {
                joined_epoch: None,
                ..
            }
        ),
        "{hello:?}"
    );
    operator.say(2, &roster);
    operator.say(3, &roster);
    let mut joined = BTreeSet::new();
    while joined.len() < 3 {
        let (rank, _) = operator.next(|message| *message == ToOperator::Joined { epoch: 5 });
        joined.insert(rank);
    }
    operator.go(4);
    pods.sum(4);
}

// COLL-2: the operator learns the name of the dead one.
#[test]
fn the_operator_learns_who_died_and_who_left() {
    let mut operator = Operator::start();
    let (pods, _clients) = operator.run_gang(3);
    pods.signal(1, Signal::KILL);
    assert_eq!(operator.next_suspicion(), (5, 1, SuspicionReason::Dead));
    pods.signal(2, Signal::TERM);
    let (who, _) = operator.next(|message| *message == ToOperator::Leaving);
    assert_eq!(who, 2);
}

// COLL-2: the operator learns the name of a silent one within 2 s, and of nobody's death.
#[test]
fn the_operator_is_told_who_is_silent_long_before_anybody_gives_it_up() {
    let mut operator = Operator::start();
    let (pods, clients) = operator.run_gang(3);
    pods.signal(1, Signal::STOP);
    // The one who gives up says `Silent`.
    assert_eq!(operator.next_suspicion(), (5, 1, SuspicionReason::Frozen));
    pods.signal(1, Signal::CONT);
    let recovered = ToOperator::Recovered { epoch: 5, rank: 1 };
    let (by, _) = operator.next(|message| *message == recovered);
    assert_ne!(by, 1);
    sum(&clients);
}

#[test]
fn a_node_of_a_void_attempt_fails_what_is_called_and_has_its_ranks_ended() {
    let mut operator = Operator::start();
    let (pods, clients) = operator.run_gang(2);
    let call = Call::all_reduce(DType::F32, ReduceOp::Sum, 3);
    let input = || Some(filled(&clients[1], &f32s(&[1.0; 3])));
    // The other has not called.
    let waiting = clients[1].submit(call, input(), PATIENCE).unwrap();
    let reason = "attempt 1 is over, the job runs attempt 2";
    operator.say(
        1,
        &ToSidecar::Refused {
            reason: reason.to_owned(),
            void: true,
        },
    );
    let (kind, text) = failure(clients[1].wait(waiting, PATIENCE));
    assert_eq!((kind, &*text), (FailureKind::Broken, reason));
    let later = clients[1].submit(call, input(), PATIENCE).unwrap();
    assert_eq!(
        failure(clients[1].wait(later, PATIENCE)).0,
        FailureKind::Broken
    );
    let void = std::fs::read_to_string(pods.run_dir(1).join(run_dir::VOID)).unwrap();
    assert_eq!(void, reason);
    assert!(!pods.run_dir(0).join(run_dir::VOID).exists());
}

#[test]
fn a_sidecar_says_which_assignments_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("assignment.json.gz");
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    // All that a release of the future says in the same way as this one, as far as this one knows.
    packed.write_all(br#"{"version": 99}"#).unwrap();
    std::fs::write(&file, packed.finish().unwrap()).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_hfreduce-sidecar"))
        .env("POD_IP", "127.0.0.1")
        .env("FIREFLYER_RENDEZVOUS", "127.0.0.1:1")
        .env("FIREFLYER_NODE_RANK", "0")
        .args(["--port", "0", "--metrics-listen", "127.0.0.1:0"])
        .arg("--run-dir")
        .arg(dir.path())
        .arg("--assignment")
        .arg(&file)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(!output.status.success(), "{text}");
    let expected = "made by a newer release: version 99, this release reads";
    assert!(text.contains(expected), "{text}");
}
