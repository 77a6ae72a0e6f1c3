//! Copies between what a tensor holds and memory that is shared with the sidecar. Owns when the interpreter's lock is given
//! up for one: other threads of the script, which read the next batch or log, run meanwhile.

use hfreduce_client::host_memory::HostMemory;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

/// Bytes from which other threads run during a copy. A thread that gives up the lock may get it back as late as
/// `sys.getswitchinterval()`, 5 ms, where another one computes: a copy of 64 KiB takes some microseconds.
const LONG_BYTES: usize = 64 << 10;

/// Fills `target`, which is as long as the source.
pub(crate) fn copy_in(py: Python<'_>, source: &PyBuffer<u8>, target: &mut [u8]) -> PyResult<()> {
    match long(source, target.len()) {
        Some(memory) => {
            py.detach(|| memory.copy_to(target));
            Ok(())
        }
        None => source.copy_to_slice(py, target),
    }
}

/// Fills `target` with a source that is as long.
pub(crate) fn copy_out(py: Python<'_>, source: &[u8], target: &PyBuffer<u8>) -> PyResult<()> {
    match long(target, source.len()).filter(|_| !target.readonly()) {
        Some(memory) => {
            py.detach(|| memory.copy_from(source));
            Ok(())
        }
        None => target.copy_from_slice(py, source),
    }
}

/// The memory of a buffer whose copy takes long: it stays where it is as long as the buffer is held.
fn long(buffer: &PyBuffer<u8>, bytes: usize) -> Option<HostMemory> {
    let is_long = bytes >= LONG_BYTES && buffer.len_bytes() == bytes && buffer.is_c_contiguous();
    is_long.then(|| HostMemory::of_owner(buffer.buf_ptr().cast(), bytes))
}
