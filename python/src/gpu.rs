//! The GPU as Python sees it: copies between its memory and memory that is shared with the sidecar, by the addresses
//! and streams that PyTorch names. Collectives of its tensors are `collectives`' business.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use hfreduce_client::client::ResultView;
use hfreduce_client::cuda::{self, CudaDevice, CudaLibrary, CudaStream, DeviceMemory};
use pyo3::prelude::*;

use crate::error::raise;
use crate::memory;

/// An open GPU.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Gpu(pub(crate) Arc<CudaDevice>);

#[pymethods]
impl Gpu {
    /// Opens the GPU that PyTorch counts as `ordinal`, by the machine's driver or the library at `path`.
    #[new]
    #[pyo3(signature = (ordinal, path = None))]
    fn new(py: Python<'_>, ordinal: i32, path: Option<PathBuf>) -> PyResult<Self> {
        py.detach(|| CudaDevice::open(CudaLibrary::load(path.as_deref())?, ordinal))
            .map(Self)
            .map_err(|error| raise(py, &error))
    }

    /// What names the GPU, wherever it is seen from.
    fn uuid(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let uuid = self.0.uuid().map_err(|error| raise(py, &error))?;
        Ok(uuid.to_vec())
    }

    /// Those of the GPUs that this process sees with which this one shares an NVLink.
    fn linked(&self, py: Python<'_>) -> PyResult<Vec<Vec<u8>>> {
        let linked = self.0.linked().map_err(|error| raise(py, &error))?;
        Ok(linked.iter().map(|uuid| uuid.to_vec()).collect())
    }

    /// The end of all that `stream` was given so far.
    fn event(&self, py: Python<'_>, stream: u64) -> PyResult<Event> {
        cuda::CudaEvent::on(&self.0, CudaStream::of_owner(stream))
            .map(Event)
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

/// Something that happens on a stream.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Event(pub(crate) cuda::CudaEvent);

#[pymethods]
impl Event {
    /// What `stream` is given from here on waits for it; the host does not.
    fn gate(&self, py: Python<'_>, stream: u64) -> PyResult<()> {
        self.0
            .gate(CudaStream::of_owner(stream))
            .map_err(|error| raise(py, &error))
    }

    /// Waits, asleep, until it has come.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.wait())
            .map_err(|error| raise(py, &error))
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
    /// Waits, asleep, until it is over.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            let mut copy = crate::locked(&self.0);
            copy.wait()
        })
        .map_err(|error| raise(py, &error))
    }
}
