//! One sidecar: starts, dials the leader, obeys it. A restart loses all of it; its processes attach again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use collective::DoubleTree;
use collective::machine::{Broken, Buffer, Effect, GroupId, Input, Machine};
use collective::membership::{
    Connection, Endpoint, HelloRefusal, MembershipEvent, MembershipMessage, Reach,
};
use collective::recovery::{EpochReport, Resume};
use collective::session::Sessions;
use collective::work_queue::WorkQueue;
use sim::To;

use super::links::Item;
use super::sessions::Kept;
use super::{Event, MS, World};
use crate::fixture::memory::{Id, Memory};

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

#[derive(Debug)]
pub(crate) struct Sidecar {
    pub(crate) machine: Option<Machine>,
    /// Of the machine.
    pub(crate) epoch: u64,
    pub(crate) members: Vec<usize>,
    /// The epoch has started.
    pub(crate) started: bool,
    /// What has ended the epoch.
    pub(crate) broken: Option<(Duration, Broken)>,
    /// Nodes with which it exchanges data between zones.
    pub(crate) gateway: Option<[usize; 2]>,
    /// What it reports once it has stopped.
    pub(crate) report: Option<EpochReport>,
    /// The last epoch that it has stopped in.
    pub(crate) asked: u64,
    pub(crate) joining: Option<Joining>,
    pub(crate) memory: Memory,
    /// Openings that its machine has answered.
    pub(crate) answered: BTreeSet<(GroupId, usize)>,
    pub(crate) freed: BTreeSet<Id>,
    pub(crate) released: BTreeSet<Id>,
    /// What its machine has asked for and was not taken up.
    pub(crate) asked_for: VecDeque<Effect>,
    /// Whether that is being done.
    pub(crate) drives: bool,
    /// What it has to do, where it does one thing after another; and whether it computes.
    pub(crate) agenda: WorkQueue,
    pub(crate) computes: bool,
    /// Where ranks get something of their own.
    pub(crate) own: BTreeSet<Buffer>,
    /// From peers that have joined before it has: with their epoch.
    pub(crate) early: Vec<(usize, u64, Item)>,
    /// The nodes that it has links to.
    pub(crate) links: BTreeSet<usize>,
    /// When it last handled something of each peer.
    pub(crate) last_frame: BTreeMap<usize, Duration>,
    pub(crate) incoming: BTreeMap<usize, VecDeque<Arrived>>,
    /// Payloads that are being read in, by sender and number: the frame, or nothing if it is damaged.
    pub(crate) reading: BTreeMap<(usize, u64), Arrived>,
    pub(crate) read_in: u64,
    /// Links that have ended, with their epochs: what comes later on one is lost.
    pub(crate) ended: BTreeSet<(usize, u64)>,
    /// Links of which the next payload is damaged.
    pub(crate) damaged: BTreeSet<(usize, u64)>,
    pub(crate) ranks: Sessions<Kept>,
    /// How many calls of each of its processes it has taken, by group.
    pub(crate) taken: BTreeMap<(GroupId, usize), usize>,
    pub(crate) attached: usize,
    pub(crate) connection: Option<(u64, Connection)>,
    /// What it has said of whom it reaches, and since when it asks.
    pub(crate) said: Option<Reach>,
    pub(crate) asks_since: Option<Duration>,
    pub(crate) known: Vec<u32>,
    /// The others went on without it.
    pub(crate) is_out: bool,
}

impl Sidecar {
    pub(crate) fn new(ranks: Sessions<Kept>) -> Self {
        Self {
            ranks,
            machine: None,
            epoch: 0,
            members: Vec::new(),
            started: false,
            broken: None,
            gateway: None,
            report: None,
            asked: 0,
            joining: None,
            memory: Memory::default(),
            answered: BTreeSet::new(),
            freed: BTreeSet::new(),
            released: BTreeSet::new(),
            asked_for: VecDeque::new(),
            drives: false,
            agenda: WorkQueue::default(),
            computes: false,
            own: BTreeSet::new(),
            early: Vec::new(),
            links: BTreeSet::new(),
            last_frame: BTreeMap::new(),
            incoming: BTreeMap::new(),
            reading: BTreeMap::new(),
            read_in: 0,
            ended: BTreeSet::new(),
            damaged: BTreeSet::new(),
            taken: BTreeMap::new(),
            attached: 0,
            connection: None,
            said: None,
            asks_since: None,
            known: Vec::new(),
            is_out: false,
        }
    }
}

impl World {
    /// A sidecar starts, for the first time or again.
    pub(crate) fn boot(&mut self, node: usize) {
        if self.gone_for_good.contains(&node) || self.hosts.runs(node) {
            return;
        }
        self.hosts.start(node);
        self.sidecars[node] = self.new_sidecar(node);
        for rank in self.setup.layout.ranks(node) {
            let delay = self.hosts.draw(MS..50 * MS);
            // Who left is not waited for.
            let left = self.clients[rank as usize].has_left;
            let delay = if left { Duration::ZERO } else { delay };
            let attach = Event::Attach { node };
            self.hosts.after(delay, To::Process(node), attach);
        }
        self.dial_soon(node);
        let heartbeat = Event::Heartbeat { node };
        self.hosts.after(1000 * MS, To::Process(node), heartbeat);
    }

    /// The process is gone, with all that it knew.
    pub(crate) fn kill_sidecar(&mut self, node: usize) {
        if !self.hosts.runs(node) {
            return;
        }
        self.close_links(node);
        self.close_operator(node);
        self.hosts.kill(node);
        self.sidecars[node] = self.new_sidecar(node);
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
        if self.clients[rank as usize].has_left {
            return;
        }
        self.clients[rank as usize].alive = false;
        let local = self.local(rank);
        if self.hosts.runs(node) && !self.hosts.is_frozen(node) {
            self.sidecars[node].ranks.lose(local);
            self.handle(node, Input::RankLost { rank: local });
            self.report(node, |connection| MembershipEvent::RankLost { connection });
        }
    }

    pub(crate) fn kill_node(&mut self, node: usize) {
        self.gone_for_good.insert(node);
        for rank in self.setup.layout.ranks(node) {
            self.clients[rank as usize].alive = false;
        }
        self.kill_sidecar(node);
    }

    pub(crate) fn thaw(&mut self, node: usize) {
        self.hosts.thaw(node);
        for rank in self.setup.layout.ranks(node) {
            if !self.clients[rank as usize].alive {
                self.kill_rank(rank);
            }
        }
    }

    pub(crate) fn attach(&mut self, node: usize) {
        self.sidecars[node].attached += 1;
        if self.sidecars[node].attached < self.setup.layout.local(node) {
            return;
        }
        for rank in self.setup.layout.ranks(node) {
            self.attach_process(node, rank);
            self.call_soon(rank);
        }
        if self.sidecars[node].asked > 0 {
            self.report_stopped(node);
        }
    }

    pub(crate) fn dial_soon(&mut self, node: usize) {
        let dial = Event::Dial { node };
        let most = 600 * MS;
        self.hosts.within(10 * MS..most, To::Process(node), dial);
    }

    pub(crate) fn dial(&mut self, node: usize) {
        let operator = self.operator();
        let sidecar = &self.sidecars[node];
        if sidecar.connection.is_some() || sidecar.is_out {
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
        let hello = MembershipEvent::Hello {
            connection,
            rank: node as u32,
            endpoint: endpoint(node),
            joined,
        };
        self.send_to_leader(node, id, hello);
        let dead = |rank: u32| !self.clients[rank as usize].alive;
        if self.setup.layout.ranks(node).any(dead) {
            self.report(node, |connection| MembershipEvent::RankLost { connection });
        }
        self.sidecars[node].said = None;
        self.report_stopped(node);
    }

    /// Says something on the connection, if there is one.
    pub(crate) fn report(&mut self, node: usize, notice: impl Fn(Connection) -> MembershipEvent) {
        if let Some((leader, connection)) = self.sidecars[node].connection {
            self.send_to_leader(node, leader, notice(connection));
        }
    }

    pub(crate) fn heartbeat(&mut self, node: usize) {
        self.report(node, |connection| MembershipEvent::Heartbeat {
            connection,
            progress: None,
            operations: None,
        });
        let heartbeat = Event::Heartbeat { node };
        self.hosts.after(1000 * MS, To::Process(node), heartbeat);
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

    pub(crate) fn on_message(
        &mut self,
        node: usize,
        connection: Connection,
        message: MembershipMessage,
    ) {
        let sidecar = &mut self.sidecars[node];
        if sidecar
            .connection
            .is_none_or(|(_, mine)| mine != connection)
        {
            return;
        }
        match message {
            MembershipMessage::Roster { epoch, endpoints } => {
                let members = (0..endpoints.len()).collect();
                self.begin_to_join(node, epoch, members, Vec::new());
            }
            MembershipMessage::Next {
                epoch,
                members,
                resume,
            } => {
                let members = members.iter().map(|&(rank, _)| rank as usize).collect();
                self.begin_to_join(node, epoch, members, resume);
            }
            MembershipMessage::Go { epoch } => {
                if sidecar.epoch == epoch && sidecar.report.is_none() && !sidecar.started {
                    self.go(node);
                }
            }
            MembershipMessage::Revoke { epoch, members } => {
                sidecar.known = members.iter().map(|&(rank, _)| rank).collect();
                self.stop(node, epoch);
            }
            MembershipMessage::Refused(HelloRefusal::Out { .. }) => self.exclude(node),
            MembershipMessage::Refused(_) => {
                self.sidecars[node].connection = None;
                self.dial_soon(node);
            }
        }
    }

    /// The others go on without this node: its processes learn that there is nothing to wait for.
    pub(crate) fn exclude(&mut self, node: usize) {
        self.close_links(node);
        let sidecar = &mut self.sidecars[node];
        sidecar.is_out = true;
        sidecar
            .ranks
            .give_up("the others go on without this node".to_owned());
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
