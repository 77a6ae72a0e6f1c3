//! The data path of a node: one thread that moves bytes between local processes, the machine and peers.
//! Owns sockets, polling and memory. Leaves order, agreement and failure to `collective::machine`,
//! arithmetic to its kernels, and joining to `join` and `rendezvous`.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use collective::kernels;
use collective::machine::{Broken, Cause, Config, Effect, Input, Machine, OpId, Region, Ticket};
use rustix::event::{Timespec, epoll};
use tracing::{debug, error, info, warn};
use wire::attach::{self, Channel, Listener, Standing, ToClient, ToSidecar};
use wire::entry::FailureKind;
use wire::rendezvous::SuspectReason;
use wire::ring::Bell;
use wire::segment;

use crate::codec;
use crate::link::{Link, Received};
use crate::memory::{self, Memory, OutOfBounds};
use crate::metrics::Metrics;
use crate::rendezvous::{Report, Reporter};
use crate::session::{self, Called, Heard, Session, Taken};

/// Effects carried out before sockets and rings are looked at again: 16 chunks, some milliseconds.
const EFFECT_BUDGET: usize = 16;
/// Reads from one link before the others get their turn: 32 reads of up to a chunk each.
const READ_BUDGET: usize = 32;
/// How long the engine looks before it sleeps while operations are in flight: about what waking up costs.
const SPIN: Duration = Duration::from_micros(20);
/// How long farewells may take before the sidecar leaves without.
const FAREWELL: Duration = Duration::from_millis(500);
/// Connections of processes that have not said who they are: twice a node's processes.
const VISITOR_LIMIT: usize = 128;

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
    Socket(#[from] attach::Error),
    /// The configuration does not fit together.
    #[error("failed to configure the collective")]
    Config(#[from] collective::machine::ConfigError),
}

/// What the engine needs to run an epoch.
#[derive(Debug)]
pub struct Setup {
    /// Node, layout, trees, limits.
    pub config: Config,
    /// The membership as the operator counts it.
    pub epoch: u64,
    /// Names of the nodes, for errors.
    pub names: Vec<String>,
    /// Where local processes attach.
    pub listener: Listener,
    /// Authenticated connections to all neighbours.
    pub links: BTreeMap<usize, Link>,
    /// Bytes of results, and bytes of inputs of each process, at most.
    pub limit_bytes: usize,
}

/// Asks a running engine to leave.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    bell: Arc<Bell>,
}

impl Stop {
    /// A request that nobody made yet.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            asked: Arc::default(),
            bell: Arc::new(Bell::new()?),
        })
    }

    /// Asks: farewells are said, then the engine ends.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Whether somebody asked.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Rings when somebody asks, for threads that poll.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }
}

/// Whether a local rank may attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    Free,
    Taken,
    Left,
}

/// The result of an operation, while somebody may read it.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    holders: usize,
    released: bool,
}

/// The data path of a node in one epoch.
#[derive(Debug)]
pub struct Engine {
    machine: Machine,
    config: Config,
    standing: Standing,
    names: Vec<String>,
    memory: Memory,
    links: BTreeMap<usize, Link>,
    listener: Listener,
    visitors: BTreeMap<u64, Channel>,
    next_visitor: u64,
    sessions: BTreeMap<usize, Session>,
    seats: Vec<Seat>,
    uses: BTreeMap<OpId, Use>,
    effects: VecDeque<Effect>,
    scratch: Vec<Effect>,
    limit_bytes: usize,
    poll: std::os::fd::OwnedFd,
    stop: Stop,
    start: Instant,
    active: Instant,
    left: Option<Instant>,
    metrics: Metrics,
    reporter: Reporter,
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
            config,
            epoch,
            names,
            listener,
            links,
            limit_bytes,
        } = setup;
        config.check()?;
        let machine = Machine::new(config.clone(), Duration::ZERO);
        let memory = Memory::new(
            &machine.receives(),
            &machine.sends(),
            config.slots,
            config.chunk_bytes,
            limit_bytes,
        )?;
        let local = config.layout.local(config.node);
        let standing = Standing {
            attempt: config.fence.attempt,
            epoch,
            node: config.node as u32,
            nodes: config.layout.nodes() as u32,
            local_rank: 0,
            local_world: local as u32,
            rank: config.layout.ranks(config.node).start,
            world: config.layout.world(),
        };
        let failed = |source: rustix::io::Errno| Error::Poll(source.into());
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let engine = Self {
            machine,
            standing,
            names,
            memory,
            links,
            listener,
            visitors: BTreeMap::new(),
            next_visitor: 0,
            sessions: BTreeMap::new(),
            seats: vec![Seat::Free; local],
            uses: BTreeMap::new(),
            effects: VecDeque::new(),
            scratch: Vec::new(),
            limit_bytes,
            poll,
            stop,
            start: Instant::now(),
            active: Instant::now(),
            left: None,
            metrics,
            reporter,
            config,
        };
        engine.watch(&engine.listener, LISTENER).map_err(failed)?;
        engine.watch(engine.stop.bell(), BELL).map_err(failed)?;
        for (peer, link) in &engine.links {
            engine.watch(link, LINK | *peer as u64).map_err(failed)?;
        }
        engine.metrics.peers.set(engine.links.len() as i64);
        Ok(engine)
    }

    /// Serves until it is asked to stop.
    pub fn run(mut self) -> Result<(), Error> {
        self.start = Instant::now();
        self.handle(Input::Tick);
        let mut events = Vec::with_capacity(64);
        loop {
            let mut busy = self.look_at_rings();
            busy |= self.carry_out();
            self.forget_gone();
            if self.has_left() {
                return Ok(());
            }
            let timeout = self.timeout(busy);
            events.clear();
            let capacity = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.poll, capacity, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(source) => return Err(Error::Poll(source.into())),
            }
            for event in &events {
                self.dispatch(event.data.u64());
            }
            if self.now() >= self.machine.wake_at() {
                self.handle(Input::Tick);
                self.count_traffic();
            }
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn watch(&self, source: &impl AsFd, token: u64) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&self.poll, source, data, epoll::EventFlags::IN)
    }

    fn handle(&mut self, input: Input) {
        let now = self.now();
        self.machine.handle(now, input, &mut self.scratch);
        self.effects.extend(self.scratch.drain(..));
    }

    /// How long to sleep: not at all while there is work, and not before spinning for a moment while
    /// somebody waits for an answer.
    fn timeout(&mut self, busy: bool) -> Timespec {
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if busy {
            self.active = Instant::now();
            return none;
        }
        if !self.uses.is_empty() && self.active.elapsed() < SPIN {
            return none;
        }
        let ranks: Vec<usize> = self.sessions.keys().copied().collect();
        for rank in ranks {
            // A rank that may not call more sleeps although its ring is not empty.
            let Some(session) = self.sessions.get(&rank) else {
                continue;
            };
            match session.sleep() {
                Ok(true) => {}
                Ok(false) if !self.may_submit(rank) => {}
                Ok(false) => return none,
                Err(error) => self.lose_session(rank, &error),
            }
        }
        let until = self.machine.wake_at().saturating_sub(self.now());
        let until = match self.left {
            Some(_) => until.min(Duration::from_millis(10)),
            None => until.min(Duration::from_secs(1)),
        };
        // Rounded up, since the kernel counts in milliseconds and waking up early means spinning.
        let until = until + Duration::from_millis(1);
        Timespec {
            tv_sec: until.as_secs().cast_signed(),
            tv_nsec: until.subsec_nanos().into(),
        }
    }

    fn dispatch(&mut self, token: u64) {
        let index = token & !KIND;
        match token & KIND {
            VISITOR => self.greet(index),
            CLIENT => self.hear(index as usize),
            CLIENT_BELL => {
                if let Some(session) = self.sessions.get(&(index as usize)) {
                    session.awake();
                }
            }
            LINK => self.read_link(index as usize),
            _ if token == LISTENER => self.accept(),
            _ => self.stop.bell().clear(),
        }
    }

    // Local processes.

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(None) => {}
            Ok(Some(_)) if self.visitors.len() >= VISITOR_LIMIT => {
                warn!("too many local connections that do not attach");
            }
            Ok(Some(channel)) => {
                let visitor = self.next_visitor;
                self.next_visitor = (visitor + 1) & !KIND;
                if self.watch(&channel, VISITOR | visitor).is_ok() {
                    self.visitors.insert(visitor, channel);
                }
            }
            Err(error) => warn!(%error, "failed to accept a local process"),
        }
    }

    fn greet(&mut self, visitor: u64) {
        let Some(channel) = self.visitors.get(&visitor) else {
            return;
        };
        let message = match channel.receive::<ToSidecar>() {
            Ok(None) => return,
            Ok(Some(message)) => message,
            Err(error) => {
                debug!(%error, "a local connection ended before it attached");
                self.visitors.remove(&visitor);
                return;
            }
        };
        let Some(channel) = self.visitors.remove(&visitor) else {
            return;
        };
        epoll::delete(&self.poll, &channel).ok();
        let reason = match message {
            ToSidecar::Attach {
                version,
                local_rank,
            } if version == attach::VERSION => match self.seat(local_rank as usize) {
                Ok(rank) => return self.welcome(channel, rank),
                Err(reason) => reason,
            },
            ToSidecar::Attach { version, .. } => format!(
                "the client speaks version {version}, this sidecar {}: use the wheel and the sidecar \
                 of one release",
                attach::VERSION
            ),
            ToSidecar::Allocate { .. } | ToSidecar::Free { .. } | ToSidecar::Detach => {
                "the first message must be `attach`".to_owned()
            }
        };
        warn!(reason, "refused a local process");
        channel.send(&ToClient::Refused { reason }, &[]).ok();
    }

    fn seat(&self, rank: usize) -> Result<usize, String> {
        match self.seats.get(rank) {
            Some(Seat::Free) => Ok(rank),
            Some(Seat::Taken) => Err(format!("local rank {rank} is attached already")),
            Some(Seat::Left) => Err(format!(
                "local rank {rank} has attached and left before; the attempt has to start again"
            )),
            None => Err(format!(
                "there is no local rank {rank}: this node has {} processes",
                self.seats.len()
            )),
        }
    }

    fn welcome(&mut self, channel: Channel, rank: usize) {
        let standing = Standing {
            local_rank: rank as u32,
            rank: self.standing.rank + rank as u32,
            ..self.standing
        };
        let session = match Session::welcome(channel, standing, self.limit_bytes) {
            Ok(session) => session,
            Err(error) => {
                warn!(%error, rank, "failed to welcome a local process");
                return;
            }
        };
        let watched = self
            .watch(session.channel(), CLIENT | rank as u64)
            .and_then(|()| self.watch(&session.bell, CLIENT_BELL | rank as u64));
        if let Err(error) = watched {
            warn!(%error, rank, "failed to poll a local process");
            return;
        }
        info!(local_rank = rank, rank = standing.rank, "process attached");
        self.seats[rank] = Seat::Taken;
        self.sessions.insert(rank, session);
        self.metrics.clients.set(self.sessions.len() as i64);
    }

    fn hear(&mut self, rank: usize) {
        let Some(session) = self.sessions.get_mut(&rank) else {
            return;
        };
        match session.hear() {
            Ok(Heard::Nothing) => {}
            Ok(Heard::Detached) => {
                // What it wrote before it left counts.
                self.take_entries(rank);
                let called_any = self.sessions.get(&rank).is_some_and(|s| s.next_op > 0);
                info!(local_rank = rank, "process detached");
                self.close_session(rank);
                // A process that never called anything may come again.
                self.seats[rank] = if called_any { Seat::Left } else { Seat::Free };
                if called_any {
                    self.handle(Input::RankLeft { rank });
                }
            }
            Err(error) => self.lose_session(rank, &error),
        }
    }

    fn lose_session(&mut self, rank: usize, error: &session::Error) {
        if self.sessions.contains_key(&rank) {
            warn!(%error, local_rank = rank, "process lost");
            self.close_session(rank);
            self.seats[rank] = Seat::Left;
            self.handle(Input::RankLost { rank });
        }
    }

    fn close_session(&mut self, rank: usize) {
        let Some(session) = self.sessions.remove(&rank) else {
            return;
        };
        // Dropping does not remove them: the client holds the same open files.
        epoll::delete(&self.poll, session.channel()).ok();
        epoll::delete(&self.poll, &session.bell).ok();
        let held: Vec<OpId> = session.holds().collect();
        for op in held {
            self.let_go(op);
        }
        self.metrics.clients.set(self.sessions.len() as i64);
    }

    fn may_submit(&self, rank: usize) -> bool {
        // A broken epoch answers every call at once.
        self.machine.broken().is_some() || self.machine.may_submit(rank)
    }

    fn look_at_rings(&mut self) -> bool {
        let ranks: Vec<usize> = self.sessions.keys().copied().collect();
        let mut busy = false;
        for rank in ranks {
            busy |= self.take_entries(rank);
        }
        busy
    }

    fn take_entries(&mut self, rank: usize) -> bool {
        let mut any = false;
        while self.may_submit(rank) {
            let Some(session) = self.sessions.get_mut(&rank) else {
                break;
            };
            match session.take() {
                Ok(None) => break,
                Ok(Some(taken)) => {
                    any = true;
                    self.entry(rank, taken);
                }
                Err(error) => {
                    self.lose_session(rank, &error);
                    break;
                }
            }
        }
        any
    }

    fn entry(&mut self, rank: usize, taken: Taken) {
        let (ticket, call, input) = match taken {
            Taken::Release(op) => return self.let_go(op),
            Taken::Call {
                ticket,
                call,
                input,
            } => (ticket, call, input),
        };
        let asked = codec::call_from_wire(&call);
        let accepted = asked
            .check(self.standing.world)
            .map_err(|error| error.to_string())
            .and(input)
            .and_then(|input| {
                self.provide(rank, &asked).map_err(|error| error.to_string())?;
                Ok(input)
            });
        let Some(session) = self.sessions.get_mut(&rank) else {
            return;
        };
        match accepted {
            Err(reason) => {
                self.metrics.failed(&call);
                if let Err(error) = session.fail(ticket, FailureKind::Refused, reason) {
                    self.lose_session(rank, &error);
                }
            }
            Ok(input) => {
                let op = session.accepted(ticket, call, Instant::now());
                let ready = input.as_ref().map_or(0, |input| input.bytes as u64);
                if self.machine.broken().is_none() {
                    self.uses.entry(op).or_default();
                    if let Some(input) = input {
                        self.memory.bring(op, rank, input);
                    }
                }
                let call = asked;
                self.handle(Input::Submit { rank, call, ready });
            }
        }
    }

    /// Memory for the result of the rank's next operation.
    fn provide(&mut self, rank: usize, call: &collective::Call) -> Result<(), memory::PoolError> {
        if self.machine.broken().is_some() {
            return Ok(());
        }
        let op = self.sessions.get(&rank).map_or(0, |session| session.next_op);
        let bytes = call.result_bytes(self.standing.world);
        self.memory.provide(op, usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// A process does not read a result any more.
    fn let_go(&mut self, op: OpId) {
        if let Some(used) = self.uses.get_mut(&op) {
            used.holders = used.holders.saturating_sub(1);
        }
        self.forget_if_unused(op);
    }

    fn forget_if_unused(&mut self, op: OpId) {
        let unused = |used: &Use| used.released && used.holders == 0;
        if self.uses.get(&op).is_some_and(unused) {
            self.uses.remove(&op);
            self.memory.forget_result(op);
        }
    }

    fn forget_gone(&mut self) {
        let gone = self.memory.take_gone();
        if gone.is_empty() {
            return;
        }
        let ranks: Vec<usize> = self.sessions.keys().copied().collect();
        for rank in ranks {
            let Some(session) = self.sessions.get_mut(&rank) else {
                continue;
            };
            let told = gone.iter().try_for_each(|number| session.forget(*number));
            if let Err(error) = told {
                self.lose_session(rank, &error);
            }
        }
    }

    // Peers.

    fn read_link(&mut self, peer: usize) {
        for _ in 0..READ_BUDGET {
            let Self {
                machine,
                memory,
                links,
                ..
            } = self;
            let Some(link) = links.get_mut(&peer) else {
                return;
            };
            let received = link.receive(memory, |fence, frame| machine.place(peer, fence, frame));
            match received {
                Ok(Received::Nothing) => break,
                Ok(Received::Part) => {}
                Ok(Received::Frame(fence, frame)) => {
                    self.handle(Input::Frame { peer, fence, frame });
                }
                Err(error) => {
                    self.lose_link(peer, &error);
                    return;
                }
            }
        }
        self.flush(peer);
    }

    fn flush(&mut self, peer: usize) {
        let Some(link) = self.links.get_mut(&peer) else {
            return;
        };
        let was_blocked = link.blocked;
        let mut left = Vec::new();
        let flushed = link.flush(&self.memory, &mut left);
        let blocked = link.blocked;
        if blocked != was_blocked {
            let flags = if blocked {
                epoll::EventFlags::IN | epoll::EventFlags::OUT
            } else {
                epoll::EventFlags::IN
            };
            let data = epoll::EventData::new_u64(LINK | peer as u64);
            epoll::modify(&self.poll, &*link, data, flags).ok();
        }
        self.done(left);
        if let Err(error) = flushed {
            self.lose_link(peer, &error);
        }
    }

    fn lose_link(&mut self, peer: usize, error: &crate::link::Error) {
        let Some(mut link) = self.links.remove(&peer) else {
            return;
        };
        info!(node = peer, name = self.name(peer), %error, "link ended");
        epoll::delete(&self.poll, &link).ok();
        let mut left = Vec::new();
        link.abandon(&mut left);
        self.metrics.peers.set(self.links.len() as i64);
        self.done(left);
        self.handle(Input::PeerLost { peer });
    }

    fn count_traffic(&mut self) {
        for link in self.links.values_mut() {
            let (sent, received) = std::mem::take(&mut link.traffic);
            self.metrics.sent_bytes.inc_by(sent);
            self.metrics.received_bytes.inc_by(received);
        }
    }

    fn done(&mut self, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.handle(Input::Done { ticket });
        }
    }

    // The machine's wishes.

    /// Carries out some effects. Says whether there were any.
    fn carry_out(&mut self) -> bool {
        let mut any = false;
        for _ in 0..EFFECT_BUDGET {
            let Some(effect) = self.effects.pop_front() else {
                break;
            };
            any = true;
            if let Err(error) = self.effect(effect) {
                // A bug of ours: nobody may be given bytes that are not the result.
                error!(%error, "the machine named memory that is not there; ending the epoch");
                self.handle(Input::Revoke);
            }
        }
        any
    }

    fn effect(&mut self, effect: Effect) -> Result<(), OutOfBounds> {
        match effect {
            Effect::Send {
                peer,
                frame,
                payload,
            } => {
                let fence = self.config.fence;
                match self.links.get_mut(&peer).map(|link| link.push(fence, &frame, payload)) {
                    Some(Ok(())) => self.flush(peer),
                    Some(Err(error)) => self.lose_link(peer, &error),
                    // The peer is gone: what was meant for it has left.
                    None => self.done(payload.into_iter().map(|(ticket, _)| ticket).collect()),
                }
            }
            Effect::Reduce {
                ticket,
                op,
                dtype,
                divisor,
                sources,
                destination,
            } => {
                self.memory.write(&destination, |into, memory| {
                    let sources: Vec<&[u8]> =
                        sources.iter().map(|source| memory.read(source)).collect::<Result<_, _>>()?;
                    kernels::reduce(dtype, op, into, &sources, divisor);
                    Ok::<(), OutOfBounds>(())
                })??;
                self.moved(&destination, sources.len());
                self.handle(Input::Done { ticket });
            }
            Effect::Copy {
                ticket,
                source,
                destination,
            } => {
                self.memory.write(&destination, |into, memory| {
                    let from = memory.read(&source)?;
                    if from.len() != into.len() {
                        return Err(OutOfBounds::from(source));
                    }
                    into.copy_from_slice(from);
                    Ok(())
                })??;
                self.moved(&destination, 1);
                self.handle(Input::Done { ticket });
            }
            Effect::End { op, rank, outcome } => self.end(op, rank, outcome),
            Effect::Release { op } => {
                self.memory.forget_inputs(op);
                self.uses.entry(op).or_default().released = true;
                self.forget_if_unused(op);
            }
            Effect::Suspect { peer, silent } => {
                self.metrics.suspects.inc();
                let name = self.name(peer).to_owned();
                warn!(node = peer, name, ?silent, "suspect: nothing is heard from it");
                self.suspect(
                    peer,
                    SuspectReason::Frozen,
                    format!("node {peer} ({name}) has been silent for {silent:?}"),
                );
            }
            Effect::Recovered { peer } => {
                info!(node = peer, name = self.name(peer), "a suspect was heard again");
                self.reporter.send(Report::Recovered { node: peer as u32 });
            }
            Effect::Late { op, ranks } => {
                for rank in ranks {
                    let global = self.standing.rank + rank as u32;
                    warn!(operation = op, rank = global, "others wait for this rank to call");
                    self.metrics.late.with_label_values(&[&rank.to_string()]).inc();
                }
            }
            Effect::Broken { broken } => self.broken(broken),
        }
        Ok(())
    }

    fn moved(&self, destination: &Region, sources: usize) {
        self.metrics.reduced_bytes.inc_by(destination.bytes * (sources as u64 + 1));
    }

    fn end(&mut self, op: OpId, rank: usize, outcome: Result<(), Cause>) {
        let text = outcome.err().map(|cause| self.text(&cause));
        let Some(session) = self.sessions.get_mut(&rank) else {
            return;
        };
        let Some(called) = session.ended(op) else {
            return;
        };
        let told = match (outcome, text) {
            (Err(cause), Some(text)) => {
                self.metrics.failed(&called.call);
                let kind = match cause {
                    Cause::Mismatch(_) => FailureKind::Mismatch,
                    Cause::Broken(_) => FailureKind::Broken,
                };
                session.fail(called.ticket, kind, text)
            }
            (Ok(()), _) | (Err(_), None) => {
                self.metrics.succeeded(&called.call, called.since.elapsed());
                let bytes = result_bytes(&called, session.standing());
                let result = self.memory.result(op).filter(|_| bytes > 0);
                self.uses.entry(op).or_default().holders += 1;
                session.succeed(op, &called, result.map(|result| (result, bytes)))
            }
        };
        if let Err(error) = told {
            self.lose_session(rank, &error);
        }
    }

    fn broken(&mut self, broken: Broken) {
        let detail = self.text(&Cause::Broken(broken));
        error!(cause = detail, "the epoch is over");
        let reason = match broken {
            Broken::NodeLost { .. } => SuspectReason::Dead,
            Broken::NodeSilent { .. } => SuspectReason::Silent,
            // The operator hears of these from the pods themselves.
            Broken::NodeLeft { .. }
            | Broken::RankLost { .. }
            | Broken::RankLeft { .. }
            | Broken::Protocol { .. }
            | Broken::Revoked => return,
        };
        if let Some(node) = broken.node().filter(|node| *node != self.config.node) {
            self.suspect(node, reason, detail);
        }
    }

    fn suspect(&self, node: usize, reason: SuspectReason, detail: String) {
        let node = node as u32;
        self.reporter.send(Report::Suspect {
            node,
            reason,
            detail,
        });
    }

    /// A cause in words, with the name of the node to look at.
    fn text(&self, cause: &Cause) -> String {
        let node = match cause {
            Cause::Mismatch(_) => None,
            Cause::Broken(broken) => broken.node(),
        };
        match node {
            Some(node) if !self.name(node).is_empty() => {
                format!("{cause}; node {node} is {}", self.name(node))
            }
            Some(_) | None => cause.to_string(),
        }
    }

    fn name(&self, node: usize) -> &str {
        self.names.get(node).map_or("", String::as_str)
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
        let said = self.effects.is_empty() && self.links.values().all(Link::is_flushed);
        said && self.has_said_farewell() || since.elapsed() > FAREWELL
    }

    fn has_said_farewell(&self) -> bool {
        self.uses.values().all(|used| used.released) || self.machine.broken().is_some()
    }
}

/// Bytes of a result that this process is entitled to.
fn result_bytes(called: &Called, standing: Standing) -> u64 {
    let only_root = called.call.kind == wire::OpKind::Reduce;
    if only_root && called.call.root != standing.rank {
        return 0;
    }
    codec::call_from_wire(&called.call).result_bytes(standing.world)
}
