//! The connection to the operator: dialled for ever, introduced anew each time, and alive once a second.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use collective::membership::encoding::{
    self as rendezvous, Decoder, Features, ToOperator, ToSidecar,
};
use collective::membership::{Progress, SuspicionReason};
use contract::identity::{Identity, Party};
use contract::run_dir;
use link::connect;
use link::wake_fd::WakeFd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt::set_tcp_user_timeout;
use tracing::{debug, info, warn};

use super::{NodeReport, Order, StoppedNode, StreamSetup};
use crate::metrics::Metrics;

/// Pauses between two tries to reach the operator.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// How long a connection may take to be made.
const DIAL_LIMIT: Duration = Duration::from_secs(2);
/// How long a message may wait for the network before the connection is given up.
const WRITE_LIMIT: Duration = Duration::from_secs(3);
/// How long what was said may stay unacknowledged before the operator's node counts as gone. Its kernel acknowledges a
/// heartbeat at once, whatever the operator does; left to ours, a node that lost its power is noticed after a quarter of an
/// hour.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(10);
/// Period of the heartbeat.
const HEARTBEAT: Duration = Duration::from_secs(rendezvous::HEARTBEAT_SECONDS);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("failed to resolve the address of the rendezvous service")]
    Address,
    #[error(transparent)]
    Introduction(#[from] connect::Error<Identity>),
    #[error("somebody else answers: {0}")]
    Somebody(Identity),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] rendezvous::Error),
    #[error("the operator closed the connection")]
    Closed,
    #[error("the operator refused this node: {0}")]
    Refused(String),
    #[error("the operator asks to dial again: {0}")]
    Retry(String),
    #[error("nothing of this node may run on: {0}")]
    Void(String),
    #[error("another replica leads at {0}")]
    Redirect(SocketAddr),
    #[error("this node leaves")]
    Left,
}

pub(super) struct Stream {
    pub(super) setup: StreamSetup,
    pub(super) metrics: Metrics,
    pub(super) reports: Receiver<NodeReport>,
    pub(super) wake_fd: Arc<WakeFd>,
    pub(super) orders: Sender<Order>,
    /// The epoch this node has joined, said again on every connection.
    pub(super) joined: Option<u64>,
    /// Suspects that are still silent; sent again on every connection.
    pub(super) suspects: BTreeMap<u32, (SuspicionReason, String)>,
    /// Until the node has joined the next epoch; said again on every connection.
    pub(super) stopped: Option<StoppedNode>,
    /// Said again on every connection.
    pub(super) rank_lost: bool,
    pub(super) leaving: bool,
}

impl Stream {
    pub(super) fn run(&mut self) {
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
                End::Retry(reason) => info!(reason, "the operator asks to dial again"),
                End::Void(reason) => {
                    warn!(reason, "refused by the operator for good");
                    return;
                }
                End::Address
                | End::Introduction(_)
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
            poll(&mut [PollFd::new(&*self.wake_fd, PollFlags::IN)], left);
            self.wake_fd.clear();
            self.take_reports();
        }
    }

    /// Takes what the node has said. The messages that follow from it.
    fn take_reports(&mut self) -> Vec<ToOperator> {
        let mut messages = Vec::new();
        while let Ok(report) = self.reports.try_recv() {
            match report {
                NodeReport::Joined { epoch } => {
                    self.joined = Some(epoch);
                    self.stopped = None;
                    self.suspects.clear();
                    messages.push(ToOperator::Joined { epoch });
                }
                NodeReport::Suspect {
                    node,
                    reason,
                    detail,
                } => {
                    let detail = rendezvous::text(&detail);
                    messages.push(self.suspicion(node, reason, &detail));
                    self.suspects.insert(node, (reason, detail));
                }
                NodeReport::Recovered { node } => {
                    self.suspects.remove(&node);
                    messages.push(ToOperator::Recovered {
                        epoch: self.joined.unwrap_or(0),
                        rank: node,
                    });
                }
                NodeReport::Stopped(stopped) => {
                    messages.push(standstill(&stopped));
                    self.stopped = Some(stopped);
                }
                NodeReport::RankLost => {
                    self.rank_lost = true;
                    messages.push(ToOperator::RankLost);
                }
                NodeReport::Leaving => {
                    self.leaving = true;
                    messages.push(ToOperator::Leaving);
                }
            }
        }
        messages
    }

    fn suspicion(&self, node: u32, reason: SuspicionReason, detail: &str) -> ToOperator {
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
        set_tcp_user_timeout(&stream, ACKNOWLEDGED_WITHIN.as_millis() as u32)
            .map_err(io::Error::from)?;
        let theirs = connect::initiate(&mut stream, &self.setup.credentials)?;
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
                    PollFd::new(&*self.wake_fd, PollFlags::IN),
                ],
                left,
            );
            self.wake_fd.clear();
            for message in self.take_reports() {
                send(&mut stream, &message)?;
            }
            if self.leaving {
                return Err(End::Left);
            }
            if beat.elapsed() >= HEARTBEAT {
                beat = Instant::now();
                let heartbeat = ToOperator::Heartbeat {
                    progress: self.progress(),
                    operations: Some(self.metrics.finished()).filter(|finished| *finished > 0),
                };
                send(&mut stream, &heartbeat)?;
            }
            if read(&mut stream, &mut decoder)? {
                while let Some(message) = decoder.next()? {
                    self.on_message(message)?;
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
            features: Features::OURS.list(),
        }
    }

    /// What holds on every new connection.
    fn standing(&self) -> Vec<ToOperator> {
        let suspects = self.suspects.iter();
        suspects
            .map(|(node, (reason, detail))| self.suspicion(*node, *reason, detail))
            .chain(self.rank_lost.then_some(ToOperator::RankLost))
            .chain(self.stopped.as_ref().map(standstill))
            .collect()
    }

    /// How far training is, where the rank that reports it is on this node: the lowest that is left.
    fn progress(&self) -> Option<Progress> {
        run_dir::read_progress(&self.setup.run_dir).unwrap_or_else(|error| {
            debug!(%error, "no progress to report");
            None
        })
    }

    /// Has the ranks of this node print where they are: the launcher looks for the file.
    fn ask_for_stacks(&self, reason: &str) {
        warn!(
            reason,
            "the job makes no progress: asking the ranks for their stacks"
        );
        let file = self.setup.run_dir.join(run_dir::STACKS);
        if let Err(error) = run_dir::put(&file, reason.as_bytes(), run_dir::READABLE) {
            warn!(%error, file = %file.display(), "failed to ask the ranks for their stacks");
        }
    }

    fn on_message(&self, message: ToSidecar) -> Result<(), End> {
        let order = match message {
            ToSidecar::Redirect { address } => return Err(End::Redirect(address)),
            ToSidecar::Retry { reason } => return Err(End::Retry(reason)),
            ToSidecar::Refused { reason, void } => {
                let refused = Order::Refused {
                    reason: reason.clone(),
                    void,
                };
                self.orders.send(refused).ok();
                return Err(if void {
                    End::Void(reason)
                } else {
                    End::Refused(reason)
                });
            }
            ToSidecar::Revoke { epoch, members } => Order::Stop { epoch, members },
            ToSidecar::Next {
                epoch,
                members,
                resume,
            } => Order::Next {
                epoch,
                members,
                resume,
            },
            ToSidecar::Stacks { reason } => {
                self.ask_for_stacks(&rendezvous::text(&reason));
                return Ok(());
            }
            ToSidecar::Roster { epoch, nodes } => Order::Roster { epoch, nodes },
            ToSidecar::Go { epoch } => Order::Go { epoch },
        };
        self.orders.send(order).ok();
        Ok(())
    }
}

fn standstill(stopped: &StoppedNode) -> ToOperator {
    let StoppedNode {
        epoch,
        report,
        reach,
    } = stopped;
    collective::membership::encoding::stopped(*epoch, report.clone(), reach)
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
