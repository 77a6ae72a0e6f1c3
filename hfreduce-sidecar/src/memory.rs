//! The memory of a node, by the names the machine has for it: inputs of local ranks, results, and the
//! slots of the tree edges. Owns bounds: a region is looked up and checked each time, so a wrong one, or one that
//! is in use otherwise, is an error and never another buffer's bytes. Results stay from the first call until the machine
//! has released them and the last process has let go.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

use collective::Call;
use collective::machine::{Buffer, GroupId, OpId, Region, WORLD};
use link::block::{Block, Reading, Writing};
use link::memory_policy::MemoryPolicy;
use link::segment::{self, Segment, Writers};

use crate::background::Background;
use crate::pool::{Pool, PoolError, ResultBlock, SegmentRequest};

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
pub struct InputMemory {
    /// The segment.
    pub block: Arc<Block>,
    /// First byte.
    pub offset: usize,
    /// Length.
    pub bytes: usize,
}

/// An edge's slots: memory of this node, or of the link.
#[derive(Debug)]
struct Slots {
    /// One after another; none where all of it is the link's.
    block: Option<Arc<Block>>,
    in_place: Vec<Option<Reading>>,
    /// A bit for each that was written to: the others have no page yet.
    written: Cell<u64>,
}

/// What memory is needed.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// `(peer, tree)` of every child whose parts are received into slots.
    pub receives: Vec<(usize, u8)>,
    /// `(peer, tree)` of every child whose parts lie in the memory of the link.
    pub borrows: Vec<(usize, u8)>,
    /// Trees with a parent.
    pub sends: Vec<u8>,
    /// Slots of an edge.
    pub slots: u8,
    /// Bytes of a slot.
    pub chunk_bytes: u32,
}

/// The result of an operation, while somebody may read it.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    holders: usize,
    released: bool,
}

/// All buffers of the node.
#[derive(Debug)]
pub struct Memory {
    chunk_bytes: usize,
    inputs: BTreeMap<(GroupId, OpId, usize), InputMemory>,
    results: BTreeMap<(GroupId, OpId), ResultBlock>,
    /// What local ranks get that nobody else does.
    owns: BTreeMap<(GroupId, OpId, usize), ResultBlock>,
    uses: BTreeMap<(GroupId, OpId), Use>,
    receive: BTreeMap<(GroupId, usize, u8), Slots>,
    send: BTreeMap<(GroupId, u8), Slots>,
    /// Of the slots that were written to.
    slot_bytes: Cell<usize>,
    pool: Pool,
    /// Where memory is made: who trains does not wait for who begins.
    background: Background,
    /// Whether calls are taken up that cannot wait for it.
    hurries: bool,
}

impl Memory {
    /// Memory for at most `limit_bytes` of results, without slots. All of it lies in `home`, and is made in the background.
    #[must_use]
    pub fn new(limit_bytes: usize, home: MemoryPolicy, background: Background) -> Self {
        Self {
            chunk_bytes: 0,
            inputs: BTreeMap::new(),
            results: BTreeMap::new(),
            owns: BTreeMap::new(),
            uses: BTreeMap::new(),
            receive: BTreeMap::new(),
            send: BTreeMap::new(),
            slot_bytes: Cell::new(0),
            pool: Pool::new(limit_bytes, home),
            background,
            hurries: false,
        }
    }

    /// Slots for the world's edges of an epoch, in place of all of the one before.
    pub fn set_edges(&mut self, sizes: &Sizes) -> Result<(), segment::Error> {
        self.receive.clear();
        self.send.clear();
        self.slot_bytes.set(0);
        self.chunk_bytes = sizes.chunk_bytes as usize;
        self.add_edges(WORLD, sizes)
    }

    /// Slots for the edges of a group. Pages come when something is first written to them.
    pub fn add_edges(&mut self, group: GroupId, sizes: &Sizes) -> Result<(), segment::Error> {
        let slots = usize::from(sizes.slots);
        let chunk_bytes = sizes.chunk_bytes as usize;
        let empty = || Slots {
            block: None,
            in_place: (0..slots).map(|_| None).collect(),
            written: Cell::new(0),
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
        let borrowed = sizes.borrows.iter();
        self.receive
            .extend(borrowed.map(|&(peer, tree)| ((group, peer, tree), empty())));
        for &tree in &sizes.sends {
            self.send.insert((group, tree), edge()?);
        }
        Ok(())
    }

    /// Nothing of a group is used any more.
    pub fn forget_group(&mut self, group: GroupId) {
        let chunk_bytes = self.chunk_bytes;
        let mut freed = 0;
        let mut stays = |of: GroupId, slots: &Slots| {
            if of == group {
                freed += slots.written.get().count_ones() as usize * chunk_bytes;
            }
            of != group
        };
        self.receive.retain(|(of, ..), slots| stays(*of, slots));
        self.send.retain(|(of, _), slots| stays(*of, slots));
        self.slot_bytes.set(self.slot_bytes.get() - freed);
        self.inputs.retain(|(of, ..), _| *of != group);
    }

    /// From here on memory is made at once, or in the background again.
    pub fn hurry(&mut self, hurries: bool) {
        self.hurries = hurries;
    }

    /// A local rank has called an operation, and brings this.
    pub fn call(&mut self, (group, op): (GroupId, OpId), rank: usize, input: Option<InputMemory>) {
        self.uses.entry((group, op)).or_default();
        if let Some(input) = input {
            self.inputs.insert((group, op, rank), input);
        }
    }

    /// Takes a payload in the memory of a link for a receive slot, until [`Memory::give_back`].
    pub fn borrow(&mut self, edge: (GroupId, usize, u8), slot: u8, payload: Reading) {
        let slots = self.receive.get_mut(&edge);
        if let Some(place) = slots.and_then(|slots| slots.in_place.get_mut(usize::from(slot))) {
            *place = Some(payload);
        }
    }

    /// The payload of a receive slot is not read any more.
    pub fn give_back(&mut self, edge: (GroupId, usize, u8), slot: u8) {
        let slots = self.receive.get_mut(&edge);
        if let Some(place) = slots.and_then(|slots| slots.in_place.get_mut(usize::from(slot))) {
            *place = None;
        }
    }

    /// Memory for the result of an operation in a group of this size, from the first local rank that calls it, and for what
    /// this rank gets for itself alone. One that calls it later needs the result too, or has called something else, and then
    /// it has none: it must not wait for memory that is given back only when it has called.
    pub fn provide(
        &mut self,
        (group, op): (GroupId, OpId),
        (call, size): (&Call, u32),
        (rank, own_bytes): (usize, u64),
    ) -> Result<(), PoolError> {
        let id = (group, op);
        let bytes = to_usize(call.result_bytes(size));
        self.pool.count_slots(self.slot_bytes.get());
        if bytes > 0 && !self.uses.contains_key(&id) && !self.results.contains_key(&id) {
            let wanted = SegmentRequest::Result(group, op);
            let background = (!self.hurries).then_some(&mut self.background);
            let block = self.pool.prepare(wanted, bytes, background)?;
            self.results.insert(id, block);
        }
        let own = (group, op, rank);
        if own_bytes > 0 && !self.owns.contains_key(&own) {
            let wanted = SegmentRequest::Own(group, rank);
            let background = (!self.hurries).then_some(&mut self.background);
            let block = self.pool.prepare(wanted, to_usize(own_bytes), background)?;
            self.owns.insert(own, block);
        }
        Ok(())
    }

    /// Memory, at once, for the result of an operation that is not run again, unless it is here.
    pub fn serve(&mut self, id: (GroupId, OpId), bytes: u64) -> Result<(), PoolError> {
        self.uses.entry(id).or_default();
        if bytes > 0 && !self.results.contains_key(&id) {
            let block = self.pool.take(to_usize(bytes))?;
            self.results.insert(id, block);
        }
        Ok(())
    }

    /// The result of an operation is held for a process; the segment, if there are bytes. `own`: of this rank alone.
    pub fn hold(
        &mut self,
        (group, op): (GroupId, OpId),
        own: Option<usize>,
    ) -> Option<&ResultBlock> {
        self.uses.entry((group, op)).or_default().holders += 1;
        match own {
            None => self.results.get(&(group, op)),
            Some(rank) => self.owns.get(&(group, op, rank)),
        }
    }

    /// A process does not read a result any more.
    pub fn drop_holder(&mut self, op: (GroupId, OpId)) {
        if let Some(used) = self.uses.get_mut(&op) {
            used.holders = used.holders.saturating_sub(1);
        }
        self.forget_if_unused(op);
    }

    /// The machine does not read or write a result any more, nor the inputs: the machine of an epoch does not name
    /// those of an operation that ended in the epoch before.
    pub fn release(&mut self, op: (GroupId, OpId)) {
        self.forget_inputs(op);
        self.uses.entry(op).or_default().released = true;
        self.forget_if_unused(op);
    }

    /// Whether it has released all.
    pub fn is_released(&self) -> bool {
        self.uses.values().all(|used| used.released)
    }

    /// Results of a group that no machine will release any more.
    pub fn drop_results(&mut self, group: GroupId) {
        let ops = self.uses.range((group, 0)..=(group, OpId::MAX));
        for op in ops.map(|(op, _)| *op).collect::<Vec<_>>() {
            self.release(op);
        }
    }

    /// The inputs of an operation are not read any more.
    pub fn forget_inputs(&mut self, (group, op): (GroupId, OpId)) {
        let keys = self.inputs.range((group, op, 0)..=(group, op, usize::MAX));
        for key in keys.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.inputs.remove(&key);
        }
    }

    /// A result that nobody reads any more goes: its memory serves another.
    fn forget_if_unused(&mut self, (group, op): (GroupId, OpId)) {
        let unused = |used: &Use| used.released && used.holders == 0;
        if !self.uses.get(&(group, op)).is_some_and(unused) {
            return;
        }
        self.uses.remove(&(group, op));
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
        let borrowed = match region.buffer {
            Buffer::Receive {
                group,
                peer,
                tree,
                slot,
            } => self
                .receive
                .get(&(group, peer, tree))
                .and_then(|slots| slots.in_place.get(usize::from(slot))?.as_ref()),
            Buffer::Input { .. }
            | Buffer::Result { .. }
            | Buffer::Own { .. }
            | Buffer::Send { .. } => None,
        };
        if let Some(payload) = borrowed {
            let (start, length) = extent(region).ok_or(wrong)?;
            let end = start.checked_add(length).ok_or(wrong)?;
            return payload.part(start..end).ok_or(wrong);
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
        let into = block.write(start..end).map_err(|_| wrong)?;
        self.note_written(region.buffer);
        Ok(into)
    }

    /// A slot has pages from its first payload on.
    fn note_written(&self, buffer: Buffer) {
        let (slots, slot) = match buffer {
            Buffer::Receive {
                group,
                peer,
                tree,
                slot,
            } => (self.receive.get(&(group, peer, tree)), slot),
            Buffer::Send { group, tree, slot } => (self.send.get(&(group, tree)), slot),
            Buffer::Input { .. } | Buffer::Result { .. } | Buffer::Own { .. } => return,
        };
        if let Some(slots) = slots {
            let (before, bit) = (slots.written.get(), 1 << slot);
            if before & bit == 0 {
                slots.written.set(before | bit);
                self.slot_bytes
                    .set(self.slot_bytes.get() + self.chunk_bytes);
            }
        }
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
        (slot < slots.in_place.len()).then_some((block, slot * bytes, bytes))
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

fn extent(region: &Region) -> Option<(usize, usize)> {
    let start = usize::try_from(region.offset).ok()?;
    Some((start, usize::try_from(region.bytes).ok()?))
}
