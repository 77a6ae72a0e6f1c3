//! The GPU as Python sees it: copies between its memory and memory that is shared with the sidecar, by the addresses
//! and streams that PyTorch names.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use wire::client::ResultView;
use wire::cuda::{self, Device, DeviceMemory, Library, Stream};

use crate::error::raise;
use crate::memory;

/// An open GPU.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Gpu(Arc<Device>);

#[pymethods]
impl Gpu {
    /// Opens the GPU that PyTorch counts as `ordinal`, by the machine's driver or the library at `path`.
    #[new]
    #[pyo3(signature = (ordinal, path = None))]
    fn new(py: Python<'_>, ordinal: i32, path: Option<PathBuf>) -> PyResult<Self> {
        py.detach(|| Device::open(Library::load(path.as_deref())?, ordinal))
            .map(Self)
            .map_err(|error| raise(py, &error))
    }

    /// Begins to copy what lies at `sources` in the GPU's memory, each an address and a number of bytes, to `offset` of an
    /// arena, one after another, behind everything that `stream` was given so far.
    fn fetch(
        &self,
        py: Python<'_>,
        sources: Vec<(u64, usize)>,
        arena: &memory::Arena,
        offset: usize,
        stream: u64,
    ) -> PyResult<Copy> {
        let stream = Stream::of_owner(stream);
        let sources = sources.into_iter();
        let sources: Vec<_> = sources
            .map(|(start, nbytes)| DeviceMemory::of_owner(start, nbytes))
            .collect();
        py.detach(|| cuda::Copy::to_host(&self.0, &sources, &arena.0, offset, stream))
            .map(Copy::from)
            .map_err(|error| raise(py, &error))
    }
}

/// A place in a result, an address in the GPU's memory, and how many bytes are copied there.
pub(crate) type Target = (usize, u64, usize);

impl Gpu {
    /// Begins to copy parts of a result to the GPU's memory.
    pub(crate) fn deliver(
        &self,
        result: ResultView,
        arena: &memory::Arena,
        offset: usize,
        targets: &[Target],
    ) -> Result<Copy, cuda::Error> {
        let targets = targets.iter();
        let targets: Vec<_> = targets
            .map(|&(from, start, nbytes)| (from, DeviceMemory::of_owner(start, nbytes)))
            .collect();
        cuda::Copy::to_device(&self.0, result, &arena.0, offset, &targets).map(Copy::from)
    }
}

/// A copy that was begun. Without a `wait` its end is waited for when it is dropped.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Copy(Mutex<cuda::Copy>);

impl From<cuda::Copy> for Copy {
    fn from(copy: cuda::Copy) -> Self {
        Self(Mutex::new(copy))
    }
}

#[pymethods]
impl Copy {
    /// What `stream` is given from here on waits for the copy; the host does not.
    fn gate(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        let copy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        copy.gate(Stream::of_owner(stream))
            .map_err(|error| raise(py, &error))
    }

    /// Waits, asleep, until it is over.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut copy = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            copy.wait()
        })
        .map_err(|error| raise(py, &error))
    }
}
