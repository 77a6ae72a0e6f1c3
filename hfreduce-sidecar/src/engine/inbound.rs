//! Frames that have come whose payload still lies in the memory of a link: a worker copies it to its place, and then the
//! machine gets the frame. Others overtake it meanwhile, as frames may; only the loss of its link waits for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use collective::machine::{Input, Region};
use link::block::Reading;
use link::transport;

use super::Engine;
use crate::frame::FencedFrame;
use crate::workers::{How, Task, Work};

#[derive(Debug, Default)]
pub(super) struct Inbound {
    /// By number: the sender and the frame. Nothing where the epoch is over, and only the memory is still in use.
    under_way: BTreeMap<u64, Option<(usize, FencedFrame)>>,
    /// Those that wait for a worker: no more than links have places for payload.
    waiting: VecDeque<(u64, Work)>,
    next_number: u64,
    /// Neighbours whose links have ended meanwhile.
    lost: BTreeSet<usize>,
}

/// What follows when a payload is in place.
#[derive(Debug, Default)]
struct Arrived {
    frame: Option<(usize, FencedFrame)>,
    /// Whether its link has ended and this was the last that came over it.
    is_last: bool,
}

impl Inbound {
    /// Whether no payload is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Whether some wait for a worker.
    pub(super) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// The epoch is over: no frame of it is of interest any more.
    pub(super) fn forget_frames(&mut self) {
        self.under_way.values_mut().for_each(|frame| *frame = None);
        self.lost.clear();
    }

    fn push(&mut self, peer: usize, frame: FencedFrame, work: Work) {
        let number = self.next_number;
        self.next_number += 1;
        self.under_way.insert(number, Some((peer, frame)));
        self.waiting.push_back((number, work));
    }

    fn has_of(&self, peer: usize) -> bool {
        let mut senders = self.under_way.values().flatten();
        senders.any(|(sender, _)| *sender == peer)
    }

    /// A link has ended. Whether its loss has to wait for what came over it.
    pub(super) fn delays_loss(&mut self, peer: usize) -> bool {
        let delays = self.has_of(peer);
        if delays {
            self.lost.insert(peer);
        }
        delays
    }

    fn arrive(&mut self, number: u64) -> Arrived {
        let Some((peer, frame)) = self.under_way.remove(&number).flatten() else {
            return Arrived::default();
        };
        let is_last = self.lost.contains(&peer) && !self.has_of(peer);
        if is_last {
            self.lost.remove(&peer);
        }
        Arrived {
            frame: Some((peer, frame)),
            is_last,
        }
    }
}

impl Engine {
    /// Has a payload copied from the memory of a link to its place, and hands in its frame then.
    pub(super) fn copy_in(
        &mut self,
        peer: usize,
        frame: FencedFrame,
        (payload, region): (Reading, Region),
    ) -> Result<(), transport::Error> {
        let into = self.memory.write(&region);
        let into = into.map_err(|error| transport::Error::Unplaced(error.to_string()))?;
        if into.len() != payload.len() {
            return Err(transport::Error::Payload("more or less than its place"));
        }
        let from = vec![payload];
        let how = How::Copy;
        let work = Work { into, from, how };
        if self.workers.take(&work) {
            self.receive_part(peer);
            self.inbound.push(peer, frame, work);
            self.copy_more();
        } else {
            work.run();
            self.take_frame(peer, frame);
        }
        Ok(())
    }

    /// Gives workers what waits, as far as they take it. Says whether there was any.
    pub(super) fn copy_more(&mut self) -> bool {
        let mut any = false;
        while !self.workers.are_busy()
            && let Some((number, work)) = self.inbound.waiting.pop_front()
        {
            any = true;
            if let Some(own) = self.workers.hand_over(Task::Inbound(number), work) {
                own.run();
                self.copied(number);
            }
        }
        any
    }

    /// A payload is in place.
    pub(super) fn copied(&mut self, number: u64) {
        let Arrived { frame, is_last } = self.inbound.arrive(number);
        let Some((peer, frame)) = frame else {
            return;
        };
        self.take_frame(peer, frame);
        if is_last {
            self.handle(Input::PeerLost { peer });
        } else {
            // The place in the memory of the link is free for another.
            self.links.flush_soon(peer);
        }
    }
}
