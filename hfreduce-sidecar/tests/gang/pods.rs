//! Pods without a cluster: sidecar processes with the files that the operator mounts, and the operator's end of their
//! streams.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::process::{Pid, Signal, kill_process};
use wire::assignment::{
    ALGORITHM, AssignedNode, Assignment, JobRef, OnPeerLoss, PEER_LOSS_SECONDS, VERSION,
};
use wire::client::Client;
use wire::handshake::{self, Identity, JobId, Key, Party, Responder};
use wire::rendezvous::{Decoder, ToOperator};
use wire::{Call, DType, ReduceOp};

use super::processes::{METRICS_PORT, Seat, device, loopback};
use super::{PATIENCE, f32s, run};

pub(crate) const UID: &str = "2c1f2a6e-test";

pub(crate) fn key() -> Key {
    Key::derive(b"master", UID, 3)
}

/// What sidecars say, with their ranks, and the streams to answer on.
pub(crate) struct Streams {
    pub(crate) address: SocketAddr,
    pub(crate) connections: Receiver<(u32, TcpStream)>,
    /// None when the connection has ended.
    pub(crate) heard: Receiver<(u32, Option<ToOperator>)>,
}

impl Streams {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (connected, connections) = channel();
        let (hear, heard) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (connected, hear) = (connected.clone(), hear.clone());
                thread::spawn(move || listen(stream.unwrap(), &connected, &hear));
            }
        });
        Self {
            address,
            connections,
            heard,
        }
    }
}

fn listen(
    mut stream: TcpStream,
    connected: &Sender<(u32, TcpStream)>,
    hear: &Sender<(u32, Option<ToOperator>)>,
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
    stream.write_all(&challenge).unwrap();
    let mut proof = [0; handshake::PROOF_BYTES];
    stream.read_exact(&mut proof).unwrap();
    let Party::Sidecar { rank } = challenged.finish(&proof).unwrap().party else {
        return;
    };
    connected.send((rank, stream.try_clone().unwrap())).ok();
    let mut decoder = Decoder::default();
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut bytes) {
        decoder.push(&bytes[..count]);
        while let Some(message) = decoder.next().unwrap() {
            hear.send((rank, Some(message))).ok();
        }
    }
    hear.send((rank, None)).ok();
}

/// Pods without a cluster: processes with the files that the operator mounts.
pub(crate) struct Pods {
    pub(crate) dir: tempfile::TempDir,
    address: IpAddr,
    seats: Vec<Seat>,
    transport: String,
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
            procs_per_node: 1,
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
            traffic_class: 1,
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
            transport: transport.to_owned(),
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
        Command::new(env!("CARGO_BIN_EXE_hfreduce-sidecar"))
            .current_dir(self.dir.path())
            .env("POD_IP", self.address.to_string())
            .env("FIREFLYER_RENDEZVOUS", rendezvous.to_string())
            .env("FIREFLYER_NODE_RANK", rank.to_string())
            .env("FIREFLYER_HFREDUCE_TRANSPORT", &self.transport)
            .env("FIREFLYER_RDMA_DEVICE", device(rank as usize))
            .args([
                "--assignment",
                "assignment.json.gz",
                "--key",
                "key",
                "--launcher",
                "launcher",
            ])
            .args(["--port", "0", "--metrics-listen"])
            .arg(self.metrics_address(rank).to_string())
            .arg("--run-dir")
            .arg(self.run_dir(rank))
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    pub(crate) fn metrics_address(&self, rank: u32) -> SocketAddr {
        SocketAddr::from((self.seats[rank as usize].address, METRICS_PORT))
    }

    pub(crate) fn run_dir(&self, rank: u32) -> PathBuf {
        self.dir.path().join(rank.to_string())
    }

    pub(crate) fn client(&self, rank: u32) -> Client {
        Client::attach(&self.run_dir(rank).join(wire::run_dir::SOCKET), 0, PATIENCE).unwrap()
    }

    pub(crate) fn sum(&self, nodes: u32) {
        let clients: Vec<Client> = (0..nodes).map(|rank| self.client(rank)).collect();
        sum(&clients);
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.children[rank]), signal).unwrap();
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.kill().ok();
            child.wait().ok();
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
