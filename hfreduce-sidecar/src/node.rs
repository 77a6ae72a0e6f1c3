//! The life of a node in an attempt: learn the members, connect to the neighbours, tell that it joined,
//! wait for the start, serve until asked to stop. Members come from the operator, or from a file for
//! benches and tests without a cluster.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use collective::Layout;
use collective::machine::{Config, Fence, Recovery};
use daemon::{Gate, Readiness};
use tracing::{info, warn};
use wire::attach::{self, Listener};
use wire::rendezvous::Peer;
use wire::run_dir::{self, Roster, RosterNode};
use wire::transport::Transport;

use crate::engine::{self, Engine};
use crate::join::Door;
use crate::meet::{self, Meeting};
use crate::member::{Member, Options, Place, Source};
use crate::metrics::Metrics;
use crate::rendezvous::{GOODBYE, Order, Rendezvous, Report, Reporter, Setup};
use crate::stop::Stop;

/// The links to the neighbours.
type Links = BTreeMap<usize, Box<dyn Transport>>;

/// How often a node that waits looks whether it still should.
const LOOK: Duration = Duration::from_millis(50);
/// Told to leave, a sidecar is gone within a second: its pod ends no sooner.
const _: () =
    assert!((LOOK.as_millis() + engine::FAREWELL.as_millis() + GOODBYE.as_millis()) < 1000);
/// Why a node could not serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The members cannot be those of this node.
    #[error("failed to use the roster: {0}")]
    Roster(String),
    /// The data port or a thread could not be had.
    #[error("failed to {doing}")]
    System {
        /// What.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The run directory could not be used.
    #[error(transparent)]
    RunDir(#[from] run_dir::Error),
    /// The socket of the local processes could not be made.
    #[error(transparent)]
    Socket(#[from] attach::Error),
    /// There is no place to meet neighbours of the same machine.
    #[error("failed to prepare for neighbours of the same machine")]
    Meet(#[from] meet::Error),
    /// The data path failed.
    #[error(transparent)]
    Engine(#[from] engine::Error),
}

/// A node that is ready to join.
#[derive(Debug)]
pub struct Node {
    member: Member,
    options: Options,
    door: Door,
    joined: Gate,
    metrics: Metrics,
    stop: Stop,
}

impl Node {
    /// Prepares: nothing that an earlier sidecar left in the run directory is believed. The process is not
    /// ready before the gang has joined.
    pub fn new(
        member: Member,
        options: Options,
        listener: TcpListener,
        readiness: &Readiness,
        metrics: Metrics,
        stop: Stop,
    ) -> Result<Self, Error> {
        for left in [run_dir::ROSTER, run_dir::SOCKET] {
            match std::fs::remove_file(options.run_dir.join(left)) {
                Ok(()) => info!(file = left, "removed what an earlier sidecar left"),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => {
                    return Err(Error::System {
                        doing: "clean the run directory",
                        source,
                    });
                }
            }
        }
        let credentials = member.credentials();
        let meeting = Meeting::open(member.rank, options.transport, &options.run_dir)?;
        let door =
            Door::open(listener, credentials, meeting, metrics.clone()).map_err(|source| {
                Error::System {
                    doing: "open the data port",
                    source,
                }
            })?;
        Ok(Self {
            member,
            options,
            door,
            joined: readiness.gate("the gang"),
            metrics,
            stop,
        })
    }

    /// Joins and serves until asked to stop.
    pub fn serve(self, source: Source) -> Result<(), Error> {
        match source {
            Source::List(peers) => {
                let reporter = Reporter::nowhere().map_err(|source| Error::System {
                    doing: "create a bell",
                    source,
                })?;
                match self.join(1, &peers, || false)? {
                    Some(links) => self.run(1, &peers, links, reporter),
                    None => Ok(()),
                }
            }
            Source::Operator { service, address } => {
                let setup = Setup {
                    service,
                    credentials: self.member.credentials(),
                    address,
                    port: self.door.address().port(),
                    run_dir: self.options.run_dir.clone(),
                };
                let rendezvous =
                    Rendezvous::start(setup, self.metrics.clone()).map_err(|source| {
                        Error::System {
                            doing: "start the rendezvous",
                            source,
                        }
                    })?;
                let served = self.follow(&rendezvous);
                rendezvous.leave();
                served
            }
        }
    }

    /// Follows the operator's orders up to the start, then serves.
    fn follow(self, rendezvous: &Rendezvous) -> Result<(), Error> {
        let mut joined: Option<(u64, Vec<Peer>, Links)> = None;
        // Orders heard while connecting.
        let heard = RefCell::new(VecDeque::new());
        while !self.stop.is_asked() {
            let earlier = heard.borrow_mut().pop_front();
            let order = match earlier {
                Some(order) => order,
                None => match rendezvous.orders.recv_timeout(LOOK) {
                    Ok(order) => order,
                    Err(RecvTimeoutError::Timeout) => continue,
                    Err(RecvTimeoutError::Disconnected) => break,
                },
            };
            match (order, joined.take()) {
                // Said again after a reconnection: the links stand.
                (Order::Roster { epoch, nodes }, Some((of, members, links)))
                    if of == epoch && members == nodes =>
                {
                    rendezvous.reporter.send(Report::Joined { epoch });
                    joined = Some((of, members, links));
                }
                // The links of an earlier roster, if there are any, end here.
                (Order::Roster { epoch, nodes }, _earlier) => {
                    info!(epoch, nodes = nodes.len(), "connecting to the neighbours");
                    // A later roster replaces this one, also while neighbours are missing. The same
                    // one, said again by a new leader, does not: who is done would not connect again.
                    let other = |order: &Order| match order {
                        Order::Roster {
                            epoch: of,
                            nodes: members,
                        } => *of != epoch || *members != nodes,
                        Order::Go { .. } => false,
                    };
                    let replaced = || {
                        let mut heard = heard.borrow_mut();
                        heard.extend(rendezvous.orders.try_iter());
                        heard.iter().any(other)
                    };
                    if let Some(links) = self.join(epoch, &nodes, replaced)? {
                        rendezvous.reporter.send(Report::Joined { epoch });
                        joined = Some((epoch, nodes, links));
                    }
                }
                (Order::Go { epoch }, Some((of, nodes, links))) if of == epoch => {
                    return self.run(epoch, &nodes, links, rendezvous.reporter.clone());
                }
                (Order::Go { epoch }, other) => {
                    warn!(epoch, "start of an epoch that this node has not joined");
                    joined = other;
                }
            }
        }
        Ok(())
    }

    /// Connects to the neighbours among `peers`. None when it was given up.
    fn join(
        &self,
        epoch: u64,
        peers: &[Peer],
        replaced: impl Fn() -> bool,
    ) -> Result<Option<Links>, Error> {
        let nodes = self.member.nodes.len();
        let in_order = peers
            .iter()
            .zip(0u32..)
            .all(|(peer, rank)| peer.rank == rank);
        if peers.len() != nodes || !in_order {
            return Err(Error::Roster(format!(
                "it lists {} nodes, in order: {in_order}; the attempt has {nodes}",
                peers.len()
            )));
        }
        let neighbours = self
            .member
            .trees()
            .neighbours(self.member.rank as usize)
            .into_iter()
            .filter_map(|node| {
                let peer = peers.get(node)?;
                Some((node, SocketAddr::new(peer.address, peer.port)))
            })
            .collect();
        let cancelled = || self.stop.is_asked() || replaced();
        let links = self.door.connect(epoch, &neighbours, cancelled);
        for (node, link) in links.iter().flatten() {
            info!(node, transport = link.name(), "linked to a neighbour");
        }
        Ok(links)
    }

    /// The gang is there: opens the socket, says so in the run directory, and serves.
    fn run(
        &self,
        epoch: u64,
        peers: &[Peer],
        links: Links,
        reporter: Reporter,
    ) -> Result<(), Error> {
        let member = &self.member;
        let layout = Layout::uniform(member.nodes.len(), member.procs_per_node)
            .ok_or_else(|| Error::Roster("no nodes, or no processes on them".to_owned()))?;
        let config = Config {
            node: member.rank as usize,
            layout,
            trees: self.member.trees(),
            fence: Fence {
                attempt: member.attempt,
                epoch: epoch as u32,
            },
            chunk_bytes: self.options.chunk_bytes,
            slots: self.options.slots,
            timing: self.options.timing,
            recovery: Recovery::default(),
        };
        let setup = engine::Setup {
            config,
            epoch,
            names: member.nodes.iter().map(|node| node.name.clone()).collect(),
            listener: Listener::bind(&self.options.run_dir.join(run_dir::SOCKET))?,
            links,
            limit_bytes: self.options.limit_bytes,
        };
        let engine = Engine::new(setup, self.stop.clone(), self.metrics.clone(), reporter)?;
        self.roster(epoch, peers).write(&self.options.run_dir)?;
        self.joined.open();
        info!(
            epoch,
            rank = member.rank,
            nodes = peers.len(),
            "the gang has joined"
        );
        Ok(engine.run()?)
    }

    fn roster(&self, epoch: u64, peers: &[Peer]) -> Roster {
        let node = |(peer, place): (&Peer, &Place)| RosterNode {
            rank: peer.rank,
            name: place.name.clone(),
            zone: place.zone.clone(),
            address: peer.address,
            port: peer.port,
        };
        Roster {
            attempt: self.member.attempt,
            epoch,
            nodes: peers.iter().zip(&self.member.nodes).map(node).collect(),
            master_port: self.member.master_port,
        }
    }
}

/// Why a trainer may not start yet; none when it may.
pub fn not_ready(dir: &Path) -> Option<String> {
    match Roster::read(dir) {
        Ok(None) => Some("the gang has not joined yet".to_owned()),
        Err(error) => Some(error.to_string()),
        Ok(Some(_)) => attach::Channel::connect(&dir.join(run_dir::SOCKET))
            .err()
            .map(|error| error.to_string()),
    }
}
