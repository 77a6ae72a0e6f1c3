//! One sidecar and the processes of its node: dials the leader, stops, reports, asks whom it reaches, joins, goes. A
//! restart loses all of it; its processes attach again and call again what they were not told the end of.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use collective::machine::{
    Buffer, Config, Fence, Frame, Input, Machine, OpId, Placement, Start, Timing, WORLD,
};
use collective::membership::{
    Connection, Endpoint, Event as Heard, Message, Reach, Refusal, probes,
};
use collective::recovery::{GroupReport, Report, Resume};
use collective::{DType, DoubleTree};
use sim::Rng;

use crate::world::{ATTEMPT, Event, MS, World};

/// A frame and its payload, or the end of the link.
type Item = (u64, Option<(Fence, Frame, Option<Vec<u8>>)>);

#[derive(Debug)]
pub(crate) struct Joining {
    epoch: u64,
    members: Vec<usize>,
    resume: Resume,
}

#[derive(Debug, Default)]
pub(crate) struct Sidecar {
    pub(crate) alive: bool,
    /// Counts its restarts.
    pub(crate) life: u64,
    pub(crate) frozen: bool,
    pub(crate) deferred: Vec<Event>,
    pub(crate) machine: Option<Machine>,
    /// Of the machine.
    pub(crate) epoch: u64,
    pub(crate) members: Vec<usize>,
    /// Told to go.
    pub(crate) started: bool,
    /// What it reports once it has stopped.
    pub(crate) report: Option<Report>,
    /// The last epoch that it has stopped in.
    asked: u64,
    pub(crate) joining: Option<Joining>,
    pub(crate) memory: BTreeMap<Buffer, Vec<u8>>,
    pub(crate) released: BTreeSet<OpId>,
    incoming: BTreeMap<usize, VecDeque<Item>>,
    reading: BTreeSet<usize>,
    /// How many of each rank's calls the machine has.
    submitted: Vec<usize>,
    attached: usize,
    connection: Option<(u64, Connection)>,
    /// What it has said of whom it reaches, and since when it asks.
    said: Option<Reach>,
    asks_since: Option<Duration>,
    known: Vec<u32>,
    /// The others went on without it.
    pub(crate) is_out: bool,
    tick: Option<Duration>,
}

impl Sidecar {
    pub(crate) fn new(local: usize) -> Self {
        Self {
            submitted: vec![0; local],
            ..Self::default()
        }
    }
}

impl World {
    /// A sidecar starts, for the first time or again.
    pub(crate) fn boot(&mut self, node: usize) {
        if self.gone_for_good.contains(&node) || self.sidecars[node].alive {
            return;
        }
        let life = self.sidecars[node].life + 1;
        self.sidecars[node] = Sidecar {
            alive: true,
            life,
            ..Sidecar::new(self.setup.layout.local(node))
        };
        for _ in self.setup.layout.ranks(node) {
            let delay = self.a_while(MS, 50 * MS);
            self.queue.after(delay, Event::Attach { node, life });
        }
        self.dial_soon(node);
        self.queue.after(1000 * MS, Event::Heartbeat { node, life });
    }

    /// The process is gone, with all that it knew.
    pub(crate) fn kill_sidecar(&mut self, node: usize) {
        if !self.sidecars[node].alive {
            return;
        }
        self.close_links(node);
        self.close_operator(node);
        let sidecar = &mut self.sidecars[node];
        *sidecar = Sidecar {
            life: sidecar.life + 1,
            ..Sidecar::new(self.setup.layout.local(node))
        };
    }

    /// All links of the epoch close, as the peers see it.
    fn close_links(&mut self, node: usize) {
        let epoch = self.sidecars[node].epoch;
        for peer in self.peers(node) {
            if !self.is_cut(node, peer) {
                self.lose_link(peer, node, epoch);
            }
        }
    }

    /// The nodes that its machine has links to.
    fn peers(&self, node: usize) -> Vec<usize> {
        let sidecar = &self.sidecars[node];
        let peers = sidecar.machine.iter().flat_map(Machine::peers);
        peers.map(|peer| sidecar.members[peer]).collect()
    }

    pub(crate) fn kill_rank(&mut self, rank: u32) {
        let node = self.setup.layout.node_of(rank);
        self.clients[rank as usize].alive = false;
        let local = (rank - self.setup.layout.ranks(node).start) as usize;
        if self.sidecars[node].alive && !self.sidecars[node].frozen {
            self.handle(node, Input::RankLost { rank: local });
            self.report(node, |connection| Heard::RankLost { connection });
        }
    }

    pub(crate) fn kill_node(&mut self, node: usize) {
        self.gone_for_good.insert(node);
        for rank in self.setup.layout.ranks(node) {
            self.clients[rank as usize].alive = false;
        }
        self.kill_sidecar(node);
    }

    pub(crate) fn freeze(&mut self, node: usize) {
        self.sidecars[node].frozen = true;
    }

    pub(crate) fn thaw(&mut self, node: usize) {
        self.sidecars[node].frozen = false;
        for event in std::mem::take(&mut self.sidecars[node].deferred) {
            self.queue.after(Duration::ZERO, event);
        }
        for rank in self.setup.layout.ranks(node) {
            if !self.clients[rank as usize].alive {
                self.kill_rank(rank);
            }
        }
    }

    pub(crate) fn attach(&mut self, node: usize, life: u64) {
        if self.sidecars[node].life != life {
            return;
        }
        self.sidecars[node].attached += 1;
        if self.sidecars[node].attached < self.setup.layout.local(node) {
            return;
        }
        for rank in self.setup.layout.ranks(node) {
            self.call_soon(rank);
        }
        if self.sidecars[node].asked > 0 {
            self.say_stopped(node);
        }
    }

    // ---- the leader

    fn dial_soon(&mut self, node: usize) {
        let delay = self.a_while(10 * MS, 600 * MS);
        let life = self.sidecars[node].life;
        self.queue.after(delay, Event::Dial { node, life });
    }

    pub(crate) fn dial(&mut self, node: usize, life: u64) {
        let operator = self.operator();
        let sidecar = &self.sidecars[node];
        if sidecar.life != life || sidecar.connection.is_some() || sidecar.is_out {
            return;
        }
        let cut = self.is_cut(node, operator);
        let Some(leader) = self.leader.as_mut().filter(|_| !cut) else {
            self.dial_soon(node);
            return;
        };
        self.connections += 1;
        let connection = Connection(self.connections);
        leader.connections.insert(connection, node);
        let id = leader.id;
        self.sidecars[node].connection = Some((id, connection));
        let joined = Some(self.sidecars[node].epoch).filter(|&epoch| epoch > 0);
        let hello = Heard::Hello {
            connection,
            rank: node as u32,
            endpoint: endpoint(node),
            joined,
        };
        self.tell_leader(node, id, hello);
        let dead = |rank: u32| !self.clients[rank as usize].alive;
        if self.setup.layout.ranks(node).any(dead) {
            self.report(node, |connection| Heard::RankLost { connection });
        }
        self.sidecars[node].said = None;
        self.say_stopped(node);
    }

    /// Says something on the connection that stands.
    pub(crate) fn report(&mut self, node: usize, heard: impl Fn(Connection) -> Heard) {
        if let Some((leader, connection)) = self.sidecars[node].connection {
            self.tell_leader(node, leader, heard(connection));
        }
    }

    pub(crate) fn heartbeat(&mut self, node: usize, life: u64) {
        if self.sidecars[node].life != life {
            return;
        }
        self.report(node, |connection| Heard::Heartbeat {
            connection,
            progress: None,
        });
        self.queue.after(1000 * MS, Event::Heartbeat { node, life });
    }

    pub(crate) fn hung_up(&mut self, node: usize, connection: Connection) {
        if self.sidecars[node]
            .connection
            .is_some_and(|(_, mine)| mine == connection)
        {
            self.sidecars[node].connection = None;
            self.dial_soon(node);
        }
    }

    pub(crate) fn obey(&mut self, node: usize, connection: Connection, message: Message) {
        let sidecar = &mut self.sidecars[node];
        if sidecar
            .connection
            .is_none_or(|(_, mine)| mine != connection)
        {
            return;
        }
        match message {
            Message::Roster { epoch, endpoints } => {
                let members = (0..endpoints.len()).collect();
                self.begin_to_join(node, epoch, members, Vec::new());
            }
            Message::Next {
                epoch,
                members,
                resume,
            } => {
                let members = members.iter().map(|&(rank, _)| rank as usize).collect();
                self.begin_to_join(node, epoch, members, resume);
            }
            Message::Go { epoch } => {
                if sidecar.epoch == epoch && sidecar.report.is_none() && !sidecar.started {
                    sidecar.started = true;
                    self.pump_all(node);
                }
            }
            Message::Revoke { epoch, members } => {
                sidecar.known = members.iter().map(|&(rank, _)| rank).collect();
                self.stop(node, epoch);
            }
            Message::Refused(Refusal::Out { .. }) => self.put_out(node),
            Message::Refused(_) => {
                self.sidecars[node].connection = None;
                self.dial_soon(node);
            }
        }
    }

    /// The others go on without this node: its processes are told that there is nothing to wait for.
    fn put_out(&mut self, node: usize) {
        self.close_links(node);
        let sidecar = &mut self.sidecars[node];
        sidecar.is_out = true;
        sidecar.machine = None;
        sidecar.joining = None;
        sidecar.connection = None;
        sidecar.asks_since = None;
        for rank in self.setup.layout.ranks(node) {
            self.clients[rank as usize].out = true;
        }
    }

    // ---- the end of an epoch

    pub(crate) fn machine_stopped(&mut self, node: usize, report: Report) {
        let sidecar = &mut self.sidecars[node];
        sidecar.asked = sidecar.asked.max(sidecar.epoch);
        sidecar.report = Some(report);
        self.ask_around(node);
    }

    fn stop(&mut self, node: usize, epoch: u64) {
        let sidecar = &mut self.sidecars[node];
        if epoch < sidecar.asked || epoch < sidecar.epoch {
            return; // From before what it has joined since.
        }
        sidecar.asked = epoch;
        if sidecar
            .joining
            .as_ref()
            .is_some_and(|joining| joining.epoch <= epoch)
        {
            sidecar.joining = None;
        }
        sidecar.said = None;
        if sidecar.machine.is_some() && sidecar.report.is_none() {
            self.handle(node, Input::Revoke);
            return;
        }
        self.ask_around(node);
    }

    fn ask_around(&mut self, node: usize) {
        let (now, life) = (self.now(), self.sidecars[node].life);
        if self.sidecars[node].asks_since.replace(now).is_none() {
            self.queue.after(2 * MS, Event::Probe { node, life });
        }
    }

    pub(crate) fn probe(&mut self, node: usize, life: u64) {
        if self.sidecars[node].life != life || self.sidecars[node].asks_since.is_none() {
            return;
        }
        self.say_stopped(node);
        let life = self.sidecars[node].life;
        let soon = self.now() < self.sidecars[node].asks_since.unwrap() + 260 * MS;
        let pause = if soon { 50 * MS } else { 200 * MS };
        self.queue.after(pause, Event::Probe { node, life });
    }

    fn reach(&self, node: usize) -> Reach {
        let sidecar = &self.sidecars[node];
        let members: Vec<u32> = if sidecar.members.is_empty() {
            sidecar.known.clone()
        } else {
            sidecar.members.iter().map(|&node| node as u32).collect()
        };
        let answers = |&other: &u32| {
            let peer = &self.sidecars[other as usize];
            peer.alive && !peer.frozen && !peer.is_out && !self.is_cut(node, other as usize)
        };
        let (reached, unreached) = probes(&members, node as u32).into_iter().partition(answers);
        Reach { reached, unreached }
    }

    /// Reports, when all processes are there and those that were asked have answered or had the time to; again when
    /// it has changed whom this node reaches.
    fn say_stopped(&mut self, node: usize) {
        let sidecar = &self.sidecars[node];
        let waits = sidecar.attached < self.setup.layout.local(node);
        let Some(since) = sidecar.asks_since.filter(|_| !waits) else {
            return;
        };
        let told = self
            .setup
            .layout
            .ranks(node)
            .map(|rank| self.clients[rank as usize].outcomes.len() as OpId);
        let forgot = || {
            vec![GroupReport {
                group: WORLD,
                told_all: told.clone().min().unwrap_or(0),
                told_any: told.clone().max().unwrap_or(0),
                held: Vec::new(),
            }]
        };
        let report = sidecar.report.clone().unwrap_or_else(forgot);
        let reach = self.reach(node);
        let early = self.now() < since + 250 * MS;
        if sidecar.said.as_ref() == Some(&reach) || early && !reach.unreached.is_empty() {
            return;
        }
        let epoch = sidecar.asked;
        if sidecar.connection.is_none() {
            return;
        }
        self.sidecars[node].said = Some(reach.clone());
        self.report(node, |connection| Heard::Stopped {
            connection,
            epoch,
            report: report.clone(),
            reach: reach.clone(),
        });
    }

    // ---- the next epoch

    fn begin_to_join(&mut self, node: usize, epoch: u64, members: Vec<usize>, resume: Resume) {
        let sidecar = &mut self.sidecars[node];
        if sidecar.epoch == epoch && sidecar.machine.is_some() {
            self.report(node, |connection| Heard::Joined { connection, epoch });
            return;
        }
        let pending = sidecar.joining.as_ref().map_or(0, |joining| joining.epoch);
        if epoch <= sidecar.epoch.max(sidecar.asked).max(pending) {
            return;
        }
        if sidecar.machine.is_some() && sidecar.report.is_none() {
            // Before the start nothing was done that a report could tell.
            assert!(!sidecar.started, "who goes on has stopped");
            self.handle(node, Input::Revoke);
        }
        let sidecar = &mut self.sidecars[node];
        sidecar.asks_since = None;
        sidecar.joining = Some(Joining {
            epoch,
            members,
            resume,
        });
        let life = sidecar.life;
        self.queue.after(MS, Event::Join { node, life, epoch });
    }

    /// Connects to the neighbours of the epoch, as far as they are there.
    pub(crate) fn join(&mut self, node: usize, life: u64, epoch: u64) {
        let sidecar = &self.sidecars[node];
        if sidecar.life != life {
            return;
        }
        let Some(joining) = sidecar
            .joining
            .as_ref()
            .filter(|joining| joining.epoch == epoch)
        else {
            return;
        };
        let idle = sidecar.machine.as_ref().is_none_or(Machine::is_idle);
        let zones: Vec<u64> = joining
            .members
            .iter()
            .map(|&member| self.setup.zones[member])
            .collect();
        let trees = DoubleTree::build(&zones);
        let me = joining.members.binary_search(&node).unwrap();
        let is_there = |peer: usize| {
            let peer = joining.members[peer];
            let other = &self.sidecars[peer];
            let joins = other
                .joining
                .as_ref()
                .is_some_and(|joining| joining.epoch == epoch);
            let there = joins || other.epoch == epoch && other.machine.is_some();
            there && !other.frozen && !self.is_cut(node, peer)
        };
        let all = trees.neighbours(me).into_iter().all(is_there);
        if !idle || !sidecar.reading.is_empty() || !all {
            let pause = if idle { 10 * MS } else { MS };
            self.queue.after(pause, Event::Join { node, life, epoch });
            return;
        }
        self.build(node, trees, me);
        self.report(node, |connection| Heard::Joined { connection, epoch });
    }

    fn build(&mut self, node: usize, trees: DoubleTree, me: usize) {
        let now = self.now();
        self.close_links(node);
        let ranks = self.setup.layout.ranks(node);
        let told: Vec<OpId> = ranks
            .map(|rank| self.clients[rank as usize].outcomes.len() as OpId)
            .collect();
        let sidecar = &mut self.sidecars[node];
        let joining = sidecar.joining.take().unwrap();
        let layout = self.setup.layout.of_members(&joining.members).unwrap();
        let config = Config {
            node: me,
            layout,
            trees,
            fence: Fence {
                attempt: ATTEMPT,
                epoch: joining.epoch as u32,
            },
            chunk_bytes: self.setup.chunk_bytes,
            slots: self.setup.slots,
            timing: Timing::default(),
            recovery: self.setup.recovery,
        };
        config.check().unwrap();
        let report = sidecar.report.take();
        sidecar
            .memory
            .retain(|buffer, _| matches!(buffer, Buffer::Result { .. }));
        let machine = match joining.resume.first() {
            None => Machine::new(config, now),
            Some(resume) => {
                let held = report.map_or_else(Vec::new, |report| report[0].held.clone());
                let resume = resume.within(&joining.members);
                for served in &resume.served {
                    let op = served.held.op;
                    let bytes = || vec![0xdd; served.held.bytes as usize];
                    let result = Buffer::Result { op };
                    sidecar.memory.entry(result).or_insert_with(bytes);
                    sidecar.released.remove(&op);
                }
                let start = Start {
                    resume,
                    told: told.clone(),
                    held,
                };
                Machine::resume(config, &start, now)
            }
        };
        let slots = 0..self.setup.slots;
        for (peer, tree) in machine.receives() {
            for slot in slots.clone() {
                let buffer = Buffer::Receive { peer, tree, slot };
                let bytes = vec![0xee; self.setup.chunk_bytes as usize];
                sidecar.memory.insert(buffer, bytes);
            }
        }
        for tree in machine.sends() {
            for slot in slots.clone() {
                let bytes = vec![0xee; self.setup.chunk_bytes as usize];
                sidecar.memory.insert(Buffer::Send { tree, slot }, bytes);
            }
        }
        sidecar.submitted = told.iter().map(|&told| told as usize).collect();
        sidecar.machine = Some(machine);
        sidecar.epoch = joining.epoch;
        sidecar.members = joining.members;
        sidecar.started = false;
        sidecar.said = None;
        sidecar.incoming.clear();
        sidecar.tick = None;
        // A peer that died since it was there.
        let epoch = self.sidecars[node].epoch;
        for peer in self.peers(node) {
            let other = &self.sidecars[peer];
            let joins = other
                .joining
                .as_ref()
                .is_some_and(|joining| joining.epoch == epoch);
            if !joins && (other.epoch != epoch || other.machine.is_none()) {
                self.lose_link(node, peer, epoch);
            }
        }
        let locals: Vec<u32> = self.setup.layout.ranks(node).collect();
        for (local, rank) in locals.into_iter().enumerate() {
            if !self.clients[rank as usize].alive {
                self.handle(node, Input::RankLost { rank: local });
            }
        }
        self.handle(node, Input::Tick);
        self.schedule_tick(node);
    }

    // ---- links

    pub(crate) fn arrive(
        &mut self,
        to: usize,
        from: usize,
        epoch: u64,
        item: Option<(Fence, Frame, Option<Vec<u8>>)>,
    ) {
        let sidecar = &mut self.sidecars[to];
        if !sidecar.alive || sidecar.machine.is_none() {
            // What comes while it is still connecting waits in the link.
            if sidecar
                .joining
                .as_ref()
                .is_some_and(|joining| joining.epoch == epoch)
            {
                self.again(to, from, epoch, item);
            }
            return;
        }
        if epoch > sidecar.epoch {
            self.again(to, from, epoch, item);
            return;
        }
        let incoming = sidecar.incoming.entry(from).or_default();
        incoming.push_back((epoch, item));
        self.take_in(to, from);
    }

    /// The link's other end is faster.
    fn again(
        &mut self,
        to: usize,
        from: usize,
        epoch: u64,
        item: Option<(Fence, Frame, Option<Vec<u8>>)>,
    ) {
        let joins = self.sidecars[to]
            .joining
            .as_ref()
            .is_some_and(|joining| joining.epoch == epoch);
        if joins {
            let event = Event::Arrive {
                to,
                from,
                epoch,
                item,
            };
            self.queue.after(MS, event);
        }
    }

    /// Handles what has arrived on a link, up to the next payload, which takes time to read in.
    fn take_in(&mut self, to: usize, from: usize) {
        loop {
            let sidecar = &mut self.sidecars[to];
            let Ok(peer) = sidecar.members.binary_search(&from) else {
                return;
            };
            if sidecar.reading.contains(&from) || sidecar.machine.is_none() {
                return;
            }
            let Some(item) = sidecar.incoming.entry(from).or_default().pop_front() else {
                return;
            };
            let (fence, frame, payload) = match item {
                (epoch, None) => {
                    if epoch == sidecar.epoch {
                        self.handle(to, Input::PeerLost { peer });
                    }
                    continue;
                }
                (_, Some(item)) => item,
            };
            let Some(bytes) = payload else {
                self.handle(to, Input::Frame { peer, fence, frame });
                continue;
            };
            if let Some(machine) = &sidecar.machine
                && let Placement::Into(region) = machine.place(peer, fence, &frame)
            {
                assert_eq!(region.bytes, bytes.len() as u64);
                self.check_unread(to, region);
                self.write(to, region, &bytes);
            }
            let sidecar = &mut self.sidecars[to];
            sidecar.reading.insert(from);
            let (epoch, life) = (u64::from(fence.epoch), sidecar.life);
            let incoming = sidecar.incoming.entry(from).or_default();
            incoming.push_front((epoch, Some((fence, frame, None))));
            let delay = self.a_while(MS / 1000, MS / 5);
            self.queue.after(delay, Event::Handled { to, from, life });
        }
    }

    pub(crate) fn handled(&mut self, to: usize, from: usize, life: u64) {
        if self.sidecars[to].life == life {
            self.sidecars[to].reading.remove(&from);
            self.take_in(to, from);
        }
    }

    pub(crate) fn schedule_tick(&mut self, node: usize) {
        let sidecar = &mut self.sidecars[node];
        let Some(machine) = &sidecar.machine else {
            return;
        };
        let (at, life) = (machine.wake_at(), sidecar.life);
        if at != Duration::MAX && sidecar.tick.is_none_or(|tick| at < tick) {
            sidecar.tick = Some(at);
            self.queue.at(at, Event::Tick { node, life });
        }
    }

    pub(crate) fn tick(&mut self, node: usize, life: u64) {
        if self.sidecars[node].life == life {
            self.sidecars[node].tick = None;
            self.handle(node, Input::Tick);
        }
    }

    // ---- processes

    pub(crate) fn call_soon(&mut self, rank: u32) {
        let delay = self.a_while(MS / 1000, 3 * MS);
        self.queue.after(delay, Event::Call { rank });
    }

    /// A rank calls what its window allows.
    pub(crate) fn call(&mut self, rank: u32) {
        let client = &mut self.clients[rank as usize];
        let program = &self.programs[rank as usize];
        let window = client.outcomes.len() + self.setup.window;
        // Trainers start when the gang does.
        if !client.alive || client.out || self.store.is_empty() {
            return;
        }
        if client.called < program.len().min(window) {
            client.called += 1;
            self.call_soon(rank);
        }
        let node = self.setup.layout.node_of(rank);
        self.pump(node, rank);
    }

    pub(crate) fn pump_all(&mut self, node: usize) {
        for rank in self.setup.layout.ranks(node) {
            self.queue.after(MS / 1000, Event::Call { rank });
        }
    }

    /// Hands calls to the machine, as far as it takes them.
    fn pump(&mut self, node: usize, rank: u32) {
        let local = (rank - self.setup.layout.ranks(node).start) as usize;
        loop {
            let sidecar = &self.sidecars[node];
            let op = sidecar.submitted[local];
            let Some(machine) = &sidecar.machine else {
                return;
            };
            let goes = sidecar.started && sidecar.report.is_none() && machine.broken().is_none();
            if !goes || op >= self.clients[rank as usize].called || !machine.may_submit(local) {
                return;
            }
            self.submit(node, rank, local, op);
        }
    }

    fn submit(&mut self, node: usize, rank: u32, local: usize, op: usize) {
        let call = self.programs[rank as usize][op];
        let id = op as OpId;
        let input = self.input(rank, op);
        let total = input.len() as u64;
        let sidecar = &mut self.sidecars[node];
        sidecar.submitted[local] += 1;
        let world = self
            .setup
            .layout
            .of_members(&sidecar.members)
            .unwrap()
            .world();
        let bytes = call.result_bytes(world) as usize;
        let input_buffer = Buffer::Input {
            op: id,
            rank: local,
        };
        sidecar.memory.insert(input_buffer, input);
        let result = sidecar.memory.entry(Buffer::Result { op: id }).or_default();
        if bytes > result.len() {
            result.resize(bytes, 0xdd);
        }
        sidecar.released.remove(&id);
        let (life, epoch) = (sidecar.life, sidecar.epoch);
        let at_once = self.rng.range(0..total + 1);
        if at_once < total {
            let delay = self.a_while(MS / 1000, MS);
            let event = Event::Ready {
                node,
                life,
                epoch,
                rank: local,
                op: id,
                ready: total,
            };
            self.queue.after(delay, event);
        }
        let submit = Input::Submit {
            rank: local,
            call,
            ready: at_once,
        };
        self.handle(node, submit);
    }

    pub(crate) fn ready(
        &mut self,
        node: usize,
        life: u64,
        epoch: u64,
        rank: usize,
        op: OpId,
        ready: u64,
    ) {
        if self.sidecars[node].life == life && self.sidecars[node].epoch == epoch {
            self.handle(node, Input::Ready { rank, op, ready });
        }
    }

    /// The input of a rank for its k-th operation: integers, whose sums do not depend on the order.
    pub(crate) fn input(&self, rank: u32, op: usize) -> Vec<u8> {
        let call = self.programs[rank as usize][op];
        assert!(call.count == 0 || call.dtype == DType::I64);
        let salt = u64::from(rank) << 32 | op as u64;
        let mut rng = Rng::new(self.inputs_seed ^ salt);
        (0..call.count)
            .flat_map(|_| (rng.next_u64() as i64 >> 20).to_ne_bytes())
            .collect()
    }
}

fn endpoint(node: usize) -> Endpoint {
    Endpoint {
        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, node as u8)),
        port: 9404,
    }
}
