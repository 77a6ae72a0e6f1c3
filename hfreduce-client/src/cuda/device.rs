//! A GPU as this process uses it: its primary context, which PyTorch uses too, and two streams of ours for copies.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;

use super::{CudaLibrary, Error, abi};

/// Which way a copy goes. Each way has a stream of its own: the GPU copies both ways at once, and a result must not stand
/// behind the input of a later collective, which waits for the kernel that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    ToHost,
    ToDevice,
}

impl Direction {
    pub(super) const ALL: [Self; 2] = [Self::ToHost, Self::ToDevice];
}

/// An open GPU.
#[derive(Debug)]
pub struct CudaDevice {
    pub(super) library: Arc<CudaLibrary>,
    owner: u32,
    number: c_int,
    context: abi::Handle,
    /// By direction.
    streams: [abi::Handle; Direction::ALL.len()],
    reads_only: bool,
}

// SAFETY: the driver's objects may be used from any thread; the context is made current around each use.
#[expect(unsafe_code, reason = "handles of the driver")]
unsafe impl Send for CudaDevice {}
// SAFETY: as above; the driver locks by itself.
#[expect(unsafe_code, reason = "handles of the driver")]
unsafe impl Sync for CudaDevice {}

impl CudaDevice {
    /// Opens the GPU that the driver, and PyTorch, count as `ordinal`.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn open(library: Arc<CudaLibrary>, ordinal: i32) -> Result<Arc<Self>, Error> {
        const OPEN: &str = "open the GPU";
        let (mut number, mut context) = (0, null_mut());
        // SAFETY: the variables are ours.
        let status = unsafe { (library.device_get)(&raw mut number, ordinal) };
        library.check(OPEN, status)?;
        let mut reads_only = 0;
        // SAFETY: as above. A driver that does not know the attribute leaves 0.
        unsafe {
            (library.device_get_attribute)(
                &raw mut reads_only,
                abi::ATTRIBUTE_READ_ONLY_HOST_REGISTER,
                number,
            )
        };
        // SAFETY: as above; released in `drop`.
        let status = unsafe { (library.primary_context_retain)(&raw mut context, number) };
        library.check(OPEN, status)?;
        let mut device = Self {
            library,
            owner: std::process::id(),
            number,
            context,
            streams: [null_mut(); Direction::ALL.len()],
            reads_only: reads_only != 0,
        };
        for direction in Direction::ALL {
            let mut stream = null_mut();
            device.call("create a stream for copies", |library| {
                // SAFETY: the variable is ours; destroyed in `drop`.
                unsafe { (library.stream_create)(&raw mut stream, abi::STREAM_NON_BLOCKING) }
            })?;
            device.streams[direction as usize] = stream;
        }
        Ok(Arc::new(device))
    }

    /// The stream on which copies of one direction run, one after another.
    pub(super) fn stream(&self, direction: Direction) -> abi::Handle {
        self.streams[direction as usize]
    }

    /// Whether host memory that is mapped for reading can be registered.
    pub fn reads_only(&self) -> bool {
        self.reads_only
    }

    /// What names the GPU, wherever it is seen from.
    pub fn uuid(&self) -> Result<abi::Uuid, Error> {
        uuid(&self.library, self.number)
    }

    /// Those of the GPUs that this process sees with which this one shares an NVLink.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub fn linked(&self) -> Result<Vec<abi::Uuid>, Error> {
        let library = &self.library;
        let mut count = 0;
        // SAFETY: the variable is ours.
        let status = unsafe { (library.device_get_count)(&raw mut count) };
        library.check("count the GPUs", status)?;
        let mut linked = Vec::new();
        for ordinal in 0..count {
            let mut other = 0;
            // SAFETY: as above.
            let status = unsafe { (library.device_get)(&raw mut other, ordinal) };
            library.check("find a GPU", status)?;
            if other != self.number
                && self.has(abi::P2P_ACCESS_SUPPORTED, other)
                && self.has(abi::P2P_NATIVE_ATOMIC_SUPPORTED, other)
            {
                linked.push(uuid(library, other)?);
            }
        }
        Ok(linked)
    }

    /// Whether the way to another GPU can do this, both there and back.
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn has(&self, attribute: c_int, other: c_int) -> bool {
        [(self.number, other), (other, self.number)]
            .into_iter()
            .all(|(from, to)| {
                let mut value = 0;
                // SAFETY: the variable is ours.
                let status = unsafe {
                    (self.library.device_get_p2p_attribute)(&raw mut value, attribute, from, to)
                };
                status == abi::SUCCESS && value != 0
            })
    }

    /// Calls the driver with this device's context, and leaves the thread with the context that it had.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub(super) fn call(
        &self,
        doing: &'static str,
        call: impl FnOnce(&CudaLibrary) -> abi::CudaStatus,
    ) -> Result<(), Error> {
        let child = std::process::id();
        if child != self.owner {
            let owner = self.owner;
            return Err(Error::Forked { owner, child });
        }
        // SAFETY: the context is retained for as long as this lives.
        let status = unsafe { (self.library.context_push)(self.context) };
        self.library.check(doing, status)?;
        let status = call(&self.library);
        let mut popped = null_mut();
        // SAFETY: pops what was pushed above.
        unsafe { (self.library.context_pop)(&raw mut popped) };
        self.library.check(doing, status)
    }
}

impl Drop for CudaDevice {
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn drop(&mut self) {
        let (streams, number) = (self.streams, self.number);
        // In a forked child the driver is of no use, and its objects are the parent's.
        self.call("close the GPU", |library| {
            for stream in streams.into_iter().filter(|stream| !stream.is_null()) {
                // SAFETY: created in `open`; what is under way on it goes on.
                unsafe { (library.stream_destroy)(stream) };
            }
            abi::SUCCESS
        })
        .ok();
        if std::process::id() == self.owner {
            // SAFETY: retained in `open`.
            unsafe { (self.library.primary_context_release)(number) };
        }
    }
}

#[expect(unsafe_code, reason = "calls of the driver")]
fn uuid(library: &CudaLibrary, number: c_int) -> Result<abi::Uuid, Error> {
    let mut uuid = [0; 16];
    // SAFETY: the variable is ours.
    let status = unsafe { (library.device_get_uuid)(&raw mut uuid, number) };
    library.check("learn a GPU's name", status)?;
    Ok(uuid)
}
