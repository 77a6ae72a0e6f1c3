//! The memory of operations: inputs, slots of edges, and results from the first call until the last process has let go.

use std::collections::BTreeMap;

use collective::Call;
use collective::kernels::{self, Store};
use collective::machine::{GroupId, OpId, Region};
use collective::numerics::Arithmetic;
use link::block::{Reading, Writing};
use link::segment;

use crate::background::Background;
use crate::memory::{Input, Memory, OutOfBounds, Sizes};
use crate::metrics::Metrics;
use crate::pool::{PoolError, ResultBlock};

/// The result of an operation, while somebody may read it.
#[derive(Clone, Copy, Debug, Default)]
struct Use {
    holders: usize,
    released: bool,
}

#[derive(Debug)]
pub(super) struct Results {
    memory: Memory,
    uses: BTreeMap<(GroupId, OpId), Use>,
    /// Where memory is made: who trains does not wait for who begins.
    background: Background,
    /// Whether calls are taken up that cannot wait for it.
    hurries: bool,
}

impl Results {
    pub(super) fn new(memory: Memory, background: Background) -> Self {
        Self {
            memory,
            uses: BTreeMap::new(),
            background,
            hurries: false,
        }
    }

    /// From here on memory is made at once, or in the background again.
    pub(super) fn hurry(&mut self, hurries: bool) {
        self.hurries = hurries;
    }

    /// Memory for the result of an operation in a group of this size, from the first local rank that calls it, and for what
    /// this rank gets for itself alone. One that calls it later needs the result too, or has called something else, and then
    /// it has none: it must not wait for memory that is given back only when it has called.
    pub(super) fn provide(
        &mut self,
        (group, op): (GroupId, OpId),
        (call, size): (&Call, u32),
        (rank, own_bytes): (usize, u64),
    ) -> Result<(), PoolError> {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        if !self.uses.contains_key(&(group, op)) {
            let background = (!self.hurries).then_some(&mut self.background);
            let bytes = bytes(call.result_bytes(size));
            self.memory.prepare((group, op), bytes, background)?;
        }
        let background = (!self.hurries).then_some(&mut self.background);
        let own = (group, op, rank);
        self.memory.prepare_own(own, bytes(own_bytes), background)
    }

    /// A local rank has called an operation, and brings this.
    pub(super) fn call(&mut self, (group, op): (GroupId, OpId), rank: usize, input: Option<Input>) {
        self.uses.entry((group, op)).or_default();
        if let Some(input) = input {
            self.memory.bring(group, op, rank, input);
        }
    }

    /// Memory for the result of an operation that is not run again.
    pub(super) fn serve(
        &mut self,
        (group, op): (GroupId, OpId),
        bytes: u64,
    ) -> Result<(), PoolError> {
        self.uses.entry((group, op)).or_default();
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.memory.provide(group, op, bytes)
    }

    /// The result of an operation is held for a process; the segment, if there are bytes. `own`: of this rank alone.
    pub(super) fn hold(
        &mut self,
        (group, op): (GroupId, OpId),
        own: Option<usize>,
    ) -> Option<&ResultBlock> {
        self.uses.entry((group, op)).or_default().holders += 1;
        match own {
            None => self.memory.result(group, op),
            Some(rank) => self.memory.own(group, op, rank),
        }
    }

    /// A process does not read a result any more.
    pub(super) fn let_go(&mut self, op: (GroupId, OpId)) {
        if let Some(used) = self.uses.get_mut(&op) {
            used.holders = used.holders.saturating_sub(1);
        }
        self.forget_if_unused(op);
    }

    /// The machine does not read or write a result any more.
    pub(super) fn release(&mut self, op: (GroupId, OpId)) {
        self.uses.entry(op).or_default().released = true;
        self.forget_if_unused(op);
    }

    /// The machine does not read the inputs of an operation any more.
    pub(super) fn forget_inputs(&mut self, (group, op): (GroupId, OpId)) {
        self.memory.forget_inputs(group, op);
    }

    fn forget_if_unused(&mut self, op: (GroupId, OpId)) {
        let unused = |used: &Use| used.released && used.holders == 0;
        if self.uses.get(&op).is_some_and(unused) {
            self.uses.remove(&op);
            self.memory.forget_result(op.0, op.1);
        }
    }

    /// Whether the machine has released all.
    pub(super) fn are_released(&self) -> bool {
        self.uses.values().all(|used| used.released)
    }

    /// Results of a group that no machine will release any more.
    pub(super) fn drop_results(&mut self, group: GroupId) {
        let ops = self.uses.range((group, 0)..=(group, OpId::MAX));
        for op in ops.map(|(op, _)| *op).collect::<Vec<_>>() {
            self.forget_inputs(op);
            self.release(op);
        }
    }

    /// Nothing is received or sent for a group any more.
    pub(super) fn forget_group(&mut self, group: GroupId) {
        self.memory.forget_group(group);
    }

    /// Numbers of result segments that are gone since the last time.
    pub(super) fn take_gone(&mut self) -> Vec<u32> {
        self.memory.take_gone()
    }

    /// Slots for the world's edges of an epoch, in place of all of the one before.
    pub(super) fn set_edges(&mut self, sizes: &Sizes) -> Result<(), segment::Error> {
        self.memory.set_edges(sizes)
    }

    /// Slots for the edges of a group.
    pub(super) fn add_edges(
        &mut self,
        group: GroupId,
        sizes: &Sizes,
    ) -> Result<(), segment::Error> {
        self.memory.add_edges(group, sizes)
    }

    /// A link lends what it has received for a slot.
    pub(super) fn borrow(&mut self, edge: (GroupId, usize, u8), slot: u8, lent: Reading) {
        self.memory.borrow(edge, slot, lent);
    }

    /// That is not read any more.
    pub(super) fn give_back(&mut self, edge: (GroupId, usize, u8), slot: u8) {
        self.memory.let_go(edge, slot);
    }

    pub(super) fn read(&self, region: &Region) -> Result<Reading, OutOfBounds> {
        self.memory.read(region)
    }

    pub(super) fn write(&self, region: &Region) -> Result<Writing, OutOfBounds> {
        self.memory.write(region)
    }

    /// Combines sources and partials.
    pub(super) fn reduce(
        &self,
        arithmetic: Arithmetic,
        (sources, partials): (&[Region], &[Region]),
        destination: &Region,
        metrics: &Metrics,
    ) -> Result<(), OutOfBounds> {
        let all = || sources.iter().chain(partials);
        let mut into = self.write(destination)?;
        let from: Vec<Reading> = all().map(|one| self.read(one)).collect::<Result<_, _>>()?;
        let slices: Vec<&[u8]> = from.iter().map(|bytes| &**bytes).collect();
        let (elements, sums) = slices.split_at(sources.len());
        kernels::combine(arithmetic, &mut into, elements, sums, Store::Cached);
        metrics.moved(all(), destination);
        Ok(())
    }

    pub(super) fn copy(
        &self,
        source: &Region,
        destination: &Region,
        metrics: &Metrics,
    ) -> Result<(), OutOfBounds> {
        let mut into = self.write(destination)?;
        let from = self.read(source)?;
        if from.len() != into.len() {
            return Err(OutOfBounds::from(*source));
        }
        into.copy_from_slice(&from);
        metrics.moved([source], destination);
        Ok(())
    }
}
