//! Everything in one process: sidecars with their clients, leaders, the store, a network between them, virtual time.
//! What a sidecar does is in `sidecar`, what its machine asks of it in `effects`, leaders and the store in `operator`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use collective::Call;
use collective::Layout;
use collective::machine::{Effect, GroupId, Recovery, WORLD};
use collective::membership::{Break, Commit, Connection, Event as Heard, Message};
use sim::{Conditions, Network, Queue, Rng};

use crate::fixture::memory::{Id, Work};
use crate::lanes::{Lane, Member};
use crate::links::Item;
use crate::operator::Leader;
use crate::sidecar::Sidecar;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const ATTEMPT: u32 = 7;

/// A rank of the trainer.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) alive: bool,
    /// It was told that the others go on without it.
    pub(crate) out: bool,
    /// It has nothing more to call and has left, as its node has noted for the next sidecar.
    pub(crate) left: bool,
}

#[derive(Debug)]
pub(crate) enum Event {
    /// On a link of an epoch between two nodes, in order; `None`: the link is lost.
    Arrive {
        to: usize,
        from: usize,
        epoch: u64,
        item: Item,
    },
    /// A payload has been read in.
    Handled {
        to: usize,
        from: usize,
        life: u64,
    },
    Work {
        node: usize,
        life: u64,
        epoch: u64,
        work: Work,
    },
    Tick {
        node: usize,
        life: u64,
    },
    Call {
        rank: u32,
    },
    Ready {
        node: usize,
        life: u64,
        epoch: u64,
        rank: usize,
        id: Id,
        ready: u64,
    },
    /// A link that a group needs.
    Link {
        node: usize,
        life: u64,
        epoch: u64,
        peer: usize,
    },
    Dial {
        node: usize,
        life: u64,
    },
    Heartbeat {
        node: usize,
        life: u64,
    },
    /// Whom does a stopped node reach?
    Probe {
        node: usize,
        life: u64,
    },
    Join {
        node: usize,
        life: u64,
        epoch: u64,
    },
    /// A process has attached to a sidecar that restarted.
    Attach {
        node: usize,
        life: u64,
    },
    Restart {
        node: usize,
    },
    /// A connection of a sidecar to a leader has ended, as the sidecar sees it.
    HungUp {
        node: usize,
        connection: Connection,
    },
    ToSidecar {
        node: usize,
        connection: Connection,
        message: Message,
    },
    ToLeader {
        leader: u64,
        heard: Heard,
    },
    LeaderTick {
        leader: u64,
    },
    LeaderStarts {
        leader: u64,
    },
    /// The store decides on a commit.
    Store {
        leader: u64,
        commit: Commit,
        after: Option<u64>,
    },
}

/// What is simulated.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) layout: Layout,
    pub(crate) zones: Vec<u64>,
    pub(crate) chunk_bytes: u32,
    pub(crate) slots: u8,
    /// Operations a rank calls without waiting for the first of them.
    pub(crate) window: usize,
    pub(crate) recovery: Recovery,
    pub(crate) least: u32,
    pub(crate) conditions: Conditions,
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) queue: Queue<Event>,
    pub(crate) network: Network,
    pub(crate) cut: BTreeSet<(usize, usize)>,
    pub(crate) rng: Rng,
    pub(crate) sidecars: Vec<Sidecar>,
    pub(crate) clients: Vec<Client>,
    pub(crate) lanes: BTreeMap<GroupId, Lane>,
    pub(crate) inputs_seed: u64,
    /// Ranks that leave as soon as they have nothing more to call.
    pub(crate) leavers: BTreeSet<u32>,
    pub(crate) leader: Option<Leader>,
    pub(crate) leaders: u64,
    pub(crate) connections: u64,
    /// Every commit the store has taken, in order.
    pub(crate) store: Vec<Commit>,
    pub(crate) broken: Option<Break>,
    /// Frames of each operation so far, up and down, and nodes where it is final.
    pub(crate) ups: BTreeMap<Id, usize>,
    pub(crate) downs: BTreeMap<Id, usize>,
    pub(crate) gone_for_good: BTreeSet<usize>,
    /// Nodes that a fault was about, or that it has cut off.
    pub(crate) struck: BTreeSet<usize>,
    /// To be used again.
    pub(crate) effects: Vec<Effect>,
    story: RefCell<Vec<String>>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for line in self.story.take() {
                println!("{line}");
            }
        }
    }
}

impl World {
    pub(crate) fn new(rng: &mut Rng, setup: Setup, calls: &[Call]) -> Self {
        let nodes = setup.layout.nodes();
        let ranks = setup.layout.world();
        let replicated = setup.recovery.replicated;
        let client = |_| Client {
            alive: true,
            out: false,
            left: false,
        };
        let local = |node| setup.layout.local(node);
        let mut world = Self {
            queue: Queue::default(),
            network: Network::new(rng.fork(), setup.conditions.clone()),
            cut: BTreeSet::new(),
            rng: rng.fork(),
            sidecars: (0..nodes).map(|node| Sidecar::new(local(node))).collect(),
            clients: (0..ranks).map(client).collect(),
            lanes: BTreeMap::new(),
            inputs_seed: rng.next_u64(),
            leavers: BTreeSet::new(),
            leader: None,
            leaders: 0,
            connections: 0,
            store: Vec::new(),
            broken: None,
            ups: BTreeMap::new(),
            downs: BTreeMap::new(),
            gone_for_good: BTreeSet::new(),
            struck: BTreeSet::new(),
            effects: Vec::new(),
            story: RefCell::default(),
            setup,
        };
        world.add_group(WORLD, (0..ranks).collect(), replicated, calls);
        world.start_leader(Duration::ZERO);
        for node in 0..nodes {
            world.boot(node);
        }
        world
    }

    pub(crate) fn nodes(&self) -> usize {
        self.sidecars.len()
    }

    /// The place of the operator and the store in the network.
    pub(crate) fn operator(&self) -> usize {
        self.nodes()
    }

    pub(crate) fn now(&self) -> Duration {
        self.queue.now()
    }

    /// One line of the story that a failing run tells.
    pub(crate) fn note(&self, what: impl Debug) {
        let line = format!("{:>12.3?} {what:?}", self.now());
        self.story.borrow_mut().push(line);
    }

    pub(crate) fn a_while(&mut self, least: Duration, most: Duration) -> Duration {
        let range = least.as_nanos() as u64..most.as_nanos() as u64;
        Duration::from_nanos(self.rng.range(range))
    }

    pub(crate) fn is_cut(&self, one: usize, other: usize) -> bool {
        self.cut.contains(&(one.min(other), one.max(other)))
    }

    /// Nothing passes between two places any more.
    pub(crate) fn cut(&mut self, one: usize, other: usize) {
        if one != other && self.cut.insert((one.min(other), one.max(other))) {
            self.network.cut(one, other);
            let operator = self.operator();
            if one == operator || other == operator {
                self.lose_operator(one.min(other));
            }
        }
    }

    /// Everything passes again. Links that carried nothing for a while are of no use: what was lost is not repeated.
    pub(crate) fn heal(&mut self) {
        self.network.heal();
        let operator = self.operator();
        for (one, other) in std::mem::take(&mut self.cut) {
            if other != operator {
                for (node, peer) in [(one, other), (other, one)] {
                    let epoch = self.sidecars[node].epoch;
                    self.lose_link(node, peer, epoch);
                }
            }
        }
    }

    /// The link of an epoch to a peer closes, as a node sees it some time later.
    pub(crate) fn lose_link(&mut self, node: usize, peer: usize, epoch: u64) {
        let delay = self.a_while(2 * MS, 50 * MS);
        let lost = Event::Arrive {
            to: node,
            from: peer,
            epoch,
            item: None,
        };
        self.queue.after(delay, lost);
    }

    pub(crate) fn run_until(&mut self, time: Duration) {
        while self.queue.next_at().is_some_and(|next| next <= time) {
            self.step();
        }
    }

    /// Runs until it holds. False when it does not hold by then.
    pub(crate) fn run_while(&mut self, limit: Duration, goes_on: impl Fn(&Self) -> bool) -> bool {
        // Among many nodes an event changes little, and looking at all of them takes long.
        let steps = 1 + self.nodes() / 16;
        while goes_on(self) {
            for _ in 0..steps {
                if self.queue.next_at().is_none_or(|next| next > limit) {
                    return !goes_on(self);
                }
                self.step();
            }
        }
        true
    }

    pub(crate) fn step(&mut self) {
        let Some(event) = self.queue.pop() else {
            return;
        };
        if let Some(node) = self.place_of(&event)
            && self.sidecars[node].frozen
        {
            self.sidecars[node].deferred.push(event);
            return;
        }
        match event {
            Event::Arrive {
                to,
                from,
                epoch,
                item,
            } => self.arrive(to, from, epoch, item),
            Event::Handled { to, from, life } => self.handled(to, from, life),
            Event::Work {
                node,
                life,
                epoch,
                work,
            } => self.finish(node, life, epoch, &work),
            Event::Tick { node, life } => self.tick(node, life),
            Event::Call { rank } => self.call(rank),
            Event::Ready {
                node,
                life,
                epoch,
                rank,
                id,
                ready,
            } => self.ready(node, (life, epoch), rank, id, ready),
            Event::Link {
                node,
                life,
                epoch,
                peer,
            } => self.link(node, life, epoch, peer),
            Event::Dial { node, life } => self.dial(node, life),
            Event::Heartbeat { node, life } => self.heartbeat(node, life),
            Event::Probe { node, life } => self.probe(node, life),
            Event::Join { node, life, epoch } => self.join(node, life, epoch),
            Event::Attach { node, life } => self.attach(node, life),
            Event::Restart { node } => self.boot(node),
            Event::HungUp { node, connection } => self.hung_up(node, connection),
            Event::ToSidecar {
                node,
                connection,
                message,
            } => self.obey(node, connection, message),
            Event::ToLeader { leader, heard } => self.lead(leader, heard),
            Event::LeaderTick { leader } => self.lead(leader, Heard::Tick),
            Event::LeaderStarts { leader } => self.take_the_lead(leader),
            Event::Store {
                leader,
                commit,
                after,
            } => self.decide(leader, commit, after),
        }
    }

    /// The sidecar that an event waits for while it is frozen.
    fn place_of(&self, event: &Event) -> Option<usize> {
        match *event {
            Event::Arrive { to: node, .. }
            | Event::Handled { to: node, .. }
            | Event::Work { node, .. }
            | Event::Tick { node, .. }
            | Event::Ready { node, .. }
            | Event::Link { node, .. }
            | Event::Dial { node, .. }
            | Event::Heartbeat { node, .. }
            | Event::Probe { node, .. }
            | Event::Join { node, .. }
            | Event::Attach { node, .. }
            | Event::HungUp { node, .. }
            | Event::ToSidecar { node, .. } => Some(node),
            Event::Call { rank } => Some(self.setup.layout.node_of(rank)),
            Event::Restart { .. }
            | Event::ToLeader { .. }
            | Event::LeaderTick { .. }
            | Event::LeaderStarts { .. }
            | Event::Store { .. } => None,
        }
    }

    /// Members of the last commit, or everybody.
    pub(crate) fn members(&self) -> Vec<usize> {
        match self.store.last() {
            Some(commit) => commit.members.iter().map(|&rank| rank as usize).collect(),
            None => (0..self.nodes()).collect(),
        }
    }

    /// Ranks of members that wait for something: group, rank, whether it was answered, calls, and ends that it was told.
    pub(crate) fn waiting(&self) -> Vec<(GroupId, u32, bool, usize, usize)> {
        let members = self.members();
        let lanes = self.lanes.iter();
        let all = lanes.flat_map(|(&group, lane)| {
            let each = lane.ranks.iter().zip(&lane.members);
            each.map(move |(&rank, member)| (group, rank, member))
        });
        let waits = |&(_, rank, member): &(GroupId, u32, &Member)| {
            let here = members.contains(&self.setup.layout.node_of(rank));
            here && self.clients[rank as usize].alive && !member.has_ended()
        };
        let told = |(group, rank, member): (GroupId, u32, &Member)| {
            let answered = member.opened.is_some();
            (group, rank, answered, member.called, member.outcomes.len())
        };
        all.filter(waits).map(told).collect()
    }

    /// Whether all ranks of all members know the end of all they were to call.
    pub(crate) fn all_ended(&self) -> bool {
        let members = self.members();
        let ended = |lane: &Lane| self.has_ended(lane, &members);
        let is_left = |node: &usize| !self.gone_for_good.contains(node);
        self.lanes.values().all(ended) && members.iter().any(is_left)
    }

    /// Whether all ranks of a group on those members that are left know the end of all they were to call in it.
    pub(crate) fn has_ended(&self, lane: &Lane, members: &[usize]) -> bool {
        let is_left = |node: usize| {
            members.binary_search(&node).is_ok() && !self.gone_for_good.contains(&node)
        };
        let waits = |rank: u32| {
            let client = &self.clients[rank as usize];
            client.alive && !client.out && is_left(self.setup.layout.node_of(rank))
        };
        let mut members = lane.ranks.iter().zip(&lane.members);
        members.all(|(&rank, member)| member.has_ended() || !waits(rank))
    }
}
