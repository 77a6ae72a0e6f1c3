//! The operator's part without a cluster: leads an attempt whose policy is to shrink, with a store in memory.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use collective::membership::encoding::encode;
use collective::membership::{
    Connection, GangView, Membership, MembershipEffect, MembershipEvent, RecoveryPolicy,
};
use topology::OnPeerLoss;

use super::pods::Streams;

/// Leads one attempt, as the operator does.
pub(crate) struct Leader {
    pub(crate) address: SocketAddr,
    /// What it knows.
    pub(crate) view: Arc<Mutex<Option<GangView>>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Leader {
    /// `peer_loss`: how long a member may be gone.
    pub(crate) fn start(nodes: usize, peer_loss: Duration) -> Self {
        let streams = Streams::start();
        let address = streams.address;
        let over = Arc::new(AtomicBool::new(false));
        let view = Arc::default();
        let (ours, seen) = (Arc::clone(&over), Arc::clone(&view));
        let thread = thread::spawn(move || lead(&streams, nodes, peer_loss, &ours, &seen));
        Self {
            address,
            view,
            over,
            thread: Some(thread),
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        let led = self.thread.take().map(JoinHandle::join);
        if !thread::panicking() {
            led.unwrap().unwrap();
        }
    }
}

fn lead(
    streams: &Streams,
    nodes: usize,
    peer_loss: Duration,
    over: &AtomicBool,
    view: &Mutex<Option<GangView>>,
) {
    let start = Instant::now();
    let policy = RecoveryPolicy {
        on_peer_loss: OnPeerLoss::Shrink,
        peer_loss,
        least: 1,
    };
    let mut membership = Membership::resume(nodes as u32, policy, None, Duration::ZERO);
    let mut outboxes: BTreeMap<Connection, TcpStream> = BTreeMap::new();
    let mut events = Vec::new();
    while !over.load(Ordering::Acquire) {
        let received = streams.received.recv_timeout(Duration::from_millis(20));
        while let Ok((caller, stream)) = streams.connections.try_recv() {
            outboxes.insert(Connection(caller.connection), stream);
        }
        if let Ok((caller, message)) = received {
            let connection = Connection(caller.connection);
            if message.is_none() {
                outboxes.remove(&connection);
            }
            events.push(match message {
                Some(message) => {
                    collective::membership::encoding::event(connection, caller.rank, message)
                }
                None => MembershipEvent::Disconnected { connection },
            });
        }
        events.push(MembershipEvent::Tick);
        while !events.is_empty() {
            let mut effects = Vec::new();
            for event in events.drain(..) {
                membership.handle(start.elapsed(), event, &mut effects);
            }
            for effect in effects {
                match effect {
                    MembershipEffect::Send {
                        connection,
                        message,
                    } => {
                        let bytes = encode(&collective::membership::encoding::to_sidecar(&message))
                            .unwrap();
                        // A sidecar that is gone receives nothing.
                        if let Some(mut outbox) = outboxes.get(&connection) {
                            outbox.write_all(&bytes).ok();
                        }
                    }
                    MembershipEffect::Commit { commit, .. } => {
                        events.push(MembershipEvent::Committed {
                            epoch: commit.epoch,
                        });
                    }
                    MembershipEffect::Changed => *view.lock().unwrap() = Some(membership.view()),
                }
            }
        }
    }
}
