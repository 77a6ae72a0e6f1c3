//! What a node does when the operator says so: connect, start, stop, go on with those who are left. The engine runs
//! on a thread of its own meanwhile and serves the node's processes; what its data path does between two epochs is
//! wait.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::RecvTimeoutError;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use collective::membership::encoding::Peer;
use collective::membership::{Reach, probes};
use collective::recovery::EpochReport;
use tracing::{info, warn};

use crate::engine::{self, Engine, EngineCommand, Notice};
use crate::node::{Error, Joined, LOOK, Running, SidecarNode};
use crate::rendezvous::{NodeReport, Order, Rendezvous, StoppedNode};

/// How long a member may take to answer whether it is reached.
const ANSWER: Duration = Duration::from_secs(1);
/// When a node that waits for the next epoch asks again whom it reaches: soon at first, because a sidecar that restarts
/// is asked before it listens, and never later than this.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A node that follows the operator's orders.
pub(crate) struct Follower<'a> {
    node: &'a SidecarNode,
    rendezvous: &'a Rendezvous,
    /// Orders that arrived while it was connecting.
    pending: RefCell<VecDeque<Order>>,
    joined: Option<Joined>,
    /// The last epoch that it was ordered to start.
    epoch: Option<u64>,
    engine: Option<(JoinHandle<Result<(), engine::Error>>, Running)>,
    /// The last members that it received.
    members: Vec<Peer>,
    waiting: Option<Waiting>,
    /// Whether nothing of this node may run on.
    is_void: bool,
    /// The newest epoch that it was asked to stop in.
    asked: u64,
}

/// Between two epochs.
struct Waiting {
    epoch: u64,
    report: EpochReport,
    asked: Instant,
    pause: Duration,
    said: Option<Reach>,
}

impl<'a> Follower<'a> {
    pub(crate) fn new(node: &'a SidecarNode, rendezvous: &'a Rendezvous) -> Self {
        Self {
            node,
            rendezvous,
            pending: RefCell::default(),
            joined: None,
            epoch: None,
            engine: None,
            members: Vec::new(),
            waiting: None,
            is_void: false,
            asked: 0,
        }
    }

    /// Follows orders until asked to stop, or until the engine ends.
    pub(crate) fn follow(mut self) -> Result<(), Error> {
        while !self.node.stop.is_asked() {
            if self
                .engine
                .as_ref()
                .is_some_and(|(thread, _)| thread.is_finished())
            {
                break;
            }
            self.poll()?;
            self.ask_whom_it_reaches();
            let earlier = self.pending.borrow_mut().pop_front();
            let order = match earlier {
                Some(order) => order,
                None => match self.rendezvous.orders.recv_timeout(LOOK) {
                    Ok(order) => order,
                    Err(RecvTimeoutError::Timeout) => continue,
                    // Its ranks get this error until the pod ends.
                    Err(RecvTimeoutError::Disconnected) if self.is_void => {
                        thread::sleep(LOOK);
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                },
            };
            self.on_order(order)?;
        }
        match self.engine {
            Some((thread, _)) => match thread.join() {
                Ok(served) => Ok(served?),
                Err(_panicked) => Err(Error::Roster("the engine's thread panicked".to_owned())),
            },
            None => Ok(()),
        }
    }

    fn on_order(&mut self, order: Order) -> Result<(), Error> {
        match order {
            // Said again after a reconnection: the links stand.
            Order::Roster { epoch, nodes } if self.has_joined(epoch, &nodes) => {
                self.rendezvous.reporter.send(NodeReport::Joined { epoch });
            }
            Order::Roster { epoch, nodes } => self.connect(epoch, nodes, None)?,
            Order::Next { epoch, members, .. } if self.has_joined(epoch, &members) => {
                self.rendezvous.reporter.send(NodeReport::Joined { epoch });
            }
            Order::Next { epoch, .. } if self.has_stopped_in(epoch) => {}
            Order::Next {
                epoch,
                members,
                resume,
            } => self.connect(epoch, members, Some(resume))?,
            Order::Go { epoch } => self.go(epoch)?,
            Order::Stop { epoch, members } => self.stop(epoch, members)?,
            Order::Refused {
                reason,
                void: false,
            } => self.give_up(reason)?,
            Order::Refused { reason, void: true } => {
                self.node.note_void(&reason);
                self.is_void = true;
                self.give_up(reason.clone())?;
                self.command(EngineCommand::Void(reason));
            }
        }
        Ok(())
    }

    /// The others will not have this node, which matters to processes that wait for them.
    fn give_up(&mut self, reason: String) -> Result<(), Error> {
        if self.engine.is_none() && self.node.has_attached() {
            self.forget(self.asked)?;
        }
        // Also when it waits for its processes and has not reported yet.
        if self.waiting.take().is_some() || self.engine.is_some() && self.epoch.is_none() {
            self.command(EngineCommand::GiveUp(reason));
        }
        Ok(())
    }

    /// Lets processes come back to this sidecar, which knows nothing of them.
    fn forget(&mut self, epoch: u64) -> Result<(), Error> {
        let reporter = self.rendezvous.reporter.clone();
        let made = self.node.engine_without_memory(epoch, reporter)?;
        self.run(made)
    }

    /// The members stop in an epoch: this node too, unless it has gone on since.
    fn stop(&mut self, epoch: u64, members: Vec<Peer>) -> Result<(), Error> {
        if self.epoch.is_some_and(|entered| epoch < entered) {
            return Ok(()); // From before what it has entered since.
        }
        self.members = members;
        self.asked = self.asked.max(epoch);
        self.joined.take_if(|joined| joined.epoch <= epoch);
        match &mut self.waiting {
            // It was to go on, and has not.
            Some(waiting) if waiting.epoch < epoch => {
                waiting.epoch = epoch;
                waiting.pause = ASK_AGAIN.0;
                waiting.said = None;
            }
            Some(_) => {}
            None if self.engine.is_some() => self.command(EngineCommand::Stop),
            None => self.forget(epoch)?,
        }
        Ok(())
    }

    fn has_joined(&self, epoch: u64, members: &[Peer]) -> bool {
        let joined = self.joined.as_ref();
        self.epoch == Some(epoch)
            || joined.is_some_and(|joined| joined.epoch == epoch && joined.peers == members)
    }

    fn has_stopped_in(&self, epoch: u64) -> bool {
        let waiting = self.waiting.as_ref();
        waiting.is_some_and(|waiting| epoch <= waiting.epoch)
    }

    /// Connects to the neighbours among these. The links of an earlier roster, if there are any, end here.
    fn connect(
        &mut self,
        epoch: u64,
        peers: Vec<Peer>,
        resume: Option<collective::recovery::Resume>,
    ) -> Result<(), Error> {
        self.joined = None;
        info!(epoch, nodes = peers.len(), "connecting to the neighbours");
        self.members.clone_from(&peers);
        // A later order replaces this one, also while neighbours are missing. The same one, said again by a new
        // leader, does not: who is done would not connect again.
        let other = |order: &Order| match order {
            Order::Roster {
                epoch: of,
                nodes: members,
            }
            | Order::Next {
                epoch: of, members, ..
            } => *of != epoch || *members != peers,
            Order::Stop { .. } | Order::Refused { .. } => true,
            Order::Go { .. } => false,
        };
        let replaced = || {
            let mut pending = self.pending.borrow_mut();
            pending.extend(self.rendezvous.orders.try_iter());
            pending.iter().any(other)
        };
        let joined = self.node.join(epoch, peers.clone(), resume, replaced)?;
        if joined.is_some() {
            self.rendezvous.reporter.send(NodeReport::Joined { epoch });
            self.joined = joined;
        }
        Ok(())
    }

    /// Everybody has joined.
    fn go(&mut self, epoch: u64) -> Result<(), Error> {
        if self.epoch == Some(epoch) {
            return Ok(()); // Said again by a new leader.
        }
        let Some(joined) = self.joined.take_if(|joined| joined.epoch == epoch) else {
            warn!(epoch, "start of an epoch that this node has not joined");
            return Ok(());
        };
        self.epoch = Some(epoch);
        if self.engine.is_some() {
            self.waiting = None;
            if let Err(error) = self.node.announce(epoch, &joined.peers) {
                warn!(%error, "the trainer cannot read who the members are");
            }
            self.command(EngineCommand::Enter(Box::new(joined.of)));
            return Ok(());
        }
        let reporter = self.rendezvous.reporter.clone();
        let made = self.node.engine(joined, reporter)?;
        self.run(made)
    }

    fn run(&mut self, (engine, running): (Engine, Running)) -> Result<(), Error> {
        let thread = thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || engine.run())
            .map_err(|source| Error::System {
                doing: "start the engine's thread",
                source,
            })?;
        self.engine = Some((thread, running));
        Ok(())
    }

    fn command(&self, command: EngineCommand) {
        if let Some((_, running)) = &self.engine {
            running.commands.send(command).ok();
            self.node.stop.wake_fd().notify();
        }
    }

    /// Takes what the engine reports.
    fn poll(&mut self) -> Result<(), Error> {
        let Some((_, running)) = &self.engine else {
            return Ok(());
        };
        for notice in running.notices.try_iter() {
            match notice {
                Notice::RankLost => self.rendezvous.reporter.send(NodeReport::RankLost),
                Notice::Stopped { .. } if self.is_void => {}
                Notice::Stopped { epoch, report } => {
                    collective::membership::encoding::fits(&report)?;
                    self.waiting = Some(Waiting {
                        epoch: self.asked.max(epoch.into()),
                        report,
                        asked: Instant::now(),
                        pause: ASK_AGAIN.0,
                        said: None,
                    });
                }
            }
        }
        Ok(())
    }

    /// Says how far this node is, with whom it reaches, and again when that changes.
    fn ask_whom_it_reaches(&mut self) {
        let Some(waiting) = &mut self.waiting else {
            return;
        };
        let is_due = waiting.said.is_none() || waiting.asked.elapsed() >= waiting.pause;
        if !is_due || self.joined.is_some() {
            return;
        }
        if waiting.said.is_some() {
            waiting.pause = (waiting.pause * 2).min(ASK_AGAIN.1);
        }
        let reach = reach(&self.members, self.node.member.rank);
        waiting.asked = Instant::now();
        if waiting.said.as_ref() == Some(&reach) {
            return;
        }
        waiting.said = Some(reach.clone());
        self.rendezvous
            .reporter
            .send(NodeReport::Stopped(StoppedNode {
                epoch: waiting.epoch,
                report: waiting.report.clone(),
                reach,
            }));
    }
}

/// Which of the members that it should ask answer a node.
fn reach(members: &[Peer], rank: u32) -> Reach {
    let ranks: Vec<u32> = members.iter().map(|member| member.rank).collect();
    let asked = probes(&ranks, rank);
    let answers = |peer: &Peer| {
        let address = SocketAddr::new(peer.address, peer.port);
        TcpStream::connect_timeout(&address, ANSWER).is_ok()
    };
    let answers: Vec<(u32, bool)> = thread::scope(|scope| {
        let asking: Vec<_> = members
            .iter()
            .filter(|member| asked.contains(&member.rank))
            .map(|member| (member.rank, scope.spawn(move || answers(member))))
            .collect();
        asking
            .into_iter()
            .map(|(rank, asking)| (rank, asking.join().unwrap_or(false)))
            .collect()
    });
    let of = |reached: bool| {
        let of = answers.iter().filter(move |(_, is)| *is == reached);
        of.map(|(rank, _)| *rank).collect()
    };
    Reach {
        reached: of(true),
        unreached: of(false),
    }
}
