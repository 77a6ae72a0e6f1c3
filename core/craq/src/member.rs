//! A member of one chain: its state, what comes in, what goes out, and which member it is. What it does with each input
//! is in `head` (writes of clients), `update` (contents on their way), `read`, and `catch_up`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::catch_up::{CatchUp, Fetcher};
use crate::chunks::Chunks;
use crate::head::Waiting;
use crate::message::{ChainRefusal, ChainRequest, Message, Reply};
use crate::read::Read;
use crate::table::{ChunkId, Place, SessionId, Table, TargetId, Version};
use crate::update::{Dirty, Load};

/// What happens to a member.
#[derive(Clone, Debug)]
pub enum Input<P> {
    /// The chain manager has a newer table.
    Table(Table),
    /// There is a new connection to another member. What was sent over the last one may be lost.
    Connected(TargetId),
    /// Another member said something, at a version of the chain.
    Message {
        from: TargetId,
        version: u64,
        message: Message<P>,
    },
    /// A client asked, who knows the chain at a version.
    Request {
        client: u64,
        version: u64,
        request: ChainRequest<P>,
    },
    /// What was prepared is durable.
    Durable { chunk: ChunkId, version: Version },
    /// What was prepared cannot be written, because the bytes that it builds on are damaged. There is no trace of it.
    Lost { chunk: ChunkId, version: Version },
    /// What was discarded does not come back, whatever happens to the power.
    Discarded { chunk: ChunkId, version: Version },
    /// The bytes that `Effect::Load` asked for.
    Loaded {
        chunk: ChunkId,
        version: Version,
        content: P,
    },
    /// The store found that bytes of a chunk are not what was written. Its state says so from then on.
    Damaged { chunk: ChunkId },
}

/// Who reads, and what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    pub client: u64,
    pub offset: u32,
    pub length: u32,
}

/// What a member wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<P> {
    /// Sends to another member, with the version of the chain. Nothing comes of it if there is no connection.
    Send {
        to: TargetId,
        version: u64,
        message: Message<P>,
    },
    /// Reads all of a content, and answers with `Input::Loaded`, or with `Input::Damaged`.
    Load { chunk: ChunkId, version: Version },
    /// Answers a read with bytes of this content, as it is now.
    Serve {
        reader: Reader,
        chunk: ChunkId,
        version: Version,
    },
    /// Answers a client without bytes.
    Answer { client: u64, reply: Reply },
    /// The member cannot go on: the chain stops here, and somebody has to look.
    Broken { chunk: ChunkId, why: &'static str },
}

/// A member. It does nothing before it has a table with its own place.
#[derive(Debug)]
pub struct ChainMember<P> {
    pub(crate) me: Place,
    pub(crate) table: Table,
    /// It has all that any member below may have answered a read with.
    pub(crate) is_complete: bool,
    /// Updates that it started as the head of this version of the chain.
    pub(crate) updates: u64,
    /// The latest update that was refused here at this version of the chain. One that is not later and not here stays
    /// out: its refusal may have been sent, and what comes is a copy of it that was sent before.
    pub(crate) refused: Version,
    /// Chunks with a content that is not committed here.
    pub(crate) dirty: BTreeMap<ChunkId, Dirty<P>>,
    /// Those of them that have to be sent to the successor.
    pub(crate) to_forward: BTreeSet<ChunkId>,
    /// Contents that are read from the store for other members.
    pub(crate) loads: BTreeMap<(ChunkId, Version), Load>,
    /// Writes that wait for another of their chunk, at the head.
    pub(crate) waiting: BTreeMap<ChunkId, VecDeque<Waiting<P>>>,
    /// Which numbers of a session nobody sends again, at the head.
    pub(crate) settled: BTreeMap<SessionId, u64>,
    /// Reads that wait for the tail's answer.
    pub(crate) reads: BTreeMap<u64, Read>,
    pub(crate) last_read: u64,
    pub(crate) catch_up: CatchUp,
    /// Damaged chunks that neighbours were asked for, and who asked for them meanwhile.
    pub(crate) repairs: BTreeMap<ChunkId, Vec<Fetcher>>,
}

/// One input, with all that it needs.
pub(crate) struct Step<'a, P, S> {
    pub(crate) member: &'a mut ChainMember<P>,
    pub(crate) store: &'a mut S,
    pub(crate) effects: &'a mut Vec<Effect<P>>,
}

impl<P: Clone> ChainMember<P> {
    /// A member that starts over a store. `life` is another than at each start before.
    pub fn new(me: Place, store: &impl Chunks<P>) -> Self {
        Self {
            me,
            table: Table::default(),
            is_complete: false,
            updates: 0,
            refused: Version::NONE,
            dirty: Dirty::left_in(store),
            to_forward: BTreeSet::new(),
            loads: BTreeMap::new(),
            waiting: BTreeMap::new(),
            settled: BTreeMap::new(),
            reads: BTreeMap::new(),
            last_read: 0,
            catch_up: CatchUp::default(),
            repairs: BTreeMap::new(),
        }
    }

    /// Handles one input; adds to the effects, which are carried out in their order.
    pub fn handle<S: Chunks<P>>(
        &mut self,
        input: Input<P>,
        store: &mut S,
        effects: &mut Vec<Effect<P>>,
    ) {
        let mut step = Step {
            member: self,
            store,
            effects,
        };
        match input {
            Input::Table(table) => step.table(table),
            Input::Connected(peer) => step.connected(peer),
            Input::Message {
                from,
                version,
                message,
            } => step.message(from, version, message),
            Input::Request {
                client,
                version,
                request,
            } => step.request(client, version, request),
            Input::Durable { chunk, version } => step.durable(chunk, version),
            Input::Lost { chunk, version } => step.lost(chunk, version),
            Input::Discarded { chunk, version } => step.discarded(chunk, version),
            Input::Loaded {
                chunk,
                version,
                content,
            } => step.loaded(chunk, version, content),
            Input::Damaged { chunk } => step.damaged(chunk),
        }
    }

    /// Whether it answers reads, and as the head takes writes.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// How many chunks have a content that is not committed here.
    #[must_use]
    pub fn dirty_chunks(&self) -> usize {
        self.dirty.len()
    }

    fn position(&self) -> Option<usize> {
        self.table
            .members
            .iter()
            .position(|place| *place == self.me)
    }

    pub(crate) fn predecessor(&self) -> Option<TargetId> {
        let before = self.position()?.checked_sub(1)?;
        Some(self.table.members.get(before)?.target)
    }

    pub(crate) fn successor(&self) -> Option<TargetId> {
        let next = self.table.members.get(self.position()? + 1)?;
        Some(next.target)
    }

    pub(crate) fn is_head(&self) -> bool {
        self.table.members.first() == Some(&self.me)
    }

    pub(crate) fn is_tail(&self) -> bool {
        self.table.members.last() == Some(&self.me)
    }

    pub(crate) fn tail(&self) -> Option<TargetId> {
        self.table.members.last().map(|place| place.target)
    }
}

impl<P: Clone, S: Chunks<P>> Step<'_, P, S> {
    pub(crate) fn send(&mut self, to: TargetId, message: Message<P>) {
        self.effects.push(Effect::Send {
            to,
            version: self.member.table.version,
            message,
        });
    }

    pub(crate) fn answer(&mut self, client: u64, reply: Reply) {
        self.effects.push(Effect::Answer { client, reply });
    }

    pub(crate) fn refuse(&mut self, client: u64, why: ChainRefusal) {
        self.answer(client, Reply::Refused(why));
    }

    /// A table with another life of this member is of another time.
    fn table(&mut self, table: Table) {
        let is_here = table.members.contains(&self.member.me);
        let (old, new) = (self.member.table.version, table.version);
        let is_known = table.revision <= self.member.table.revision;
        if is_known || (!is_here && self.member.position().is_none()) {
            return;
        }
        self.member.table = table;
        let sessions = &self.member.table.sessions;
        self.member
            .settled
            .retain(|session, _| sessions.contains(session));
        if new > old {
            (self.member.updates, self.member.refused) = (0, Version::NONE);
            self.member.is_complete &= is_here;
            self.leave_head();
            let mut others = self.member.table.members.clone();
            others.retain(|place| *place != self.member.me);
            for place in &others {
                self.send(place.target, Message::Hello);
            }
            self.settle_at_tail();
            self.begin_catch_up();
            for place in &others {
                self.resend(place.target);
            }
        }
        self.retry_waiting();
    }

    /// What another member said before, it says again; so does this one.
    fn connected(&mut self, peer: TargetId) {
        if self.member.position().is_some() {
            self.send(peer, Message::Hello);
            self.resend(peer);
        }
    }

    /// Sends what a member may not have got.
    fn resend(&mut self, to: TargetId) {
        self.resend_updates(to);
        self.resend_queries(to);
        self.resend_catch_up(to);
    }

    fn message(&mut self, from: TargetId, version: u64, message: Message<P>) {
        let is_member = |place: &Place| place.target == from && *place != self.member.me;
        if version != self.member.table.version
            || self.member.position().is_none()
            || !self.member.table.members.iter().any(is_member)
        {
            return;
        }
        let is_from_above = self.member.predecessor() == Some(from);
        let is_from_below = self.member.successor() == Some(from);
        match message {
            Message::Hello => self.resend(from),
            Message::Update(update) if is_from_above => self.update(from, update),
            Message::List { after } if is_from_above => self.list(from, after),
            Message::Fetch { chunk, version } if is_from_above || is_from_below => {
                self.fetch(from, chunk, version);
            }
            Message::Query { read, chunk } => self.query(from, read, chunk),
            Message::Done { chunk, version } if is_from_below => self.done(chunk, version),
            Message::Forget { chunk, version } if is_from_above => self.forget(chunk, version),
            Message::Refused {
                chunk,
                version,
                why,
            } if is_from_below => self.refused(chunk, version, why),
            Message::Missing { chunk, version } if is_from_below => self.missing(chunk, version),
            Message::NeedsAll { chunk, version } if is_from_below => {
                self.needs_all(chunk, version);
            }
            Message::Versions {
                after,
                versions,
                is_last,
            } if is_from_below => self.versions(after, versions, is_last),
            Message::Committed { read, version } if self.member.tail() == Some(from) => {
                self.committed(read, version);
            }
            Message::Content {
                chunk,
                version,
                content,
                records,
            } if is_from_above || is_from_below => {
                self.content(chunk, version, content, records);
            }
            // Who is not a neighbour says nothing else.
            Message::Update(_)
            | Message::List { .. }
            | Message::Fetch { .. }
            | Message::Done { .. }
            | Message::Forget { .. }
            | Message::Refused { .. }
            | Message::NeedsAll { .. }
            | Message::Missing { .. }
            | Message::Versions { .. }
            | Message::Committed { .. }
            | Message::Content { .. } => {}
        }
    }

    fn request(&mut self, client: u64, version: u64, request: ChainRequest<P>) {
        let current = self.member.table.version;
        if version != current {
            return self.refuse(client, ChainRefusal::WrongVersion { current });
        }
        match request {
            ChainRequest::Write(write) => self.write(client, write),
            ChainRequest::Read {
                chunk,
                offset,
                length,
            } => {
                let reader = Reader {
                    client,
                    offset,
                    length,
                };
                self.read(reader, chunk);
            }
        }
    }
}
