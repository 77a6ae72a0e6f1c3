//! RDMA: libibverbs loaded at run time, and what we do with it, which is writing into a peer's memory over reliable
//! connections. Owns the library's objects: each keeps what it was made from, so they go in the right order by
//! themselves. How frames travel over a connection is in [`channel`].
//!
//! Safe code will not do: the library is C, its data path is function pointers, and devices write to memory. What
//! keeps it sound is small: objects are made and freed here only, ranges are checked where they are turned into
//! addresses, and memory that a device may touch stays mapped until the device has let go of it.

#[doc(hidden)]
pub mod abi;
pub mod channel;
mod device;
mod library;
mod memory;
mod pair;
mod queue;

use std::ffi::c_int;
use std::io;
use std::path::PathBuf;

pub use device::{DeviceContext, Gid, GidChoice, GidKind, LinkLayer, Port, choose, devices, find};
pub use library::{NAME, VerbsLibrary};
pub use memory::{Access, Domain, RegionSource, RegisteredRegion, Remote, check_locked};
pub use pair::{PairEndpoint, PairOptions, PathOptions, QueuePair, Write};
pub use queue::{CompletionQueue, CompletionStatus, Done, FinishedWork};

/// Why verbs are off, or what went wrong with them; each in a sentence that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// This program cannot load libraries.
    #[error(
        "failed to load {NAME}: this program is linked statically; take the build that is linked with the machine's C library"
    )]
    Static,
    /// There is no such library.
    #[error("failed to load {}: {source}; on Debian, libibverbs1 and ibverbs-providers bring it", path.display())]
    Load {
        /// What was to be loaded.
        path: PathBuf,
        /// What the loader said.
        source: libloading::Error,
    },
    /// The library is too old.
    #[error("failed to find {function} in {}: it is older than rdma-core 32", path.display())]
    Old {
        /// What was loaded.
        path: PathBuf,
        /// What it lacks.
        function: &'static str,
    },
    /// The library knows of no device.
    #[error(
        "failed to find an RDMA device: the kernel has none, its provider is not installed, or this container was not given /dev/infiniband"
    )]
    NoDevice,
    /// A device is there and may not be used.
    #[error(
        "failed to open the RDMA device {device}: {source}; is its file below /dev/infiniband in this container, and may this user open it?"
    )]
    Open {
        /// Its name.
        device: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// No port carries traffic, or there is no device of the name.
    #[error(
        "failed to find an active port on {}; the devices here are {}",
        name.as_deref().unwrap_or("any RDMA device"),
        known.join(", ")
    )]
    Inactive {
        /// The device that was asked for.
        name: Option<String>,
        /// The devices that there are.
        known: Vec<String>,
    },
    /// A port has no address that would do.
    #[error(
        "failed to find a GID for {choice:?} on port {port} of {device}, which has {}",
        listed(there)
    )]
    Gid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What was wanted.
        choice: GidChoice,
        /// What there is.
        there: Vec<Gid>,
    },
    /// Registered memory counts as locked, and this process may not lock so much.
    #[error(
        "failed to lock {needed} bytes for RDMA: the limit is {limit} in all; set LimitMEMLOCK=infinity for the container runtime, or give the sidecar the capability IPC_LOCK, as a file capability of its program if it is not root"
    )]
    Locked {
        /// What is needed.
        needed: u64,
        /// What is allowed.
        limit: u64,
    },
    /// A device would not register memory, and it is not the limit.
    #[error("failed to register {bytes} bytes with the RDMA device: {source}")]
    Register {
        /// How much.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// A part of a region was named that is not inside.
    #[error("failed to find {bytes} bytes at {offset} of a region of {length}")]
    Bounds {
        /// First byte.
        offset: u64,
        /// Length.
        bytes: u64,
        /// What there is.
        length: u64,
    },
    /// What a peer says of its end of a connection cannot be.
    #[error(
        "failed to read what the peer says of its end of the connection: its {0} is out of bounds"
    )]
    Peer(&'static str),
    /// Anything else that the library refused.
    #[error("failed to {doing}: {source}")]
    Call {
        /// What was tried.
        doing: &'static str,
        /// What the library said.
        source: io::Error,
    },
}

crate::load_errors!(Error);

impl Error {
    fn call(doing: &'static str, source: io::Error) -> Self {
        Self::Call { doing, source }
    }

    /// For functions that return no pointer and set errno.
    fn last(doing: &'static str) -> Self {
        Self::call(doing, io::Error::last_os_error())
    }

    /// For functions that return 0, or an error number; a few return -1 and set errno.
    fn check(doing: &'static str, status: c_int) -> Result<(), Self> {
        match status {
            0 => Ok(()),
            -1 => Err(Self::last(doing)),
            number => Err(Self::call(
                doing,
                io::Error::from_raw_os_error(number.abs()),
            )),
        }
    }
}

fn listed(gids: &[Gid]) -> String {
    if gids.is_empty() {
        return "none".to_owned();
    }
    let gids: Vec<_> = gids.iter().map(ToString::to_string).collect();
    gids.join(", ")
}
