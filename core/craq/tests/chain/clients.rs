//! Clients: what they ask, when they ask again, and what their answers are worth.

use std::time::Duration;

use craq::{ChainRefusal, ChainRequest, ChunkId, ChunkWrite, Chunks, Edit, SessionId};
use sim::{Simulation, To};

use crate::history::{Answer, Ask, Call};
use crate::world::{CHUNKS, Event, LIMIT, MS, World};

/// A client asks again after this long.
const PATIENCE: Duration = Duration::from_millis(60);
/// How much each client asks.
const CALLS: u32 = 14;
const MOST_BYTES: usize = 8;
/// The chunk that is removed some time.
const GARBAGE: u64 = CHUNKS - 1;

/// A client, which asks one thing after the other.
pub(crate) struct Client {
    pub(crate) session: SessionId,
    pub(crate) number: u64,
    asked: u32,
    /// What is under way: the number of its call, and of its latest request.
    pub(crate) call: Option<usize>,
    request: u64,
}

impl Client {
    pub(crate) fn new(session: SessionId) -> Self {
        Self {
            session,
            number: 0,
            asked: 0,
            call: None,
            request: 0,
        }
    }

    /// It waits for no answer, and asks nothing more.
    pub(crate) fn is_over(&self) -> bool {
        self.call.is_none() && self.asked == CALLS
    }
}

impl World {
    pub(crate) fn ask(&mut self, client: usize) {
        if self.clients[client].call.is_some() || self.clients[client].asked == CALLS {
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
        self.calls.push(Some(Call {
            key,
            call: ask,
            begin,
            end: None,
        }));
        let call = self.calls.len() - 1;
        let of = &mut self.clients[client];
        (of.call, of.number, of.asked) = (Some(call), of.number + 1, of.asked + 1);
        self.send_request(client);
    }

    /// To the head, or with a read to any member, at the version that the manager has now.
    pub(crate) fn send_request(&mut self, client: usize) {
        let of = &self.clients[client];
        let Some(call) = of.call.and_then(|call| self.calls[call].clone()) else {
            return;
        };
        let chunk = ChunkId {
            file: 1,
            index: call.key,
        };
        let edit = match call.call {
            Ask::Read => None,
            Ask::Remove => Some(Edit::Remove),
            Ask::Truncate { length } => Some(Edit::Truncate {
                length: length as u32,
            }),
            Ask::Write { offset, bytes } => Some(Edit::Write {
                offset: offset as u32,
                bytes,
            }),
        };
        let (session, number) = (of.session, of.number);
        let request = match edit {
            None => ChainRequest::Read {
                chunk,
                offset: 0,
                length: MOST_BYTES as u32,
            },
            Some(edit) => ChainRequest::Write(ChunkWrite {
                session,
                number,
                settled: number,
                chunk,
                edit,
            }),
        };
        let host = match &request {
            ChainRequest::Read { .. } => self.rng.below(self.members.len()),
            ChainRequest::Write(_) => 0,
        };
        self.requests += 1;
        let id = self.requests;
        self.clients[client].request = id;
        let event = Event::Request(host, id, self.table.version, request);
        self.hosts
            .within(MS / 100..10 * MS, To::Process(host), event);
        self.hosts
            .within(PATIENCE..2 * PATIENCE, To::World, Event::AskAgain(id));
    }

    pub(crate) fn waiting_for(&self, request: u64) -> Option<usize> {
        let waits = |client: &Client| client.request == request && client.call.is_some();
        self.clients.iter().position(waits)
    }

    pub(crate) fn answered(&mut self, request: u64, answer: Result<Answer, ChainRefusal>) {
        let Some(client) = self.waiting_for(request) else {
            return;
        };
        let end = self.moment();
        let of = &mut self.clients[client];
        let call = of.call.unwrap();
        match answer {
            Ok(answer) => self.calls[call].as_mut().unwrap().end = Some((end, answer)),
            // CRAQ-5: it never happened, so nobody has to explain it.
            Err(ChainRefusal::Full) => self.calls[call] = None,
            Err(ChainRefusal::Old) => panic!("CRAQ-4: a write that is not answered is old"),
            Err(
                ChainRefusal::WrongVersion { .. }
                | ChainRefusal::NotHead
                | ChainRefusal::NotReady
                | ChainRefusal::NoSession
                | ChainRefusal::Busy
                | ChainRefusal::Damaged,
            ) => return,
        }
        of.call = None;
        self.hosts
            .within(MS / 10..200 * MS, To::World, Event::Ask(client));
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
