//! What kernel and file system agree on before the first request. Reading and writing belong to
//! `connection`.

mod negotiated;
mod options;
#[cfg(test)]
mod tests;

use crate::abi::{
    ANSWER_HEADER_BYTES, Fields, MAJOR, NEWEST_MINOR, OLDEST_MINOR, PutFields,
    REQUEST_HEADER_BYTES, TooShort, opcode,
};
use crate::answer::set_length;
use crate::request::Unique;
pub use negotiated::{Negotiated, SAVED_BYTES, WrongState};
pub use options::{ConnectionOptions, InitFlags};

/// Bytes of the pages that the protocol counts in, on the machines that we run on.
const PAGE_BYTES: u32 = 4096;
/// The most that a write carries: 256 pages, the kernel's own limit unless an administrator raised
/// it (`fs.fuse.max_pages_limit`).
pub const WRITE_LIMIT_BYTES: u32 = 256 * PAGE_BYTES;
/// Kernels without [`InitFlags::MAX_PAGES`] send so many pages.
const OLD_PAGES: u32 = 32;

/// Why kernel and file system do not come together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Its structures are others.
    #[error(
        "failed to agree with the kernel: it speaks FUSE {major}.{minor}, we speak \
         {MAJOR}.{OLDEST_MINOR} to {MAJOR}.{NEWEST_MINOR}; use Linux 5.4 or newer"
    )]
    Version {
        /// Of the kernel.
        major: u32,
        /// Of the kernel.
        minor: u32,
    },
    /// Another process has read it.
    #[error(
        "failed to agree with the kernel: the first request is of kind {opcode} and no INIT; was \
         this connection established before?"
    )]
    NoInit {
        /// Of the first request.
        opcode: u32,
    },
    /// It ends too early.
    #[error("failed to agree with the kernel: its INIT has {bytes} bytes")]
    Malformed {
        /// What was read.
        bytes: usize,
    },
    /// The caller's mistake.
    #[error(
        "failed to agree with the kernel: writes of {bytes} bytes were asked for; use whole \
         pages, 4096 to {WRITE_LIMIT_BYTES} bytes"
    )]
    WriteBytes {
        /// What was asked for.
        bytes: u32,
    },
}

/// The kernel's first request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    unique: Unique,
    major: u32,
    minor: u32,
    max_readahead: u32,
    flags: InitFlags,
}

impl Offer {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let malformed = |TooShort| Error::Malformed { bytes: bytes.len() };
        let (found, offer) = Self::read(bytes).map_err(malformed)?;
        if found == opcode::INIT {
            Ok(offer)
        } else {
            Err(Error::NoInit { opcode: found })
        }
    }

    fn read(bytes: &[u8]) -> Result<(u32, Self), TooShort> {
        let mut fields = Fields::new(bytes);
        let (_length, opcode, unique) = (fields.u32()?, fields.u32()?, Unique(fields.u64()?));
        let mut fields = Fields::new(bytes.get(REQUEST_HEADER_BYTES..).ok_or(TooShort)?);
        let (major, minor) = (fields.u32()?, fields.u32()?);
        let (max_readahead, low) = (fields.u32()?, fields.u32()?);
        let flags = InitFlags::from_halves(low, 0);
        let high = if flags.has(InitFlags::INIT_EXT) {
            fields.u32()?
        } else {
            0
        };
        let offer = Self {
            unique,
            major,
            minor,
            max_readahead,
            flags: InitFlags::from_halves(low, high),
        };
        Ok((opcode, offer))
    }

    /// What holds on this connection, and the answer that says so.
    pub(crate) fn agree(
        &self,
        options: &ConnectionOptions,
    ) -> Result<(Negotiated, Vec<u8>), Error> {
        let Self { major, minor, .. } = *self;
        if major != MAJOR || minor < OLDEST_MINOR {
            return Err(Error::Version { major, minor });
        }
        let bytes = options.max_write_bytes;
        if !(PAGE_BYTES..=WRITE_LIMIT_BYTES).contains(&bytes) || !bytes.is_multiple_of(PAGE_BYTES) {
            return Err(Error::WriteBytes { bytes });
        }
        let flags = InitFlags(self.flags.0 & options.wanted().0);
        let max_write_bytes = if flags.has(InitFlags::MAX_PAGES) {
            bytes
        } else {
            bytes.min(OLD_PAGES * PAGE_BYTES)
        };
        let negotiated = Negotiated {
            minor: minor.min(NEWEST_MINOR),
            flags,
            max_write_bytes,
        };
        Ok((negotiated, self.answer(&negotiated, options)))
    }

    fn answer(&self, negotiated: &Negotiated, options: &ConnectionOptions) -> Vec<u8> {
        let mut answer = Vec::with_capacity(ANSWER_HEADER_BYTES + 64);
        answer.put_u32(0); // The length, once it is known.
        answer.put_u32(0);
        answer.put_u64(self.unique.raw());
        let (low, high) = negotiated.flags.halves();
        answer.put_u32(MAJOR);
        answer.put_u32(negotiated.minor);
        answer.put_u32(self.max_readahead);
        answer.put_u32(low);
        answer.put_u16(options.max_background);
        // From three quarters on the kernel says that the file system is busy, as by default.
        answer.put_u16((u32::from(options.max_background) * 3 / 4) as u16);
        answer.put_u32(negotiated.max_write_bytes);
        answer.put_u32(1); // Times in nanoseconds.
        answer.put_u16((negotiated.max_write_bytes / PAGE_BYTES) as u16);
        answer.put_u16(0);
        answer.put_u32(high);
        answer.put(&[0; 28]);
        let length = answer.len();
        set_length(&mut answer, length);
        answer
    }
}
