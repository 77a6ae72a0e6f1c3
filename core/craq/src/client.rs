//! A client of one chain: where each call is sent, and when it is sent again, until it is answered. A write goes to the head,
//! one of a chunk at a time; a read to any member that may answer. Leaves connections and time to a shell, which ticks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::message::{ChainRefusal, ChainRequest, ChunkWrite, Edit, Reply};
use crate::table::{ChunkId, SessionId, Table, TargetId, Version};

/// Calls under way or waiting: more than a mount has requests of the kernel.
const MOST_CALLS: usize = 4096;
/// Ticks after which a read is sent to another member: the one that it was sent to may stand still.
const READ_TICKS: u32 = 5;

/// What is asked of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainCall<P> {
    /// Changes a chunk. Not [`Edit::Replace`].
    Edit { chunk: ChunkId, edit: Edit<P> },
    /// Bytes of a chunk, fewer where it ends.
    Read {
        chunk: ChunkId,
        offset: u32,
        length: u32,
    },
}

/// How a call ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChainOutcome<P> {
    /// Every member has the edit on its disk.
    Edited,
    /// The bytes that were read, and the version of the content that they are of.
    Bytes(Version, P),
    /// Nothing was done.
    Failed(ChainCallError),
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainCallError {
    #[error("failed to write: a member of the chain has no room left")]
    Full,
    #[error("failed to write: the client's session has ended")]
    SessionEnded,
    #[error("failed to call a chain: {MOST_CALLS} calls are under way")]
    TooMany,
}

/// What happens to a client.
#[derive(Clone, Debug)]
pub enum ClientInput<P> {
    /// The chain manager has a newer table.
    Table(Table),
    /// There is a connection to a member.
    Connected(TargetId),
    /// It has ended. Nothing comes over it any more, in neither direction.
    Disconnected(TargetId),
    /// Somebody asks something. Calls have different names.
    Call { call: u64, what: ChainCall<P> },
    /// A member answers a request.
    Reply { request: u64, reply: Reply },
    /// A member answers a read.
    Bytes {
        request: u64,
        version: Version,
        bytes: P,
    },
    /// Some time has passed, the same between all ticks.
    Tick,
}

/// What a client wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEffect<P> {
    /// Sends a request to a member, with the version of the chain.
    Send {
        to: TargetId,
        version: u64,
        request: u64,
        what: ChainRequest<P>,
    },
    /// A call has ended.
    End { call: u64, outcome: ChainOutcome<P> },
}

/// A client of one chain.
#[derive(Debug)]
pub struct ChainClient<P> {
    session: SessionId,
    table: Table,
    /// A table had the session.
    is_open: bool,
    connected: BTreeSet<TargetId>,
    /// By numbers that grow: those of writes are what the chain knows them by.
    calls: BTreeMap<u64, Call<P>>,
    /// Writes of each chunk in their order; the first one is sent.
    writes: BTreeMap<ChunkId, VecDeque<u64>>,
    /// Which call a request is of.
    requests: BTreeMap<u64, u64>,
    last_call: u64,
    last_request: u64,
    /// Where the next read goes, so that all members get some.
    turn: usize,
}

#[derive(Debug)]
struct Call<P> {
    name: u64,
    what: ChainCall<P>,
    sent: Option<Sent>,
    /// Who did not answer this read, or refused it, since it last waited.
    tried: BTreeSet<TargetId>,
}

impl<P> Call<P> {
    fn reads(&self) -> bool {
        matches!(self.what, ChainCall::Read { .. })
    }
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    to: TargetId,
    request: u64,
    ticks: u32,
}

impl<P: Clone> ChainClient<P> {
    /// A client that writes in this session. It sends nothing before it has a table.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self {
            session,
            table: Table::default(),
            is_open: false,
            connected: BTreeSet::new(),
            calls: BTreeMap::new(),
            writes: BTreeMap::new(),
            requests: BTreeMap::new(),
            last_call: 0,
            last_request: 0,
            turn: 0,
        }
    }

    /// Whether it waits for no answer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.calls.is_empty()
    }

    /// Handles one input; adds to the effects, which are carried out in their order.
    pub fn handle(&mut self, input: ClientInput<P>, effects: &mut Vec<ClientEffect<P>>) {
        match input {
            ClientInput::Table(table) => self.learn(table, effects),
            ClientInput::Connected(member) => {
                self.connected.insert(member);
                self.send_waiting(effects);
            }
            ClientInput::Disconnected(member) => {
                self.connected.remove(&member);
                self.take_back(|_, sent| sent.to == member);
                self.send_waiting(effects);
            }
            ClientInput::Call { call, what } => self.begin(call, what, effects),
            ClientInput::Reply { request, reply } => self.replied(request, reply, effects),
            ClientInput::Bytes {
                request,
                version,
                bytes,
            } => {
                let call = self.requests.get(&request).copied();
                let reads = |call: &u64| self.calls.get(call).is_some_and(Call::reads);
                // Bytes in answer to a write are nothing that a member sends.
                if let Some(call) = call.filter(reads) {
                    self.end(call, ChainOutcome::Bytes(version, bytes), effects);
                }
            }
            ClientInput::Tick => {
                for call in self.calls.values_mut() {
                    if let Some(sent) = &mut call.sent {
                        sent.ticks += 1;
                    } else {
                        call.tried.clear();
                    }
                }
                self.take_back(|call, sent| call.reads() && sent.ticks >= READ_TICKS);
                self.send_waiting(effects);
            }
        }
    }

    fn learn(&mut self, table: Table, effects: &mut Vec<ClientEffect<P>>) {
        if table.revision <= self.table.revision {
            return;
        }
        self.table = table;
        self.is_open |= self.table.sessions.contains(&self.session);
        self.send_waiting(effects);
    }

    fn begin(&mut self, name: u64, what: ChainCall<P>, effects: &mut Vec<ClientEffect<P>>) {
        if self.calls.len() >= MOST_CALLS {
            let outcome = ChainOutcome::Failed(ChainCallError::TooMany);
            return effects.push(ClientEffect::End {
                call: name,
                outcome,
            });
        }
        self.last_call += 1;
        let number = self.last_call;
        if let ChainCall::Edit { chunk, .. } = &what {
            self.writes.entry(*chunk).or_default().push_back(number);
        }
        let call = Call {
            name,
            what,
            sent: None,
            tried: BTreeSet::new(),
        };
        self.calls.insert(number, call);
        self.send(number, effects);
    }

    fn replied(&mut self, request: u64, reply: Reply, effects: &mut Vec<ClientEffect<P>>) {
        let Some(&number) = self.requests.get(&request) else {
            return;
        };
        let why = match reply {
            Reply::Done => return self.end(number, ChainOutcome::Edited, effects),
            Reply::Refused(why) => why,
        };
        let is_over = self.is_open && !self.table.sessions.contains(&self.session);
        match why {
            ChainRefusal::Full => {
                let failed = ChainOutcome::Failed(ChainCallError::Full);
                self.end(number, failed, effects);
            }
            ChainRefusal::NoSession if is_over => {
                let failed = ChainOutcome::Failed(ChainCallError::SessionEnded);
                self.end(number, failed, effects);
            }
            ChainRefusal::WrongVersion { .. }
            | ChainRefusal::NotHead
            | ChainRefusal::NotReady
            | ChainRefusal::NoSession
            | ChainRefusal::Old
            | ChainRefusal::Busy
            | ChainRefusal::Damaged => {
                self.take_back(|_, sent| sent.request == request);
                // Another member may answer a read at once. A write waits for a table, or for the next tick.
                if self.calls.get(&number).is_some_and(Call::reads) {
                    self.send(number, effects);
                }
            }
        }
    }

    /// Calls that were sent so wait again.
    fn take_back(&mut self, is_meant: impl Fn(&Call<P>, &Sent) -> bool) {
        for call in self.calls.values_mut() {
            if let Some(sent) = call.sent.filter(|sent| is_meant(call, sent)) {
                self.requests.remove(&sent.request);
                call.tried.insert(sent.to);
                call.sent = None;
            }
        }
    }

    fn send_waiting(&mut self, effects: &mut Vec<ClientEffect<P>>) {
        let waits = |(number, call): (&u64, &Call<P>)| call.sent.is_none().then_some(*number);
        let waiting: Vec<u64> = self.calls.iter().filter_map(waits).collect();
        for number in waiting {
            self.send(number, effects);
        }
    }

    /// Sends a call, if its turn has come and there is a member to send it to.
    fn send(&mut self, number: u64, effects: &mut Vec<ClientEffect<P>>) {
        let Some(to) = self.receiver(number) else {
            return;
        };
        let settled = self.settled();
        let Some(call) = self.calls.get_mut(&number) else {
            return;
        };
        let what = match call.what.clone() {
            ChainCall::Edit { chunk, edit } => ChainRequest::Write(ChunkWrite {
                session: self.session,
                number,
                settled,
                chunk,
                edit,
            }),
            ChainCall::Read {
                chunk,
                offset,
                length,
            } => ChainRequest::Read {
                chunk,
                offset,
                length,
            },
        };
        self.last_request += 1;
        let request = self.last_request;
        call.sent = Some(Sent {
            to,
            request,
            ticks: 0,
        });
        self.requests.insert(request, number);
        effects.push(ClientEffect::Send {
            to,
            version: self.table.version,
            request,
            what,
        });
    }

    /// All writes with smaller numbers were answered.
    fn settled(&self) -> u64 {
        let fronts = self.writes.values().filter_map(|queue| queue.front());
        fronts.min().copied().unwrap_or(self.last_call + 1)
    }

    fn receiver(&mut self, number: u64) -> Option<TargetId> {
        let call = self.calls.get(&number)?;
        let mut members = self.table.members.iter().map(|member| member.target);
        match &call.what {
            ChainCall::Edit { chunk, .. } => {
                let is_first = self.writes.get(chunk)?.front() == Some(&number);
                let head = members.next()?;
                (is_first && self.connected.contains(&head)).then_some(head)
            }
            ChainCall::Read { .. } => {
                let may = |member: &TargetId| {
                    self.connected.contains(member) && !call.tried.contains(member)
                };
                let members: Vec<TargetId> = members.filter(may).collect();
                self.turn = self.turn.wrapping_add(1);
                let turn = self.turn.checked_rem(members.len())?;
                members.get(turn).copied()
            }
        }
    }

    fn end(&mut self, number: u64, outcome: ChainOutcome<P>, effects: &mut Vec<ClientEffect<P>>) {
        let Some(call) = self.calls.remove(&number) else {
            return;
        };
        if let Some(sent) = call.sent {
            self.requests.remove(&sent.request);
        }
        effects.push(ClientEffect::End {
            call: call.name,
            outcome,
        });
        let ChainCall::Edit { chunk, .. } = call.what else {
            return;
        };
        let queue = self.writes.entry(chunk).or_default();
        queue.retain(|write| *write != number);
        match queue.front().copied() {
            Some(next) => self.send(next, effects),
            None => {
                self.writes.remove(&chunk);
            }
        }
    }
}
