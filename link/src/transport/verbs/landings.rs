//! Where a peer writes payload: places of one chunk each, announced to it one by one as windows that it fills in this
//! order, each once. What arrives is read in its place, which is announced again when nobody reads it any more.

use std::collections::VecDeque;
use std::sync::Arc;

use super::Error;
use super::adapter::Adapter;
use crate::block::{Block, Reading, Writing};
use crate::header::Header;
use crate::segment::{Segment, Writers};
use crate::verbs::channel::{self, Destination, RdmaChannel};
use crate::verbs::{Access, RegisteredRegion};

/// Slabs of one link at most. Each operation in flight uses less than a slab.
const SLABS_LIMIT: usize = 64;

/// Places in one segment.
#[derive(Debug)]
struct Slab {
    block: Arc<Block>,
    region: Arc<RegisteredRegion>,
}

/// A place: its slab, and where in it.
#[derive(Clone, Copy, Debug)]
struct Landing {
    slab: usize,
    start: usize,
}

/// The places of one link.
#[derive(Debug)]
pub(super) struct Landings {
    adapter: Arc<Adapter>,
    /// Bytes of a place.
    bytes: usize,
    /// Places of a slab.
    places: usize,
    slabs: Vec<Slab>,
    /// Announced and not filled, in order. The peer may write there at any time, which nobody else may.
    announced: VecDeque<(Landing, Writing)>,
    /// Places that are read for as long as others take, and those that somebody copies from.
    read: Vec<Landing>,
    copied: Vec<Landing>,
    /// Distinguished from the names of the other side's windows by their lowest bit.
    parity: u64,
    /// Windows that were announced, and that were filled.
    announcements: u64,
    filled: u64,
}

/// The name of the window with this number.
pub(super) const fn window(number: u64, parity: u64) -> u64 {
    2 * number + parity
}

impl Landings {
    /// `places` places of `bytes` each, more if that many are read.
    pub(super) fn new<H: Header>(
        adapter: &Arc<Adapter>,
        bytes: usize,
        places: usize,
        parity: u64,
        channel: &mut RdmaChannel<H>,
    ) -> Result<Self, Error> {
        let mut landings = Self {
            adapter: Arc::clone(adapter),
            bytes,
            places,
            slabs: Vec::new(),
            announced: VecDeque::new(),
            read: Vec::new(),
            copied: Vec::new(),
            parity,
            announcements: 0,
            filled: 0,
        };
        landings.grow(channel)?;
        Ok(landings)
    }

    fn grow<H: Header>(&mut self, channel: &mut RdmaChannel<H>) -> Result<(), Error> {
        let bytes = self.places * self.bytes;
        let (writers, home) = (Writers::Creator, &self.adapter.home);
        let segment = Segment::create_at("fireflyer-landings", bytes, writers, home)?;
        let access = Access {
            remote_write: true,
            relaxed_ordering: self.adapter.relaxed_ordering,
        };
        let region = RegisteredRegion::register(&self.adapter.domain, &segment, access)
            .map_err(channel::Error::from)?;
        let block = Block::new(segment);
        let slab = self.slabs.len();
        self.slabs.push(Slab { block, region });
        for place in 0..self.places {
            let start = place * self.bytes;
            self.announce(Landing { slab, start }, channel)?;
        }
        Ok(())
    }

    fn announce<H: Header>(
        &mut self,
        place: Landing,
        channel: &mut RdmaChannel<H>,
    ) -> Result<(), Error> {
        let Slab { block, region } = &self.slabs[place.slab];
        let writing = block.write(place.start..place.start + self.bytes)?;
        let remote = region
            .remote(place.start as u64, self.bytes as u64)
            .map_err(channel::Error::from)?;
        channel.announce(window(self.announcements, self.parity), remote)?;
        self.announcements += 1;
        self.announced.push_back((place, writing));
        Ok(())
    }

    /// A payload has arrived. It must be given to `take` or `free` then.
    pub(super) fn arrived<H: Header>(
        &mut self,
        to: Destination,
        bytes: u32,
        channel: &mut RdmaChannel<H>,
    ) -> Result<Arrived, Error> {
        let expected = Destination {
            window: window(self.filled, self.parity),
            offset: 0,
        };
        let next = self.announced.pop_front().filter(|_| to == expected);
        let (place, writing) = next.ok_or(Error::Payload("another place than the next"))?;
        channel.forget(to.window);
        self.filled += 1;
        drop(writing);
        let block = &self.slabs[place.slab].block;
        let reading = block.read(place.start..place.start + bytes as usize)?;
        Ok(Arrived { place, reading })
    }

    /// Announces a place again whose payload was copied.
    pub(super) fn free<H: Header>(
        &mut self,
        arrived: Arrived,
        channel: &mut RdmaChannel<H>,
    ) -> Result<(), Error> {
        let Arrived { place, reading } = arrived;
        drop(reading);
        self.announce(place, channel)
    }

    /// Keeps a place until what is given here is dropped, which is as soon as it is copied: until then the peer may have to
    /// wait for a place.
    pub(super) fn take_to_copy(&mut self, arrived: Arrived) -> Reading {
        self.copied.push(arrived.place);
        arrived.reading
    }

    /// Keeps a place until what is given here is dropped, however long others take.
    pub(super) fn take_to_read<H: Header>(
        &mut self,
        arrived: Arrived,
        channel: &mut RdmaChannel<H>,
    ) -> Reading {
        self.read.push(arrived.place);
        // The peer must not wait for a place because this node does for something else. Where there can be none
        // it waits until places come back.
        let left = self.announced.len() + self.copied.len();
        if 2 * left < self.places && self.slabs.len() < SLABS_LIMIT {
            self.grow(channel).ok();
        }
        arrived.reading
    }

    /// Announces again what nobody reads any more.
    pub(super) fn reclaim<H: Header>(&mut self, channel: &mut RdmaChannel<H>) -> Result<(), Error> {
        let (mut free, slabs, bytes) = (Vec::new(), &self.slabs, self.bytes);
        let mut is_in_use = |place: &Landing| {
            let range = place.start..place.start + bytes;
            let is_free = slabs[place.slab].block.write(range).is_ok();
            if is_free {
                free.push(*place);
            }
            !is_free
        };
        self.read.retain(&mut is_in_use);
        self.copied.retain(&mut is_in_use);
        free.into_iter()
            .try_for_each(|place| self.announce(place, channel))
    }
}

/// A payload that has arrived.
#[derive(Debug)]
pub(super) struct Arrived {
    place: Landing,
    pub(super) reading: Reading,
}
