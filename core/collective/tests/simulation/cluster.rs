//! A group of machines in one process: virtual time and links with delay. What a node does with the effects of its
//! machine is in `shell`, what its processes do in `ranks`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use collective::Call;
use collective::machine::{
    Broken, Buffer, Cause, Config, Effect, Fence, Frame, Input, Machine, OpId, Placement, Reason,
    Timing, WORLD,
};
use sim::{Conditions, CrashPoint, Network, Queue, Rng};

use crate::fixture::memory::{Memory, Payload, Work};
use crate::group::Group;

pub(crate) const FENCE: Fence = Fence {
    attempt: 3,
    epoch: 1,
};

/// The end of an operation as one rank sees it: the bytes it may read, or why there are none.
pub(crate) type Outcome = Result<Payload, Cause>;

#[derive(Clone, Debug)]
pub(crate) enum Event {
    Arrive {
        to: usize,
        from: usize,
        fence: Fence,
        frame: Frame,
        payload: Option<Payload>,
    },
    /// A payload has been read in; the link goes on.
    Handled {
        to: usize,
        from: usize,
    },
    Work {
        node: usize,
        work: Work,
    },
    Tick {
        node: usize,
    },
    /// A rank calls what its window allows.
    Call {
        rank: u32,
    },
    Ready {
        node: usize,
        rank: usize,
        op: OpId,
        ready: u64,
    },
    LinkLost {
        node: usize,
        peer: usize,
    },
}

/// A frame on its way in.
type Incoming = (Fence, Frame, Option<Payload>);

pub(crate) struct Cluster {
    pub(crate) group: Group,
    pub(crate) queue: Queue<Event>,
    pub(crate) network: Network,
    pub(crate) rng: Rng,
    machines: Vec<Option<Machine>>,
    pub(crate) memory: Vec<Memory>,
    /// What arrived on a link and was not handled yet; the first may be being read in.
    incoming: BTreeMap<(usize, usize), VecDeque<Incoming>>,
    reading: BTreeSet<(usize, usize)>,
    /// What each rank calls, in order.
    pub(crate) programs: Vec<Vec<Call>>,
    pub(crate) called: Vec<usize>,
    /// Calls that the node of a rank cannot carry out.
    pub(crate) refused: BTreeMap<(u32, usize), Reason>,
    /// By operation; several may be in flight, so they need not end in order.
    pub(crate) outcomes: Vec<BTreeMap<usize, Outcome>>,
    pub(crate) inputs_seed: u64,
    /// What each rank brings to its operations, one after another, in place of random elements.
    pub(crate) given: Vec<Vec<u8>>,
    /// Ranks that do not call for now.
    pub(crate) held: BTreeSet<u32>,
    pub(crate) frozen: BTreeSet<usize>,
    pub(crate) crash: CrashPoint,
    pub(crate) victim: Option<usize>,
    pub(crate) suspects: Vec<(Duration, usize, usize)>,
    pub(crate) recovered: Vec<(usize, usize)>,
    pub(crate) late: Vec<(Duration, usize, OpId, Vec<usize>)>,
    pub(crate) broken: BTreeMap<usize, (Duration, Broken)>,
    pub(crate) freed: Vec<BTreeSet<OpId>>,
    pub(crate) released: Vec<BTreeSet<OpId>>,
    /// Frames sent, and those of them that only carry a mark.
    pub(crate) frames: u64,
    pub(crate) marks: u64,
    /// When each node last heard from each peer.
    pub(crate) heard: BTreeMap<(usize, usize), Duration>,
    ticks: Vec<Option<Duration>>,
    /// To be used again.
    effects: Vec<Effect>,
}

impl Cluster {
    pub(crate) fn new(rng: &mut Rng, group: Group) -> Self {
        let nodes = group.layout.nodes();
        let world = group.layout.world() as usize;
        let machine = |node| {
            let config = Config {
                node,
                layout: group.layout.clone(),
                trees: group.trees.clone(),
                fence: FENCE,
                chunk_bytes: group.chunk_bytes,
                slots: group.slots,
                timing: Timing::default(),
                recovery: group.recovery,
            };
            config.check().unwrap();
            Some(Machine::new(config, Duration::ZERO))
        };
        let mut cluster = Self {
            queue: Queue::default(),
            network: Network::new(rng.fork(), Conditions::reliable()),
            rng: rng.fork(),
            machines: (0..nodes).map(machine).collect(),
            memory: vec![Memory::default(); nodes],
            incoming: BTreeMap::new(),
            reading: BTreeSet::new(),
            programs: vec![Vec::new(); world],
            called: vec![0; world],
            refused: BTreeMap::new(),
            outcomes: vec![BTreeMap::new(); world],
            inputs_seed: rng.next_u64(),
            given: Vec::new(),
            held: BTreeSet::new(),
            frozen: BTreeSet::new(),
            crash: CrashPoint::never(),
            victim: None,
            suspects: Vec::new(),
            recovered: Vec::new(),
            late: Vec::new(),
            broken: BTreeMap::new(),
            freed: vec![BTreeSet::new(); nodes],
            released: vec![BTreeSet::new(); nodes],
            frames: 0,
            marks: 0,
            heard: BTreeMap::new(),
            ticks: vec![None; nodes],
            effects: Vec::new(),
            group,
        };
        cluster.allocate_slots();
        (0..nodes).for_each(|node| cluster.schedule_tick(node));
        cluster
    }

    fn allocate_slots(&mut self) {
        for (node, machine) in self.machines.iter().enumerate() {
            let machine = machine.as_ref().unwrap();
            let receive = machine
                .receives(WORLD)
                .into_iter()
                .flat_map(|(peer, tree)| {
                    (0..self.group.slots).map(move |slot| Buffer::Receive {
                        group: WORLD,
                        peer,
                        tree,
                        slot,
                    })
                });
            let send = machine.sends(WORLD).into_iter().flat_map(|tree| {
                (0..self.group.slots).map(move |slot| Buffer::Send {
                    group: WORLD,
                    tree,
                    slot,
                })
            });
            for buffer in receive.chain(send) {
                self.memory[node].add_slot(buffer, self.group.chunk_bytes);
            }
        }
    }

    pub(crate) fn machine(&self, node: usize) -> &Machine {
        self.machines[node].as_ref().unwrap()
    }

    pub(crate) fn is_alive(&self, node: usize) -> bool {
        self.machines[node].is_some()
    }

    /// The outcomes of all ranks.
    pub(crate) fn all_outcomes(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes.iter().flat_map(BTreeMap::values)
    }

    /// Every rank of a living node has the outcome of all it was to call.
    pub(crate) fn all_ended(&self) -> bool {
        (0..self.group.layout.world()).all(|rank| {
            let node = self.group.layout.node_of(rank);
            let rank = rank as usize;
            !self.is_alive(node) || self.outcomes[rank].len() == self.programs[rank].len()
        })
    }

    /// Runs until all ranks have all outcomes; fails when that takes longer than `limit`.
    pub(crate) fn run(&mut self, limit: Duration) {
        while !self.all_ended() {
            assert!(
                self.queue.now() < limit,
                "somebody hangs: {:?}",
                self.progress()
            );
            self.step_once();
        }
    }

    pub(crate) fn run_until(&mut self, time: Duration) {
        while self.queue.next_at().is_some_and(|next| next <= time) {
            self.step_once();
        }
    }

    fn progress(&self) -> Vec<usize> {
        self.outcomes.iter().map(BTreeMap::len).collect()
    }

    pub(crate) fn step_once(&mut self) {
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
            } => {
                self.incoming
                    .entry((to, from))
                    .or_default()
                    .push_back((fence, frame, payload));
                self.take_in(to, from);
            }
            Event::Handled { to, from } if self.frozen.contains(&to) => {
                self.queue
                    .after(Duration::from_millis(10), Event::Handled { to, from });
            }
            Event::Handled { to, from } => {
                self.reading.remove(&(to, from));
                self.memory[to].has_read_in(from);
                if let Some((fence, frame, _)) =
                    self.incoming.entry((to, from)).or_default().pop_front()
                {
                    self.input_frame(to, from, fence, frame);
                }
                self.take_in(to, from);
            }
            Event::Work { node, work } => self.finish(node, work),
            Event::Tick { node } => {
                self.ticks[node] = None;
                self.handle(node, Input::Tick);
            }
            Event::Call { rank } => self.call(rank),
            Event::Ready {
                node,
                rank,
                op,
                ready,
            } => {
                if self.frozen.contains(&node) {
                    self.queue.after(
                        Duration::from_millis(10),
                        Event::Ready {
                            node,
                            rank,
                            op,
                            ready,
                        },
                    );
                } else {
                    self.memory[node].ready((WORLD, op), rank, ready);
                    let group = WORLD;
                    let ready = Input::Ready {
                        group,
                        rank,
                        op,
                        ready,
                    };
                    self.handle(node, ready);
                }
            }
            Event::LinkLost { node, peer } => self.handle(node, Input::PeerLost { peer }),
        }
    }

    /// Handles what has arrived on a link, up to the next payload, which takes time to read in.
    fn take_in(&mut self, to: usize, from: usize) {
        while !self.reading.contains(&(to, from)) && !self.frozen.contains(&to) {
            let Some((fence, frame, payload)) =
                self.incoming.entry((to, from)).or_default().pop_front()
            else {
                return;
            };
            let Some(bytes) = payload else {
                self.input_frame(to, from, fence, frame);
                continue;
            };
            if let Some(machine) = &self.machines[to]
                && let Placement::Into(region) = machine.place(from, fence, &frame)
            {
                self.memory[to].read_in(from, region, &bytes);
            }
            self.reading.insert((to, from));
            self.incoming
                .entry((to, from))
                .or_default()
                .push_front((fence, frame, None));
            let delay = Duration::from_nanos(self.rng.range(0..200_000));
            self.queue.after(delay, Event::Handled { to, from });
        }
    }

    fn input_frame(&mut self, to: usize, from: usize, fence: Fence, frame: Frame) {
        if fence == FENCE && !self.frozen.contains(&to) {
            self.heard.insert((to, from), self.queue.now());
        }
        self.handle(
            to,
            Input::Frame {
                peer: from,
                fence,
                frame,
            },
        );
    }

    /// Hands an input to a machine and carries out the effects. A frozen node does nothing until it thaws.
    pub(crate) fn handle(&mut self, node: usize, input: Input) {
        if self.frozen.contains(&node) {
            return;
        }
        if self.victim == Some(node) && self.is_alive(node) && self.crash.hit() {
            self.kill(node);
        }
        let now = self.queue.now();
        let Some(machine) = self.machines[node].as_mut() else {
            return;
        };
        let mut effects = std::mem::take(&mut self.effects);
        machine.handle(now, input, &mut effects);
        for effect in effects.drain(..) {
            self.carry_out(node, effect);
        }
        self.effects = effects;
        self.schedule_tick(node);
    }

    fn schedule_tick(&mut self, node: usize) {
        let Some(machine) = &self.machines[node] else {
            return;
        };
        let at = machine.wake_at();
        if at != Duration::MAX
            && self.ticks[node]
                .is_none_or(|scheduled| at < scheduled || scheduled <= self.queue.now())
        {
            self.ticks[node] = Some(at);
            self.queue.at(at, Event::Tick { node });
        }
    }

    /// The node is gone: its neighbours' links close one after another.
    pub(crate) fn kill(&mut self, node: usize) {
        let peers = self.machine(node).peers();
        self.machines[node] = None;
        for peer in peers {
            self.network.cut(node, peer);
            let delay = Duration::from_nanos(self.rng.range(2_000_000..50_000_000));
            self.queue.after(
                delay,
                Event::LinkLost {
                    node: peer,
                    peer: node,
                },
            );
        }
    }

    /// A frozen node reads what came meanwhile.
    pub(crate) fn thaw(&mut self, node: usize) {
        self.frozen.remove(&node);
        self.handle(node, Input::Tick);
        let links: Vec<(usize, usize)> = self
            .incoming
            .keys()
            .copied()
            .filter(|link| link.0 == node)
            .collect();
        links
            .into_iter()
            .for_each(|(to, from)| self.take_in(to, from));
        for rank in self.group.layout.ranks(node) {
            self.call_soon(rank);
        }
    }

    pub(crate) fn inject(&mut self, to: usize, from: usize, fence: Fence, frame: Frame) {
        self.queue.after(
            Duration::ZERO,
            Event::Arrive {
                to,
                from,
                fence,
                frame,
                payload: None,
            },
        );
    }
}
