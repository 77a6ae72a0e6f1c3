//! The life of a node in an attempt: learn the members, connect to the neighbours, report that it joined,
//! wait for the start, serve until asked to stop. Members come from the operator, or from a file for
//! benches and tests without a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use collective::machine::{Config, Fence, Handover, Recovery};
use collective::membership::encoding::Peer;
use collective::recovery::Resume;
use collective::{DoubleTree, Layout};
use contract::run_dir::{self, Roster, RosterNode};
use daemon::{Gate, Readiness};
use hfreduce_client::attach::{self, Listener};
use link::connect::Acceptor;
use topology::OnPeerLoss;
use tracing::{info, warn};

use crate::attached_ranks::{AttachedBefore, AttachedRanks};
use crate::engine::{self, Engine, EngineCommand, Epoch, Notice};
use crate::follow::Follower;
use crate::frame::Link;
use crate::inspect::{Inspector, Snapshots};
use crate::linker::{self, DataPort, Linker};
use crate::member::{Member, MemberOptions, RosterSource};
use crate::metrics::Metrics;
use crate::negotiate;
use crate::rendezvous::{LEAVE_LIMIT, Rendezvous, Reporter, StreamSetup};
use crate::stop::Stop;

/// An epoch whose links stand.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) epoch: u64,
    pub(crate) peers: Vec<Peer>,
    pub(crate) of: Epoch,
}

/// How a running engine is spoken to.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) commands: Sender<EngineCommand>,
    pub(crate) notices: Receiver<Notice>,
}

/// How often a node that waits looks whether it still should.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// A sidecar that is asked to leave is gone within a second: its pod ends no sooner.
const _: () =
    assert!((LOOK.as_millis() + engine::DRAIN_LIMIT.as_millis() + LEAVE_LIMIT.as_millis()) < 1000);
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
    /// It reports less than it has done; without its memory, less still.
    #[error(
        "failed to say how far this node is: close groups that are not used any more, or wait for operations sooner"
    )]
    Report(#[from] collective::membership::encoding::Error),
    /// The data path failed.
    #[error(transparent)]
    Engine(#[from] engine::Error),
}

/// A node that is ready to join.
#[derive(Debug)]
pub struct SidecarNode {
    pub(crate) member: Member,
    options: MemberOptions,
    data_port: DataPort,
    joined: Gate,
    /// Where operations wait for a sidecar that takes this one's place.
    attached_ranks: Option<AttachedRanks>,
    metrics: Metrics,
    pub(crate) stop: Stop,
    inspector: Inspector,
    /// Until the engine has it.
    snapshots: Mutex<Option<Snapshots>>,
}

impl SidecarNode {
    /// Prepares: of what an earlier sidecar left in the run directory nothing is believed but who was attached, and who
    /// has left. The process is not ready before the gang has joined.
    pub fn new(
        member: Member,
        options: MemberOptions,
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
        let attached_ranks = match member.on_peer_loss {
            OnPeerLoss::Restart => None,
            OnPeerLoss::Shrink => {
                let list =
                    AttachedRanks::open(&options.run_dir).map_err(|source| Error::System {
                        doing: "list the processes that are attached",
                        source,
                    })?;
                Some(list)
            }
        };
        let (inspector, snapshots) = Inspector::new();
        let credentials = member.credentials();
        let refused = metrics.refused_connections.clone();
        let data_port = Acceptor::open(
            listener,
            credentials,
            negotiate::open(&options),
            move || refused.inc(),
        )
        .map_err(|source| Error::System {
            doing: "open the data port",
            source,
        })?;
        Ok(Self {
            member,
            options,
            data_port,
            joined: readiness.gate("the gang"),
            attached_ranks,
            metrics,
            inspector,
            snapshots: Mutex::new(Some(snapshots)),
            stop,
        })
    }

    /// Asks the engine what it is doing, once it runs.
    #[must_use]
    pub fn inspector(&self) -> Inspector {
        self.inspector.clone()
    }

    /// Joins and serves until asked to stop.
    pub fn serve(self, source: RosterSource) -> Result<(), Error> {
        match source {
            RosterSource::List(peers) => {
                let reporter = Reporter::nowhere().map_err(|source| Error::System {
                    doing: "create a wake descriptor",
                    source,
                })?;
                let Some(joined) = self.join(1, peers, None, || false)? else {
                    return Ok(());
                };
                let (engine, _running) = self.engine(joined, reporter)?;
                Ok(engine.run()?)
            }
            RosterSource::Operator { service, address } => {
                let setup = StreamSetup {
                    service,
                    credentials: self.member.credentials(),
                    address,
                    port: self.data_port.address().port(),
                    run_dir: self.options.run_dir.clone(),
                };
                let rendezvous =
                    Rendezvous::start(setup, self.metrics.clone()).map_err(|source| {
                        Error::System {
                            doing: "start the rendezvous",
                            source,
                        }
                    })?;
                let served = Follower::new(&self, &rendezvous).follow();
                rendezvous.leave();
                served
            }
        }
    }

    /// Connects to the neighbours among these members, whom `peers` lists by rank. None when it was given up.
    pub(crate) fn join(
        &self,
        epoch: u64,
        peers: Vec<Peer>,
        resume: Option<Resume>,
        replaced: impl Fn() -> bool,
    ) -> Result<Option<Joined>, Error> {
        let nodes = self.member.nodes.len();
        let members: Vec<u32> = peers.iter().map(|peer| peer.rank).collect();
        let ascend = members.windows(2).all(|pair| pair[0] < pair[1]);
        let in_range = members.last().is_some_and(|last| (*last as usize) < nodes);
        // Before anybody was lost all are members.
        let complete = resume.is_some() || members.len() == nodes;
        let own = members.binary_search(&self.member.rank);
        let (true, true, true, Ok(own)) = (ascend, in_range, complete, own) else {
            return Err(Error::Roster(format!(
                "it lists the nodes {members:?}; the attempt has {nodes}, and this is node {}",
                self.member.rank
            )));
        };
        let trees = self.member.trees(&members);
        let tree_peers: BTreeSet<usize> = trees.tree_peers(own).into_iter().collect();
        let is_linked = |(node, _): &(usize, &Peer)| tree_peers.contains(node);
        let (linked, others): (Vec<_>, Vec<_>) = peers.iter().enumerate().partition(is_linked);
        let linked = linked.into_iter().map(|(_, peer)| peer);
        let others = others.into_iter().map(|(_, peer)| peer);
        let port = &self.data_port;
        port.expect(peers.iter().map(|peer| peer.address));
        let own_identity = self.member.identity();
        let cancelled = || self.stop.is_asked() || replaced();
        let Some(links) = linker::connect_all(port, own_identity, epoch, linked, cancelled) else {
            return Ok(None);
        };
        for (rank, link) in &links {
            info!(
                node = rank,
                transport = link.name(),
                "linked to a neighbour"
            );
        }
        let place =
            |(rank, link): (usize, Link)| Some((members.binary_search(&(rank as u32)).ok()?, link));
        let links = links.into_iter().filter_map(place).collect();
        let all: Vec<usize> = members.iter().map(|rank| *rank as usize).collect();
        let layout = self.layout()?;
        let layout = layout
            .of_members(&all)
            .ok_or_else(|| Error::Roster("it lists no nodes".to_owned()))?;
        let config = self.config(epoch, own, layout, trees);
        // Who is linked already is refused when it connects again.
        let linker = Linker::new(port, own_identity, epoch, others, &self.stop);
        Ok(Some(Joined {
            epoch,
            peers,
            of: Epoch {
                config,
                members,
                links,
                linker: Some(linker),
                resume,
            },
        }))
    }

    /// The layout of all nodes of the attempt.
    fn layout(&self) -> Result<Layout, Error> {
        Layout::uniform(self.member.nodes.len(), self.member.procs_per_node)
            .ok_or_else(|| Error::Roster("no nodes, or no processes on them".to_owned()))
    }

    fn config(&self, epoch: u64, node: usize, layout: Layout, trees: DoubleTree) -> Config {
        let on_peer_loss = self.member.on_peer_loss;
        Config {
            node,
            layout,
            trees,
            fence: Fence {
                attempt: self.member.attempt,
                epoch: epoch as u32,
            },
            chunk_bytes: self.options.chunk_bytes,
            slots: self.options.slots,
            window: self.options.window(),
            timing: self.options.timing,
            recovery: Recovery {
                on_peer_loss,
                handover: match on_peer_loss {
                    OnPeerLoss::Restart => Handover::Immediate,
                    // No lost sidecar is the only one with a result that its processes have.
                    OnPeerLoss::Shrink => Handover::Stable,
                },
                ..Recovery::default()
            },
        }
    }

    /// The gang is there: opens the socket, says so in the run directory, and prepares to serve.
    pub(crate) fn engine(
        &self,
        joined: Joined,
        reporter: Reporter,
    ) -> Result<(Engine, Running), Error> {
        let Joined { epoch, peers, of } = joined;
        let made = self.engine_of(of, None, reporter)?;
        self.announce(epoch, &peers)?;
        Ok(made)
    }

    /// Whether a sidecar of this attempt has attached processes here that may come back.
    pub(crate) fn has_attached(&self) -> bool {
        let local = self.member.procs_per_node as usize;
        let found = self
            .attached_ranks
            .as_ref()
            .map(|record| record.find(local));
        found.is_some_and(|found| !found.awaited.is_empty())
    }

    /// The gang is in an epoch that a sidecar before this one knew: opens the socket, so that processes come back with
    /// how far results were delivered to them, and waits for those that were attached to it.
    pub(crate) fn engine_without_memory(
        &self,
        epoch: u64,
        reporter: Reporter,
    ) -> Result<(Engine, Running), Error> {
        let (layout, own) = (self.layout()?, self.member.rank);
        let local = layout.local(own as usize);
        let record = self.attached_ranks.as_ref();
        let found = record.map_or_else(AttachedBefore::default, |record| record.find(local));
        let members: Vec<u32> = (0..layout.nodes() as u32).collect();
        let trees = self.member.trees(&members);
        info!(
            epoch,
            awaited = ?found.awaited,
            left = ?found.left.keys(),
            "this sidecar takes the place of one that ended"
        );
        let of = Epoch {
            config: self.config(epoch, own as usize, layout, trees),
            members,
            links: BTreeMap::new(),
            linker: None,
            resume: None,
        };
        self.engine_of(of, Some(found), reporter)
    }

    fn engine_of(
        &self,
        epoch: Epoch,
        found: Option<AttachedBefore>,
        reporter: Reporter,
    ) -> Result<(Engine, Running), Error> {
        let names = self.member.nodes.iter();
        let mut snapshots = self
            .snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let snapshots = snapshots.take();
        let (commands, orders) = channel();
        let (said, notices) = channel();
        let setup = engine::EngineSetup {
            epoch,
            names: names.map(|node| node.name.clone()).collect(),
            listener: Listener::bind(&self.options.run_dir.join(run_dir::SOCKET))?,
            limit_bytes: self.options.limit_bytes,
            places: self.options.places.clone(),
            before_memory: self.options.before_memory.clone(),
            workers: self.options.workers.clone(),
            attached_ranks: self.attached_ranks.clone(),
            found,
            commands: orders,
            notices: said,
            snapshots: snapshots.unwrap_or_else(|| Inspector::new().1),
            flight: self.options.run_dir.join(run_dir::FLIGHT_RECORDING),
        };
        let engine = Engine::new(setup, self.stop.clone(), self.metrics.clone(), reporter)?;
        Ok((engine, Running { commands, notices }))
    }

    /// Writes who is there for the trainer to read, which may start.
    pub(crate) fn announce(&self, epoch: u64, peers: &[Peer]) -> Result<(), Error> {
        self.roster(epoch, peers).write(&self.options.run_dir)?;
        self.joined.open();
        info!(
            epoch,
            rank = self.member.rank,
            nodes = peers.len(),
            "the gang has joined"
        );
        Ok(())
    }

    /// Orders the launcher to end all of this pod.
    pub(crate) fn note_void(&self, reason: &str) {
        let path = self.options.run_dir.join(run_dir::VOID);
        if let Err(error) = run_dir::put(&path, reason.as_bytes(), run_dir::READABLE) {
            warn!(%error, "failed to ask the launcher to end the ranks");
        }
    }

    fn roster(&self, epoch: u64, peers: &[Peer]) -> Roster {
        let node = |peer: &Peer| {
            let place = self.member.nodes.get(peer.rank as usize);
            let place = place.cloned().unwrap_or_default();
            RosterNode {
                rank: peer.rank,
                name: place.name,
                zone: place.zone,
                address: peer.address,
                port: peer.port,
            }
        };
        Roster {
            attempt: self.member.attempt,
            epoch,
            nodes: peers.iter().map(node).collect(),
            master_port: self.member.master_port,
            on_peer_loss: self.member.on_peer_loss,
        }
    }
}

/// Why a trainer may not start yet; none when it may.
pub fn not_ready(dir: &Path) -> Option<String> {
    match Roster::read(dir) {
        Ok(None) => Some("the gang has not joined yet".to_owned()),
        Err(error) => Some(error.to_string()),
        Ok(Some(_)) => attach::AttachChannel::connect(&dir.join(run_dir::SOCKET))
            .err()
            .map(|error| error.to_string()),
    }
}
