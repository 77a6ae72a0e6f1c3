//! Pods without a cluster: sidecar processes with the files that the operator mounts, and the operator's end of their
//! streams.
#![expect(clippy::print_stderr, reason = "the logs of a test that failed")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use collective::membership::encoding::Decoder;
use collective::membership::encoding::ToOperator;
use contract::assignment::{
    ALGORITHM, AssignedNode, Assignment, JobRef, PEER_LOSS_SECONDS, VERSION,
};
use contract::identity::{Identity, JobId, Party};
use hfreduce_client::client::Client;
use hfreduce_client::{Call, DType, ReduceOp};
use link::handshake::{self, Key, Responder};
use rustix::process::Signal;
use topology::OnPeerLoss;

use super::processes::{METRICS_PORT, RankSlot, device, loopback, signal_to};
use super::{PATIENCE, f32s, run, threads_of};

pub(crate) const UID: &str = "2c1f2a6e-test";

pub(crate) fn key() -> Key {
    Key::derive(b"master", UID, 3)
}

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) rank: u32,
    /// The connection's number.
    pub(crate) connection: u64,
}

/// What sidecars say, with their ranks, and the streams to answer on.
pub(crate) struct Streams {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Receiver<(Caller, TcpStream)>,
    /// None when the connection has ended.
    pub(crate) received: Receiver<(Caller, Option<ToOperator>)>,
}

impl Streams {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (connected, connections) = channel();
        let (sender, received) = channel();
        thread::spawn(move || {
            for (connection, stream) in (0..).zip(listener.incoming()) {
                let (connected, sender) = (connected.clone(), sender.clone());
                thread::spawn(move || listen(connection, stream.unwrap(), &connected, &sender));
            }
        });
        Self {
            address,
            connections,
            received,
        }
    }
}

/// Reads one connection to its end; the process at the other end may be killed at any time.
fn listen(
    connection: u64,
    mut stream: TcpStream,
    connected: &Sender<(Caller, TcpStream)>,
    sender: &Sender<(Caller, Option<ToOperator>)>,
) {
    let mut hello = [0; handshake::HELLO_BYTES];
    if stream.read_exact(&mut hello).is_err() {
        return;
    }
    let responder = Responder::new(&hello).unwrap();
    let own = Identity {
        job: JobId::new(UID),
        attempt: 3,
        party: Party::Operator,
    };
    let (challenged, challenge) = responder.challenge(key(), own, [9; 32]).unwrap();
    let mut proof = [0; handshake::PROOF_BYTES];
    let answered = stream.write_all(&challenge);
    if answered
        .and_then(|()| stream.read_exact(&mut proof))
        .is_err()
    {
        return;
    }
    let Party::Sidecar { rank } = challenged.finish(&proof).unwrap().party else {
        return;
    };
    let caller = Caller { rank, connection };
    connected.send((caller, stream.try_clone().unwrap())).ok();
    let mut decoder = Decoder::default();
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        decoder.push(&bytes[..count]);
        while let Some(message) = decoder.next().unwrap() {
            sender.send((caller, Some(message))).ok();
        }
    }
    sender.send((caller, None)).ok();
}

/// The first of some ports that the kernel gives to nobody who asks for any.
fn ports() -> u16 {
    static GANGS: AtomicU16 = AtomicU16::new(0);
    let gang = GANGS.fetch_add(1, Ordering::Relaxed);
    let place = std::process::id().wrapping_mul(8).wrapping_add(gang.into()) % 2000;
    10_000 + 10 * place as u16
}

/// Pods without a cluster: processes with the files that the operator mounts.
pub(crate) struct Pods {
    pub(crate) dir: tempfile::TempDir,
    /// Where all are reached at ports of the kernel's choice; none where each has a port of its own.
    address: Option<IpAddr>,
    seats: Vec<RankSlot>,
    first_port: u16,
    transport: String,
    procs: u32,
    rendezvous: SocketAddr,
    pub(crate) children: Vec<Child>,
}

impl Pods {
    pub(crate) fn start(nodes: u32, rendezvous: SocketAddr) -> Self {
        let address = Ipv4Addr::LOCALHOST.into();
        Self::start_at(address, nodes, rendezvous, OnPeerLoss::Restart, "auto")
    }

    pub(crate) fn start_at(
        address: IpAddr,
        nodes: u32,
        rendezvous: SocketAddr,
        on_peer_loss: OnPeerLoss,
        transport: &str,
    ) -> Self {
        Self::at(
            Some(address),
            (nodes, 1),
            rendezvous,
            on_peer_loss,
            transport,
        )
    }

    /// Nodes of so many processes each, which are reached at the same ports when they were started again.
    pub(crate) fn of_processes(nodes: (u32, u32), rendezvous: SocketAddr, transport: &str) -> Self {
        Self::at(None, nodes, rendezvous, OnPeerLoss::Shrink, transport)
    }

    fn at(
        address: Option<IpAddr>,
        (nodes, procs): (u32, u32),
        rendezvous: SocketAddr,
        on_peer_loss: OnPeerLoss,
        transport: &str,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let assignment = Assignment {
            version: VERSION,
            job: JobRef {
                namespace: "default".to_owned(),
                name: "digits".to_owned(),
                uid: UID.to_owned(),
            },
            attempt: 3,
            algorithm: ALGORITHM,
            procs_per_node: procs,
            nodes: (0..nodes)
                .map(|rank| AssignedNode {
                    name: format!("worker-{rank}"),
                    zone: "a".to_owned(),
                    leaf: String::new(),
                })
                .collect(),
            crossing: false,
            master_port: 29_400,
            on_peer_loss,
            peer_loss_seconds: PEER_LOSS_SECONDS,
            min_nodes: None,
            grace_seconds: None,
            traffic_class: 1,
            relaxed_ordering: true,
            checkpoint: None,
            resume: None,
        };
        let packed = assignment.to_gz().unwrap();
        std::fs::write(dir.path().join("assignment.json.gz"), packed).unwrap();
        std::fs::write(dir.path().join("key"), key().as_bytes()).unwrap();
        std::fs::write(dir.path().join("launcher"), "#!/bin/sh\n").unwrap();
        let mut pods = Self {
            dir,
            address,
            seats: loopback(nodes as u8),
            first_port: ports(),
            transport: transport.to_owned(),
            procs,
            rendezvous,
            children: Vec::new(),
        };
        for rank in 0..nodes {
            std::fs::create_dir(pods.run_dir(rank)).unwrap();
            let child = pods.spawn(rank, rendezvous);
            pods.children.push(child);
        }
        pods
    }

    pub(crate) fn spawn(&self, rank: u32, rendezvous: SocketAddr) -> Child {
        let data = self.data_address(rank);
        let mut log = File::options();
        let log = log.create(true).append(true).open(self.log_file(rank));
        Command::new(env!("CARGO_BIN_EXE_hfreduce-sidecar"))
            .current_dir(self.dir.path())
            .env("POD_IP", data.ip().to_string())
            .env("FIREFLYER_RENDEZVOUS", rendezvous.to_string())
            .env("FIREFLYER_NODE_RANK", rank.to_string())
            .env("FIREFLYER_HFREDUCE_TRANSPORT", &self.transport)
            .env("FIREFLYER_RDMA_DEVICE", device(rank as usize))
            .env("FIREFLYER_HFREDUCE_WORKERS", threads_of(rank).to_string())
            .args([
                "--assignment",
                "assignment.json.gz",
                "--key",
                "key",
                "--launcher",
                "launcher",
            ])
            .args(["--port", &data.port().to_string(), "--metrics-listen"])
            .arg(self.metrics_address(rank).to_string())
            .arg("--run-dir")
            .arg(self.run_dir(rank))
            .stderr(log.unwrap())
            .spawn()
            .unwrap()
    }

    /// Where peers reach a node; port 0 where the kernel chooses it.
    pub(crate) fn data_address(&self, rank: u32) -> SocketAddr {
        match self.address {
            Some(address) => SocketAddr::new(address, 0),
            None => SocketAddr::from((Ipv4Addr::LOCALHOST, self.first_port + rank as u16)),
        }
    }

    pub(crate) fn metrics_address(&self, rank: u32) -> SocketAddr {
        SocketAddr::from((self.seats[rank as usize].address, METRICS_PORT))
    }

    pub(crate) fn run_dir(&self, rank: u32) -> PathBuf {
        self.dir.path().join(rank.to_string())
    }

    fn log_file(&self, rank: u32) -> PathBuf {
        self.dir.path().join(format!("{rank}.log"))
    }

    /// The first process of a node.
    pub(crate) fn client(&self, rank: u32) -> Client {
        self.client_of(rank * self.procs)
    }

    /// The process of a rank.
    pub(crate) fn client_of(&self, rank: u32) -> Client {
        let (node, local_rank) = (rank / self.procs, rank % self.procs);
        let socket = self.run_dir(node).join(contract::run_dir::SOCKET);
        Client::attach(&socket, local_rank, PATIENCE).unwrap()
    }

    /// Kills a sidecar and waits for its end.
    pub(crate) fn kill(&mut self, rank: u32) {
        let child = &mut self.children[rank as usize];
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a sidecar in place of one that was killed, as the kubelet does.
    pub(crate) fn start_again(&mut self, rank: u32) {
        self.children[rank as usize] = self.spawn(rank, self.rendezvous);
    }

    /// The number of a sidecar's process.
    pub(crate) fn process(&self, rank: u32) -> u32 {
        self.children[rank as usize].id()
    }

    /// What a sidecar has logged so far.
    pub(crate) fn log(&self, rank: u32) -> String {
        std::fs::read_to_string(self.log_file(rank)).unwrap()
    }

    pub(crate) fn sum(&self, nodes: u32) {
        let clients: Vec<Client> = (0..nodes).map(|rank| self.client(rank)).collect();
        sum(&clients);
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        signal_to(&self.children[rank], signal);
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
        }
        if thread::panicking() {
            for rank in 0..self.children.len() as u32 {
                eprintln!("log of sidecar {rank}:\n{}", self.log(rank));
            }
        }
    }
}

pub(crate) fn sum(clients: &[Client]) {
    thread::scope(|scope| {
        for client in clients {
            scope.spawn(move || {
                let call = Call::all_reduce(DType::F32, ReduceOp::Sum, 1);
                let output = run(client, call, &f32s(&[1.0])).unwrap();
                assert_eq!(output.result[..], f32s(&[clients.len() as f32]));
            });
        }
    });
}
