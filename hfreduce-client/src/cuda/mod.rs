//! GPUs: the CUDA driver, loaded at run time, and what a trainer's process does with it, which is copying between its
//! GPU and memory that it shares with the sidecar. Copies run on streams of ours, one for each way, by the GPU's copy
//! engines, without a kernel, and nobody waits for the whole device. The sidecar never sees a GPU. Two GPUs that share an NVLink are added
//! up before that ([`GpuPair`]), by the only kernels there are.
//!
//! Order is kept by events. A copy from the device waits for what its producer's stream was given before; whoever reads
//! a copy to the device makes its own stream wait for it. The host waits for one event at a time, asleep.
//!
//! Safe code will not do: the driver is C, and devices write to memory. Objects are made and freed here only, ranges of
//! host memory are checked where they become addresses, and memory that a device may touch stays mapped and registered
//! until the copy is over. What others own on the device gets its name in `foreign`.

#[doc(hidden)]
pub mod abi;
mod adder;
mod copy;
mod device;
mod event;
mod foreign;
mod library;
mod pair;
mod ptx;
mod registration;
mod staging;

use std::path::PathBuf;

use adder::Adder;
pub use adder::Sum;
pub use copy::Copy;
pub use device::CudaDevice;
pub use event::CudaEvent;
pub use foreign::{CudaStream, DeviceMemory};
pub use library::{CudaLibrary, NAME};
pub use pair::GpuPair;
pub(crate) use registration::RegisteredOnce;
pub use staging::Inbox;

/// Why a GPU cannot be used, or what went wrong with it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no driver.
    #[error("failed to load {}: {source}; the GPU's driver brings it, and the container runtime has to put it into this container", path.display())]
    Load {
        /// What was to be loaded.
        path: PathBuf,
        /// What the loader said.
        source: libloading::Error,
    },
    /// The driver is too old.
    #[error("failed to find {function} in {}: the driver is older than CUDA 11.1", path.display())]
    Old {
        /// What was loaded.
        path: PathBuf,
        /// What it lacks.
        function: &'static str,
    },
    /// A graph is being captured: a replay would not call the sidecar.
    #[error(
        "failed to call a collective while a CUDA graph is captured: the sidecar's part runs on the host and cannot be \
         captured; call it outside of torch.cuda.graph, or use nccl there"
    )]
    Capturing,
    /// A part of memory was named that is not inside.
    #[error("failed to find {bytes} bytes at {offset} of host memory of {length}")]
    Bounds {
        /// First byte.
        offset: usize,
        /// Length.
        bytes: usize,
        /// What there is.
        length: usize,
    },
    /// The process forked.
    #[error(
        "failed to use the GPU in process {child}: process {owner} has opened it; start workers with `spawn`"
    )]
    Forked {
        /// The process that opened the device.
        owner: u32,
        /// This process.
        child: u32,
    },
    /// Anything else that the driver refused.
    #[error("failed to {doing}: CUDA says {text} ({status})")]
    Call {
        /// What was tried.
        doing: &'static str,
        /// The driver's number for it.
        status: i32,
        /// The driver's words.
        text: String,
    },
}

link::load_errors!(Error);
