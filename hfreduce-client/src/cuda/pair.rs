//! Two GPUs that share an NVLink, as one of their two processes sees them: each has an inbox, into which the other's copy
//! engine writes. Owns what runs on the device. The two processes agree on who may write to a slot, and when.

use std::sync::Arc;

use super::device::Direction;
use super::staging::{Inbox, Outbox};
use super::{Adder, Copy, CudaDevice, CudaEvent, DeviceMemory, Error, Sum, abi};
use crate::client::Arena;

/// This process's side of a pair. What goes to the other GPU before a reduction runs with the copies to the host, what goes
/// there after it with the copies to the device, each in the order of the calls.
#[derive(Debug)]
pub struct GpuPair {
    adder: Adder,
    outbox: Outbox,
    inbox: Inbox,
}

impl GpuPair {
    /// Joins `inbox` with the other's, which has its size and was exported as `other`.
    pub fn join(inbox: Inbox, other: abi::IpcHandle) -> Result<Self, Error> {
        let device = Arc::clone(inbox.device());
        Ok(Self {
            adder: Adder::load(&device)?,
            outbox: Outbox::open(&device, other, inbox.len())?,
            inbox,
        })
    }

    fn device(&self) -> &Arc<CudaDevice> {
        self.inbox.device()
    }

    /// Begins to copy `source` into the other's inbox, at `offset`: an input, behind `after`, or else a part of a result, behind
    /// what was copied to the device. Over when what is returned has come; of nothing, when all before it is over.
    pub fn send(
        &self,
        source: DeviceMemory,
        offset: usize,
        after: Option<&CudaEvent>,
    ) -> Result<CudaEvent, Error> {
        let target = self.outbox.part(offset, source.len())?;
        let direction = match after {
            Some(after) => {
                after.gate_copies(Direction::ToHost)?;
                Direction::ToHost
            }
            None => Direction::ToDevice,
        };
        self.copy(source, target, direction)
    }

    /// Begins to combine `own` with what lies at `offset` of the inbox, where the result comes, and to copy that to
    /// `place` of an arena.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn fetch(
        &self,
        sum: Sum,
        own: DeviceMemory,
        offset: usize,
        arena: &Arc<Arena>,
        place: usize,
    ) -> Result<Copy, Error> {
        let device = self.device();
        let inbox = self.inbox.part(offset, own.len())?;
        let target = arena.range(place, own.len())?;
        if own.len() == 0 {
            return Copy::to_arena(device, Ok(()), arena);
        }
        arena.register(device)?;
        let begun = self.adder.add(sum, own, inbox).and_then(|()| {
            device.call("copy from the GPU", |library| {
                // SAFETY: the range is inside the arena, which is mapped and registered, and kept so by what is
                // returned, or until the copy is over.
                unsafe {
                    (library.copy_to_host)(
                        target.as_ptr().cast(),
                        inbox.start(),
                        inbox.len(),
                        device.stream(Direction::ToHost),
                    )
                }
            })
        });
        Copy::to_arena(device, begun, arena)
    }

    /// Begins to copy what lies at `offset` of the inbox, a part of a result, to `target`.
    pub fn receive(&self, offset: usize, target: DeviceMemory) -> Result<CudaEvent, Error> {
        let source = self.inbox.part(offset, target.len())?;
        self.copy(source, target, Direction::ToDevice)
    }

    #[expect(unsafe_code, reason = "calls of the driver")]
    fn copy(
        &self,
        source: DeviceMemory,
        target: DeviceMemory,
        direction: Direction,
    ) -> Result<CudaEvent, Error> {
        let device = self.device();
        if source.len() > 0 {
            device.call("copy between GPUs", |library| {
                // SAFETY: memory of ours, of the other's that is mapped, or of the caller's; ours stays until `drop` has
                // waited for the streams.
                unsafe {
                    (library.copy_on_device)(
                        target.start(),
                        source.start(),
                        source.len(),
                        device.stream(direction),
                    )
                }
            })?;
        }
        CudaEvent::of_copies(device, direction)
    }
}

impl Drop for GpuPair {
    fn drop(&mut self) {
        // Nothing is under way any more when the memory goes. A device that failed has no use for it either.
        for direction in Direction::ALL {
            if let Ok(over) = CudaEvent::of_copies(self.device(), direction) {
                over.wait().ok();
            }
        }
    }
}
