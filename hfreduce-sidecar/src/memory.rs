//! The memory of a node, by the names the machine has for it: inputs of local ranks, results, and the
//! slots of the tree edges. Owns bounds: a region is looked up and checked each time, so a wrong one, or one that
//! is in use otherwise, is an error and never another buffer's bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use collective::machine::{Buffer, GroupId, OpId, Region, WORLD};
use link::block::{Block, Reading, Writing};
use link::home::Home;
use link::segment::{self, Segment, Writers};

use crate::background::Background;
use crate::pool::{Pool, PoolError, ResultBlock, Wanted};

/// A region that no buffer holds, or that is in use: a bug in the protocol, which ends the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to find {} bytes at {} of {:?}", .0.bytes, .0.offset, .0.buffer)]
pub struct OutOfBounds(Region);

impl From<Region> for OutOfBounds {
    fn from(region: Region) -> Self {
        Self(region)
    }
}

/// Where a local rank's contribution lies.
#[derive(Clone, Debug)]
pub struct Input {
    /// The segment.
    pub block: Arc<Block>,
    /// First byte.
    pub offset: usize,
    /// Length.
    pub bytes: usize,
}

/// An edge's slots: memory of this node, or what the link lends for one.
#[derive(Debug)]
struct Slots {
    /// One after another; none where the link lends everything.
    block: Option<Arc<Block>>,
    lent: Vec<Option<Reading>>,
}

/// What memory is needed.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// `(peer, tree)` of every child whose parts are received into slots.
    pub receives: Vec<(usize, u8)>,
    /// `(peer, tree)` of every child whose parts are lent by the link.
    pub borrows: Vec<(usize, u8)>,
    /// Trees with a parent.
    pub sends: Vec<u8>,
    /// Slots of an edge.
    pub slots: u8,
    /// Bytes of a slot.
    pub chunk_bytes: u32,
}

/// All buffers of the node.
#[derive(Debug)]
pub struct Memory {
    chunk_bytes: usize,
    inputs: BTreeMap<(GroupId, OpId, usize), Input>,
    results: BTreeMap<(GroupId, OpId), ResultBlock>,
    /// What local ranks get that nobody else does.
    owns: BTreeMap<(GroupId, OpId, usize), ResultBlock>,
    receive: BTreeMap<(GroupId, usize, u8), Slots>,
    send: BTreeMap<(GroupId, u8), Slots>,
    pool: Pool,
}

impl Memory {
    /// Memory for at most `limit_bytes` of results, without slots. All of it lies in `home`.
    #[must_use]
    pub fn new(limit_bytes: usize, home: Home) -> Self {
        Self {
            chunk_bytes: 0,
            inputs: BTreeMap::new(),
            results: BTreeMap::new(),
            owns: BTreeMap::new(),
            receive: BTreeMap::new(),
            send: BTreeMap::new(),
            pool: Pool::new(limit_bytes, home),
        }
    }

    /// Slots for the world's edges of an epoch, in place of all of the one before.
    pub fn set_edges(&mut self, sizes: &Sizes) -> Result<(), segment::Error> {
        self.receive.clear();
        self.send.clear();
        self.chunk_bytes = sizes.chunk_bytes as usize;
        self.add_edges(WORLD, sizes)
    }

    /// Slots for the edges of a group. Pages come when something is first written to them.
    pub fn add_edges(&mut self, group: GroupId, sizes: &Sizes) -> Result<(), segment::Error> {
        let slots = usize::from(sizes.slots);
        let chunk_bytes = sizes.chunk_bytes as usize;
        let empty = || Slots {
            block: None,
            lent: (0..slots).map(|_| None).collect(),
        };
        let edge = || {
            let bytes = slots * chunk_bytes;
            let (writers, home) = (Writers::Creator, self.pool.home());
            let segment = Segment::create_untouched("fireflyer-slots", bytes, writers, home)?;
            Ok(Slots {
                block: Some(Block::new(segment)),
                ..empty()
            })
        };
        for &(peer, tree) in &sizes.receives {
            self.receive.insert((group, peer, tree), edge()?);
        }
        let lent = sizes.borrows.iter();
        self.receive
            .extend(lent.map(|&(peer, tree)| ((group, peer, tree), empty())));
        for &tree in &sizes.sends {
            self.send.insert((group, tree), edge()?);
        }
        Ok(())
    }

    /// Nothing of a group is used any more.
    pub fn forget_group(&mut self, group: GroupId) {
        self.receive.retain(|(of, ..), _| *of != group);
        self.send.retain(|(of, _), _| *of != group);
        self.inputs.retain(|(of, ..), _| *of != group);
    }

    /// Takes a local rank's contribution to an operation.
    pub fn bring(&mut self, group: GroupId, op: OpId, rank: usize, input: Input) {
        self.inputs.insert((group, op, rank), input);
    }

    /// Takes what a link lends for a receive slot, until [`Memory::let_go`].
    pub fn borrow(&mut self, edge: (GroupId, usize, u8), slot: u8, lent: Reading) {
        let slots = self.receive.get_mut(&edge);
        if let Some(place) = slots.and_then(|slots| slots.lent.get_mut(usize::from(slot))) {
            *place = Some(lent);
        }
    }

    /// What was lent for a receive slot is not read any more.
    pub fn let_go(&mut self, edge: (GroupId, usize, u8), slot: u8) {
        let slots = self.receive.get_mut(&edge);
        if let Some(place) = slots.and_then(|slots| slots.lent.get_mut(usize::from(slot))) {
            *place = None;
        }
    }

    /// Provides for the result of an operation, unless a local rank has asked for it before.
    pub fn provide(&mut self, group: GroupId, op: OpId, bytes: usize) -> Result<(), PoolError> {
        if bytes == 0 || self.results.contains_key(&(group, op)) {
            return Ok(());
        }
        let block = self.pool.take(bytes)?;
        self.results.insert((group, op), block);
        Ok(())
    }

    /// The same in the background, if there is one and no memory that was used before.
    pub fn prepare(
        &mut self,
        (group, op): (GroupId, OpId),
        bytes: usize,
        background: Option<&mut Background>,
    ) -> Result<(), PoolError> {
        if bytes > 0 && !self.results.contains_key(&(group, op)) {
            let wanted = Wanted::Result(group, op);
            let block = self.pool.prepare(wanted, bytes, background)?;
            self.results.insert((group, op), block);
        }
        Ok(())
    }

    /// The segment of an operation's result, if it has any bytes.
    pub fn result(&self, group: GroupId, op: OpId) -> Option<&ResultBlock> {
        self.results.get(&(group, op))
    }

    /// Provides for what a local rank gets from an operation for itself.
    pub fn prepare_own(
        &mut self,
        own: (GroupId, OpId, usize),
        bytes: usize,
        background: Option<&mut Background>,
    ) -> Result<(), PoolError> {
        if bytes > 0 && !self.owns.contains_key(&own) {
            let (group, _, rank) = own;
            let wanted = Wanted::Own(group, rank);
            let block = self.pool.prepare(wanted, bytes, background)?;
            self.owns.insert(own, block);
        }
        Ok(())
    }

    /// The segment of what a local rank gets for itself, if it has any bytes.
    pub fn own(&self, group: GroupId, op: OpId, rank: usize) -> Option<&ResultBlock> {
        self.owns.get(&(group, op, rank))
    }

    /// The inputs of an operation are not read any more.
    pub fn forget_inputs(&mut self, group: GroupId, op: OpId) {
        let keys: Vec<_> = self
            .inputs
            .range((group, op, 0)..=(group, op, usize::MAX))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            self.inputs.remove(&key);
        }
    }

    /// The result of an operation is not read any more: its memory serves another.
    pub fn forget_result(&mut self, group: GroupId, op: OpId) {
        let own = (group, op, 0)..=(group, op, usize::MAX);
        let keys: Vec<_> = self.owns.range(own).map(|(key, _)| *key).collect();
        let owns = keys.iter().filter_map(|key| self.owns.remove(key));
        for result in self.results.remove(&(group, op)).into_iter().chain(owns) {
            self.pool.put_back(result);
        }
    }

    /// Numbers of result segments that are gone since the last time.
    pub fn take_gone(&mut self) -> Vec<u32> {
        self.pool.take_gone()
    }

    /// Borrows the bytes of a region for reading.
    pub fn read(&self, region: &Region) -> Result<Reading, OutOfBounds> {
        let wrong = OutOfBounds(*region);
        let lent = match region.buffer {
            Buffer::Receive {
                group,
                peer,
                tree,
                slot,
            } => self
                .receive
                .get(&(group, peer, tree))
                .and_then(|slots| slots.lent.get(usize::from(slot))?.as_ref()),
            Buffer::Input { .. }
            | Buffer::Result { .. }
            | Buffer::Own { .. }
            | Buffer::Send { .. } => None,
        };
        if let Some(lent) = lent {
            let (start, length) = extent(region).ok_or(wrong)?;
            let end = start.checked_add(length).ok_or(wrong)?;
            return lent.part(start..end).ok_or(wrong);
        }
        let (block, start, end) = self.find(region).ok_or(wrong)?;
        block.read(start..end).map_err(|_| wrong)
    }

    /// Borrows the bytes of a region for writing.
    pub fn write(&self, region: &Region) -> Result<Writing, OutOfBounds> {
        let wrong = OutOfBounds(*region);
        if let Buffer::Input { .. } = region.buffer {
            return Err(wrong); // Belongs to a client.
        }
        let (block, start, end) = self.find(region).ok_or(wrong)?;
        block.write(start..end).map_err(|_| wrong)
    }

    /// The block that a region lies in, and its bounds there.
    fn find(&self, region: &Region) -> Option<(&Arc<Block>, usize, usize)> {
        let (block, first, length) = match region.buffer {
            Buffer::Input { group, op, rank } => {
                let input = self.inputs.get(&(group, op, rank))?;
                (&input.block, input.offset, input.bytes)
            }
            Buffer::Result { group, op } => {
                let block = &self.results.get(&(group, op))?.block;
                (block, 0, block.len())
            }
            Buffer::Own { group, op, rank } => {
                let block = &self.owns.get(&(group, op, rank))?.block;
                (block, 0, block.len())
            }
            Buffer::Receive {
                group,
                peer,
                tree,
                slot,
            } => self.slot(self.receive.get(&(group, peer, tree))?, slot)?,
            Buffer::Send { group, tree, slot } => {
                self.slot(self.send.get(&(group, tree))?, slot)?
            }
        };
        let (offset, bytes) = extent(region)?;
        let end = offset.checked_add(bytes).filter(|end| *end <= length)?;
        Some((block, first + offset, first + end))
    }

    fn slot<'a>(&self, slots: &'a Slots, slot: u8) -> Option<(&'a Arc<Block>, usize, usize)> {
        let slot = usize::from(slot);
        let block = slots.block.as_ref()?;
        let bytes = self.chunk_bytes;
        (slot < slots.lent.len()).then_some((block, slot * bytes, bytes))
    }
}

fn extent(region: &Region) -> Option<(usize, usize)> {
    let start = usize::try_from(region.offset).ok()?;
    Some((start, usize::try_from(region.bytes).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 64 << 10;

    fn memory(limit_bytes: usize) -> Memory {
        let sizes = Sizes {
            receives: vec![(1, 0)],
            borrows: vec![(2, 0)],
            sends: vec![1],
            slots: 2,
            chunk_bytes: CHUNK,
        };
        let mut memory = Memory::new(limit_bytes, Home::Anywhere);
        memory.set_edges(&sizes).unwrap();
        memory
    }

    fn region(buffer: Buffer, offset: u64, bytes: u64) -> Region {
        Region {
            buffer,
            offset,
            bytes,
        }
    }

    fn slot(peer: usize, slot: u8) -> Buffer {
        let tree = 0;
        Buffer::Receive {
            group: WORLD,
            peer,
            tree,
            slot,
        }
    }

    const RESULT: Buffer = Buffer::Result {
        group: WORLD,
        op: 7,
    };

    fn staged(group: GroupId, tree: u8) -> Buffer {
        let slot = 0;
        Buffer::Send { group, tree, slot }
    }

    #[test]
    fn what_is_written_is_read_and_bounds_hold() {
        let mut memory = memory(1 << 30);
        memory.provide(WORLD, 7, 1000).unwrap();
        for buffer in [RESULT, slot(1, 1), staged(WORLD, 1)] {
            let written = region(buffer, 100, 3);
            memory.write(&written).unwrap().copy_from_slice(b"abc");
            assert_eq!(&*memory.read(&written).unwrap(), b"abc");
            let end = 1 << 40;
            for wrong in [
                region(buffer, end, 1),
                region(buffer, 0, end),
                region(buffer, u64::MAX, 2),
                region(buffer, u64::from(CHUNK) - 1, 2),
            ] {
                assert_eq!(memory.read(&wrong).unwrap_err(), OutOfBounds(wrong));
                assert_eq!(memory.write(&wrong).unwrap_err(), OutOfBounds(wrong));
            }
        }
        let none = region(staged(WORLD, 0), 0, 1);
        assert_eq!(memory.read(&none).unwrap_err(), OutOfBounds(none));
    }

    #[test]
    fn groups_have_slots_of_their_own_until_they_are_forgotten() {
        let mut memory = memory(1 << 30);
        let sizes = Sizes {
            receives: vec![(1, 0)],
            borrows: Vec::new(),
            sends: vec![1],
            slots: 2,
            chunk_bytes: CHUNK,
        };
        memory.add_edges(5, &sizes).unwrap();
        let (ours, worlds) = (region(staged(5, 1), 0, 3), region(staged(WORLD, 1), 0, 3));
        memory.write(&ours).unwrap().copy_from_slice(b"abc");
        assert_eq!(&*memory.read(&worlds).unwrap(), [0; 3]);
        memory.forget_group(5);
        assert_eq!(memory.read(&ours).unwrap_err(), OutOfBounds(ours));
        memory.read(&worlds).unwrap();
    }

    #[test]
    fn a_destination_is_never_its_own_source() {
        let mut memory = memory(1 << 30);
        memory.provide(WORLD, 7, 1000).unwrap();
        let all = region(RESULT, 0, 1000);
        let part = region(RESULT, 999, 1);
        let beside = region(RESULT, 1000, 8);
        let _written = memory.write(&all).unwrap();
        assert_eq!(memory.read(&part).unwrap_err(), OutOfBounds(part));
        memory.read(&beside).unwrap();
    }

    #[test]
    fn a_slot_that_is_lent_is_read_where_it_lies_until_it_is_let_go() {
        let mut memory = memory(1 << 30);
        memory.provide(WORLD, 7, 1000).unwrap();
        let theirs = region(RESULT, 10, 3);
        memory.write(&theirs).unwrap().copy_from_slice(b"abc");
        let lent = memory.read(&theirs).unwrap();
        memory.borrow((WORLD, 2, 0), 1, lent);
        let (all, part, more) = (
            region(slot(2, 1), 0, 3),
            region(slot(2, 1), 1, 2),
            region(slot(2, 1), 1, 3),
        );
        assert_eq!(&*memory.read(&all).unwrap(), b"abc");
        assert_eq!(&*memory.read(&part).unwrap(), b"bc");
        assert_eq!(memory.read(&more).unwrap_err(), OutOfBounds(more));
        assert_eq!(memory.write(&all).unwrap_err(), OutOfBounds(all));
        memory.let_go((WORLD, 2, 0), 1);
        assert_eq!(memory.read(&all).unwrap_err(), OutOfBounds(all));
    }
}
