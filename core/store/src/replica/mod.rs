//! One node's copy of the store. In an epoch the lowest member orders all calls; a call is answered when every member of
//! the epoch has it. A new epoch begins with what the member holds that is furthest, which has all that was answered.
//!
//! Messages between two members keep their order until their connection breaks; what was under way is lost then, and
//! both hear of the next connection ([`Input::Linked`]).

mod first;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::call::{Answer, Call, ClientId, Command, Failure};
use crate::keys::{Keys, Progress};
use first::Follower;

/// How far a copy is: two with the same version are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The last epoch that it took part in; 0 before the first.
    pub epoch: u64,
    /// How many calls were done.
    pub position: u64,
}

/// What a replica hears of.
#[derive(Clone, Debug)]
pub enum Input {
    /// The members of a new epoch go on.
    Enter {
        /// Greater than all before.
        epoch: u64,
        /// Ascending; this node is one of them.
        members: Vec<u32>,
        /// Whether this node was there before the first epoch: having nothing, it has the empty store. Another has
        /// forgotten what there was.
        from_start: bool,
    },
    /// There is a new connection with a member of this epoch, and none before it any more.
    Linked {
        /// Which.
        peer: u32,
    },
    /// A member says something.
    Received {
        /// Which.
        from: u32,
        /// What.
        message: Message,
    },
    /// A process of this node calls. Its call before is not waited for any more.
    Called(Call),
    /// A session of this node is over.
    Left(ClientId),
}

/// What a replica wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Say this to a member. Lost where there is no connection.
    Send {
        /// To whom.
        to: u32,
        /// What.
        message: Message,
    },
    /// Answer a process of this node.
    Answer {
        /// Which.
        client: ClientId,
        /// Its call.
        sequence: u64,
        /// What.
        answer: Answer,
    },
}

/// What members say to each other in an epoch. The first member is said `Have`, `State` and `Ask`, and says the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// This is how far I am; nothing, if I remember nothing.
    Have(Option<Version>),
    /// Say what you hold.
    Fetch,
    /// That is what I hold, and how far it is.
    State(Version, Box<Keys>),
    /// The epoch begins with this version; with its content for who holds another.
    Begin(Version, Option<Box<Keys>>),
    /// Nobody remembers anything.
    Lost,
    /// The next calls.
    Calls {
        /// The position that they come after.
        after: u64,
        /// In their order.
        calls: Vec<Call>,
        /// Up to here every member has them.
        stable: u64,
    },
    /// Do this. Numbers of one member ascend.
    Ask(u64, Call),
}

/// Where an epoch is.
#[derive(Debug)]
enum Phase {
    /// Before the first, or before this one has begun.
    Waiting,
    /// The first member learns how far the others are.
    Gathering(BTreeMap<u32, Option<Version>>),
    Running,
    Lost,
}

/// A call of a process of this node.
#[derive(Debug)]
struct Pending {
    call: Call,
    /// The answer, and the position from which on it counts.
    answer: Option<(u64, Answer)>,
}

/// One node's copy.
#[derive(Debug)]
pub struct Replica {
    node: u32,
    epoch: u64,
    members: Vec<u32>,
    phase: Phase,
    keys: Keys,
    /// None when it remembers nothing.
    version: Option<Version>,
    stable: u64,
    pending: BTreeMap<ClientId, Pending>,
    /// Pending calls that have an answer.
    answered: BTreeSet<ClientId>,
    /// What the first member was told of this one's version in this epoch.
    said: Option<Option<Version>>,
    asked: u64,
    followers: BTreeMap<u32, Follower>,
    /// The last calls: those that not every member is known to have. The first member keeps them.
    log: VecDeque<Call>,
    /// What the epoch began with, at the first member.
    origin: Version,
    effects: Vec<Effect>,
}

impl Replica {
    /// The copy of a node that remembers nothing.
    pub fn new(node: u32) -> Self {
        Self {
            node,
            epoch: 0,
            members: Vec::new(),
            phase: Phase::Waiting,
            keys: Keys::default(),
            version: None,
            stable: 0,
            pending: BTreeMap::new(),
            answered: BTreeSet::new(),
            said: None,
            asked: 0,
            followers: BTreeMap::new(),
            log: VecDeque::new(),
            origin: Version::default(),
            effects: Vec::new(),
        }
    }

    /// The member that orders the calls of this epoch, if one has begun.
    pub fn first(&self) -> Option<u32> {
        self.members.first().copied()
    }

    /// Calls of this node's processes, and ends of their sessions, that are not done yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// How far it is.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// What it holds.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Hears of something. What has to be done about it is in [`Replica::effects`], which may be asked for after several.
    pub fn handle(&mut self, input: Input) {
        match input {
            Input::Enter {
                epoch,
                members,
                from_start,
            } if epoch > self.epoch => self.enter(epoch, members, from_start),
            Input::Enter { .. } => {}
            Input::Linked { peer } => self.linked(peer),
            Input::Received { from, message } => self.receive(from, message),
            Input::Called(call) => self.call(call),
            Input::Left(client) => {
                let was = self.pending.get(&client);
                // Above all of its calls.
                let sequence = u64::MAX;
                if was.is_none_or(|one| one.call.sequence < sequence) {
                    let command = Command::Leave;
                    self.call(Call {
                        client,
                        sequence,
                        command,
                    });
                }
            }
        }
    }

    /// What has to be done, in this order.
    pub fn effects(&mut self) -> Vec<Effect> {
        match self.phase {
            Phase::Running if self.leads() => self.spread(),
            Phase::Running | Phase::Waiting => self.say_version(),
            Phase::Gathering(_) | Phase::Lost => {}
        }
        self.answer();
        std::mem::take(&mut self.effects)
    }

    fn leads(&self) -> bool {
        self.first() == Some(self.node)
    }

    fn position(&self) -> u64 {
        self.version.map_or(0, |version| version.position)
    }

    fn send(&mut self, to: u32, message: Message) {
        self.effects.push(Effect::Send { to, message });
    }

    fn enter(&mut self, epoch: u64, members: Vec<u32>, from_start: bool) {
        if from_start {
            self.version.get_or_insert_default();
        }
        (self.epoch, self.members) = (epoch, members);
        // What was to be said in the epoch before is not said in this one.
        let is_answer = |effect: &Effect| matches!(effect, Effect::Answer { .. });
        self.effects.retain(is_answer);
        self.followers.clear();
        self.log.clear();
        (self.said, self.asked) = (None, 0);
        if !self.leads() {
            self.phase = Phase::Waiting;
            return;
        }
        let others = self.members.iter().filter(|member| **member != self.node);
        self.followers = others
            .map(|member| (*member, Follower::default()))
            .collect();
        self.phase = Phase::Gathering(BTreeMap::from([(self.node, self.version)]));
        self.gather();
    }

    fn linked(&mut self, peer: u32) {
        if !self.leads() {
            if self.first() == Some(peer) {
                self.said = None;
                self.pursue_all();
            }
            return;
        }
        if let Some(follower) = self.followers.get_mut(&peer) {
            // It says first how far it is.
            (follower.has, follower.told) = (None, 0);
        }
    }

    fn receive(&mut self, from: u32, message: Message) {
        if self.leads() {
            if !self.followers.contains_key(&from) {
                return;
            }
            match message {
                Message::Have(version) => self.hear_version(from, version),
                Message::State(version, keys) => self.adopt(version, *keys),
                Message::Ask(number, call) => self.asked(from, number, call),
                Message::Fetch | Message::Begin(..) | Message::Lost | Message::Calls { .. } => {}
            }
            return;
        }
        if self.first() != Some(from) {
            return;
        }
        match message {
            Message::Fetch => {
                if let Some(version) = self.version {
                    let keys = Box::new(self.keys.clone());
                    self.send(from, Message::State(version, keys));
                }
            }
            Message::Begin(origin, keys) if matches!(self.phase, Phase::Waiting) => {
                if let Some(keys) = keys {
                    self.keys = *keys;
                } else if self.version != Some(origin) {
                    return;
                }
                self.begin(origin);
            }
            Message::Lost => self.lose(),
            Message::Calls {
                after,
                calls,
                stable,
            } if matches!(self.phase, Phase::Running) => {
                let known = self.position().checked_sub(after);
                let Some(known) = known else {
                    return; // A call before these is missing.
                };
                for call in calls.iter().skip(known as usize) {
                    self.apply(call);
                }
                self.stable = self.stable.max(stable.min(self.position()));
            }
            Message::Begin(..)
            | Message::Calls { .. }
            | Message::Have(_)
            | Message::State(..)
            | Message::Ask(..) => {}
        }
    }

    /// The epoch has begun here.
    fn begin(&mut self, origin: Version) {
        self.keys.retain(&self.members);
        self.version = Some(Version {
            epoch: self.epoch,
            position: origin.position,
        });
        self.phase = Phase::Running;
        self.pursue_all();
    }

    fn lose(&mut self) {
        self.phase = Phase::Lost;
        for member in self.followers.keys().copied().collect::<Vec<_>>() {
            self.send(member, Message::Lost);
        }
    }

    fn call(&mut self, call: Call) {
        let client = call.client;
        self.answered.remove(&client);
        let pending = Pending { call, answer: None };
        self.pending.insert(client, pending);
        self.pursue(client);
    }

    fn pursue_all(&mut self) {
        for client in self.pending.keys().copied().collect::<Vec<_>>() {
            self.pursue(client);
        }
    }

    /// Sees to it that a call is done.
    fn pursue(&mut self, client: ClientId) {
        let Some(Pending { call, answer: None }) = self.pending.get(&client) else {
            return;
        };
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        let Call {
            sequence, command, ..
        } = call;
        match self.keys.progress(client, *sequence, command) {
            Progress::Answered(answer) => self.told((client, call.sequence, answer)),
            Progress::Waiting | Progress::Past => {}
            Progress::Undone => {
                let call = call.clone();
                if self.leads() {
                    self.order(call);
                } else if let Some(first) = self.first() {
                    self.asked += 1;
                    self.send(first, Message::Ask(self.asked, call));
                }
            }
        }
    }

    fn apply(&mut self, call: &Call) {
        if let Some(version) = &mut self.version {
            version.position += 1;
        }
        for told in self.keys.apply(call) {
            self.told(told);
        }
    }

    /// A call is answered, once every member has what was done until now.
    fn told(&mut self, (client, sequence, answer): (ClientId, u64, Answer)) {
        let position = self.position();
        if let Some(pending) = self.pending.get_mut(&client)
            && pending.call.sequence == sequence
            && pending.answer.is_none()
        {
            pending.answer = Some((position, answer));
            self.answered.insert(client);
        }
    }

    fn say_version(&mut self) {
        let Some(first) = self.first() else {
            return;
        };
        if self.said != Some(self.version) {
            self.said = Some(self.version);
            self.send(first, Message::Have(self.version));
        }
    }

    /// Answers what every member has.
    fn answer(&mut self) {
        if matches!(self.phase, Phase::Lost) {
            let lost = Answer::Failed(Failure::Lost);
            for (client, Pending { call, .. }) in std::mem::take(&mut self.pending) {
                self.effects.push(Effect::Answer {
                    client,
                    sequence: call.sequence,
                    answer: lost.clone(),
                });
            }
            self.answered.clear();
            return;
        }
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        let stable = self.stable;
        let due = |client: &ClientId| {
            let pending = self.pending.get(client);
            let answer = pending.and_then(|pending| pending.answer.as_ref());
            answer.is_some_and(|(position, _)| *position <= stable)
        };
        let due: Vec<ClientId> = self.answered.iter().copied().filter(due).collect();
        for client in due {
            self.answered.remove(&client);
            if let Some(Pending {
                call,
                answer: Some((_, answer)),
            }) = self.pending.remove(&client)
                && call.command != Command::Leave
            {
                self.effects.push(Effect::Answer {
                    client,
                    sequence: call.sequence,
                    answer,
                });
            }
        }
    }
}
