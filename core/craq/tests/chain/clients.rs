//! Clients as they ship, what they ask, their connections, and what their answers are worth.

use std::time::Duration;

use craq::{
    ChainCall, ChainCallError, ChainClient, ChainOutcome, ChainRefusal, ChainRequest, ChunkId,
    Chunks, ClientEffect, ClientInput, Edit, Input, Reply, SessionId, TargetId, Version,
};
use sim::{Simulation, To};

use crate::history::{Answer, Ask, Call};
use crate::world::{CHUNKS, Event, LIMIT, MS, World};

/// A client dials all members again when it waits for so long.
const PATIENCE: Duration = Duration::from_millis(60);
const TICK: Duration = Duration::from_millis(10);
/// How much each client asks.
const CALLS: u32 = 14;
/// Calls that a client has under way.
const AT_ONCE: usize = 2;
const MOST_BYTES: usize = 8;
/// The chunk that is removed some time.
const GARBAGE: u64 = CHUNKS - 1;

/// A client.
pub(crate) struct Client {
    pub(crate) session: SessionId,
    client: ChainClient<Vec<u8>>,
    asked: u32,
    /// Calls that are under way.
    calls: Vec<usize>,
}

/// A request on its way, and where its answer goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    pub(crate) client: usize,
    pub(crate) host: usize,
    /// Which connection of the two it is.
    pub(crate) link: u64,
    session: SessionId,
    request: u64,
}

impl Client {
    pub(crate) fn new(session: SessionId) -> Self {
        Self {
            session,
            client: ChainClient::new(session),
            asked: 0,
            calls: Vec::new(),
        }
    }

    /// It waits for no answer, and asks nothing more.
    pub(crate) fn is_over(&self) -> bool {
        self.calls.is_empty() && self.asked == CALLS
    }

    /// It has died; another one goes on.
    pub(crate) fn replace(&mut self, session: SessionId) {
        let asked = self.asked;
        *self = Self {
            asked,
            ..Self::new(session)
        };
    }
}

impl World {
    pub(crate) fn ask(&mut self, client: usize) {
        let of = &self.clients[client];
        if of.calls.len() == AT_ONCE || of.asked == CALLS {
            return;
        }
        let begin = self.moment();
        let key = self.rng.range(0..CHUNKS);
        let offset = self.rng.below(MOST_BYTES);
        // One client owns the last chunk, and nobody writes it after it was removed.
        let may_write = key != GARBAGE || (client == 0 && !self.is_removed);
        let ask = match self.rng.below(10) {
            _ if !may_write => Ask::Read,
            0..=2 if key == GARBAGE => {
                self.is_removed = true;
                Ask::Remove
            }
            0 => Ask::Truncate { length: offset },
            1..=4 => Ask::Read,
            _ => {
                let count = 1 + self.rng.below(MOST_BYTES - offset);
                let mut byte = || {
                    self.bytes = self.bytes % 250 + 1;
                    self.bytes
                };
                let bytes = (0..count).map(|_| byte()).collect();
                Ask::Write { offset, bytes }
            }
        };
        let what = what(key, &ask);
        self.calls.push(Some(Call {
            key,
            call: ask,
            begin,
            end: None,
        }));
        let call = self.calls.len() - 1;
        let of = &mut self.clients[client];
        of.calls.push(call);
        of.asked += 1;
        self.hosts.within(
            PATIENCE..2 * PATIENCE,
            To::World,
            Event::Redial(client, call),
        );
        let call = call as u64;
        self.client_input(client, ClientInput::Call { call, what });
        self.ask_soon(client);
    }

    fn ask_soon(&mut self, client: usize) {
        self.hosts
            .within(MS / 10..200 * MS, To::World, Event::Ask(client));
    }

    pub(crate) fn client_input(&mut self, client: usize, input: ClientInput<Vec<u8>>) {
        self.hosts.note(("client", client, &input));
        let mut effects = Vec::new();
        let of = &mut self.clients[client];
        let session = of.session;
        of.client.handle(input, &mut effects);
        for effect in effects {
            self.hosts.note(("client", client, "->", &effect));
            match effect {
                ClientEffect::Send {
                    to,
                    version,
                    request,
                    what,
                } => {
                    let host = to.0 as usize;
                    let line = Line {
                        client,
                        host,
                        link: self.client_link(client, host),
                        session,
                        request,
                    };
                    let event = Event::Request(line, version, what);
                    self.hosts
                        .within(MS / 100..10 * MS, To::Process(host), event);
                }
                ClientEffect::End { call, outcome } => self.ended(client, call as usize, outcome),
            }
        }
    }

    fn client_link(&self, client: usize, host: usize) -> u64 {
        let link = self.client_links.get(&(client, host));
        link.copied().unwrap_or_default()
    }

    /// The connection ends, and the client dials again.
    pub(crate) fn redial(&mut self, client: usize, host: usize) {
        *self.client_links.entry((client, host)).or_default() += 1;
        let member = TargetId(host as u128);
        self.client_input(client, ClientInput::Disconnected(member));
        self.dial_soon(client, host);
    }

    pub(crate) fn dial_soon(&mut self, client: usize, host: usize) {
        self.hosts
            .within(MS..20 * MS, To::World, Event::Dial(client, host));
    }

    pub(crate) fn dial(&mut self, client: usize, host: usize) {
        if self.members[host].is_some() {
            let member = TargetId(host as u128);
            self.client_input(client, ClientInput::Connected(member));
        } else {
            self.dial_soon(client, host);
        }
    }

    /// It still waits for the answer of this call.
    pub(crate) fn redial_if_waiting(&mut self, client: usize, call: usize) {
        if self.clients[client].calls.contains(&call) {
            (0..self.members.len()).for_each(|host| self.redial(client, host));
            self.hosts.within(
                PATIENCE..2 * PATIENCE,
                To::World,
                Event::Redial(client, call),
            );
        }
    }

    pub(crate) fn tick(&mut self, client: usize) {
        self.client_input(client, ClientInput::Tick);
        self.hosts.after(TICK, To::World, Event::Tick(client));
    }

    /// A request arrives.
    pub(crate) fn requested(&mut self, line: Line, version: u64, request: ChainRequest<Vec<u8>>) {
        let is_open = self.client_link(line.client, line.host) == line.link;
        // Nobody ends the connection of a client that has died. What it sent may arrive much later.
        let is_dead = self.clients[line.client].session != line.session;
        let is_garbage = match &request {
            ChainRequest::Write(write) => write.chunk.index == GARBAGE,
            ChainRequest::Read { .. } => false,
        };
        if is_open && !is_dead || is_dead && !is_garbage {
            self.lines.push(line);
            let client = self.lines.len() as u64 - 1;
            let input = Input::Request {
                client,
                version,
                request,
            };
            self.input(line.host, input);
        }
    }

    /// A member answers a request.
    pub(crate) fn answer(&mut self, client: u64, answer: Result<(Version, Answer), ChainRefusal>) {
        let line = self.lines[client as usize];
        self.hosts
            .within(MS / 100..MS, To::World, Event::Answer(line, answer));
    }

    pub(crate) fn answered(&mut self, line: Line, answer: Result<(Version, Answer), ChainRefusal>) {
        let Line {
            client, request, ..
        } = line;
        let is_open = self.client_link(client, line.host) == line.link;
        if !is_open || self.clients[client].session != line.session {
            return;
        }
        let reply = match answer {
            Ok((version, Some(bytes))) => {
                let input = ClientInput::Bytes {
                    request,
                    version,
                    bytes,
                };
                return self.client_input(client, input);
            }
            Ok((_, None)) => Reply::Done,
            Err(ChainRefusal::Old) => panic!("CRAQ-4: a write that is not answered is old"),
            Err(why) => Reply::Refused(why),
        };
        self.client_input(client, ClientInput::Reply { request, reply });
    }

    fn ended(&mut self, client: usize, call: usize, outcome: ChainOutcome<Vec<u8>>) {
        let end = self.moment();
        self.clients[client].calls.retain(|other| *other != call);
        match outcome {
            ChainOutcome::Edited => self.calls[call].as_mut().unwrap().end = Some((end, None)),
            ChainOutcome::Bytes(_, bytes) => {
                self.calls[call].as_mut().unwrap().end = Some((end, Some(bytes)));
            }
            // CRAQ-5: it never happened, so nobody has to explain it.
            ChainOutcome::Failed(ChainCallError::Full) => self.calls[call] = None,
            ChainOutcome::Failed(error) => panic!("a call failed: {error}"),
        }
        self.ask_soon(client);
    }

    /// One read of each chunk of each member, after all.
    pub(crate) fn read_everything(&mut self) {
        for index in 0..CHUNKS {
            let chunk = ChunkId { file: 1, index };
            for host in 0..self.members.len() {
                let begin = self.moment();
                let end = self.moment();
                let version = self.stores[host].state(chunk).committed;
                let read = match self.stores[host].read(chunk, version) {
                    Some(bytes) => bytes,
                    None => {
                        self.damaged(host, chunk);
                        continue;
                    }
                };
                self.calls.push(Some(Call {
                    key: index,
                    call: Ask::Read,
                    begin,
                    end: Some((end, Some(read))),
                }));
            }
        }
        let is_repaired = |world: &Self| {
            let all = (0..CHUNKS)
                .flat_map(|index| (0..world.stores.len()).map(move |host| (index, host)));
            let chunk = |index| ChunkId { file: 1, index };
            let is_rotten =
                |(index, host): (u64, usize)| world.stores[host].is_rotten(chunk(index));
            !all.into_iter().any(is_rotten)
        };
        assert!(
            self.run_while(LIMIT, 20, |world| !is_repaired(world)),
            "CRAQ-6: damage stays"
        );
    }
}

fn what(key: u64, ask: &Ask) -> ChainCall<Vec<u8>> {
    let chunk = ChunkId {
        file: 1,
        index: key,
    };
    let edit = match ask {
        Ask::Read => {
            return ChainCall::Read {
                chunk,
                offset: 0,
                length: MOST_BYTES as u32,
            };
        }
        Ask::Remove => Edit::Remove,
        Ask::Truncate { length } => Edit::Truncate {
            length: *length as u32,
        },
        Ask::Write { offset, bytes } => Edit::Write {
            offset: *offset as u32,
            bytes: bytes.clone(),
        },
    };
    ChainCall::Edit { chunk, edit }
}
