//! The data path of a node: one thread that moves bytes between local processes, the machine and peers.
//! Owns sockets, polling and memory. Leaves order, agreement and failure to `collective::machine`, the outcome of calls
//! to `collective::session`, arithmetic to its kernels, and joining to `join` and `rendezvous`.
//!
//! Each part of the engine has a module that alone knows its fields: `driver`, `members`, `links`, `acceptor`, `local`,
//! `control`, `telemetry`, `poller`, `crate::memory` and
//! `crate::workers`. The other modules let the parts work together, by what happens: processes
//! come and go in `attach`, call in `calls`, open `groups`; `effects` carries out what the machine asks for, and `inbound`
//! has copied what links have brought; `epoch` goes from one epoch to the next, and `rest` sleeps.

mod acceptor;
mod attach;
mod calls;
mod control;
mod driver;
mod effects;
mod epoch;
mod flight_recorder;
mod groups;
mod idle;
mod inbound;
mod links;
mod local;
mod members;
mod ops;
mod poller;
mod telemetry;
#[cfg(test)]
mod tests;
mod waits;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use collective::encoding::PAYLOAD_LIMIT_BYTES;
use collective::machine::{Input, WORLD};
use hfreduce_client::attach::{Listener, Standing};
use link::segment;
use link::spin::Spin;

use crate::attached_ranks::{AttachedBefore, AttachedRanks};
use crate::background::{Background, Before};
use crate::inspect::Snapshots;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::numa::Places;
use crate::rendezvous::Reporter;
use crate::stop::Stop;
use crate::workers::{WorkerOptions, WorkerPanicked, Workers};
use acceptor::Acceptor;
use control::Control;
use driver::Driver;
pub use epoch::{EngineCommand, Epoch, Notice};
use inbound::Inbound;
use links::Links;
use local::Local;
use members::Members;
use poller::Poller;
use telemetry::Telemetry;

/// How long farewells may take before the sidecar leaves without.
pub const DRAIN_LIMIT: Duration = Duration::from_millis(500);

const LISTENER: u64 = 0;
const WAKE_FD: u64 = 1;
const PENDING: u64 = 2 << 32;
const CLIENT: u64 = 3 << 32;
const CLIENT_WAKE_FD: u64 = 4 << 32;
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
    Socket(#[from] hfreduce_client::attach::Error),
    /// The configuration does not fit together.
    #[error("failed to configure the collective")]
    Config(#[from] collective::machine::ConfigError),
    /// A sum or a copy was not made.
    #[error("failed to compute")]
    Worker(#[from] WorkerPanicked),
    /// A chunk does not fit into a frame.
    #[error("chunks of {0} bytes: take at most {PAYLOAD_LIMIT_BYTES}, the payload of a frame")]
    Chunk(u32),
}

/// What the engine needs.
#[derive(Debug)]
pub struct EngineSetup {
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
    /// Who computes.
    pub workers: WorkerOptions,
    /// Where it notes who is attached and who has left, if operations wait for a sidecar that takes its place.
    pub attached_ranks: Option<AttachedRanks>,
    /// In place of a sidecar that has ended: what that one has noted. The epoch is then the one that has to end, and nobody
    /// is linked.
    pub found: Option<AttachedBefore>,
    /// The commands for it; the wake descriptor of `stop` wakes it for them.
    pub commands: Receiver<EngineCommand>,
    /// What it reports.
    pub notices: Sender<Notice>,
    /// Where it says what it is doing.
    pub snapshots: Snapshots,
    /// The file for the flight recorder.
    pub flight: PathBuf,
}

/// The data path of a node: its parts.
#[derive(Debug)]
pub struct Engine {
    driver: Driver,
    members: Members,
    links: Links,
    acceptor: Acceptor,
    local: Local,
    memory: Memory,
    workers: Workers,
    inbound: Inbound,
    control: Control,
    telemetry: Telemetry,
    poller: Poller,
    spin: Spin,
    places: Places,
    start: Instant,
}

impl Engine {
    /// Prepares everything; `run` starts to serve.
    pub fn new(
        setup: EngineSetup,
        stop: Stop,
        metrics: Metrics,
        reporter: Reporter,
    ) -> Result<Self, Error> {
        let EngineSetup {
            epoch,
            names,
            listener,
            limit_bytes,
            places,
            before_memory,
            workers,
            attached_ranks,
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
        let driver = Driver::new(config.clone(), Duration::ZERO);
        let (members, links) = (Members::new(members, names), Links::new(links, linker));
        let local = config.layout.local(config.node) as u32;
        let standing = Standing {
            attempt: config.fence.attempt,
            epoch: config.fence.epoch.into(),
            node: config.node as u32,
            nodes: config.layout.nodes() as u32,
            local_rank: 0,
            local_world: local,
            rank: config.layout.ranks(config.node).start,
            world: config.layout.world(),
        };
        let failed = |source: rustix::io::Errno| Error::Poll(source.into());
        let poller = Poller::new().map_err(Error::Poll)?;
        let acceptor = Acceptor::new(listener, &poller).map_err(failed)?;
        let (wakes, before) = (stop.clone(), before_memory);
        let background = |name| Background::new(name, wakes.clone(), before.clone());
        let inputs = (limit_bytes, places.inputs.clone());
        let local = Local::new(
            standing,
            background("inputs"),
            inputs,
            attached_ranks,
            found,
        );
        let (results, home) = (background("results"), places.results.clone());
        let mut memory = Memory::new(limit_bytes, home, results);
        memory.set_edges(&epoch::sizes(&driver, WORLD, &links))?;
        let workers = Workers::new(workers, stop.clone());
        let control = Control::new(commands, notices, stop, &poller).map_err(failed)?;
        let mut engine = Self {
            driver,
            members,
            links,
            acceptor,
            local,
            memory,
            workers,
            inbound: Inbound::default(),
            control,
            telemetry: Telemetry::new(metrics, reporter, snapshots, flight),
            poller,
            spin: Spin::default(),
            places,
            start: Instant::now(),
        };
        if !engine.local.ranks().has_lost_memory() {
            engine.choose_wait()?;
        }
        engine.watch_links().map_err(failed)?;
        Ok(engine)
    }

    /// Serves until it is asked to stop.
    pub fn run(mut self) -> Result<(), Error> {
        self.places.enter();
        self.start = Instant::now();
        self.handle(Input::Tick);
        if self.local.ranks().has_lost_memory() {
            self.handle(Input::Revoke); // The epoch went with the sidecar that knew it.
        }
        let mut events = Vec::with_capacity(64);
        loop {
            self.answer_requests();
            let mut busy = self.take_finished()?;
            busy |= self.look_at_rings();
            busy |= self.look_at_links();
            busy |= self.carry_out();
            self.on_command()?;
            self.answer();
            self.forget_gone();
            self.acceptor.reopen(self.now(), &self.poller);
            if self.leave_if_asked() {
                return Ok(());
            }
            events.clear();
            self.rest(busy, &mut events)
                .map_err(|source| Error::Poll(source.into()))?;
            for event in &events {
                self.dispatch(event.data.u64());
            }
            self.poller.looked();
            if self.now() >= self.driver.machine().wake_at() {
                self.handle(Input::Tick);
                self.links.count_traffic(self.telemetry.metrics());
                self.links.forget_gone();
            }
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// The links of an epoch stand.
    fn watch_links(&self) -> rustix::io::Result<()> {
        let metrics = self.telemetry.metrics();
        self.links.watch(&self.poller, &self.members, metrics)
    }

    fn handle(&mut self, input: Input) {
        let now = self.now();
        self.driver.handle(
            now,
            input,
            &self.members,
            self.telemetry.flight_recorder_mut(),
        );
    }

    fn dispatch(&mut self, token: u64) {
        let index = token & !KIND;
        match token & KIND {
            PENDING => self.greet(index),
            CLIENT => self.read_socket(index as usize),
            CLIENT_WAKE_FD => self.local.wake(index as usize, &self.poller),
            LINK => self.wake_link(index as usize),
            _ if token == LISTENER => self.acceptor.accept(self.now(), &self.poller),
            _ => self.control.clear_wake_fd(),
        }
    }

    /// Whether calls fail at once: the epoch is over, and none will follow.
    fn is_over(&self) -> bool {
        self.local.ranks().is_over(self.driver.machine())
    }

    /// Leaves once asked to. True when there is nothing left to do.
    fn leave_if_asked(&mut self) -> bool {
        if self.control.begins_to_leave() {
            self.handle(Input::Leave);
            return false;
        }
        let is_said = || self.has_said_all() && self.is_drained();
        let leaving = self.control.leaving();
        leaving.is_some_and(|since| is_said() || since > DRAIN_LIMIT)
    }

    /// Whether nothing waits to be said to a neighbour.
    fn has_said_all(&self) -> bool {
        self.driver.has_said_all() && self.links.are_flushed()
    }

    fn is_drained(&self) -> bool {
        self.memory.is_released() || self.driver.machine().broken().is_some()
    }
}
