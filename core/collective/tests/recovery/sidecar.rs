//! One sidecar: starts, dials the leader, obeys it. A restart loses all of it; its processes attach again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use collective::DoubleTree;
use collective::machine::{Buffer, GroupId, Input, Machine, WORLD};
use collective::membership::{Connection, Endpoint, Event as Heard, Message, Reach, Refusal};
use collective::recovery::{Report, Resume};

use crate::fixture::memory::{Id, Memory};
use crate::links::Item;
use crate::world::{Event, MS, World};

/// What has arrived, with its epoch.
type Arrived = (u64, Item);

#[derive(Debug)]
pub(crate) struct Joining {
    pub(crate) epoch: u64,
    pub(crate) members: Vec<usize>,
    /// This node among them, and their trees.
    pub(crate) me: usize,
    pub(crate) trees: DoubleTree,
    pub(crate) resume: Resume,
}

/// A process in one of its groups, as its sidecar knows it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seat {
    /// The machine was asked to open the group, in this epoch.
    pub(crate) asked: bool,
    /// The group stands in this epoch.
    pub(crate) stands: bool,
    /// How many of the calls the machine has.
    pub(crate) submitted: usize,
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
    /// Their ranks.
    pub(crate) world: u32,
    /// Told to go.
    pub(crate) started: bool,
    /// What it reports once it has stopped.
    pub(crate) report: Option<Report>,
    /// The last epoch that it has stopped in.
    pub(crate) asked: u64,
    pub(crate) joining: Option<Joining>,
    pub(crate) memory: Memory,
    pub(crate) released: BTreeSet<Id>,
    /// Where ranks get something of their own.
    pub(crate) own: BTreeSet<Buffer>,
    /// From peers that have joined before it has: with their epoch.
    pub(crate) early: Vec<(usize, u64, Item)>,
    pub(crate) incoming: BTreeMap<usize, VecDeque<Arrived>>,
    pub(crate) reading: BTreeSet<usize>,
    /// Links that have ended, with their epochs: what comes later on one is lost.
    pub(crate) ended: BTreeSet<(usize, u64)>,
    /// Links of which the next payload is damaged.
    pub(crate) damaged: BTreeSet<(usize, u64)>,
    /// By group and local rank.
    pub(crate) seats: BTreeMap<(GroupId, usize), Seat>,
    /// Local ranks of which the machine knows that they left.
    pub(crate) departed: BTreeSet<usize>,
    /// Groups that are over, which a process was not told yet.
    pub(crate) over: Vec<(usize, GroupId)>,
    pub(crate) attached: usize,
    pub(crate) connection: Option<(u64, Connection)>,
    /// What it has said of whom it reaches, and since when it asks.
    pub(crate) said: Option<Reach>,
    pub(crate) asks_since: Option<Duration>,
    pub(crate) known: Vec<u32>,
    /// The others went on without it.
    pub(crate) is_out: bool,
    pub(crate) tick: Option<Duration>,
}

impl Sidecar {
    pub(crate) fn new(local: usize) -> Self {
        let seats = (0..local).map(|local| ((WORLD, local), Seat::default()));
        Self {
            seats: seats.collect(),
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
        for rank in self.setup.layout.ranks(node) {
            let delay = self.a_while(MS, 50 * MS);
            // Who left is not waited for.
            let left = self.clients[rank as usize].left;
            let delay = if left { Duration::ZERO } else { delay };
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
    pub(crate) fn close_links(&mut self, node: usize) {
        let epoch = self.sidecars[node].epoch;
        for peer in self.peers(node) {
            if !self.is_cut(node, peer) {
                self.lose_link(peer, node, epoch);
            }
        }
    }

    /// The nodes that its machine has links to.
    pub(crate) fn peers(&self, node: usize) -> Vec<usize> {
        let sidecar = &self.sidecars[node];
        let peers = sidecar.machine.iter().flat_map(Machine::peers);
        peers.map(|peer| sidecar.members[peer]).collect()
    }

    pub(crate) fn kill_rank(&mut self, rank: u32) {
        let node = self.setup.layout.node_of(rank);
        if self.clients[rank as usize].left {
            return;
        }
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
        for (local, rank) in self.setup.layout.ranks(node).enumerate() {
            for group in self.groups_of(rank) {
                // A process tells the next sidecar of the groups that it has opened.
                let remembers = self.member(group, rank).is_some_and(|one| one.remembered);
                if life > 1 && remembers {
                    let seats = &mut self.sidecars[node].seats;
                    seats.entry((group, local)).or_default();
                }
            }
            self.call_soon(rank);
        }
        if self.sidecars[node].asked > 0 {
            self.say_stopped(node);
        }
    }

    pub(crate) fn dial_soon(&mut self, node: usize) {
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
    pub(crate) fn put_out(&mut self, node: usize) {
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
}

fn endpoint(node: usize) -> Endpoint {
    Endpoint {
        address: IpAddr::V4(Ipv4Addr::new(192, 0, 2, node as u8)),
        port: 9404,
    }
}
