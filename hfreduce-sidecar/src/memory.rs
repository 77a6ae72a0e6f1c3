//! The memory of a node, by the names the machine has for it: inputs of local ranks, results, and the
//! slots of the tree edges. Owns bounds: a region is looked up and checked each time, so a wrong one is
//! an error and never another buffer's bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use collective::machine::{Buffer, OpId, Region};
use wire::segment::{self, Segment, Writers};

use crate::pool::{Pool, PoolError, ResultSegment};

/// A region that no buffer holds: a bug in the protocol, which ends the epoch.
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
    pub segment: Arc<Segment>,
    /// First byte.
    pub offset: usize,
    /// Length.
    pub bytes: usize,
}

/// All buffers of the node.
#[derive(Debug)]
pub struct Memory {
    inputs: BTreeMap<(OpId, usize), Input>,
    results: BTreeMap<OpId, Option<ResultSegment>>,
    receive: BTreeMap<(usize, u8), Vec<Option<Segment>>>,
    send: [Vec<Option<Segment>>; 2],
    pool: Pool,
}

impl Memory {
    /// Memory with slots for the given edges, and at most `limit_bytes` of results.
    pub fn new(
        receives: &[(usize, u8)],
        sends: &[u8],
        slots: u8,
        chunk_bytes: u32,
        limit_bytes: usize,
    ) -> Result<Self, segment::Error> {
        let edge = || {
            (0..slots)
                .map(|_| {
                    let bytes = chunk_bytes as usize;
                    Segment::create("fireflyer-slot", bytes, Writers::Everybody).map(Some)
                })
                .collect::<Result<Vec<_>, _>>()
        };
        let mut memory = Self {
            inputs: BTreeMap::new(),
            results: BTreeMap::new(),
            receive: BTreeMap::new(),
            send: [Vec::new(), Vec::new()],
            pool: Pool::new(limit_bytes),
        };
        for key in receives {
            memory.receive.insert(*key, edge()?);
        }
        for tree in sends {
            memory.send[usize::from(*tree & 1)] = edge()?;
        }
        Ok(memory)
    }

    /// Takes a local rank's contribution to an operation.
    pub fn bring(&mut self, op: OpId, rank: usize, input: Input) {
        self.inputs.insert((op, rank), input);
    }

    /// Provides for the result of an operation, unless a local rank has asked for it before.
    pub fn provide(&mut self, op: OpId, bytes: usize) -> Result<(), PoolError> {
        if bytes == 0 || self.results.contains_key(&op) {
            return Ok(());
        }
        let segment = self.pool.take(bytes)?;
        self.results.insert(op, Some(segment));
        Ok(())
    }

    /// The segment of an operation's result, if it has any bytes.
    pub fn result(&self, op: OpId) -> Option<&ResultSegment> {
        self.results.get(&op)?.as_ref()
    }

    /// The inputs of an operation are not read any more.
    pub fn forget_inputs(&mut self, op: OpId) {
        let keys: Vec<_> = self
            .inputs
            .range((op, 0)..=(op, usize::MAX))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            self.inputs.remove(&key);
        }
    }

    /// The result of an operation is not read any more: its memory serves another.
    pub fn forget_result(&mut self, op: OpId) {
        if let Some(Some(result)) = self.results.remove(&op) {
            self.pool.put_back(result);
        }
    }

    /// Numbers of result segments that are gone since the last time.
    pub fn take_gone(&mut self) -> Vec<u32> {
        self.pool.take_gone()
    }

    /// The bytes of a region.
    pub fn read(&self, region: &Region) -> Result<&[u8], OutOfBounds> {
        if region.bytes == 0 {
            return Ok(&[]);
        }
        let bytes = match region.buffer {
            Buffer::Input { op, rank } => self.inputs.get(&(op, rank)).and_then(|input| {
                input
                    .segment
                    .bytes()
                    .get(input.offset..)?
                    .get(..input.bytes)
            }),
            Buffer::Result { op } => self.result(op).map(|result| result.segment.bytes()),
            Buffer::Receive { peer, tree, slot } => self
                .receive
                .get(&(peer, tree))
                .and_then(|slots| slots.get(usize::from(slot))?.as_ref())
                .map(Segment::bytes),
            Buffer::Send { tree, slot } => self
                .send
                .get(usize::from(tree))
                .and_then(|slots| slots.get(usize::from(slot))?.as_ref())
                .map(Segment::bytes),
        };
        bytes
            .and_then(|bytes| {
                let start = usize::try_from(region.offset).ok()?;
                bytes
                    .get(start..)?
                    .get(..usize::try_from(region.bytes).ok()?)
            })
            .ok_or(OutOfBounds(*region))
    }

    /// Works on the bytes of a region while the other buffers can be read.
    pub fn write<R>(
        &mut self,
        region: &Region,
        work: impl FnOnce(&mut [u8], &Self) -> R,
    ) -> Result<R, OutOfBounds> {
        if region.bytes == 0 {
            return Ok(work(&mut [], self));
        }
        // The buffer is taken out for the time being: who would read it meets an error, not an alias.
        let mut segment = self.take(region.buffer).ok_or(OutOfBounds(*region))?;
        let start = usize::try_from(region.offset).unwrap_or(usize::MAX);
        let length = usize::try_from(region.bytes).unwrap_or(usize::MAX);
        let done = segment
            .bytes_mut()
            .get_mut(start..)
            .and_then(|bytes| bytes.get_mut(..length))
            .map(|bytes| work(bytes, self));
        self.put_back(region.buffer, segment);
        done.ok_or(OutOfBounds(*region))
    }

    fn place(&mut self, buffer: Buffer) -> Option<&mut Option<Segment>> {
        match buffer {
            // Inputs belong to the clients, and results are handled with their number.
            Buffer::Input { .. } | Buffer::Result { .. } => None,
            Buffer::Receive { peer, tree, slot } => self
                .receive
                .get_mut(&(peer, tree))?
                .get_mut(usize::from(slot)),
            Buffer::Send { tree, slot } => self
                .send
                .get_mut(usize::from(tree))?
                .get_mut(usize::from(slot)),
        }
    }

    fn take(&mut self, buffer: Buffer) -> Option<Taken> {
        if let Buffer::Result { op } = buffer {
            return self.results.get_mut(&op)?.take().map(Taken::Result);
        }
        self.place(buffer)?.take().map(Taken::Slot)
    }

    fn put_back(&mut self, buffer: Buffer, taken: Taken) {
        match (buffer, taken) {
            (Buffer::Result { op }, Taken::Result(result)) => {
                self.results.insert(op, Some(result));
            }
            (_, Taken::Slot(segment)) => {
                if let Some(place) = self.place(buffer) {
                    *place = Some(segment);
                }
            }
            // `take` gives results for result buffers only.
            (_, Taken::Result(_)) => {}
        }
    }
}

/// A buffer taken out for writing.
#[derive(Debug)]
enum Taken {
    Result(ResultSegment),
    Slot(Segment),
}

impl Taken {
    fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Result(result) => result.segment.bytes_mut(),
            Self::Slot(segment) => segment.bytes_mut(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u32 = 64 << 10;

    fn memory(limit_bytes: usize) -> Memory {
        Memory::new(&[(1, 0)], &[1], 2, CHUNK, limit_bytes).unwrap()
    }

    fn region(buffer: Buffer, offset: u64, bytes: u64) -> Region {
        Region {
            buffer,
            offset,
            bytes,
        }
    }

    #[test]
    fn what_is_written_is_read_and_bounds_hold() {
        let mut memory = memory(1 << 30);
        memory.provide(7, 1000).unwrap();
        let slot = Buffer::Receive {
            peer: 1,
            tree: 0,
            slot: 1,
        };
        for buffer in [
            Buffer::Result { op: 7 },
            slot,
            Buffer::Send { tree: 1, slot: 0 },
        ] {
            let written = region(buffer, 100, 3);
            memory
                .write(&written, |bytes, _| bytes.copy_from_slice(b"abc"))
                .unwrap();
            assert_eq!(memory.read(&written).unwrap(), b"abc");
            let end = 1 << 40;
            for wrong in [
                region(buffer, end, 1),
                region(buffer, 0, end),
                region(buffer, u64::MAX, 2),
            ] {
                assert_eq!(memory.read(&wrong), Err(OutOfBounds(wrong)));
                assert_eq!(memory.write(&wrong, |_, _| ()), Err(OutOfBounds(wrong)));
            }
        }
        let none = region(Buffer::Send { tree: 0, slot: 0 }, 0, 1);
        assert_eq!(memory.read(&none), Err(OutOfBounds(none)));
    }

    #[test]
    fn a_destination_is_never_its_own_source() {
        let mut memory = memory(1 << 30);
        memory.provide(7, 1000).unwrap();
        let all = region(Buffer::Result { op: 7 }, 0, 1000);
        memory
            .write(&all, |_, rest| {
                assert_eq!(rest.read(&all), Err(OutOfBounds(all)));
            })
            .unwrap();
    }
}
