//! The device's memory: files without a name, which other processes of the machine can map while this one lives. What was
//! mapped stays when it ends, as with the driver.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::ptr::null_mut;

use hfreduce_client::cuda::abi::{IPC_HANDLE_BYTES, IpcHandle};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};

#[derive(Debug)]
struct Piece {
    start: *mut u8,
    bytes: usize,
    /// Of what may be exported.
    file: Option<OwnedFd>,
}

// SAFETY: memory that is mapped for the whole process, used under the machine's lock.
#[expect(unsafe_code, reason = "shared memory")]
unsafe impl Send for Piece {}

/// Pieces by the addresses that the device has for them, which are none of the host's: whoever touches one there is seen.
#[derive(Debug, Default)]
pub(crate) struct Memory(BTreeMap<u64, Piece>);

impl Memory {
    /// A piece, filled with `value`; what may be exported costs a descriptor.
    pub(crate) fn allocate(&mut self, start: u64, bytes: usize, value: u8, exports: bool) {
        let file = exports.then(|| {
            let file = rustix::fs::memfd_create("fake-cuda", MemfdFlags::CLOEXEC).unwrap();
            rustix::fs::ftruncate(&file, bytes.max(1) as u64).unwrap();
            file
        });
        self.map(start, bytes, file.as_ref());
        self.0.get_mut(&start).unwrap().file = file;
        self.bytes_mut(start, bytes).unwrap().fill(value);
    }

    #[expect(unsafe_code, reason = "shared memory")]
    fn map(&mut self, start: u64, bytes: usize, file: Option<&impl AsFd>) {
        let (length, access) = (bytes.max(1), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh mapping, of nothing or of a file that keeps its size.
        let mapped = unsafe {
            match file {
                None => rustix::mm::mmap_anonymous(null_mut(), length, access, MapFlags::PRIVATE),
                Some(file) => {
                    rustix::mm::mmap(null_mut(), length, access, MapFlags::SHARED, file, 0)
                }
            }
        };
        let piece = Piece {
            start: mapped.unwrap().cast(),
            bytes,
            file: None,
        };
        self.0.insert(start, piece);
    }

    /// What another process finds a piece by: this process, the descriptor and the size.
    pub(crate) fn export(&self, start: u64) -> Option<IpcHandle> {
        let piece = self.0.get(&start)?;
        let file = piece.file.as_ref()?;
        let words = [
            u64::from(std::process::id()),
            file.as_raw_fd() as u64,
            piece.bytes as u64,
        ];
        let mut handle = IpcHandle([0; IPC_HANDLE_BYTES]);
        for (bytes, word) in handle.0.as_chunks_mut().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        Some(handle)
    }

    /// Maps what another process has exported.
    pub(crate) fn open(&mut self, start: u64, handle: IpcHandle) -> Option<()> {
        let words = handle.0.as_chunks().0;
        let [process, descriptor, bytes] = [0, 1, 2].map(|at| u64::from_le_bytes(words[at]));
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = File::options().read(true).write(true).open(path).ok()?;
        self.map(start, bytes as usize, Some(&file));
        Some(())
    }

    /// Lets a piece go, imported from another process or not. False for none.
    #[expect(unsafe_code, reason = "shared memory")]
    pub(crate) fn release(&mut self, start: u64, imported: bool) -> bool {
        if self
            .0
            .get(&start)
            .is_none_or(|piece| piece.file.is_none() != imported)
        {
            return false;
        }
        let piece = self.0.remove(&start).unwrap();
        // SAFETY: mapped in `map`, and nobody finds it any more.
        unsafe { rustix::mm::munmap(piece.start.cast(), piece.bytes.max(1)).unwrap() };
        true
    }

    fn find(&self, place: u64, bytes: usize) -> Option<(&Piece, usize)> {
        let (start, piece) = self.0.range(..=place).next_back()?;
        let at = (place - start) as usize;
        (at + bytes <= piece.bytes).then_some((piece, at))
    }

    pub(crate) fn has(&self, place: u64, bytes: usize) -> bool {
        self.find(place, bytes).is_some()
    }

    #[expect(unsafe_code, reason = "shared memory")]
    pub(crate) fn bytes(&self, place: u64, bytes: usize) -> Option<&[u8]> {
        let (piece, at) = self.find(place, bytes)?;
        // SAFETY: inside of what is mapped. Whether another process writes is agreed by those under test.
        Some(unsafe { std::slice::from_raw_parts(piece.start.add(at), bytes) })
    }

    #[expect(unsafe_code, reason = "shared memory")]
    pub(crate) fn bytes_mut(&mut self, place: u64, bytes: usize) -> Option<&mut [u8]> {
        let (piece, at) = self.find(place, bytes)?;
        // SAFETY: as above.
        Some(unsafe { std::slice::from_raw_parts_mut(piece.start.add(at), bytes) })
    }
}
