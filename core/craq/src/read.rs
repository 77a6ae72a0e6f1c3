//! Reads, at any member. A chunk that is not dirty here was written by nobody since: every write passes through. Of a
//! dirty one the tail knows what is committed, because it commits first.

use crate::chunks::Chunks;
use crate::member::{Effect, Reader, Step};
use crate::message::{ChainRefusal, Message};
use crate::table::{ChunkId, TargetId, Version};

/// Reads of a chain that wait for the tail's answer.
const MOST_READS: usize = 4096;

/// A read that waits for the tail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    reader: Reader,
    chunk: ChunkId,
}

impl<P: Clone, S: Chunks<P>> Step<'_, P, S> {
    pub(crate) fn read(&mut self, reader: Reader, chunk: ChunkId) {
        if !self.member.is_complete {
            return self.refuse(reader.client, ChainRefusal::NotReady);
        }
        let is_clean = self.member.is_tail() || !self.member.dirty.contains_key(&chunk);
        match self.member.tail() {
            Some(tail) if !is_clean => {
                if self.member.reads.len() >= MOST_READS {
                    return self.refuse(reader.client, ChainRefusal::Busy);
                }
                self.member.last_read += 1;
                let read = self.member.last_read;
                self.member.reads.insert(read, Read { reader, chunk });
                self.send(tail, Message::Query { read, chunk });
            }
            Some(_) | None => self.serve_committed(reader, chunk),
        }
    }

    /// Answers with this content, or with the one that was committed since.
    pub(crate) fn serve(&mut self, reader: Reader, chunk: ChunkId, version: Version) {
        let pending = self.store.state(chunk).pending;
        match pending.filter(|pending| pending.version == version) {
            Some(_) => self.effects.push(Effect::Serve {
                reader,
                chunk,
                version,
            }),
            None => self.serve_committed(reader, chunk),
        }
    }

    fn serve_committed(&mut self, reader: Reader, chunk: ChunkId) {
        let state = self.store.state(chunk);
        if state.is_damaged {
            self.ask_for(chunk);
            return self.refuse(reader.client, ChainRefusal::Damaged);
        }
        self.effects.push(Effect::Serve {
            reader,
            chunk,
            version: state.committed,
        });
    }

    /// Another member asks this one, the tail.
    pub(crate) fn query(&mut self, from: TargetId, read: u64, chunk: ChunkId) {
        if self.member.is_tail() && self.member.is_complete {
            let version = self.store.state(chunk).committed;
            self.send(from, Message::Committed { read, version });
        }
    }

    /// The tail's answer: this version, or one that was committed since.
    pub(crate) fn committed(&mut self, read: u64, version: Version) {
        let Some(Read { reader, chunk }) = self.member.reads.remove(&read) else {
            return;
        };
        let state = self.store.state(chunk);
        // Of what it has removed the tail knows no version.
        let removal = state
            .pending
            .filter(|pending| pending.is_removed && version == Version::NONE);
        let version = removal.map_or(version, |removal| removal.version);
        if version <= state.committed {
            return self.serve_committed(reader, chunk);
        }
        let dirty = self.member.dirty.get_mut(&chunk);
        match dirty.filter(|dirty| dirty.version == version) {
            Some(dirty) if dirty.is_there() => self.serve(reader, chunk, version),
            Some(dirty) => dirty.readers.push(reader),
            None => self.refuse(reader.client, ChainRefusal::NotReady),
        }
    }

    pub(crate) fn resend_queries(&mut self, to: TargetId) {
        if self.member.tail() == Some(to) {
            let reads: Vec<_> = self
                .member
                .reads
                .iter()
                .map(|(read, of)| (*read, of.chunk))
                .collect();
            for (read, chunk) in reads {
                self.send(to, Message::Query { read, chunk });
            }
        }
    }
}
