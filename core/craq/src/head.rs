//! Writes of clients, at the head: whether a write is new, when its turn comes, and the update that it becomes. One
//! update of a chunk is under way at a time; the others wait here, one of each session.

use crate::chunks::Chunks;
use crate::member::Step;
use crate::message::{ChainRefusal, ChunkWrite, Reply, Update};
use crate::records::{Record, Seen};
use crate::table::{ChunkId, Version};
use crate::update::Dirty;

/// Updates under way in a chain: 256 of at most 4 MiB that the successor has not got.
const MOST_UPDATES: usize = 256;
/// Writes that wait in a chain.
const MOST_WAITING: usize = 4096;

/// A write, and who waits for its answer.
#[derive(Debug)]
pub(crate) struct Waiting<P> {
    client: u64,
    write: ChunkWrite<P>,
}

impl<P: Clone, S: Chunks<P>> Step<'_, P, S> {
    pub(crate) fn write(&mut self, client: u64, write: ChunkWrite<P>) {
        if !self.member.is_head() {
            return self.refuse(client, ChainRefusal::NotHead);
        }
        if !self.member.is_complete {
            return self.refuse(client, ChainRefusal::NotReady);
        }
        let settled = write.settled.min(write.number);
        let before = self.member.settled.get(&write.session).copied();
        let moves_on = before.unwrap_or_default() < settled;
        if moves_on && self.member.table.sessions.contains(&write.session) {
            self.member.settled.insert(write.session, settled);
        }
        let waits = self.admit(Waiting { client, write });
        if let Some(waiting) = waits {
            self.enqueue(waiting);
        }
        if moves_on {
            self.retry_waiting();
        }
    }

    /// Answers or starts a write; gives it back if it has to wait.
    fn admit(&mut self, waiting: Waiting<P>) -> Option<Waiting<P>> {
        let Waiting { client, write } = &waiting;
        let (client, chunk, session) = (*client, write.chunk, write.session);
        if !self.member.table.sessions.contains(&session) {
            self.refuse(client, ChainRefusal::NoSession);
            return None;
        }
        let state = self.store.state(chunk);
        let records = self.store.records(chunk, state.committed);
        match records.seen(session, write.number) {
            Seen::New => {}
            Seen::Done => {
                self.answer(client, Reply::Done);
                return None;
            }
            Seen::Old => {
                self.refuse(client, ChainRefusal::Old);
                return None;
            }
        }
        let settled = self.member.settled.get(&session).copied();
        if write.number < settled.unwrap_or_default() {
            self.refuse(client, ChainRefusal::Old);
            return None;
        }
        if let Some(dirty) = self.member.dirty.get_mut(&chunk) {
            match dirty.records.seen(session, write.number) {
                Seen::New => return Some(waiting),
                Seen::Done => dirty.client = Some(client),
                Seen::Old => self.refuse(client, ChainRefusal::Old),
            }
            return None;
        }
        if state.is_damaged && write.edit.builds_on_base() {
            if self.ask_for(chunk) {
                return Some(waiting);
            }
            self.refuse(client, ChainRefusal::Damaged);
            return None;
        }
        if self.member.dirty.len() >= MOST_UPDATES {
            self.refuse(client, ChainRefusal::Busy);
            return None;
        }
        let (sessions, settled) = (&self.member.table.sessions, &self.member.settled);
        let is_settled = |old: &Record| {
            let below = settled.get(&old.session).copied().unwrap_or_default();
            old.number < below || !sessions.contains(&old.session)
        };
        let number = write.number;
        let Some(records) = records.with(Record { session, number }, is_settled) else {
            return Some(waiting);
        };
        self.member.updates += 1;
        let update = Update {
            chunk,
            version: Version {
                chain: self.member.table.version,
                update: self.member.updates,
            },
            base: state.base(),
            edit: waiting.write.edit,
            records,
        };
        match self.store.prepare(&update) {
            Ok(()) => self.begin(update, Some(client)),
            Err(why) => self.refuse(client, why),
        }
        None
    }

    fn enqueue(&mut self, waiting: Waiting<P>) {
        let all: usize = self.member.waiting.values().map(|queue| queue.len()).sum();
        let queue = self.member.waiting.entry(waiting.write.chunk).or_default();
        let session = waiting.write.session;
        let of_session = queue
            .iter_mut()
            .find(|other| other.write.session == session);
        match of_session {
            Some(other) if other.write.number == waiting.write.number => {
                other.client = waiting.client;
            }
            None if all < MOST_WAITING => queue.push_back(waiting),
            Some(_) | None => self.refuse(waiting.client, ChainRefusal::Busy),
        }
    }

    /// Starts the next write of a chunk, if one waits and can.
    pub(crate) fn next(&mut self, chunk: ChunkId) {
        while !self.member.dirty.contains_key(&chunk) {
            let queue = self.member.waiting.get_mut(&chunk);
            let Some(first) = queue.and_then(|queue| queue.pop_front()) else {
                self.member.waiting.remove(&chunk);
                return;
            };
            if let Some(first) = self.admit(first) {
                let queue = self.member.waiting.entry(chunk).or_default();
                return queue.push_front(first);
            }
        }
    }

    /// Sessions were settled or have ended, so that others may have room.
    pub(crate) fn retry_waiting(&mut self) {
        let chunks: Vec<_> = self.member.waiting.keys().copied().collect();
        chunks.into_iter().for_each(|chunk| self.next(chunk));
    }

    /// Writes that were not started wait at another head, if this is none.
    pub(crate) fn leave_head(&mut self) {
        if self.member.is_head() {
            return;
        }
        for waiting in std::mem::take(&mut self.member.waiting)
            .into_values()
            .flatten()
        {
            self.refuse(waiting.client, ChainRefusal::NotHead);
        }
    }

    /// A content that is prepared here goes its way.
    pub(crate) fn begin(&mut self, update: Update<P>, client: Option<u64>) {
        let chunk = update.chunk;
        let dirty = Dirty::new(update, client, self.member.is_tail());
        self.member.dirty.insert(chunk, dirty);
        self.forward_soon(chunk);
    }
}
