//! Nodes with their machines, a network between them, virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use collective::agenda::Agenda;
use collective::machine::{
    Buffer, Config, Fence, Frame, GroupId, Input, Machine, OpId, Placement, Recovery, Timing,
};
use collective::recovery::Report;
use collective::{DoubleTree, Layout};
use sim::{Conditions, Network, Queue, Rng};

use crate::memory::{Memory, Payload, Work};
use crate::messages::Message;
use crate::priority::Urgency;
use crate::trainer::Lane;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const CHUNK: u32 = 512;

#[derive(Debug)]
pub(crate) enum Event {
    Arrive {
        to: usize,
        from: usize,
        fence: Fence,
        frame: Frame,
        payload: Option<Payload>,
    },
    Work {
        node: usize,
        life: u64,
        epoch: u32,
        work: Work,
        computes: bool,
    },
    /// A rank opens a group or calls an operation, as far as it may.
    Act { rank: u32 },
    Input {
        node: usize,
        life: u64,
        epoch: u32,
        input: Input,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) machine: Option<Machine>,
    pub(crate) memory: Memory,
    /// Places for what ranks get that nobody else gets.
    pub(crate) own: BTreeSet<Buffer>,
    /// Counts its restarts.
    pub(crate) life: u64,
    pub(crate) report: Option<Report>,
    pub(crate) links: BTreeSet<usize>,
    /// What it has to do, where it does one thing after another; and whether it computes.
    pub(crate) agenda: Agenda,
    pub(crate) computes: bool,
    tick: Option<Duration>,
}

pub(crate) struct World {
    pub(crate) layout: Layout,
    pub(crate) zones: Vec<u64>,
    pub(crate) recovery: Recovery,
    pub(crate) slots: u8,
    pub(crate) queue: Queue<Event>,
    pub(crate) network: Network,
    pub(crate) rng: Rng,
    pub(crate) nodes: Vec<Node>,
    pub(crate) epoch: u32,
    /// Of each epoch from the first.
    pub(crate) members: Vec<Vec<usize>>,
    pub(crate) lanes: BTreeMap<GroupId, Lane>,
    /// Operations that a rank may have called in a group without knowing the end of the first.
    pub(crate) window: usize,
    pub(crate) inputs_seed: u64,
    pub(crate) frames: u64,
    /// Bytes of messages that each node has handed to another.
    pub(crate) parts: BTreeMap<(usize, usize), u64>,
    /// Messages between two ranks.
    pub(crate) messages: Vec<Message>,
    /// A rank that expects something else than it is sent, in an operation of a group.
    pub(crate) odd: Option<(GroupId, u32, usize)>,
    /// The attempt has ended: what somebody needs is lost.
    pub(crate) forgotten: bool,
    /// Nodes compute one chunk after another, the most urgent first. Otherwise they do everything at once.
    pub(crate) urgency: Option<Urgency>,
    pub(crate) late: Vec<(usize, GroupId, OpId, Vec<usize>)>,
    pub(crate) story: Vec<String>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for line in &self.story {
                println!("{line}");
            }
        }
    }
}

impl World {
    pub(crate) fn new(rng: &mut Rng, ranks: &[u32], zones: &[u64], recovery: Recovery) -> Self {
        let nodes = ranks.len();
        let ordered = rng.chance(3, 4);
        let conditions = Conditions {
            ordered,
            ..Conditions::reliable()
        };
        let mut world = Self {
            layout: Layout::new(ranks).unwrap(),
            zones: zones.to_vec(),
            recovery,
            slots: rng.range(1..4) as u8,
            queue: Queue::default(),
            network: Network::new(rng.fork(), conditions),
            rng: rng.fork(),
            nodes: (0..nodes).map(|_| Node::default()).collect(),
            epoch: 0,
            members: Vec::new(),
            lanes: BTreeMap::new(),
            window: 1 + rng.below(4),
            inputs_seed: rng.next_u64(),
            frames: 0,
            parts: BTreeMap::new(),
            messages: Vec::new(),
            odd: None,
            forgotten: false,
            urgency: None,
            late: Vec::new(),
            story: Vec::new(),
        };
        world.enter((0..nodes).collect(), None);
        world
    }

    /// The members of the epoch.
    pub(crate) fn present(&self) -> &[usize] {
        self.members.last().unwrap()
    }

    pub(crate) fn fence(&self) -> Fence {
        Fence {
            attempt: 3,
            epoch: self.epoch,
        }
    }

    pub(crate) fn trees(&self) -> DoubleTree {
        let zones: Vec<u64> = self
            .present()
            .iter()
            .map(|&node| self.zones[node])
            .collect();
        DoubleTree::build(&zones)
    }

    pub(crate) fn config(&self, node: usize) -> Config {
        let members = self.present();
        Config {
            node: members.binary_search(&node).unwrap(),
            layout: self.layout.of_members(members).unwrap(),
            trees: self.trees(),
            fence: self.fence(),
            chunk_bytes: CHUNK,
            slots: self.slots,
            timing: Timing::default(),
            recovery: self.recovery,
        }
    }

    pub(crate) fn note(&mut self, what: String) {
        let now = self.queue.now();
        self.story.push(format!("{now:>12.3?} {what}"));
    }

    pub(crate) fn a_while(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.rng.range(0..most.as_nanos() as u64 + 1))
    }

    pub(crate) fn later(&mut self, most: Duration, node: usize, input: Input) {
        let delay = self.a_while(most);
        let (life, epoch) = (self.nodes[node].life, self.epoch);
        let event = Event::Input {
            node,
            life,
            epoch,
            input,
        };
        self.queue.after(delay, event);
    }

    pub(crate) fn run_until(&mut self, time: Duration) {
        while self.queue.next_at().is_some_and(|next| next <= time) {
            self.step();
        }
    }

    /// Runs until it holds; fails when that takes longer than a minute.
    pub(crate) fn run(&mut self, is_over: impl Fn(&Self) -> bool) {
        let limit = self.queue.now() + 60_000 * MS;
        while !is_over(self) {
            assert!(
                self.queue.now() < limit,
                "somebody hangs: {}",
                self.progress()
            );
            self.step();
        }
    }

    pub(crate) fn step(&mut self) {
        let Some(event) = self.queue.pop() else {
            return;
        };
        match event {
            Event::Arrive {
                to,
                from,
                fence,
                frame,
                payload,
            } => self.arrive(to, from, fence, frame, payload),
            Event::Work {
                node,
                life,
                epoch,
                work,
                computes,
            } => {
                if (self.nodes[node].life, self.epoch) == (life, epoch) {
                    self.finish(node, &work, computes);
                }
            }
            Event::Act { rank } => self.act(rank),
            Event::Input {
                node,
                life,
                epoch,
                input,
            } => {
                if (self.nodes[node].life, self.epoch) != (life, epoch) {
                    return;
                }
                if input == Input::Tick {
                    self.nodes[node].tick = None;
                }
                if let Input::Ready {
                    group,
                    rank,
                    op,
                    ready,
                } = input
                {
                    let memory = &mut self.nodes[node].memory;
                    memory.ready((group, op), rank, ready);
                }
                if let Input::Linked { peer } = input {
                    let peer = self.present()[peer];
                    self.nodes[node].links.insert(peer);
                }
                self.handle(node, input);
            }
        }
        self.go_on();
    }

    fn arrive(
        &mut self,
        to: usize,
        from: usize,
        fence: Fence,
        frame: Frame,
        payload: Option<Payload>,
    ) {
        let members = &self.members[fence.epoch as usize - 1];
        let Ok(peer) = members.binary_search(&from) else {
            return;
        };
        if self.nodes[to].machine.is_none() {
            return;
        }
        if let Some(bytes) = payload
            && let Placement::Into(region) = self.nodes[to]
                .machine
                .as_ref()
                .unwrap()
                .place(peer, fence, &frame)
        {
            self.check_unread(to, region);
            let memory = &mut self.nodes[to].memory;
            memory.read_in(from, region, &bytes);
            memory.has_read_in(from);
        }
        self.handle(to, Input::Frame { peer, fence, frame });
    }

    /// Hands an input to a machine and carries out the effects.
    pub(crate) fn handle(&mut self, node: usize, input: Input) {
        let now = self.queue.now();
        let Some(machine) = self.nodes[node].machine.as_mut() else {
            return;
        };
        let mut effects = Vec::new();
        machine.handle(now, input, &mut effects);
        for effect in effects {
            self.ask(node, effect);
        }
        self.begin_next(node);
        let Some(machine) = &self.nodes[node].machine else {
            return;
        };
        let at = machine.wake_at();
        if at != Duration::MAX && self.nodes[node].tick.is_none_or(|tick| at < tick) {
            self.nodes[node].tick = Some(at);
            let (life, epoch) = (self.nodes[node].life, self.epoch);
            let input = Input::Tick;
            let event = Event::Input {
                node,
                life,
                epoch,
                input,
            };
            self.queue.at(at, event);
        }
    }

    pub(crate) fn forget_tick(&mut self, node: usize) {
        self.nodes[node].tick = None;
    }
}
