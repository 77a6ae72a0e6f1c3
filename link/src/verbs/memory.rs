//! Memory that a device may read and write: segments, registered. Owns registration, bounds of what is posted, and the
//! limit on locked memory, which is what registration fails at on machines that were not prepared for it.

use std::fs;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::abi;
use super::{DeviceContext, Error};
use crate::segment::{Mapping, Segment};

/// Bit of CAP_IPC_LOCK in a set of capabilities.
const IPC_LOCK: u64 = 1 << 14;

/// What belongs together: queue pairs use memory of their own domain only.
#[derive(Debug)]
pub struct Domain {
    pub(super) context: Arc<DeviceContext>,
    pub(super) raw: NonNull<abi::ProtectionDomain>,
}

// SAFETY: the library may be called from any thread, and locks what it has to.
#[expect(unsafe_code, reason = "domains may move between threads")]
unsafe impl Send for Domain {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "domains may be shared between threads")]
unsafe impl Sync for Domain {}

impl Domain {
    /// A new domain of a device.
    #[expect(unsafe_code, reason = "a call into the library")]
    pub fn new(context: &Arc<DeviceContext>) -> Result<Arc<Self>, Error> {
        // SAFETY: the device is open.
        let raw = unsafe { (context.library.alloc_pd)(context.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("make a protection domain"))?;
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            raw,
        }))
    }
}

impl Drop for Domain {
    #[expect(unsafe_code, reason = "a call into the library")]
    fn drop(&mut self) {
        // SAFETY: made by the library and freed once; what was made from it holds an `Arc` and is gone.
        unsafe { (self.context.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// What a peer may do with registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// It may write.
    pub remote_write: bool,
    /// Writes of one message may become visible in any order, which is faster on many machines. A completion
    /// still comes after all of them.
    pub relaxed_ordering: bool,
}

/// Memory of a peer, as the peer announced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its first byte, in the peer's process.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
    /// What the device asks for.
    pub key: u32,
}

/// A registered segment. The device may use the memory until the value is dropped, and the memory stays mapped
/// for as long, whatever happens to the segment.
#[derive(Debug)]
pub struct RegisteredRegion {
    domain: Arc<Domain>,
    raw: NonNull<abi::MemoryRegion>,
    /// Dropped after the device has let go of it.
    mapping: Arc<Mapping>,
}

// SAFETY: the library may be called from any thread; the memory's sharing is the segment's business.
#[expect(unsafe_code, reason = "regions may move between threads")]
unsafe impl Send for RegisteredRegion {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "regions may be shared between threads")]
unsafe impl Sync for RegisteredRegion {}

impl RegisteredRegion {
    /// Registers a segment for a domain's queue pairs.
    pub fn register(
        domain: &Arc<Domain>,
        segment: &Segment,
        access: Access,
    ) -> Result<Arc<Self>, Error> {
        Self::register_mapping(domain, segment.mapping(), access)
    }

    /// The same for the mapping of a segment that is written to.
    #[expect(unsafe_code, reason = "a call into the library")]
    pub(crate) fn register_mapping(
        domain: &Arc<Domain>,
        mapping: Arc<Mapping>,
        access: Access,
    ) -> Result<Arc<Self>, Error> {
        let (start, bytes) = mapping.place();
        let mut flags = abi::ACCESS_LOCAL_WRITE;
        if access.remote_write {
            flags |= abi::ACCESS_REMOTE_WRITE;
        }
        if access.relaxed_ordering {
            flags |= abi::ACCESS_RELAXED_ORDERING;
        }
        // SAFETY: the range is mapped for writing and stays mapped: `mapping` is held until after the region is
        // gone. The device writes to it as another process would, which a segment's users reckon with.
        let raw = unsafe {
            (domain.context.library.register_memory)(
                domain.raw.as_ptr(),
                start.as_ptr().cast(),
                bytes,
                start.as_ptr() as u64,
                flags,
            )
        };
        let Some(raw) = NonNull::new(raw) else {
            let source = io::Error::last_os_error();
            check_locked(bytes as u64)?;
            return Err(Error::Register {
                bytes: bytes as u64,
                source,
            });
        };
        Ok(Arc::new(Self {
            domain: Arc::clone(domain),
            raw,
            mapping,
        }))
    }

    /// Its size.
    pub(crate) fn len(&self) -> usize {
        self.mapping.place().1
    }

    /// What a peer has to know to write here: the whole region, or a part of it.
    pub fn remote(&self, offset: u64, bytes: u64) -> Result<Remote, Error> {
        Ok(Remote {
            address: self.address(offset, bytes)?,
            bytes,
            key: self.keys().1,
        })
    }

    /// A part of the region as something to send.
    pub fn source(self: &Arc<Self>, offset: u64, bytes: u32) -> Result<RegionSource, Error> {
        let address = self.address(offset, bytes.into())?;
        Ok(RegionSource {
            piece: abi::Piece {
                addr: address,
                length: bytes,
                lkey: self.keys().0,
            },
            region: Arc::clone(self),
        })
    }

    /// The address of a part that lies inside.
    fn address(&self, offset: u64, bytes: u64) -> Result<u64, Error> {
        let (start, length) = self.mapping.place();
        let length = length as u64;
        if offset.checked_add(bytes).is_none_or(|end| end > length) {
            return Err(Error::Bounds {
                offset,
                bytes,
                length,
            });
        }
        Ok(start.as_ptr() as u64 + offset)
    }

    #[expect(unsafe_code, reason = "a structure of the library's")]
    fn keys(&self) -> (u32, u32) {
        // SAFETY: the library made the structure and keeps it until the region is dropped.
        let raw = unsafe { self.raw.as_ref() };
        (raw.lkey, raw.rkey)
    }
}

impl Drop for RegisteredRegion {
    #[expect(unsafe_code, reason = "a call into the library")]
    fn drop(&mut self) {
        // SAFETY: made by the library and freed once. Requests under way end with an error: the device does not
        // touch the memory afterwards.
        unsafe { (self.domain.context.library.deregister_memory)(self.raw.as_ptr()) };
    }
}

/// A part of a region that is to be sent. Keeps the region registered.
#[derive(Clone)]
pub struct RegionSource {
    pub(super) piece: abi::Piece,
    region: Arc<RegisteredRegion>,
}

impl std::fmt::Debug for RegionSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of {:?}", self.bytes(), self.region)
    }
}

impl RegionSource {
    /// Its length.
    pub fn bytes(&self) -> u32 {
        self.piece.length
    }
}

/// Says what is missing when this process may not lock `needed` bytes.
pub fn check_locked(needed: u64) -> Result<(), Error> {
    let limit = getrlimit(Resource::Memlock).current;
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    if may_lock(needed, limit, &status) {
        return Ok(());
    }
    Err(Error::Locked {
        needed,
        limit: limit.unwrap_or(u64::MAX),
    })
}

/// Whether a process with this limit and this `/proc/thread-self/status` may lock so many bytes more.
fn may_lock(needed: u64, limit: Option<u64>, status: &str) -> bool {
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let capabilities = value("CapEff:")
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok())
        .unwrap_or(0);
    let locked: u64 = value("VmPin:")
        .and_then(|pinned| pinned.trim().strip_suffix(" kB")?.parse().ok())
        .unwrap_or(0);
    let all = needed.saturating_add(locked.saturating_mul(1024));
    capabilities & IPC_LOCK != 0 || limit.is_none_or(|limit| all <= limit)
}

#[cfg(test)]
mod tests {
    use super::may_lock;

    const WITH: &str = "Name:\tx\nCapEff:\t0000000000004000\n";
    const WITHOUT: &str = "Name:\tx\nCapPrm:\t0000000000004000\nCapEff:\t0000000000003fff\n";

    #[test]
    fn the_limit_counts_unless_the_process_has_the_capability() {
        assert!(may_lock(1 << 30, Some(8 << 20), WITH));
        assert!(!may_lock(1 << 30, Some(8 << 20), WITHOUT));
        assert!(may_lock(8 << 20, Some(8 << 20), WITHOUT));
        assert!(may_lock(1 << 30, None, WITHOUT));
        assert!(!may_lock(1, Some(0), ""));
        let locked = "VmPin:\t    1024 kB\nCapEff:\t0\n";
        assert!(may_lock(1 << 20, Some(2 << 20), locked));
        assert!(
            !may_lock(2 << 20, Some(2 << 20), locked),
            "beside what is locked"
        );
    }
}
