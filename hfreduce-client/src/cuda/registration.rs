//! Host memory that GPUs may copy from and to.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use super::{CudaDevice, Error, abi};

/// The registration of memory: made when it is first asked for, once for all GPUs of the process. It ends with this, so
/// this is dropped before the memory is unmapped.
#[derive(Debug, Default)]
pub(crate) struct RegisteredOnce(Mutex<Option<Registration>>);

impl RegisteredOnce {
    /// Lets a GPU copy from so many bytes, and to them unless they are mapped for reading. They stay mapped for as long as
    /// this lives, and are the same at every call.
    pub(crate) fn register(
        &self,
        device: &Arc<CudaDevice>,
        (start, bytes): (NonNull<u8>, usize),
        is_read_only: bool,
    ) -> Result<(), Error> {
        let mut registration = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if registration.is_none() {
            *registration = Some(Registration::new(device, start, bytes, is_read_only)?);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Registration {
    device: Arc<CudaDevice>,
    start: NonNull<u8>,
}

// SAFETY: the address is only handed back to the driver.
#[expect(unsafe_code, reason = "an address as a name")]
unsafe impl Send for Registration {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "an address as a name")]
unsafe impl Sync for Registration {}

impl Registration {
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn new(
        device: &Arc<CudaDevice>,
        start: NonNull<u8>,
        bytes: usize,
        is_read_only: bool,
    ) -> Result<Self, Error> {
        let mut flags = abi::HOST_REGISTER_PORTABLE;
        if is_read_only {
            flags |= abi::HOST_REGISTER_READ_ONLY;
        }
        device.call("register host memory with the GPU", |library| {
            // SAFETY: mapped for `bytes`, as the caller says, who keeps it so.
            unsafe { (library.host_register)(start.as_ptr().cast(), bytes, flags) }
        })?;
        Ok(Self {
            device: Arc::clone(device),
            start,
        })
    }
}

impl Drop for Registration {
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn drop(&mut self) {
        let start = self.start;
        self.device
            .call("unregister host memory", |library| {
                // SAFETY: registered when this was made.
                unsafe { (library.host_unregister)(start.as_ptr().cast()) }
            })
            .ok();
    }
}
