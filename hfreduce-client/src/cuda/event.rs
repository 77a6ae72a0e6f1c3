//! What happens on a stream: others wait for it, on their streams or on the host.

use std::ptr::null_mut;
use std::sync::Arc;

use super::device::Direction;
use super::{CudaDevice, CudaStream, Error, abi};

/// Something that happens on a stream: the end of all that it was given before.
#[derive(Debug)]
pub struct CudaEvent {
    device: Arc<CudaDevice>,
    handle: abi::Handle,
}

// SAFETY: the driver's events may be used from any thread.
#[expect(unsafe_code, reason = "handles of the driver")]
unsafe impl Send for CudaEvent {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "handles of the driver")]
unsafe impl Sync for CudaEvent {}

impl CudaEvent {
    /// The end of all that somebody's stream was given so far.
    pub fn on(device: &Arc<CudaDevice>, stream: CudaStream) -> Result<Self, Error> {
        check_capture(device, stream)?;
        Self::after(device, stream.handle())
    }

    /// The end of all copies to the device that were begun so far.
    pub fn of_deliveries(device: &Arc<CudaDevice>) -> Result<Self, Error> {
        Self::of_copies(device, Direction::ToDevice)
    }

    /// The end of all copies of one direction that were begun so far.
    pub(super) fn of_copies(device: &Arc<CudaDevice>, direction: Direction) -> Result<Self, Error> {
        Self::after(device, device.stream(direction))
    }

    #[expect(unsafe_code, reason = "calls of the driver")]
    fn after(device: &Arc<CudaDevice>, stream: abi::Handle) -> Result<Self, Error> {
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

    /// What somebody's stream is given from here on waits for it; the host does not.
    pub fn gate(&self, stream: CudaStream) -> Result<(), Error> {
        check_capture(&self.device, stream)?;
        self.gate_handle(stream.handle())
    }

    /// Copies of one direction that are begun from here on wait for it.
    pub(super) fn gate_copies(&self, direction: Direction) -> Result<(), Error> {
        self.gate_handle(self.device.stream(direction))
    }

    #[expect(unsafe_code, reason = "calls of the driver")]
    fn gate_handle(&self, stream: abi::Handle) -> Result<(), Error> {
        let handle = self.handle;
        self.call("make a stream wait", |library| {
            // SAFETY: a live event, and a stream of ours or of the caller's.
            unsafe { (library.stream_wait_event)(stream, handle, 0) }
        })
    }

    /// Waits, asleep, until it has come.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn wait(&self) -> Result<(), Error> {
        let handle = self.handle;
        self.call("wait for the GPU", |library| {
            // SAFETY: a live event.
            unsafe { (library.event_synchronize)(handle) }
        })
    }

    /// Whether it has come.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn is_over(&self) -> Result<bool, Error> {
        let handle = self.handle;
        let mut ready = false;
        self.call("look for an event", |library| {
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

    fn call(
        &self,
        doing: &'static str,
        call: impl FnOnce(&super::CudaLibrary) -> abi::CudaStatus,
    ) -> Result<(), Error> {
        self.device.call(doing, call)
    }
}

impl Drop for CudaEvent {
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

/// Refuses a stream on which a graph is captured.
#[expect(unsafe_code, reason = "calls of the driver")]
fn check_capture(device: &Arc<CudaDevice>, stream: CudaStream) -> Result<(), Error> {
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
