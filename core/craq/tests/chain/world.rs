//! Everything around the members: processes and their stores, links, the chain manager, clients, and the faults.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use craq::{
    ChainMember, ChainRefusal, ChainRequest, ChunkId, ClientInput, Effect, Input, Message, Place,
    Reply, SessionId, Table, TargetId, Version,
};
use sim::history::linearize;
use sim::{Conditions, Hosts, Rng, Simulation, To};

use crate::clients::{Client, Line};
use crate::faults::{Fault, Phase};
use crate::history::{Answer, Call};
use crate::store::{Durable, Store};

pub(crate) const MS: Duration = Duration::from_millis(1);
/// Faults happen until then.
const FAULTS_END: Duration = Duration::from_millis(1500);
/// All is over long before, or never.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
pub(crate) const CHUNKS: u64 = 3;
const CLIENTS: usize = 5;

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Start(usize),
    Register(usize),
    Table(usize, Table),
    Connect(usize, usize),
    Message {
        to: usize,
        from: usize,
        link: u64,
        version: u64,
        message: Message<Vec<u8>>,
    },
    Flush(usize),
    Loaded(usize, ChunkId, Version, Vec<u8>),
    Damaged(usize, ChunkId),
    Request(Line, u64, ChainRequest<Vec<u8>>),
    Answer(Line, Result<(Version, Answer), ChainRefusal>),
    Ask(usize),
    ClientTable(usize, SessionId, Table),
    Dial(usize, usize),
    Redial(usize, usize),
    Tick(usize),
    Fault,
    Heal(Fault, usize, usize),
}

pub(crate) struct World {
    pub(crate) hosts: Hosts<Event>,
    pub(crate) rng: Rng,
    pub(crate) members: Vec<Option<ChainMember<Vec<u8>>>>,
    pub(crate) stores: Vec<Store>,
    lives: Vec<u64>,
    flushing: BTreeSet<usize>,
    /// How long a flush takes at most, on each host.
    flush_times: Vec<Duration>,
    /// Numbers of the connections between members.
    links: BTreeMap<(usize, usize), u64>,
    /// The chain manager's.
    pub(crate) table: Table,
    pub(crate) clients: Vec<Client>,
    sessions: u64,
    /// Numbers of the connections between clients and members.
    pub(crate) client_links: BTreeMap<(usize, usize), u64>,
    /// Requests that arrived at members.
    pub(crate) lines: Vec<Line>,
    pub(crate) bytes: u8,
    pub(crate) is_removed: bool,
    moments: u64,
    pub(crate) calls: Vec<Option<Call>>,
    /// What goes wrong in this run: few kinds of faults meet each other more often.
    faults: Vec<Fault>,
    pub(crate) met: Vec<(Fault, Phase)>,
    /// Contents that could not be written, because what they build on has rotted.
    pub(crate) lost: u64,
}

impl World {
    pub(crate) fn new(rng: &mut Rng) -> Self {
        let count = if rng.chance(1, 8) {
            1 + rng.below(4)
        } else {
            3
        };
        let mut conditions = Conditions::reliable();
        conditions.slow_per_mille = *rng.pick(&[0, 5, 50]);
        let mut world = Self {
            hosts: Hosts::new(rng, count, conditions),
            rng: rng.fork(),
            members: (0..count).map(|_| None).collect(),
            stores: (0..count).map(|_| Store::default()).collect(),
            lives: vec![0; count],
            flushing: BTreeSet::new(),
            flush_times: (0..count)
                .map(|_| *rng.pick(&[MS, 5 * MS, 60 * MS]))
                .collect(),
            links: BTreeMap::new(),
            table: Table::default(),
            clients: Vec::new(),
            sessions: 0,
            client_links: BTreeMap::new(),
            lines: Vec::new(),
            bytes: 0,
            is_removed: false,
            moments: 0,
            calls: Vec::new(),
            faults: (0..1 + rng.below(4))
                .map(|_| *rng.pick(&Fault::ALL))
                .collect(),
            met: Vec::new(),
            lost: 0,
        };
        for host in 0..count {
            let target = TargetId(host as u128);
            world.table.members.push(Place { target, life: 0 });
            world
                .hosts
                .within(MS..20 * MS, To::World, Event::Start(host));
        }
        for client in 0..CLIENTS {
            let session = world.open_session();
            world.clients.push(Client::new(session));
            (0..count).for_each(|host| world.dial_soon(client, host));
            world
                .hosts
                .within(MS..50 * MS, To::World, Event::Ask(client));
            world
                .hosts
                .within(MS..10 * MS, To::World, Event::Tick(client));
        }
        world.broadcast();
        for _ in 0..world.rng.below(12) {
            world.hosts.within(MS..FAULTS_END, To::World, Event::Fault);
        }
        world
    }

    pub(crate) fn run(&mut self) {
        let is_over = |world: &Self| {
            let is_well = |member: &Option<ChainMember<_>>| {
                member
                    .as_ref()
                    .is_some_and(|member| member.is_complete() && member.dirty_chunks() == 0)
            };
            world.clients.iter().all(Client::is_over) && world.members.iter().all(is_well)
        };
        self.run_until(FAULTS_END);
        assert!(
            self.run_while(LIMIT, 20, |world| !is_over(world)),
            "CRAQ-7: it does not end"
        );
        self.read_everything();
        let is_read = |world: &Self| world.clients.iter().all(Client::is_over);
        assert!(
            self.run_while(LIMIT, 20, |world| !is_read(world)),
            "CRAQ-7: a read does not end"
        );
        let first = self.stores[0].committed();
        for store in &self.stores[1..] {
            assert_eq!(store.committed(), first, "CRAQ-3: members differ");
        }
        let calls: Vec<Call> = self.calls.iter().flatten().cloned().collect();
        if let Err(unexplained) = linearize(&calls) {
            panic!("CRAQ-2: chunk {}:\n{}", unexplained.key, unexplained.calls);
        }
    }

    pub(crate) fn moment(&mut self) -> u64 {
        self.moments += 1;
        self.moments
    }

    fn broadcast(&mut self) {
        self.table.revision += 1;
        for host in 0..self.members.len() {
            let event = Event::Table(host, self.table.clone());
            self.hosts.within(MS..15 * MS, To::Process(host), event);
        }
        for client in 0..self.clients.len() {
            let session = self.clients[client].session;
            let event = Event::ClientTable(client, session, self.table.clone());
            self.hosts.within(MS..15 * MS, To::World, event);
        }
    }

    fn open_session(&mut self) -> SessionId {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        self.table.sessions.insert(session);
        self.broadcast();
        session
    }

    fn phase(&self) -> Phase {
        let members = || self.members.iter().flatten();
        if !members().all(|member| member.is_complete()) || members().count() < self.members.len() {
            Phase::CatchUp
        } else if members().any(|member| member.dirty_chunks() > 0) {
            Phase::Dirty
        } else {
            Phase::Clean
        }
    }

    pub(crate) fn input(&mut self, host: usize, input: Input<Vec<u8>>) {
        let Some(member) = &mut self.members[host] else {
            return;
        };
        self.hosts.note((host, &input));
        let mut effects = Vec::new();
        member.handle(input, &mut self.stores[host], &mut effects);
        for effect in effects {
            self.hosts.note((host, "->", &effect));
            self.carry_out(host, effect);
        }
        self.flush(host);
    }

    pub(crate) fn damaged(&mut self, host: usize, chunk: ChunkId) {
        self.stores[host].notice(chunk);
        self.input(host, Input::Damaged { chunk });
    }

    fn flush(&mut self, host: usize) {
        if self.stores[host].unflushed() > 0 && self.flushing.insert(host) {
            let time = MS / 10..self.flush_times[host];
            self.hosts
                .within(time, To::Process(host), Event::Flush(host));
        }
    }

    fn carry_out(&mut self, host: usize, effect: Effect<Vec<u8>>) {
        match effect {
            Effect::Send {
                to,
                version,
                message,
            } => {
                let to = to.0 as usize;
                let link = self.link(host, to);
                let event = Event::Message {
                    to,
                    from: host,
                    link,
                    version,
                    message,
                };
                self.hosts.send(host, to, To::Process(to), &event);
            }
            Effect::Load { chunk, version } => {
                let event = match self.stores[host].read(chunk, version) {
                    Some(bytes) => Event::Loaded(host, chunk, version, bytes),
                    None => Event::Damaged(host, chunk),
                };
                self.hosts.within(MS / 10..2 * MS, To::Process(host), event);
            }
            Effect::Serve {
                reader,
                chunk,
                version,
            } => match self.stores[host].read(chunk, version) {
                Some(bytes) => self.answer(reader.client, Ok((version, Some(bytes)))),
                None => {
                    self.answer(reader.client, Err(ChainRefusal::Damaged));
                    self.hosts.after(
                        Duration::ZERO,
                        To::Process(host),
                        Event::Damaged(host, chunk),
                    );
                }
            },
            Effect::Answer { client, reply } => match reply {
                Reply::Done => self.answer(client, Ok((Version::NONE, None))),
                Reply::Refused(why) => self.answer(client, Err(why)),
            },
            Effect::Broken { chunk, why } => panic!("{chunk:?} at {host}: {why}"),
        }
    }

    fn link(&self, one: usize, other: usize) -> u64 {
        let pair = (one.min(other), one.max(other));
        self.links.get(&pair).copied().unwrap_or_default()
    }

    /// The connection ends; a new one comes soon, if it can.
    fn reconnect(&mut self, one: usize, other: usize) {
        if one != other {
            let pair = (one.min(other), one.max(other));
            *self.links.entry(pair).or_default() += 1;
            self.hosts
                .within(MS..10 * MS, To::World, Event::Connect(one, other));
        }
    }

    fn reconnect_all(&mut self, host: usize) {
        (0..self.members.len()).for_each(|other| self.reconnect(host, other));
    }

    fn kill(&mut self, host: usize) {
        if self.members[host].take().is_some() {
            self.hosts.note(("kill", host));
            self.hosts.kill(host);
            self.flushing.remove(&host);
            self.stores[host].crash(&mut self.rng);
            self.reconnect_all(host);
            (0..self.clients.len()).for_each(|client| self.redial(client, host));
            self.hosts
                .within(5 * MS..200 * MS, To::World, Event::Start(host));
        }
    }

    fn start(&mut self, host: usize) {
        if self.members[host].is_some() {
            return;
        }
        self.hosts.start(host);
        self.lives[host] += 1;
        let me = Place {
            target: TargetId(host as u128),
            life: self.lives[host],
        };
        self.members[host] = Some(ChainMember::new(me, &self.stores[host]));
        self.reconnect_all(host);
        self.hosts
            .within(MS..20 * MS, To::Process(host), Event::Register(host));
    }

    /// The chain manager sees a new life of a member.
    fn register(&mut self, host: usize) {
        self.table.members[host].life = self.lives[host];
        self.table.version += 1;
        self.broadcast();
    }

    fn durable(&mut self, host: usize) {
        self.flushing.remove(&host);
        let count = 1 + self.rng.below(self.stores[host].unflushed().max(1));
        for durable in self.stores[host].flush(count) {
            let input = match durable {
                Durable::Prepared(chunk, version) => Input::Durable { chunk, version },
                Durable::Discarded(chunk, version) => Input::Discarded { chunk, version },
                Durable::Lost(chunk, version) => {
                    self.lost += 1;
                    Input::Lost { chunk, version }
                }
            };
            self.input(host, input);
        }
        self.flush(host);
    }

    fn fault(&mut self) {
        let fault = *self.rng.pick(&self.faults);
        let phase = self.phase();
        let count = self.members.len();
        let (one, other) = (self.rng.below(count), self.rng.below(count));
        let later = self.hosts.draw(20 * MS..300 * MS);
        match fault {
            Fault::Head => self.kill(0),
            Fault::Middle if count < 3 => return,
            Fault::Middle => self.kill(1),
            Fault::Tail => self.kill(count - 1),
            Fault::Two => {
                self.kill(one);
                self.kill(other);
            }
            Fault::All => (0..count).for_each(|host| self.kill(host)),
            Fault::Link if one == other => return,
            Fault::Link => {
                self.hosts.network.cut(one, other);
                self.reconnect(one, other);
            }
            Fault::Connection if one == other => return,
            Fault::Connection => self.reconnect(one, other),
            Fault::Frozen => self.hosts.freeze(one),
            Fault::Client => self.end_client(),
            Fault::Full => self.stores[one].is_full = true,
            Fault::Rot => {
                // The last good copy is not spoiled.
                let is_elsewhere = |(chunk, version): &(ChunkId, Version)| {
                    let others = self
                        .stores
                        .iter()
                        .enumerate()
                        .filter(|(host, _)| *host != one);
                    others
                        .into_iter()
                        .any(|(_, store)| store.keeps(*chunk, *version))
                };
                let mut contents = self.stores[one].bytes_that_can_rot();
                contents.retain(is_elsewhere);
                if contents.is_empty() || self.is_any_damaged() {
                    return;
                }
                let (chunk, _) = *self.rng.pick(&contents);
                self.stores[one].rot(chunk);
            }
        }
        self.hosts.note((fault, phase, one, other));
        self.met.push((fault, phase));
        if matches!(fault, Fault::Link | Fault::Frozen | Fault::Full) {
            self.hosts
                .after(later, To::World, Event::Heal(fault, one, other));
        }
    }

    fn is_any_damaged(&self) -> bool {
        let chunks = (0..CHUNKS).map(|index| ChunkId { file: 1, index });
        let is_damaged = |store: &Store, chunk| store.is_rotten(chunk);
        chunks
            .into_iter()
            .any(|chunk| self.stores.iter().any(|store| is_damaged(store, chunk)))
    }

    fn end_client(&mut self) {
        let client = self.rng.below(CLIENTS);
        let ended = self.clients[client].session;
        self.table.sessions.remove(&ended);
        let session = self.open_session();
        self.clients[client].replace(session);
        self.broadcast();
        for host in 0..self.members.len() {
            self.redial(client, host);
        }
        self.hosts
            .within(MS..60 * MS, To::World, Event::Ask(client));
    }

    fn heal(&mut self, fault: Fault, one: usize, other: usize) {
        match fault {
            Fault::Link => {
                for (one, other) in self.hosts.network.heal() {
                    self.reconnect(one, other);
                }
                self.reconnect(one, other);
            }
            Fault::Frozen => self.hosts.thaw(one),
            Fault::Full => self.stores[one].is_full = false,
            Fault::Head
            | Fault::Middle
            | Fault::Tail
            | Fault::Two
            | Fault::All
            | Fault::Connection
            | Fault::Client
            | Fault::Rot => {}
        }
    }
}

impl Simulation for World {
    type Event = Event;

    fn hosts(&mut self) -> &mut Hosts<Event> {
        &mut self.hosts
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Start(host) => self.start(host),
            Event::Register(host) => self.register(host),
            Event::Table(host, table) => self.input(host, Input::Table(table)),
            Event::Connect(one, other) => {
                if !self.hosts.network.is_cut(one, other) {
                    self.input(one, Input::Connected(TargetId(other as u128)));
                    self.input(other, Input::Connected(TargetId(one as u128)));
                }
            }
            Event::Message {
                to,
                from,
                link,
                version,
                message,
            } => {
                if self.link(from, to) == link {
                    let from = TargetId(from as u128);
                    let input = Input::Message {
                        from,
                        version,
                        message,
                    };
                    self.input(to, input);
                }
            }
            Event::Flush(host) => self.durable(host),
            Event::Loaded(host, chunk, version, content) => {
                let input = Input::Loaded {
                    chunk,
                    version,
                    content,
                };
                self.input(host, input);
            }
            Event::Damaged(host, chunk) => self.damaged(host, chunk),
            Event::Request(line, version, request) => self.requested(line, version, request),
            Event::Answer(line, answer) => self.answered(line, answer),
            Event::Ask(client) => self.ask(client),
            Event::ClientTable(client, session, table) => {
                if self.clients[client].session == session {
                    self.client_input(client, ClientInput::Table(table));
                }
            }
            Event::Dial(client, host) => self.dial(client, host),
            Event::Redial(client, call) => self.redial_if_waiting(client, call),
            Event::Tick(client) => self.tick(client),
            Event::Fault => self.fault(),
            Event::Heal(fault, one, other) => self.heal(fault, one, other),
        }
    }
}
