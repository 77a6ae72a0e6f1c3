//! Connections that say nothing, at every port of a sidecar: who has something to say is served all the same.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gang::descriptors::allow_descriptors;
use gang::processes::get;
use gang::restarted::Restarted;
use gang::{Gang, f32s, run, sum};
use hfreduce_sidecar::member::MemberOptions;
use hfreduce_sidecar::negotiate::Preference;

/// Connections that say nothing, renewed without pause, until it is dropped.
struct Crowd {
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<usize>>,
}

impl Crowd {
    /// Holds up to a thousand from so many addresses, none of them a member's.
    fn against(ports: Vec<SocketAddr>, addresses: u8) -> Self {
        const CONNECTIONS: usize = 1000;
        let over = Arc::<AtomicBool>::default();
        let ends = Arc::clone(&over);
        let thread = thread::spawn(move || {
            let mut held = VecDeque::with_capacity(CONNECTIONS);
            let mut made = 0;
            while !ends.load(Ordering::Relaxed) {
                let from = Ipv4Addr::new(127, 0, 1, 1 + (made % usize::from(addresses)) as u8);
                if let Ok(stream) = connect_from(from, ports[made % ports.len()]) {
                    held.push_back(stream);
                }
                made += 1;
                if held.len() >= CONNECTIONS {
                    held.pop_front();
                }
            }
            made
        });
        Self {
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let made = self.thread.take().map(thread::JoinHandle::join);
        if !thread::panicking() {
            assert!(made.unwrap().unwrap() > 64, "too few to keep anybody out");
        }
    }
}

fn connect_from(address: Ipv4Addr, to: SocketAddr) -> rustix::io::Result<OwnedFd> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    bind(&socket, &SocketAddr::from((address, 0)))?;
    match connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

#[test]
fn members_join_though_a_thousand_others_connect_without_pause() {
    allow_descriptors(std::process::id(), 1 << 14);
    for addresses in [1, 50] {
        let mut crowd = None;
        let tcp = |options, _| MemberOptions {
            transport: Preference::Tcp,
            ..options
        };
        // They are there before anybody joins.
        let gang = Gang::over(3, 1, tcp, |peers| {
            let ports = peers
                .iter()
                .map(|peer| SocketAddr::new(peer.address, peer.port));
            crowd = Some(Crowd::against(ports.collect(), addresses));
        });
        gang.each(|client| run(&client, sum(10), &f32s(&[1.0; 10])).map(drop).unwrap());
        drop(crowd);
    }
}

#[test]
fn a_sidecar_that_restarts_is_back_and_probes_are_answered_though_a_thousand_connect_to_every_port()
{
    const NODES: u32 = 3;
    allow_descriptors(std::process::id(), 1 << 14);
    for addresses in [1, 50] {
        let mut gang = Restarted::start("tcp", (NODES, 1));
        let probes = (0..NODES).map(|rank| gang.pods.metrics_address(rank));
        let peers = (0..NODES).map(|rank| gang.pods.data_address(rank));
        let _crowd = Crowd::against(probes.chain(peers).collect(), addresses);
        gang.pods.kill(1);
        gang.pods.start_again(1);
        gang.check(gang.call_all(10), 10);
        for rank in 0..NODES {
            for path in ["/live", "/ready", "/metrics", "/ops"] {
                let answer = get(gang.pods.metrics_address(rank), path);
                assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
            }
        }
    }
}
