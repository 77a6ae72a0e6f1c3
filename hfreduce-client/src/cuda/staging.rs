//! Memory of a GPU that another process of the machine reaches: ours, which we export, and another's, which we import.
//! It is allocated by us and not by PyTorch, whose allocator gives out again what is freed, and may use memory that cannot
//! be exported at all: so what is mapped here never changes its owner or its meaning while it is mapped.

use std::sync::Arc;

use super::foreign::check_inside;
use super::{CudaDevice, DeviceMemory, Error, abi};

/// Memory of this process's GPU that is exported.
#[derive(Debug)]
pub struct Inbox {
    device: Arc<CudaDevice>,
    start: abi::DevicePointer,
    bytes: usize,
}

impl Inbox {
    /// So many bytes of unspecified content.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn new(device: &Arc<CudaDevice>, bytes: usize) -> Result<Self, Error> {
        let mut start = 0;
        device.call("allocate memory of the GPU", |library| {
            // SAFETY: the variable is ours; freed in `drop`.
            unsafe { (library.memory_allocate)(&raw mut start, bytes) }
        })?;
        Ok(Self {
            device: Arc::clone(device),
            start,
            bytes,
        })
    }

    /// What another process opens it by.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn handle(&self) -> Result<abi::IpcHandle, Error> {
        let mut handle = abi::IpcHandle([0; abi::IPC_HANDLE_BYTES]);
        let start = self.start;
        self.device.call("export memory of the GPU", |library| {
            // SAFETY: the variable is ours, the memory was allocated in `new`.
            unsafe { (library.ipc_get_handle)(&raw mut handle, start) }
        })?;
        Ok(handle)
    }

    /// Its size.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn device(&self) -> &Arc<CudaDevice> {
        &self.device
    }

    pub(super) fn part(&self, offset: usize, bytes: usize) -> Result<DeviceMemory, Error> {
        part(self.start, self.bytes, offset, bytes)
    }
}

impl Drop for Inbox {
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn drop(&mut self) {
        let start = self.start;
        self.device
            .call("free memory of the GPU", |library| {
                // SAFETY: allocated in `new`. The driver waits for what the device does with it.
                unsafe { (library.memory_free)(start) }
            })
            .ok();
    }
}

/// Memory of another process's GPU.
#[derive(Debug)]
pub(super) struct Outbox {
    device: Arc<CudaDevice>,
    start: abi::DevicePointer,
    bytes: usize,
}

impl Outbox {
    /// Maps what another process has exported, which says that it is so many bytes long.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub(super) fn open(
        device: &Arc<CudaDevice>,
        handle: abi::IpcHandle,
        bytes: usize,
    ) -> Result<Self, Error> {
        let mut start = 0;
        device.call("map memory of the other GPU", |library| {
            let flags = abi::IPC_LAZY_ENABLE_PEER_ACCESS;
            // SAFETY: the variable is ours; the driver refuses a handle that names nothing. Closed in `drop`.
            unsafe { (library.ipc_open_handle)(&raw mut start, handle, flags) }
        })?;
        Ok(Self {
            device: Arc::clone(device),
            start,
            bytes,
        })
    }

    pub(super) fn part(&self, offset: usize, bytes: usize) -> Result<DeviceMemory, Error> {
        part(self.start, self.bytes, offset, bytes)
    }
}

impl Drop for Outbox {
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn drop(&mut self) {
        let start = self.start;
        self.device
            .call("unmap memory of the other GPU", |library| {
                // SAFETY: mapped in `open`.
                unsafe { (library.ipc_close_handle)(start) }
            })
            .ok();
    }
}

fn part(
    start: abi::DevicePointer,
    length: usize,
    offset: usize,
    bytes: usize,
) -> Result<DeviceMemory, Error> {
    check_inside(offset, bytes, length)?;
    Ok(DeviceMemory::of_owner(start + offset as u64, bytes))
}
