//! Copies between a GPU and memory that is shared with the sidecar. Owns their order: what they wait for, and what
//! waits for them.

use std::sync::Arc;

use super::device::Direction;
use super::foreign::check_inside;
use super::{CudaDevice, CudaEvent, CudaStream, DeviceMemory, Error};
use crate::client::{Arena, ResultView};

/// The host memory of a copy, which stays for as long as the GPU may touch it.
#[derive(Debug)]
#[expect(dead_code, reason = "kept, not used")]
enum CopyMemory {
    Input(Arc<Arena>),
    Output(ResultView, Arc<Arena>),
}

/// A copy that was begun. Dropping it waits until it is over.
#[derive(Debug)]
pub struct Copy {
    over: CudaEvent,
    /// None once it is over.
    kept: Option<CopyMemory>,
}

impl Copy {
    /// Begins to copy what lies at `sources` to `offset` of an arena, one after another, behind everything that
    /// `producer` was given so far. Without sources, what is copied to the host later comes behind that. No copy to the
    /// device may still read there: it runs on another stream.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn to_host(
        device: &Arc<CudaDevice>,
        sources: &[DeviceMemory],
        arena: &Arc<Arena>,
        offset: usize,
        producer: CudaStream,
    ) -> Result<Self, Error> {
        let bytes = sources.iter().map(|source| source.len()).sum();
        arena.range(offset, bytes)?;
        let moment = CudaEvent::on(device, producer)?;
        if bytes > 0 {
            arena.register(device)?;
        }
        moment.gate_copies(Direction::ToHost)?;
        let mut at = offset;
        let begun = sources.iter().try_for_each(|source| {
            let target = arena.range(at, source.len())?;
            at += source.len();
            device.call("copy from the GPU", |library| {
                // SAFETY: the range is inside the arena, which is mapped and registered, and kept so by what is
                // returned, or until the copies are over.
                unsafe {
                    (library.copy_to_host)(
                        target.as_ptr().cast(),
                        source.start(),
                        source.len(),
                        device.stream(Direction::ToHost),
                    )
                }
            })
        });
        Self::to_arena(device, begun, arena)
    }

    /// Begins to copy parts of a result to the device's memory, each from where it begins in the result, behind the
    /// copies to the device that were begun before. From `offset` of the arena on may be overwritten, as far as the result is
    /// long: it was the operation's input, and where the driver does not take memory that is mapped for reading, the result
    /// is copied there first.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn to_device(
        device: &Arc<CudaDevice>,
        result: ResultView,
        arena: &Arc<Arena>,
        offset: usize,
        targets: &[(usize, DeviceMemory)],
    ) -> Result<Self, Error> {
        let bytes = result.len();
        for &(from, target) in targets {
            check_inside(from, target.len(), bytes)?;
        }
        let source = if targets.is_empty() || is_registered(device, &result)? {
            result.as_ptr()
        } else {
            arena.register(device)?;
            let place = arena.range(offset, bytes)?;
            // SAFETY: both are mapped for `bytes`, and apart: an arena and a result are different segments. The
            // caller has given the range away.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), place.as_ptr(), bytes) };
            place.as_ptr().cast_const()
        };
        let begun = targets.iter().try_for_each(|&(from, target)| {
            device.call("copy to the GPU", |library| {
                // SAFETY: the part is inside what is mapped and registered for `bytes`, as was checked above, and kept
                // so by what is returned, or until the copies are over.
                unsafe {
                    (library.copy_to_device)(
                        target.start(),
                        source.add(from).cast(),
                        target.len(),
                        device.stream(Direction::ToDevice),
                    )
                }
            })
        });
        let kept = CopyMemory::Output(result, Arc::clone(arena));
        Self::begun(device, begun, Direction::ToDevice, kept)
    }

    /// What ends in an arena was begun, all or some of it.
    pub(super) fn to_arena(
        device: &Arc<CudaDevice>,
        begun: Result<(), Error>,
        arena: &Arc<Arena>,
    ) -> Result<Self, Error> {
        let kept = CopyMemory::Input(Arc::clone(arena));
        Self::begun(device, begun, Direction::ToHost, kept)
    }

    /// Copies that were begun, all or some of them.
    fn begun(
        device: &Arc<CudaDevice>,
        begun: Result<(), Error>,
        direction: Direction,
        kept: CopyMemory,
    ) -> Result<Self, Error> {
        match CudaEvent::of_copies(device, direction) {
            Ok(over) => {
                let copy = Self {
                    over,
                    kept: Some(kept),
                };
                // Those that were begun before one failed are waited for when this is dropped.
                begun.map(|()| copy)
            }
            Err(error) => {
                // Nobody knows when they are over: their memory stays.
                std::mem::forget(kept);
                Err(error)
            }
        }
    }

    /// What `consumer` is given from here on waits for the copy; the host does not.
    pub fn gate(&self, consumer: CudaStream) -> Result<(), Error> {
        self.over.gate(consumer)
    }

    /// Waits, asleep, until it is over.
    pub fn wait(&mut self) -> Result<(), Error> {
        self.over.wait()?;
        self.kept = None;
        Ok(())
    }

    /// Whether it is over.
    pub fn is_over(&self) -> Result<bool, Error> {
        self.over.is_over()
    }
}

/// Whether the GPU can copy from a result where it lies. Some drivers say that they take memory which is mapped for reading
/// and refuse a part of it: the result is copied then.
fn is_registered(device: &Arc<CudaDevice>, result: &ResultView) -> Result<bool, Error> {
    if !device.reads_only() {
        return Ok(false);
    }
    match result.register(device) {
        Err(Error::Call { .. }) => Ok(false),
        registered => registered,
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if self.kept.is_some() && self.wait().is_err() {
            // A device that failed may still write: its memory stays.
            std::mem::forget(self.kept.take());
        }
    }
}
