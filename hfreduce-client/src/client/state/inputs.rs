//! Segments for inputs: which there are, and which nobody uses at present.

use std::sync::Arc;

use super::State;
use crate::attach::{self, ClientMessage};
use crate::client::Error;
use crate::client::buffer::InputSegment;
use crate::client::keep::Handed;
use crate::client::shared::Link;

/// Idle input segments that are kept: the buckets of a model; more go back to the sidecar.
const IDLE_LIMIT: usize = 64;

impl State {
    /// All input segments.
    pub(super) fn inputs(&self) -> Vec<Handed> {
        let segment = self.inputs.iter().map(|(&number, (bytes, fd))| Handed {
            number,
            bytes: *bytes,
            fd: Arc::clone(fd),
        });
        segment.collect()
    }

    /// Asks the sidecar for a segment. One that turns out to be gone is not asked.
    pub(in crate::client) fn ask_for_segment(&mut self, bytes: usize) -> Result<(), Error> {
        let bytes = bytes as u64;
        match self
            .link
            .channel
            .send(&ClientMessage::Allocate { bytes }, &[])
        {
            Ok(()) => self.is_asked = true,
            Err(attach::Error::Closed) => {
                self.receive();
                self.part();
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Keeps at most so many answers; their segments serve later requests.
    pub(in crate::client) fn drop_answers(&mut self, kept: usize) {
        while self.answers.len() > kept {
            if let Some(Ok(input)) = self.answers.pop_back() {
                self.keep_idle(input);
            }
        }
    }

    /// An idle segment that fits and is not much too large.
    pub(in crate::client) fn take_idle(&mut self, bytes: usize) -> Option<InputSegment> {
        let sizes = self.idle.iter().map(|input| input.segment.len());
        let (at, size) = sizes
            .enumerate()
            .filter(|(_, size)| *size >= bytes)
            .min_by_key(|(_, size)| *size)?;
        (size <= link::segment::size_class(bytes.saturating_mul(2)))
            .then(|| self.idle.swap_remove(at))
    }

    pub(in crate::client) fn keep_idle(&mut self, input: InputSegment) {
        if self.idle.len() >= IDLE_LIMIT {
            let oldest = self.idle.remove(0);
            self.give_back(&oldest);
        }
        self.idle.push(input);
    }

    /// Gives all idle segments back. Says whether there were any.
    pub(in crate::client) fn free_idle(&mut self) -> bool {
        let idle = std::mem::take(&mut self.idle);
        idle.iter().for_each(|input| self.give_back(input));
        !idle.is_empty()
    }

    /// Gives a segment back.
    pub(in crate::client) fn give_back(&mut self, input: &InputSegment) {
        self.inputs.remove(&input.number);
        if self.is_there() {
            give_back(input.number, &self.link);
        }
    }
}

/// Lost only if the socket is full or closed, and then the sidecar frees everything anyway or counts
/// the segment until this process ends.
pub(super) fn give_back(segment: u32, link: &Link) {
    link.channel
        .send(&ClientMessage::Free { segment }, &[])
        .ok();
}
