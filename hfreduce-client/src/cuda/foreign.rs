//! What others own on a GPU and we only use: streams and memory of the device, by the numbers that their owner, such as
//! PyTorch, has for them. Here, and nowhere else, such a number becomes a name that safe functions take.
//!
//! Who makes one vouches for it: it is the owner's stream, or memory that the owner has allocated, and stays so until the
//! copies that were given it are over. The driver refuses a number that names nothing; that it names somebody else's
//! memory, nobody knows.

use super::{Error, abi};

/// Somebody's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CudaStream(u64);

impl CudaStream {
    /// The stream that its owner, and the driver, know by this number: PyTorch's `cuda_stream`. 0 is the default stream.
    #[must_use]
    pub const fn of_owner(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    pub(super) fn handle(self) -> abi::Handle {
        std::ptr::with_exposed_provenance_mut(self.0 as usize)
    }
}

/// Somebody's memory on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    start: abi::DevicePointer,
    bytes: usize,
}

impl DeviceMemory {
    /// So many bytes that begin where their owner says: PyTorch's `data_ptr()`.
    #[must_use]
    pub const fn of_owner(start: u64, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// Its length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub const fn len(self) -> usize {
        self.bytes
    }

    pub(super) const fn start(self) -> abi::DevicePointer {
        self.start
    }
}

/// Refuses a part that is not inside of so many bytes.
pub(super) const fn check_inside(offset: usize, bytes: usize, length: usize) -> Result<(), Error> {
    match offset.checked_add(bytes) {
        Some(end) if end <= length => Ok(()),
        Some(_) | None => Err(Error::Bounds {
            offset,
            bytes,
            length,
        }),
    }
}
