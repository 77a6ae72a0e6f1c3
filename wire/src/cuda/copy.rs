//! Copies between a GPU and memory that is shared with the sidecar. Owns their order: what they wait for, and what
//! waits for them.

use std::ptr::null_mut;
use std::sync::Arc;

use super::foreign::check_inside;
use super::{Device, DeviceMemory, Error, Stream, abi};
use crate::client::{Arena, ResultView};

/// Something that happens on a stream.
#[derive(Debug)]
struct Event {
    device: Arc<Device>,
    handle: abi::Handle,
}

// SAFETY: the driver's events may be used from any thread.
#[expect(unsafe_code, reason = "handles of the driver")]
unsafe impl Send for Event {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "handles of the driver")]
unsafe impl Sync for Event {}

impl Event {
    /// An event that comes when all is done that `stream` was given so far.
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn after(device: &Arc<Device>, stream: abi::Handle) -> Result<Self, Error> {
        let mut handle = null_mut();
        let flags = abi::EVENT_BLOCKING_SYNC | abi::EVENT_DISABLE_TIMING;
        device.call("create an event", |library| {
            // SAFETY: the variable is ours; destroyed in `drop`.
            unsafe { (library.event_create)(&raw mut handle, flags) }
        })?;
        let event = Self {
            device: Arc::clone(device),
            handle,
        };
        event.call("record an event", |library| {
            // SAFETY: a live event, and a stream of ours or of the caller's.
            unsafe { (library.event_record)(handle, stream) }
        })?;
        Ok(event)
    }

    /// What `stream` is given from here on waits for the event.
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn gate(&self, stream: abi::Handle) -> Result<(), Error> {
        let handle = self.handle;
        self.call("make a stream wait", |library| {
            // SAFETY: a live event, and a stream of ours or of the caller's.
            unsafe { (library.stream_wait_event)(stream, handle, 0) }
        })
    }

    fn call(
        &self,
        doing: &'static str,
        call: impl FnOnce(&super::Library) -> abi::Status,
    ) -> Result<(), Error> {
        self.device.call(doing, call)
    }
}

impl Drop for Event {
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn drop(&mut self) {
        let handle = self.handle;
        self.call("destroy an event", |library| {
            // SAFETY: created in `after`. The driver keeps it for as long as a stream needs it.
            unsafe { (library.event_destroy)(handle) }
        })
        .ok();
    }
}

/// The host memory of a copy, which stays for as long as the GPU may touch it.
#[derive(Debug)]
#[expect(dead_code, reason = "kept, not used")]
enum Kept {
    Input(Arc<Arena>),
    Output(ResultView, Arc<Arena>),
}

/// A copy that was begun. Dropping it waits until it is over.
#[derive(Debug)]
pub struct Copy {
    over: Event,
    /// None once it is over.
    kept: Option<Kept>,
}

impl Copy {
    /// Begins to copy what lies at `sources` to `offset` of an arena, one after another, behind everything that
    /// `producer` was given so far. Without sources, what is copied later comes behind that.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn to_host(
        device: &Arc<Device>,
        sources: &[DeviceMemory],
        arena: &Arc<Arena>,
        offset: usize,
        producer: Stream,
    ) -> Result<Self, Error> {
        check_capture(device, producer)?;
        let bytes = sources.iter().map(|source| source.len()).sum();
        arena.range(offset, bytes)?;
        if bytes > 0 {
            arena.register(device)?;
        }
        Event::after(device, producer.handle())?.gate(device.copies())?;
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
                        device.copies(),
                    )
                }
            })
        });
        Self::begun(device, begun, Kept::Input(Arc::clone(arena)))
    }

    /// Begins to copy parts of a result to the device's memory, each from where it begins in the result, behind the
    /// copies that were begun before. From `offset` of the arena on may be overwritten, as far as the result is long: it
    /// was the operation's input, and where the GPU does not read memory that is mapped for reading, the result is
    /// copied there first.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn to_device(
        device: &Arc<Device>,
        result: ResultView,
        arena: &Arc<Arena>,
        offset: usize,
        targets: &[(usize, DeviceMemory)],
    ) -> Result<Self, Error> {
        let bytes = result.len();
        for &(from, target) in targets {
            check_inside(from, target.len(), bytes)?;
        }
        let source = if targets.is_empty() || device.reads_only() && result.register(device)? {
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
                        device.copies(),
                    )
                }
            })
        });
        Self::begun(device, begun, Kept::Output(result, Arc::clone(arena)))
    }

    /// Copies that were begun, all or some of them.
    fn begun(device: &Arc<Device>, begun: Result<(), Error>, kept: Kept) -> Result<Self, Error> {
        match Event::after(device, device.copies()) {
            Ok(over) => {
                let copy = Self {
                    over,
                    kept: Some(kept),
                };
                // Those that were begun before one failed are waited for when this is dropped.
                begun.map(|()| copy)
            }
            Err(error) => {
                // Nobody can tell when they are over: their memory stays.
                std::mem::forget(kept);
                Err(error)
            }
        }
    }

    /// What `consumer` is given from here on waits for the copy; the host does not.
    pub fn gate(&self, consumer: Stream) -> Result<(), Error> {
        check_capture(&self.over.device, consumer)?;
        self.over.gate(consumer.handle())
    }

    /// Waits, asleep, until it is over.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn wait(&mut self) -> Result<(), Error> {
        let handle = self.over.handle;
        self.over.call("wait for a copy", |library| {
            // SAFETY: a live event.
            unsafe { (library.event_synchronize)(handle) }
        })?;
        self.kept = None;
        Ok(())
    }

    /// Whether it is over.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn is_over(&self) -> Result<bool, Error> {
        let handle = self.over.handle;
        let mut ready = false;
        self.over.call("look for a copy", |library| {
            // SAFETY: a live event.
            match unsafe { (library.event_query)(handle) } {
                abi::NOT_READY => abi::SUCCESS,
                status => {
                    ready = status == abi::SUCCESS;
                    status
                }
            }
        })?;
        Ok(ready)
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

/// Refuses a stream on which a graph is captured.
#[expect(unsafe_code, reason = "calls of the driver")]
fn check_capture(device: &Arc<Device>, stream: Stream) -> Result<(), Error> {
    let mut capture = abi::CAPTURE_NONE;
    device.call("look at a stream", |library| {
        // SAFETY: the caller's stream, and a variable of ours.
        unsafe { (library.stream_is_capturing)(stream.handle(), &raw mut capture) }
    })?;
    if capture == abi::CAPTURE_NONE {
        Ok(())
    } else {
        Err(Error::Capturing)
    }
}
