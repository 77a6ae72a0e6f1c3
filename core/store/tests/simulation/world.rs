//! The nodes, their connections with the first member of their epoch, and whoever decides on epochs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use sim::{CrashPoint, Queue, Rng};
use store::{ClientId, Effect, Input, Message, Replica};

use crate::client::Client;
use crate::history::{Event, check};

/// Sessions of a node.
const CLIENTS: u64 = 2;
/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(1000);
/// When no more faults happen, and then when whoever waits gives up.
const CALM: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(500);

/// How often what happens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    /// Nodes that end.
    pub(crate) crashes: usize,
    /// Sidecars that are replaced.
    pub(crate) forgets: usize,
    /// Connections that break.
    pub(crate) cuts: usize,
    /// Epochs for no reason.
    pub(crate) epochs: usize,
    /// Members that are put out and do not hear of it.
    pub(crate) exiles: usize,
}

#[derive(Debug)]
struct Node {
    replica: Replica,
    epoch: u64,
    clients: BTreeMap<ClientId, Client>,
    is_alive: bool,
    has_forgotten: bool,
    /// Effects are taken after so many inputs at least: shells hear of several things at once.
    heard: usize,
}

/// One direction of a connection. In another epoch, or another life of an end, it is another.
type Way = (u32, u32);

#[derive(Debug, Default)]
struct Connection {
    /// Which, of all between the two.
    number: u64,
    /// Who uses it.
    linked: BTreeSet<u32>,
    under_way: BTreeMap<Way, VecDeque<Message>>,
}

#[derive(Debug)]
enum Happening {
    Enter(u32, u64, Vec<u32>),
    Link(u32, u32, u64),
    /// The next message of this direction arrives.
    Deliver(Way, u64),
    /// A message arrives once more.
    Late(Way, u64, Box<Message>),
    Call(ClientId),
    Cancel(ClientId),
    Leave(ClientId),
    Act(u32),
    Fault(Fault),
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Crash,
    Forget,
    Cut,
    Epoch,
    Exile,
}

pub(crate) struct World {
    rng: Rng,
    queue: Queue<Happening>,
    nodes: BTreeMap<u32, Node>,
    connections: BTreeMap<Way, Connection>,
    links: u64,
    epoch: u64,
    members: Vec<u32>,
    crash: CrashPoint,
    ended: Vec<Event>,
    auditor: Option<ClientId>,
}

impl World {
    pub(crate) fn new(rng: &mut Rng, count: u32, faults: Faults, crash: CrashPoint) -> Self {
        let mut world = Self {
            rng: rng.fork(),
            queue: Queue::default(),
            nodes: BTreeMap::new(),
            connections: BTreeMap::new(),
            links: 0,
            epoch: 0,
            members: (0..count).collect(),
            crash,
            ended: Vec::new(),
            auditor: None,
        };
        for node in 0..count {
            let client = |number| {
                let id = ClientId { node, number };
                (id, Client::new(id, rng.fork()))
            };
            let clients = (0..CLIENTS).map(client).collect();
            world.nodes.insert(
                node,
                Node {
                    replica: Replica::new(node),
                    epoch: 0,
                    clients,
                    is_alive: true,
                    has_forgotten: false,
                    heard: 0,
                },
            );
            for number in 0..CLIENTS {
                world.soon(Happening::Call(ClientId { node, number }));
            }
        }
        world.next_epoch();
        let all = [
            (Fault::Crash, faults.crashes),
            (Fault::Forget, faults.forgets),
            (Fault::Cut, faults.cuts),
            (Fault::Epoch, faults.epochs),
            (Fault::Exile, faults.exiles),
        ];
        for (fault, times) in all {
            for _ in 0..times {
                let at = Duration::from_nanos(world.rng.range(0..CALM.as_nanos() as u64 / 2));
                world.queue.at(at, Happening::Fault(fault));
            }
        }
        world
    }

    /// Runs until nothing happens any more, and checks. Says how many steps that took.
    pub(crate) fn run(mut self) -> u64 {
        let mut audited = false;
        loop {
            let Some(happening) = self.queue.pop() else {
                if audited {
                    break;
                }
                audited = true;
                self.audit();
                continue;
            };
            assert!(self.queue.now() < LIMIT, "it hangs");
            if self.crash.hit() {
                let first = self.rng.chance(1, 2);
                let whom = if first {
                    self.members.first()
                } else {
                    self.members.last()
                };
                self.crash(*whom.unwrap());
            }
            self.happen(happening);
        }
        // Those who are gone take nothing any more; unless the auditor went as well.
        let auditor = self.auditor.and_then(|id| self.client(id));
        let was_robbed = auditor.as_ref().is_some_and(|one| one.was_robbed());
        assert!(!was_robbed, "{auditor:?}");
        for node in self.nodes.values_mut() {
            for client in node.clients.values_mut() {
                let is_member = node.is_alive && self.members.contains(&client.id.node);
                assert!(
                    !is_member || client.is_done(),
                    "never answered: {client:?} of {:?}",
                    node.replica
                );
                client.end();
                self.ended.append(&mut client.history);
            }
        }
        check(&self.ended);
        let copies = self
            .members
            .iter()
            .map(|member| &self.nodes[member].replica);
        let copies: Vec<_> = copies.map(|copy| (copy.version(), copy.keys())).collect();
        assert!(
            copies.windows(2).all(|pair| pair[0] == pair[1]),
            "{copies:?}"
        );
        self.crash.passed()
    }

    /// Everybody is done, and one of those who are left looks at what there is.
    fn audit(&mut self) {
        let node = self.members[0];
        let id = ClientId { node, number: 0 };
        self.auditor = Some(id);
        self.client(id).unwrap().audit();
        self.soon(Happening::Call(id));
    }

    fn soon(&mut self, happening: Happening) {
        let most = [10_000, 1_000_000, 10_000_000][self.rng.below(3)];
        let delay = Duration::from_nanos(self.rng.range(1..most));
        self.queue.after(delay, happening);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Enter(node, epoch, members) => self.enter(node, epoch, members),
            Happening::Link(node, peer, number) => {
                let Some(connection) = self.connections.get_mut(&way(node, peer)) else {
                    return;
                };
                if connection.number == number && connection.linked.insert(node) {
                    self.hear(node, Input::Linked { peer });
                }
            }
            Happening::Deliver(to, number) => self.deliver(to, number),
            Happening::Late((from, to), epoch, message) => {
                if self.nodes[&to].epoch == epoch {
                    self.hear(
                        to,
                        Input::Received {
                            from,
                            message: *message,
                        },
                    );
                }
            }
            Happening::Call(id) => self.call(id),
            Happening::Cancel(id) => {
                if let Some(call) = self.client(id).and_then(Client::cancel) {
                    self.hear(id.node, Input::Called(call));
                }
            }
            Happening::Leave(id) => self.hear(id.node, Input::Left(id)),
            Happening::Act(node) => self.act(node),
            Happening::Fault(fault) => self.fault(fault),
        }
    }

    fn client(&mut self, id: ClientId) -> Option<&mut Client> {
        let node = self.nodes.get_mut(&id.node).filter(|node| node.is_alive)?;
        node.clients.get_mut(&id)
    }

    fn call(&mut self, id: ClientId) {
        let now = self.queue.now();
        let Some(client) = self.client(id) else {
            return;
        };
        let call = client.call(now);
        if let Some(call) = call {
            self.hear(id.node, Input::Called(call));
            // When all is calm, nobody waits for ever for what nobody says.
            let delay = self.rng.range(0..PATIENCE.as_nanos() as u64);
            let at = match self.rng.chance(1, 8) {
                true => now + Duration::from_nanos(delay / 50),
                false => now.max(CALM) + PATIENCE,
            };
            self.queue.at(at, Happening::Cancel(id));
        }
    }

    fn enter(&mut self, node: u32, epoch: u64, members: Vec<u32>) {
        let own = self.nodes.get_mut(&node).unwrap();
        let from_start = !own.has_forgotten;
        // It may be one of before, and connections are of an epoch.
        let is_new = epoch > own.epoch;
        if is_new && own.is_alive {
            own.epoch = epoch;
            self.break_all(node);
        }
        let first = members[0];
        self.hear(
            node,
            Input::Enter {
                epoch,
                members: members.clone(),
                from_start,
            },
        );
        let others = members.iter().filter(|other| is_new && **other != node);
        let others: Vec<u32> = others.copied().collect();
        for other in others {
            if node == first || other == first {
                self.connect(node, other);
            }
        }
    }

    /// Two that are in the same epoch are connected, sooner or later.
    fn connect(&mut self, one: u32, other: u32) {
        let same = self.nodes[&one].epoch == self.nodes[&other].epoch;
        if !same || !self.nodes[&one].is_alive || !self.nodes[&other].is_alive {
            return;
        }
        self.links += 1;
        let number = self.links;
        let connection = Connection {
            number,
            ..Connection::default()
        };
        self.connections.insert(way(one, other), connection);
        self.soon(Happening::Link(one, other, number));
        self.soon(Happening::Link(other, one, number));
    }

    fn send(&mut self, from: u32, to: u32, message: Message) {
        let Some(connection) = self.connections.get_mut(&way(from, to)) else {
            return;
        };
        if !connection.linked.contains(&from) {
            return;
        }
        let number = connection.number;
        let under_way = connection.under_way.entry((from, to)).or_default();
        under_way.push_back(message);
        self.soon(Happening::Deliver((from, to), number));
    }

    fn deliver(&mut self, (from, to): Way, number: u64) {
        let Some(connection) = self.connections.get_mut(&way(from, to)) else {
            return;
        };
        if connection.number != number {
            return;
        }
        if !connection.linked.contains(&to) {
            self.soon(Happening::Deliver((from, to), number));
            return;
        }
        let under_way = connection.under_way.get_mut(&(from, to));
        if let Some(message) = under_way.and_then(VecDeque::pop_front) {
            if self.rng.chance(1, 10) {
                let epoch = self.nodes[&to].epoch;
                let again = Box::new(message.clone());
                self.soon(Happening::Late((from, to), epoch, again));
            }
            self.hear(to, Input::Received { from, message });
        }
    }

    fn hear(&mut self, node: u32, input: Input) {
        let own = self.nodes.get_mut(&node).unwrap();
        if !own.is_alive {
            return;
        }
        own.replica.handle(input);
        own.heard += 1;
        if self.rng.chance(1, 2) {
            self.act(node);
        } else {
            self.soon(Happening::Act(node));
        }
    }

    fn act(&mut self, node: u32) {
        let own = self.nodes.get_mut(&node).unwrap();
        if !own.is_alive || std::mem::take(&mut own.heard) == 0 {
            return;
        }
        for effect in own.replica.effects() {
            match effect {
                Effect::Send { to, message } => self.send(node, to, message),
                Effect::Answer {
                    client,
                    sequence,
                    answer,
                } => {
                    let now = self.queue.now();
                    let own = self.client(client).unwrap();
                    own.told(sequence, answer, now);
                    // The first stays for the audit.
                    if own.is_done() && client.number > 0 {
                        own.end();
                        self.soon(Happening::Leave(client));
                    } else {
                        self.soon(Happening::Call(client));
                    }
                }
            }
        }
    }

    /// Members that would remember something if this one did not.
    fn others_remember(&self, node: u32) -> bool {
        let mut others = self.members.iter().filter(|other| **other != node);
        others.any(|other| {
            let other = &self.nodes[other];
            other.is_alive && (!other.has_forgotten || other.replica.version().is_some())
        })
    }

    fn fault(&mut self, fault: Fault) {
        let at = self.rng.below(self.members.len());
        let node = self.members[at];
        match fault {
            Fault::Crash => self.crash(node),
            Fault::Forget if self.others_remember(node) => {
                let own = self.nodes.get_mut(&node).unwrap();
                own.replica = Replica::new(node);
                (own.epoch, own.has_forgotten) = (0, true);
                let clients = own.clients.values().filter_map(Client::again);
                for call in clients.collect::<Vec<_>>() {
                    self.hear(node, Input::Called(call));
                }
                self.break_all(node);
                self.next_epoch();
            }
            Fault::Exile if self.others_remember(node) => {
                // It goes on in its epoch with whoever has not left that either.
                self.members.remove(at);
                self.next_epoch();
            }
            Fault::Epoch => self.next_epoch(),
            Fault::Cut => {
                let first = self.members[0];
                if node != first && self.connections.remove(&way(node, first)).is_some() {
                    self.connect(node, first);
                }
            }
            Fault::Forget | Fault::Exile => {}
        }
    }

    fn crash(&mut self, node: u32) {
        if !self.others_remember(node) {
            return;
        }
        self.nodes.get_mut(&node).unwrap().is_alive = false;
        self.break_all(node);
        self.members.retain(|member| *member != node);
        self.next_epoch();
    }

    fn break_all(&mut self, node: u32) {
        self.connections
            .retain(|(one, other), _| *one != node && *other != node);
    }

    /// Those who are left hear of the next epoch, each when it hears of it; perhaps of one after it first.
    fn next_epoch(&mut self) {
        self.epoch += 1;
        for member in self.members.clone() {
            self.soon(Happening::Enter(member, self.epoch, self.members.clone()));
        }
    }
}

fn way(one: u32, other: u32) -> Way {
    (one.min(other), one.max(other))
}
