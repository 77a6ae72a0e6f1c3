//! Reductions, and where their results go. What a child on this machine sends up names the place of its answer, and the
//! reduction writes there what would otherwise be sent down and copied. The machine does not know: it says `Reduce` and
//! `Send`, and what is sent is here already or not.

use collective::kernels::{self, Store};
use collective::machine::{Frame, Region};
use collective::numerics::Arithmetic;
use wire::block::{Reading, Writing};

use super::Engine;
use crate::memory::OutOfBounds;

/// Least bytes of a part that names a place: below, a copy costs less than the words about it.
const NAMED_BYTES: u64 = 64 << 10;

impl Engine {
    /// Combines sources and partials.
    pub(super) fn reduce(
        &mut self,
        arithmetic: Arithmetic,
        sources: &[Region],
        partials: &[Region],
        destination: &Region,
    ) -> Result<(), OutOfBounds> {
        let all = || sources.iter().chain(partials);
        let mut own = self.memory.write(destination)?;
        let mut answers = self.memory.take_answers(all(), destination);
        let read = |source| self.memory.read(source);
        let from: Vec<Reading> = all().map(read).collect::<Result<_, _>>()?;
        let slices: Vec<&[u8]> = from.iter().map(|bytes| &**bytes).collect();
        let (elements, sums) = slices.split_at(sources.len());
        if answers.is_empty() {
            kernels::combine(arithmetic, &mut [&mut own], elements, sums, Store::Cached);
        } else {
            let theirs = answers.iter_mut().map(|(_, answer)| &mut **answer);
            let mut into: Vec<&mut [u8]> = std::iter::once(&mut *own).chain(theirs).collect();
            kernels::combine(arithmetic, &mut into, elements, sums, Store::Cached);
        }
        drop((own, from));
        for (peer, answer) in answers {
            drop(answer);
            self.metrics.moved([], destination);
            self.memory.note_answer(peer, destination);
        }
        self.metrics.moved(all(), destination);
        Ok(())
    }

    /// The place of the answer to a part, to be lent to who may write it there.
    pub(super) fn place_of_answer(
        &self,
        peer: usize,
        frame: &Frame,
        part: &Region,
    ) -> Option<Writing> {
        if part.bytes < NAMED_BYTES || !self.links.get(&peer)?.takes_places() {
            return None;
        }
        let region = self.machine.answer(frame)?;
        self.memory.write(&region).ok()
    }

    /// Whether a frame brings what its receiver has already: the answer lies in its place.
    pub(super) fn is_there(&mut self, peer: usize, frame: &Frame, region: &Region) -> bool {
        matches!(frame, Frame::Down { .. }) && self.memory.has_answered(peer, region)
    }
}
