//! A gang in one process: sidecars with their trainers, a network between them, virtual time, and what decides who is a
//! member: leaders and their store, or the test. `effects` does what machines ask for; `sidecars`, `sessions`, `join` and
//! `stop` are what a sidecar does around its machine; `ranks` are the trainers.

pub(crate) mod effects;
mod exchange;
pub(crate) mod groups;
mod join;
mod links;
pub(crate) mod messages;
mod operator;
mod oracle;
mod ranks;
mod scripted;
pub(crate) mod sessions;
mod sidecars;
mod stop;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use collective::machine::{
    Broken, Effect, Fence, Frame, GroupId, Handover, Input, Machine, OpId, Reason, Recovery, WORLD,
};
use collective::membership::{Break, Commit, Connection, MembershipEvent, MembershipMessage};
use collective::session::Departed;
use collective::{Call, Layout};
use sim::{Conditions, CrashPoint, Hosts, Rng, Simulation, To};

use crate::fixture::draw;
use crate::fixture::memory::{Id, Work};
use crate::priority::Urgency;
use groups::{Group, Outcome, Outcomes};
use links::Item;
use messages::P2p;
use operator::Leader;
use sidecars::Sidecar;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const ATTEMPT: u32 = 7;
/// The fence of the first epoch.
pub(crate) const FENCE: Fence = Fence {
    attempt: ATTEMPT,
    epoch: 1,
};

/// A rank of the trainer.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) alive: bool,
    /// It knows that the others go on without it.
    pub(crate) out: bool,
    /// It has nothing more to call and has left.
    pub(crate) has_left: bool,
    /// What its node has noted of that for the next sidecar.
    pub(crate) departed: Option<Departed>,
}

#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// On a link of an epoch between two nodes, in order; `None`: the link is lost.
    Arrive {
        to: usize,
        from: usize,
        epoch: u64,
        item: Item,
    },
    /// A payload has been read in: from whom, and which.
    Handled {
        to: usize,
        read: (usize, u64),
    },
    Work {
        node: usize,
        epoch: u64,
        work: Work,
    },
    Tick {
        node: usize,
    },
    /// For the machine of an epoch.
    Input {
        node: usize,
        epoch: u64,
        input: Input,
    },
    /// A rank does what it may do next.
    Call {
        rank: u32,
    },
    /// A link that a group needs.
    Link {
        node: usize,
        epoch: u64,
        peer: usize,
    },
    Dial {
        node: usize,
    },
    Heartbeat {
        node: usize,
    },
    /// Whom does a stopped node reach?
    Probe {
        node: usize,
    },
    Join {
        node: usize,
        epoch: u64,
    },
    /// A process has attached to a sidecar that restarted.
    Attach {
        node: usize,
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
        message: MembershipMessage,
    },
    ToLeader {
        leader: u64,
        notice: MembershipEvent,
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

/// Who decides which nodes are members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// Leaders that come and go, and their store; everybody has to join first.
    Operator,
    /// The test. The first epoch has begun, and the next begins on all nodes at once.
    Test,
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
    /// Whether what follows a payload on a link overtakes it while it is read in.
    pub(crate) overtakes: bool,
    pub(crate) recovery: Recovery,
    pub(crate) least: u32,
    pub(crate) conditions: Conditions,
    pub(crate) leads: Leads,
}

impl Setup {
    /// So many ranks on each node, which the test leads.
    pub(crate) fn new(ranks: &[u32], zones: &[u64]) -> Self {
        Self {
            layout: Layout::new(ranks).unwrap(),
            zones: zones.to_vec(),
            chunk_bytes: 512,
            slots: 2,
            window: 2,
            overtakes: false,
            recovery: Recovery::default(),
            least: 1,
            conditions: Conditions::reliable(),
            leads: Leads::Test,
        }
    }

    pub(crate) fn uniform(nodes: usize, ranks: u32) -> Self {
        Self::new(&vec![ranks; nodes], &vec![0; nodes])
    }

    pub(crate) fn random(rng: &mut Rng, nodes: usize) -> Self {
        let ranks = draw::ranks(rng, nodes);
        let split = rng.below(nodes + 1);
        let zones: Vec<u64> = (0..nodes).map(|node| u64::from(node >= split)).collect();
        Self {
            chunk_bytes: *rng.pick(&[512, 576, 1024]),
            slots: rng.range(1..5) as u8,
            window: 1 + rng.below(4),
            recovery: Recovery {
                handover: *rng.pick(&[Handover::Immediate, Handover::Stable]),
                ..Recovery::default()
            },
            ..Self::new(&ranks, &zones)
        }
    }
}

/// What has happened so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// When which node named which peer as silent.
    pub(crate) suspects: Vec<(Duration, usize, usize)>,
    pub(crate) recovered: Vec<(usize, usize)>,
    /// When which node named which of its ranks as late for an operation of a group.
    pub(crate) late: Vec<(Duration, usize, Id, Vec<usize>)>,
    /// Frames sent, and those of them that only carry a watermark.
    pub(crate) frames: u64,
    pub(crate) watermarks: u64,
    /// Frames of each operation, up and down.
    pub(crate) ups: BTreeMap<Id, usize>,
    pub(crate) downs: BTreeMap<Id, usize>,
    /// Bytes of what ranks have for each other that one node has sent to another.
    pub(crate) parts: BTreeMap<(usize, usize), u64>,
}

pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) hosts: Hosts<Event>,
    pub(crate) rng: Rng,
    pub(crate) sidecars: Vec<Sidecar>,
    pub(crate) clients: Vec<Client>,
    pub(crate) groups: BTreeMap<GroupId, Group>,
    /// Messages between two ranks.
    pub(crate) messages: Vec<P2p>,
    pub(crate) inputs_seed: u64,
    /// What each rank brings to the operations of the world, one after another, in place of random elements.
    pub(crate) given: Vec<Vec<u8>>,
    /// Ranks that leave as soon as they have nothing more to call.
    pub(crate) leavers: BTreeSet<u32>,
    /// Those of them that do not wait for the end of what they have called.
    pub(crate) hasty: BTreeSet<u32>,
    /// Ranks that do nothing for now.
    pub(crate) held: BTreeSet<u32>,
    /// Calls of the world that the node of a rank cannot carry out.
    pub(crate) refused: BTreeMap<(u32, OpId), Reason>,
    /// A rank that expects something else than it is sent, in an operation of a group.
    pub(crate) odd: Option<(GroupId, u32, usize)>,
    /// Nodes compute one chunk after another, the most urgent first. Otherwise they do everything at once.
    pub(crate) urgency: Option<Urgency>,
    /// At which of its inputs a node dies.
    pub(crate) crash: CrashPoint,
    pub(crate) victim: Option<usize>,
    pub(crate) leader: Option<Leader>,
    pub(crate) leaders: u64,
    pub(crate) connections: u64,
    /// Every commit the store has taken, in order.
    pub(crate) store: Vec<Commit>,
    pub(crate) broken: Option<Break>,
    pub(crate) gone_for_good: BTreeSet<usize>,
    /// Nodes that a fault was about, or that it has cut off.
    pub(crate) affected: BTreeSet<usize>,
    pub(crate) seen: Seen,
    /// To be used again.
    pub(crate) effects: Vec<Effect>,
}

impl World {
    /// A gang whose ranks all call the same.
    pub(crate) fn new(rng: &mut Rng, setup: Setup, calls: &[Call]) -> Self {
        let nodes = setup.layout.nodes();
        let ranks = setup.layout.world();
        let replicated = setup.recovery.replicated;
        let client = |_| Client {
            alive: true,
            out: false,
            has_left: false,
            departed: None,
        };
        let mut world = Self {
            hosts: Hosts::new(rng, nodes, setup.conditions.clone()),
            rng: rng.fork(),
            sidecars: Vec::new(),
            clients: (0..ranks).map(client).collect(),
            groups: BTreeMap::new(),
            messages: Vec::new(),
            inputs_seed: rng.next_u64(),
            given: Vec::new(),
            leavers: BTreeSet::new(),
            hasty: BTreeSet::new(),
            held: BTreeSet::new(),
            refused: BTreeMap::new(),
            odd: None,
            urgency: None,
            crash: CrashPoint::never(),
            victim: None,
            leader: None,
            leaders: 0,
            connections: 0,
            store: Vec::new(),
            broken: None,
            gone_for_good: BTreeSet::new(),
            affected: BTreeSet::new(),
            seen: Seen::default(),
            effects: Vec::new(),
            setup,
        };
        world.sidecars = (0..nodes).map(|node| world.new_sidecar(node)).collect();
        world.add_group(WORLD, (0..ranks).collect(), replicated, calls);
        match world.setup.leads {
            Leads::Operator => {
                world.start_leader(Duration::ZERO);
                (0..nodes).for_each(|node| world.boot(node));
            }
            Leads::Test => world.begin(),
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
        self.hosts.now()
    }

    pub(crate) fn machine(&self, node: usize) -> &Machine {
        self.sidecars[node].machine.as_ref().unwrap()
    }

    pub(crate) fn is_cut(&self, one: usize, other: usize) -> bool {
        self.hosts.network.is_cut(one, other)
    }

    /// Nothing passes between two places any more.
    pub(crate) fn cut(&mut self, one: usize, other: usize) {
        if one != other && !self.is_cut(one, other) {
            self.hosts.network.cut(one, other);
            let operator = self.operator();
            if one == operator || other == operator {
                self.lose_operator(one.min(other));
            }
        }
    }

    /// Everything passes again. Links that carried nothing for a while are of no use: what was lost is not repeated.
    pub(crate) fn heal(&mut self) {
        let operator = self.operator();
        for (one, other) in self.hosts.network.heal() {
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
        let lost = Event::Arrive {
            to: node,
            from: peer,
            epoch,
            item: None,
        };
        self.hosts.within(2 * MS..50 * MS, To::Process(node), lost);
    }

    /// A frame arrives out of nowhere.
    pub(crate) fn inject(&mut self, to: usize, from: usize, fence: Fence, frame: Frame) {
        let arrive = Event::Arrive {
            to,
            from,
            epoch: self.sidecars[to].epoch,
            item: Some((fence, frame, None)),
        };
        self.hosts.after(Duration::ZERO, To::Process(to), arrive);
    }

    /// Runs until it no longer holds. False when it still holds at the limit.
    pub(crate) fn goes_on(&mut self, limit: Duration, holds: impl Fn(&Self) -> bool) -> bool {
        // Among many nodes an event changes little, and looking at all of them takes long.
        let events = 1 + self.nodes() / 16;
        self.run_while(limit, events, holds)
    }

    /// Runs until it holds; fails when that takes longer than a minute.
    pub(crate) fn run(&mut self, is_over: impl Fn(&Self) -> bool) {
        let limit = self.now() + 60_000 * MS;
        let over = self.goes_on(limit, |world| !is_over(world));
        assert!(over, "somebody hangs: {:?}", self.waiting());
    }

    /// Members of the last commit, or everybody.
    pub(crate) fn members(&self) -> Vec<usize> {
        match self.store.last() {
            Some(commit) => commit.members.iter().map(|&rank| rank as usize).collect(),
            None => (0..self.nodes()).collect(),
        }
    }

    /// What has ended the epoch of each node that lives.
    pub(crate) fn breaks(&self) -> BTreeMap<usize, (Duration, Broken)> {
        let sidecars = self.sidecars.iter().enumerate();
        let breaks = sidecars.filter_map(|(node, one)| Some((node, one.broken?)));
        breaks.collect()
    }

    /// Ranks of members that wait for something: group, rank, whether it was answered, calls, and ends that it knows.
    pub(crate) fn waiting(&self) -> Vec<(GroupId, u32, bool, usize, usize)> {
        let members = self.members();
        let mut waiting = Vec::new();
        for (&group, of) in &self.groups {
            for (&rank, member) in of.ranks.iter().zip(&of.members) {
                if self.waits(rank, &members) && !member.has_ended() {
                    let answered = member.opened.is_some();
                    waiting.push((group, rank, answered, member.called, member.outcomes.len()));
                }
            }
        }
        waiting
    }

    /// Whether all ranks of all members know the end of all they were to call, or the attempt has ended.
    pub(crate) fn all_ended(&self) -> bool {
        let members = self.members();
        let mut groups = self.groups.values();
        self.broken.is_some()
            || groups.all(|group| self.has_ended(group, &members)) && self.messages_ended()
    }

    /// Whether all ranks of a group on those members that are left know the end of all they were to call in it.
    pub(crate) fn has_ended(&self, group: &Group, members: &[usize]) -> bool {
        let mut ranks = group.ranks.iter().zip(&group.members);
        ranks.all(|(&rank, member)| member.has_ended() || !self.waits(rank, members))
    }

    fn waits(&self, rank: u32, members: &[usize]) -> bool {
        let (client, node) = (
            &self.clients[rank as usize],
            self.setup.layout.node_of(rank),
        );
        let is_left = members.binary_search(&node).is_ok() && !self.gone_for_good.contains(&node);
        client.alive && !client.out && !client.has_left && is_left
    }

    /// A rank's number on its node.
    pub(crate) fn local(&self, rank: u32) -> usize {
        let node = self.setup.layout.node_of(rank);
        (rank - self.setup.layout.ranks(node).start) as usize
    }

    /// What a rank calls in the world.
    pub(crate) fn program(&mut self, rank: u32) -> &mut Vec<Call> {
        &mut self.world_mut().members[rank as usize].program
    }

    pub(crate) fn all_outcomes(&self) -> impl Iterator<Item = &Outcome> {
        let members = self.groups.values().flat_map(|group| &group.members);
        members.flat_map(|member| member.outcomes.values())
    }

    /// What a rank knows of the ends of its operations in the world.
    pub(crate) fn outcomes(&self, rank: u32) -> &Outcomes {
        &self.groups[&WORLD].members[rank as usize].outcomes
    }

    pub(crate) fn world_mut(&mut self) -> &mut Group {
        self.groups.get_mut(&WORLD).unwrap()
    }
}

impl Simulation for World {
    type Event = Event;

    fn hosts(&mut self) -> &mut Hosts<Event> {
        &mut self.hosts
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Arrive {
                to,
                from,
                epoch,
                item,
            } => self.arrive(to, from, epoch, item),
            Event::Handled { to, read } => self.handled(to, read),
            Event::Work { node, epoch, work } => self.finish(node, epoch, &work),
            Event::Tick { node } => self.tick(node),
            Event::Input { node, epoch, input } => self.input_later(node, epoch, input),
            Event::Call { rank } => self.call(rank),
            Event::Link { node, epoch, peer } => self.link(node, epoch, peer),
            Event::Dial { node } => self.dial(node),
            Event::Heartbeat { node } => self.heartbeat(node),
            Event::Probe { node } => self.probe(node),
            Event::Join { node, epoch } => self.join(node, epoch),
            Event::Attach { node } => self.attach(node),
            Event::Restart { node } => self.boot(node),
            Event::HungUp { node, connection } => self.hung_up(node, connection),
            Event::ToSidecar {
                node,
                connection,
                message,
            } => self.on_message(node, connection, message),
            Event::ToLeader { leader, notice } => self.on_notice(leader, notice),
            Event::LeaderTick { leader } => self.on_notice(leader, MembershipEvent::Tick),
            Event::LeaderStarts { leader } => self.become_leader(leader),
            Event::Store {
                leader,
                commit,
                after,
            } => self.decide(leader, commit, after),
        }
        self.begin_next_epoch();
    }
}
