//! Two GPUs that share an NVLink, as Python sees one of them: memory that the other's process writes to, and what is done
//! with what lies there.

use std::sync::Mutex;

use hfreduce_client::cuda::abi::IpcHandle;
use hfreduce_client::cuda::{self, DeviceMemory, Sum};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::call::Call;
use crate::error::raise;
use crate::gpu::{Copy, Event, Gpu};
use crate::memory;

/// Memory of a GPU that another process may be given.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Inbox(Mutex<Option<cuda::Inbox>>);

impl Inbox {
    fn take(&self) -> Option<cuda::Inbox> {
        crate::locked(&self.0).take()
    }
}

#[pymethods]
impl Inbox {
    /// So many bytes of unspecified content.
    #[new]
    fn new(py: Python<'_>, gpu: &Gpu, nbytes: usize) -> PyResult<Self> {
        py.detach(|| cuda::Inbox::new(&gpu.0, nbytes))
            .map(|inbox| Self(Mutex::new(Some(inbox))))
            .map_err(|error| raise(py, &error))
    }

    /// What the other process opens it by.
    fn handle(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        let inbox = crate::locked(&self.0);
        let inbox = inbox.as_ref().ok_or_else(joined)?;
        let handle = inbox.handle().map_err(|error| raise(py, &error))?;
        Ok(handle.0.to_vec())
    }
}

/// Begins what a GPU of a pair does; nothing waits on the host.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Pair(cuda::GpuPair);

#[pymethods]
impl Pair {
    /// Takes an inbox, and opens the other one's, which is as large, by its handle.
    #[new]
    fn new(py: Python<'_>, inbox: &Inbox, other: &[u8]) -> PyResult<Self> {
        let handle = other
            .try_into()
            .map(IpcHandle)
            .map_err(|_| PyValueError::new_err("not a handle of a GPU's memory"))?;
        let inbox = inbox.take().ok_or_else(joined)?;
        py.detach(|| cuda::GpuPair::join(inbox, handle))
            .map(Self)
            .map_err(|error| raise(py, &error))
    }

    /// Begins to copy so many bytes from an address to `offset` of the other's inbox, behind `after`. What is returned comes
    /// when they are there; of no bytes, when all that was begun before is over.
    #[pyo3(signature = (start, nbytes, offset, after = None))]
    fn send(
        &self,
        py: Python<'_>,
        start: u64,
        nbytes: usize,
        offset: usize,
        after: Option<&Bound<'_, Event>>,
    ) -> PyResult<Event> {
        let source = DeviceMemory::of_owner(start, nbytes);
        let after = after.map(|event| &event.get().0);
        self.0
            .send(source, offset, after)
            .map(Event)
            .map_err(|error| raise(py, &error))
    }

    /// Begins to combine `own`, an address and so many bytes, with what lies at `offset` of the inbox, and to copy the
    /// outcome to `place` of an arena.
    fn fetch(
        &self,
        py: Python<'_>,
        call: Call,
        own: (u64, usize),
        offset: usize,
        arena: &memory::Arena,
        place: usize,
    ) -> PyResult<Copy> {
        let sum = sum(&call)
            .ok_or_else(|| PyValueError::new_err(format!("no kernel adds up {}", call.0.dtype)))?;
        let own = DeviceMemory::of_owner(own.0, own.1);
        py.detach(|| self.0.fetch(sum, own, offset, &arena.0, place))
            .map(Copy::from)
            .map_err(|error| raise(py, &error))
    }

    /// Begins to copy so many bytes from `offset` of the inbox to an address.
    fn receive(&self, py: Python<'_>, offset: usize, start: u64, nbytes: usize) -> PyResult<Event> {
        self.0
            .receive(offset, DeviceMemory::of_owner(start, nbytes))
            .map(Event)
            .map_err(|error| raise(py, &error))
    }
}

/// Whether GPUs can combine elements of this type for this reduction.
#[pyfunction]
pub(crate) fn pairs_add(call: Call) -> bool {
    sum(&call).is_some()
}

fn sum(call: &Call) -> Option<Sum> {
    Sum::of(call.0.dtype, call.0.reduce_op()?)
}

fn joined() -> PyErr {
    PyValueError::new_err("a pair has this inbox already")
}
