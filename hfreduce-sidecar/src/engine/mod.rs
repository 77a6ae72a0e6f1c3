//! The data path of a node: one thread that moves bytes between local processes, the machine and peers.
//! Owns sockets, polling and memory. Leaves order, agreement and failure to `collective::machine`,
//! arithmetic to its kernels, and joining to `join` and `rendezvous`.

mod attach;
mod calls;
mod effects;
mod epoch;
mod groups;
mod journal;
mod ops;
mod park;
mod rest;
mod results;
#[cfg(test)]
mod tests;
mod waits;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use collective::agenda::Agenda;
use collective::machine::{Cause, Config, Effect, GroupId, Input, Machine, OpId, WORLD};
use rustix::event::epoll;
use tracing::warn;
use wire::attach::{Channel, Listener, Standing};
use wire::frame::PAYLOAD_LIMIT_BYTES;
use wire::segment;
use wire::spin::Spin;
use wire::transport::Transport;

use crate::background::{Background, Before};
use crate::inspect::Snapshots;
use crate::link::Linker;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::numa::Places;
use crate::rendezvous::Reporter;
use crate::session::{Ranks, Session};
use crate::stop::Stop;
use crate::welcomed::{Found, Welcomed};
use epoch::Stopping;
pub use epoch::{Command, Epoch, Notice};
use journal::Journal;
use park::Park;
use waits::Waits;

/// How long farewells may take before the sidecar leaves without.
pub const FAREWELL: Duration = Duration::from_millis(500);

const LISTENER: u64 = 0;
const BELL: u64 = 1;
const VISITOR: u64 = 2 << 32;
const CLIENT: u64 = 3 << 32;
const CLIENT_BELL: u64 = 4 << 32;
const LINK: u64 = 5 << 32;
const KIND: u64 = !0 << 32;

/// Why the engine could not start or go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel would not poll.
    #[error("failed to poll")]
    Poll(#[source] std::io::Error),
    /// There is no memory for the slots.
    #[error("failed to prepare the memory of the node")]
    Memory(#[from] segment::Error),
    /// The socket of the local processes failed.
    #[error("failed to serve local processes")]
    Socket(#[from] wire::attach::Error),
    /// The configuration does not fit together.
    #[error("failed to configure the collective")]
    Config(#[from] collective::machine::ConfigError),
    /// A chunk does not fit into a frame.
    #[error("chunks of {0} bytes: take at most {PAYLOAD_LIMIT_BYTES}, the payload of a frame")]
    Chunk(u32),
}

/// What the engine needs.
#[derive(Debug)]
pub struct Setup {
    /// The first epoch: everybody is a member.
    pub epoch: Epoch,
    /// Names of the attempt's nodes, for errors.
    pub names: Vec<String>,
    /// Where local processes attach.
    pub listener: Listener,
    /// Bytes of results, and bytes of inputs of each process, at most.
    pub limit_bytes: usize,
    /// Where memory and this engine lie.
    pub places: Places,
    /// What is done before memory is made.
    pub before_memory: Before,
    /// Where it notes who is attached and who has left, if operations wait for a sidecar that takes its place.
    pub welcomed: Option<Welcomed>,
    /// In place of a sidecar that has ended: what that one has noted. The epoch is then the one that has to end, and nobody
    /// is linked.
    pub found: Option<Found>,
    /// What it is told; the bell of `stop` wakes it for that.
    pub commands: Receiver<Command>,
    /// What it has to tell.
    pub notices: Sender<Notice>,
    /// Where it says what it is doing.
    pub snapshots: Snapshots,
    /// The file for the flight recorder.
    pub flight: PathBuf,
}

/// The result of an operation, while somebody may read it.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    holders: usize,
    released: bool,
}

/// The data path of a node.
#[derive(Debug)]
pub struct Engine {
    machine: Machine,
    config: Config,
    /// The rank in the attempt of each member of the epoch.
    members: Vec<u32>,
    welcomed: Option<Welcomed>,
    commands: Receiver<Command>,
    notices: Sender<Notice>,
    stopping: Option<Stopping>,
    standing: Standing,
    names: Vec<String>,
    memory: Memory,
    /// Where memory for results is made, and that for inputs: who trains does not wait for who begins.
    results: Background,
    inputs: Background,
    /// Whether calls are taken up that cannot wait for memory.
    hurries: bool,
    links: BTreeMap<usize, Box<dyn Transport>>,
    linker: Option<Linker>,
    listener: Listener,
    /// Until when nobody new is heard.
    shut_until: Option<Duration>,
    visitors: BTreeMap<u64, Channel>,
    next_visitor: u64,
    sessions: BTreeMap<usize, Session>,
    /// What they have called, and those before them.
    ranks: Ranks,
    /// What was lent to processes that left each of them free, and may have kept it.
    kept_bytes: Vec<usize>,
    uses: BTreeMap<(GroupId, OpId), Use>,
    agenda: Agenda,
    scratch: Vec<Effect>,
    /// Neighbours whose links have something to send.
    pushed: Vec<usize>,
    limit_bytes: usize,
    places: Places,
    park: Park,
    stop: Stop,
    start: Instant,
    spin: Spin,
    left: Option<Instant>,
    metrics: Metrics,
    reporter: Reporter,
    /// Always there, but while one is made.
    snapshots: Option<Snapshots>,
    flight: PathBuf,
    /// When a call that failed was last written there.
    recorded: Option<Duration>,
    journal: Journal,
    waits: Waits,
}

impl Engine {
    /// Prepares everything; `run` starts to serve.
    pub fn new(
        setup: Setup,
        stop: Stop,
        metrics: Metrics,
        reporter: Reporter,
    ) -> Result<Self, Error> {
        let Setup {
            epoch,
            names,
            listener,
            limit_bytes,
            places,
            before_memory,
            welcomed,
            found,
            commands,
            notices,
            snapshots,
            flight,
        } = setup;
        let Epoch {
            config,
            members,
            links,
            linker,
            resume: _from_nothing,
        } = epoch;
        config.check()?;
        // Peers would take the sender of a larger one for broken.
        if config.chunk_bytes > PAYLOAD_LIMIT_BYTES {
            return Err(Error::Chunk(config.chunk_bytes));
        }
        let machine = Machine::new(config.clone(), Duration::ZERO);
        let mut memory = Memory::new(limit_bytes, places.results.clone());
        memory.set_edges(&epoch::sizes(&machine, WORLD, &config, &links))?;
        let local = config.layout.local(config.node);
        let standing = Standing {
            attempt: config.fence.attempt,
            epoch: config.fence.epoch.into(),
            node: config.node as u32,
            nodes: config.layout.nodes() as u32,
            local_rank: 0,
            local_world: local as u32,
            rank: config.layout.ranks(config.node).start,
            world: config.layout.world(),
        };
        let mut ranks = Ranks::new(config.layout.ranks(config.node), config.layout.world());
        if let Some(found) = found {
            ranks.expect(found.awaited);
            for (rank, left) in found.left {
                if let Err(error) = ranks.restore(rank, left) {
                    let text = "the record of a process that left cannot be true: waiting for it";
                    warn!(%error, local_rank = rank, text);
                }
            }
        }
        let failed = |source: rustix::io::Errno| Error::Poll(source.into());
        let mut engine = Self {
            machine,
            members,
            welcomed,
            commands,
            notices,
            stopping: None,
            standing,
            names,
            memory,
            results: Background::new("results", stop.clone(), before_memory.clone()),
            inputs: Background::new("inputs", stop.clone(), before_memory),
            hurries: false,
            links,
            linker,
            listener,
            shut_until: None,
            visitors: BTreeMap::new(),
            next_visitor: 0,
            sessions: BTreeMap::new(),
            ranks,
            kept_bytes: vec![0; local],
            uses: BTreeMap::new(),
            agenda: Agenda::default(),
            scratch: Vec::new(),
            pushed: Vec::new(),
            limit_bytes,
            places,
            park: Park::new().map_err(Error::Poll)?,
            stop,
            start: Instant::now(),
            spin: Spin::default(),
            left: None,
            metrics,
            reporter,
            snapshots: Some(snapshots),
            flight,
            recorded: None,
            journal: Journal::default(),
            waits: Waits::default(),
            config,
        };
        engine.watch(&engine.listener, LISTENER).map_err(failed)?;
        engine.watch(engine.stop.bell(), BELL).map_err(failed)?;
        if !engine.ranks.has_lost_memory() {
            engine.choose_bed()?;
        }
        engine.watch_links().map_err(failed)?;
        Ok(engine)
    }

    /// Serves until it is asked to stop.
    pub fn run(mut self) -> Result<(), Error> {
        self.places.enter();
        self.start = Instant::now();
        self.handle(Input::Tick);
        if self.ranks.has_lost_memory() {
            self.handle(Input::Revoke); // The epoch went with the sidecar that knew it.
        }
        let mut events = Vec::with_capacity(64);
        loop {
            self.answer_requests();
            let mut busy = self.look_at_rings();
            busy |= self.look_at_links();
            busy |= self.carry_out();
            self.obey()?;
            self.answer();
            self.forget_gone();
            self.reopen();
            if self.has_left() {
                return Ok(());
            }
            events.clear();
            self.rest(busy, &mut events)
                .map_err(|source| Error::Poll(source.into()))?;
            for event in &events {
                self.dispatch(event.data.u64());
            }
            self.park.looked();
            if self.now() >= self.machine.wake_at() {
                self.handle(Input::Tick);
                self.count_traffic();
                self.linker.iter().for_each(Linker::forget_gone);
            }
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn watch(&self, source: &impl AsFd, token: u64) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(self.park.poll(), source, data, epoll::EventFlags::IN)
    }

    /// The links of an epoch stand.
    fn watch_links(&self) -> rustix::io::Result<()> {
        for (peer, link) in &self.links {
            self.watch(&link.socket(), LINK | *peer as u64)?;
            let (rank, name) = (self.rank_of(*peer), self.name(*peer));
            self.metrics.suspect(rank, name, false);
            self.metrics.link(rank, name, link.name(), true);
        }
        self.metrics.peers.set(self.links.len() as i64);
        Ok(())
    }

    fn handle(&mut self, input: Input) {
        let now = self.now();
        let node = |place: usize| self.members.get(place).map_or(place, |rank| *rank as usize);
        self.journal.take(now, &input, node);
        self.machine.handle(now, input, &mut self.scratch);
        self.take_up_effects(now);
    }

    /// What the machine has just asked for.
    fn take_up_effects(&mut self, now: Duration) {
        let node = |place: usize| self.members.get(place).map_or(place, |rank| *rank as usize);
        for effect in self.scratch.drain(..) {
            self.journal.give(now, &effect, node);
            self.agenda.push(effect);
        }
    }

    fn dispatch(&mut self, token: u64) {
        let index = token & !KIND;
        match token & KIND {
            VISITOR => self.greet(index),
            CLIENT => self.hear(index as usize),
            CLIENT_BELL => self.wake(index as usize),
            LINK => self.wake_link(index as usize),
            _ if token == LISTENER => self.accept(),
            _ => {
                self.stop.bell().clear();
            }
        }
    }

    /// A cause in words, with the name of the node to look at.
    fn text(&self, cause: &Cause) -> String {
        let Cause::Broken(broken) = cause else {
            return cause.to_string();
        };
        let broken = broken.renumbered(|node| self.rank_of(node));
        let name = |rank: usize| self.names.get(rank).filter(|name| !name.is_empty());
        match broken.node().and_then(|rank| Some((rank, name(rank)?))) {
            Some((rank, name)) => format!("{broken}; node {rank} is {name}"),
            None => broken.to_string(),
        }
    }

    /// A member's rank in the attempt.
    fn rank_of(&self, node: usize) -> usize {
        self.members.get(node).map_or(node, |rank| *rank as usize)
    }

    /// A member's name.
    fn name(&self, node: usize) -> &str {
        let name = self.names.get(self.rank_of(node));
        name.map_or("", String::as_str)
    }

    /// Whether calls fail at once: the epoch is over, and none will follow.
    fn is_over(&self) -> bool {
        self.ranks.is_over(&self.machine)
    }

    /// Says farewell once asked to. True when there is nothing left to do.
    fn has_left(&mut self) -> bool {
        let Some(since) = self.left else {
            if self.stop.is_asked() {
                self.left = Some(Instant::now());
                self.handle(Input::Leave);
            }
            return false;
        };
        self.has_said_all() && self.has_said_farewell() || since.elapsed() > FAREWELL
    }

    /// Whether nothing waits to be said to a neighbour.
    fn has_said_all(&self) -> bool {
        self.agenda.has_said_all() && self.links.values().all(|link| link.is_flushed())
    }

    fn has_said_farewell(&self) -> bool {
        self.uses.values().all(|used| used.released) || self.machine.broken().is_some()
    }
}
