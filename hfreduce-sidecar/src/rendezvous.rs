//! The sidecar's side of the rendezvous: dial the operator, introduce this node, hear the roster and the
//! start, and tell once a second that the node lives. The thread dials again for ever: a running job
//! does not need the operator. What a roster means for the data path is decided by `node`.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use tracing::{debug, info, warn};
use wire::handshake::Party;
use wire::rendezvous::{self, Decoder, Peer, SuspectReason, ToOperator, ToSidecar};
use wire::ring::Bell;
use wire::run_dir::Progress;

use crate::join::{self, Credentials};
use crate::metrics::Metrics;

/// Pauses between two tries to reach the operator.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// How long a connection may take to be made.
const DIAL_LIMIT: Duration = Duration::from_secs(2);
/// How long a message may wait for the network before the connection is given up.
const WRITE_LIMIT: Duration = Duration::from_secs(3);
/// How long a goodbye may take. An operator that cannot be reached hears of the end from the pod.
pub const GOODBYE: Duration = Duration::from_millis(250);
/// Period of the heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(rendezvous::HEARTBEAT_SECONDS);

/// What the node has to say to the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
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
        reason: SuspectReason,
        /// The same for a person.
        detail: String,
    },
    /// A suspect was heard again.
    Recovered {
        /// Its rank.
        node: u32,
    },
    /// The node leaves on purpose.
    Leaving,
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
}

/// Where reports go. Cheap to clone; without a rendezvous they go nowhere.
#[derive(Clone, Debug)]
pub struct Reporter {
    sender: Option<Sender<Report>>,
    bell: Arc<Bell>,
}

impl Reporter {
    /// A reporter that nobody listens to.
    pub fn nowhere() -> io::Result<Self> {
        Ok(Self {
            sender: None,
            bell: Arc::new(Bell::new()?),
        })
    }

    /// Says it, now or after the next connection. A handful of reports per neighbour and epoch.
    pub fn send(&self, report: Report) {
        if let Some(sender) = &self.sender {
            sender.send(report).ok();
            self.bell.ring();
        }
    }
}

/// What the thread needs to know.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The operator's service.
    pub service: String,
    /// Who this node is.
    pub credentials: Credentials,
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
    pub fn start(setup: Setup, metrics: Metrics) -> io::Result<Self> {
        let (sender, reports) = channel();
        let (order, orders) = channel();
        let bell = Arc::new(Bell::new()?);
        let mut stream = Stream {
            setup,
            metrics,
            reports,
            bell: Arc::clone(&bell),
            orders: order,
            joined: None,
            suspects: BTreeMap::new(),
            leaving: false,
        };
        thread::Builder::new()
            .name("rendezvous".to_owned())
            .spawn(move || stream.run())?;
        Ok(Self {
            reporter: Reporter {
                sender: Some(sender),
                bell,
            },
            orders,
        })
    }

    /// Says goodbye and waits until it was said, but not long.
    pub fn leave(self) {
        self.reporter.send(Report::Leaving);
        let until = Instant::now() + GOODBYE;
        // The thread's end of the channel goes with the thread.
        while self
            .orders
            .recv_timeout(until.saturating_duration_since(Instant::now()))
            .is_ok()
        {}
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("failed to resolve the address of the rendezvous service")]
    Address,
    #[error(transparent)]
    Join(#[from] join::Error),
    #[error("somebody else answers: {0}")]
    Somebody(wire::handshake::Identity),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] rendezvous::Error),
    #[error("the operator closed the connection")]
    Closed,
    #[error("the operator refused this node: {0}")]
    Refused(String),
    #[error("another replica leads at {0}")]
    Redirect(SocketAddr),
    #[error("this node leaves")]
    Left,
}

struct Stream {
    setup: Setup,
    metrics: Metrics,
    reports: Receiver<Report>,
    bell: Arc<Bell>,
    orders: Sender<Order>,
    /// The epoch this node has joined, said again on every connection.
    joined: Option<u64>,
    /// Suspects that were not heard again, said again on every connection.
    suspects: BTreeMap<u32, (SuspectReason, String)>,
    leaving: bool,
}

impl Stream {
    fn run(&mut self) {
        let (shortest, longest) = BACKOFF;
        let mut pause = shortest;
        let mut leader = None;
        while !self.leaving {
            let start = Instant::now();
            let end = match self.connection(leader.take()) {
                Ok(never) => match never {},
                Err(end) => end,
            };
            match end {
                End::Left => return,
                // A redirect is progress, unless replicas send us to and fro.
                End::Redirect(address) => {
                    debug!(%address, "redirected to the leader");
                    leader = Some(address);
                }
                End::Refused(reason) => warn!(reason, "refused by the operator"),
                End::Address
                | End::Join(_)
                | End::Somebody(_)
                | End::Io(_)
                | End::Frame(_)
                | End::Closed => {
                    debug!(error = %end, "rendezvous connection ended");
                }
            }
            if start.elapsed() > longest {
                pause = shortest;
            }
            self.rest(if leader.is_some() {
                shortest / 4
            } else {
                pause
            });
            pause = (pause * 2).min(longest);
        }
    }

    /// Pauses, but not when this node leaves.
    fn rest(&mut self, pause: Duration) {
        let until = Instant::now() + pause;
        while !self.leaving {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            poll(&mut [PollFd::new(&*self.bell, PollFlags::IN)], left);
            self.bell.clear();
            self.take_reports();
        }
    }

    /// Takes what the node has said. The messages that follow from it.
    fn take_reports(&mut self) -> Vec<ToOperator> {
        let mut messages = Vec::new();
        while let Ok(report) = self.reports.try_recv() {
            match report {
                Report::Joined { epoch } => {
                    self.joined = Some(epoch);
                    messages.push(ToOperator::Joined { epoch });
                }
                Report::Suspect {
                    node,
                    reason,
                    detail,
                } => {
                    let detail = rendezvous::text(&detail);
                    messages.push(self.suspicion(node, reason, &detail));
                    self.suspects.insert(node, (reason, detail));
                }
                Report::Recovered { node } => {
                    self.suspects.remove(&node);
                }
                Report::Leaving => {
                    self.leaving = true;
                    messages.push(ToOperator::Bye);
                }
            }
        }
        messages
    }

    fn suspicion(&self, node: u32, reason: SuspectReason, detail: &str) -> ToOperator {
        ToOperator::Suspect {
            epoch: self.joined.unwrap_or(0),
            rank: node,
            reason,
            detail: detail.to_owned(),
        }
    }

    fn connection(&mut self, leader: Option<SocketAddr>) -> Result<std::convert::Infallible, End> {
        let address = match leader {
            Some(address) => address,
            None => self
                .setup
                .service
                .to_socket_addrs()
                .ok()
                .and_then(|mut addresses| addresses.next())
                .ok_or(End::Address)?,
        };
        let mut stream = TcpStream::connect_timeout(&address, DIAL_LIMIT)?;
        stream.set_nodelay(true)?;
        let theirs = join::initiate(&mut stream, &self.setup.credentials)?;
        if theirs.party != Party::Operator {
            return Err(End::Somebody(theirs));
        }
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        self.metrics.rendezvous_connections.inc();
        info!(%address, "connected to the operator");
        send(&mut stream, &self.hello())?;
        for message in self.standing() {
            send(&mut stream, &message)?;
        }
        let mut decoder = Decoder::<ToSidecar>::default();
        let mut beat = Instant::now();
        loop {
            let left = (beat + HEARTBEAT).saturating_duration_since(Instant::now());
            poll(
                &mut [
                    PollFd::new(&stream, PollFlags::IN),
                    PollFd::new(&*self.bell, PollFlags::IN),
                ],
                left,
            );
            self.bell.clear();
            for message in self.take_reports() {
                send(&mut stream, &message)?;
            }
            if self.leaving {
                return Err(End::Left);
            }
            if beat.elapsed() >= HEARTBEAT {
                beat = Instant::now();
                let progress = self.progress();
                send(&mut stream, &ToOperator::Heartbeat { progress })?;
            }
            if read(&mut stream, &mut decoder)? {
                while let Some(message) = decoder.next()? {
                    self.obey(message)?;
                }
            }
        }
    }

    fn hello(&self) -> ToOperator {
        ToOperator::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            address: self.setup.address,
            port: self.setup.port,
            joined_epoch: self.joined,
        }
    }

    /// What holds on every new connection.
    fn standing(&self) -> Vec<ToOperator> {
        let suspects = self.suspects.iter();
        suspects
            .map(|(node, (reason, detail))| self.suspicion(*node, *reason, detail))
            .collect()
    }

    /// How far training is; known to the node of rank 0 only.
    fn progress(&self) -> Option<Progress> {
        if self.setup.credentials.identity.party != (Party::Sidecar { rank: 0 }) {
            return None;
        }
        Progress::read(&self.setup.run_dir).unwrap_or_else(|error| {
            debug!(%error, "no progress to tell");
            None
        })
    }

    fn obey(&self, message: ToSidecar) -> Result<(), End> {
        let order = match message {
            ToSidecar::Redirect { address } => return Err(End::Redirect(address)),
            ToSidecar::Refused { reason } => return Err(End::Refused(reason)),
            ToSidecar::Roster { epoch, nodes } => Order::Roster { epoch, nodes },
            ToSidecar::Go { epoch } => Order::Go { epoch },
        };
        self.orders.send(order).ok();
        Ok(())
    }
}

fn send(stream: &mut TcpStream, message: &ToOperator) -> Result<(), End> {
    Ok(stream.write_all(&rendezvous::encode(message)?)?)
}

/// Reads what is there, without waiting. Says whether there was anything.
fn read(stream: &mut TcpStream, decoder: &mut Decoder<ToSidecar>) -> Result<bool, End> {
    let mut bytes = [0; 16 << 10];
    stream.set_nonblocking(true)?;
    let result = stream.read(&mut bytes);
    stream.set_nonblocking(false)?;
    match result {
        Ok(0) => Err(End::Closed),
        Ok(count) => {
            decoder.push(&bytes[..count]);
            Ok(true)
        }
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

fn poll(fds: &mut [PollFd<'_>], limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    // A signal or an error ends the wait early; every caller looks again.
    rustix::event::poll(fds, limit.as_ref()).ok();
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use wire::handshake::{Identity, JobId, Key};

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
        let setup = Setup {
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
        assert!(start.elapsed() < GOODBYE * 10, "{:?}", start.elapsed());
    }
}
