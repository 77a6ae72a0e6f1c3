//! The sidecar's side of the rendezvous: dial the operator, introduce this node, receive the roster and the
//! start, and send a heartbeat once a second. The thread dials again for ever: a running job
//! does not need the operator. What a roster means for the data path is decided by `node`.

mod stream;

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use collective::membership::Reach;
use collective::membership::SuspicionReason;
use collective::membership::encoding::Peer;
use collective::recovery::{self, Resume};
use contract::identity::Identity;
use link::connect::Credentials;
use link::wake_fd::WakeFd;

use crate::metrics::Metrics;
use stream::Stream;

/// How long a goodbye may take. An operator that cannot be reached learns of the end from the pod.
pub const LEAVE_LIMIT: Duration = Duration::from_millis(250);
/// What the node has to say to the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeReport {
    /// All links of an epoch stand.
    Joined {
        /// The epoch.
        epoch: u64,
    },
    /// A node is not as it should be.
    Suspect {
        /// Its rank.
        node: u32,
        /// In which way.
        reason: SuspicionReason,
        /// The same for a person.
        detail: String,
    },
    /// A suspect has sent something again.
    Recovered {
        /// Its rank.
        node: u32,
    },
    /// The node has stopped in an epoch and waits for the next.
    Stopped(StoppedNode),
    /// A process of its trainer is gone.
    RankLost,
    /// The node leaves on purpose.
    Leaving,
}

/// A node that waits for the next epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoppedNode {
    /// The epoch that it has stopped in.
    pub epoch: u64,
    /// How far it is.
    pub report: recovery::EpochReport,
    /// Whom it reaches.
    pub reach: Reach,
}

/// What the operator says to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Connect to these.
    Roster {
        /// The epoch.
        epoch: u64,
        /// The members.
        nodes: Vec<Peer>,
    },
    /// Everybody joined.
    Go {
        /// The epoch.
        epoch: u64,
    },
    /// Stop, and say how far this node is.
    Stop {
        /// The epoch.
        epoch: u64,
        /// The members that are known.
        members: Vec<Peer>,
    },
    /// Connect to these, who go on together.
    Next {
        /// The epoch.
        epoch: u64,
        /// The members, by rank.
        members: Vec<Peer>,
        /// What they begin with.
        resume: Resume,
    },
    /// The others do not want this node.
    Refused {
        /// Why.
        reason: String,
        /// Whether nothing of this node may run on.
        void: bool,
    },
}

/// Where reports go. Cheap to clone; without a rendezvous they go nowhere.
#[derive(Clone, Debug)]
pub struct Reporter {
    sender: Option<Sender<NodeReport>>,
    wake_fd: Arc<WakeFd>,
}

impl Reporter {
    /// A reporter that nobody listens to.
    pub fn nowhere() -> io::Result<Self> {
        Ok(Self {
            sender: None,
            wake_fd: Arc::new(WakeFd::new()?),
        })
    }

    /// Says it, now or after the next connection. A handful of reports per neighbour and epoch.
    pub fn send(&self, report: NodeReport) {
        if let Some(sender) = &self.sender {
            sender.send(report).ok();
            self.wake_fd.notify();
        }
    }
}

/// What the thread needs to know.
#[derive(Clone, Debug)]
pub struct StreamSetup {
    /// The operator's service.
    pub service: String,
    /// Who this node is.
    pub credentials: Credentials<Identity>,
    /// Where peers reach this node.
    pub address: IpAddr,
    /// At which port.
    pub port: u16,
    /// The run directory, for the progress.
    pub run_dir: PathBuf,
}

/// The running thread.
#[derive(Debug)]
pub struct Rendezvous {
    /// For what this node has to say.
    pub reporter: Reporter,
    /// What the operator says.
    pub orders: Receiver<Order>,
}

impl Rendezvous {
    /// Starts to dial.
    pub fn start(setup: StreamSetup, metrics: Metrics) -> io::Result<Self> {
        let (sender, reports) = channel();
        let (order, orders) = channel();
        let wake_fd = Arc::new(WakeFd::new()?);
        let mut stream = Stream {
            setup,
            metrics,
            reports,
            wake_fd: Arc::clone(&wake_fd),
            orders: order,
            joined: None,
            suspects: BTreeMap::new(),
            stopped: None,
            rank_lost: false,
            leaving: false,
        };
        thread::Builder::new()
            .name("rendezvous".to_owned())
            .spawn(move || stream.run())?;
        Ok(Self {
            reporter: Reporter {
                sender: Some(sender),
                wake_fd,
            },
            orders,
        })
    }

    /// Says goodbye and waits until it was said, but not long.
    pub fn leave(self) {
        self.reporter.send(NodeReport::Leaving);
        let until = Instant::now() + LEAVE_LIMIT;
        // The thread's end of the channel goes with the thread.
        while self
            .orders
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .is_ok()
        {}
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use contract::identity::{Identity, JobId, Party};
    use link::handshake::Key;

    use super::*;

    #[test]
    fn an_operator_that_never_answers_does_not_keep_a_node_from_leaving() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = silent.local_addr().unwrap();
        let identity = Identity {
            job: JobId::new("job"),
            attempt: 1,
            party: Party::Sidecar { rank: 0 },
        };
        let setup = StreamSetup {
            service: address.to_string(),
            credentials: Credentials {
                identity,
                key: Key::new([7; 32]),
            },
            address: address.ip(),
            port: address.port(),
            run_dir: PathBuf::new(),
        };
        let metrics = Metrics::new(&daemon::Registry::new("test").unwrap()).unwrap();
        let rendezvous = Rendezvous::start(setup, metrics).unwrap();
        let _waits_for_the_challenge = silent.accept().unwrap();
        let start = Instant::now();
        rendezvous.leave();
        assert!(start.elapsed() < LEAVE_LIMIT * 10, "{:?}", start.elapsed());
    }
}
