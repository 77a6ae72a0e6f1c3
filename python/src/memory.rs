//! Memory that is shared with the sidecar, as Python sees it: an address and a length, in the words of NumPy's array
//! interface. Arrays and tensors made of it keep the object, and the object keeps the memory mapped.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hfreduce_client::client::{Output, ResultView};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Memory for inputs that the sidecar uses until it is dropped. Do not write where an operation in flight reads.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Arena(pub(crate) Arc<hfreduce_client::client::Arena>);

#[pymethods]
impl Arena {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        interface(py, self.0.start().as_ptr() as usize, self.0.len())
    }
}

/// The result of an operation where the sidecar wrote it. What is written to it is seen by this process alone.
#[pyclass(frozen, module = "fireflyer._native")]
#[derive(Debug)]
pub(crate) struct Result {
    view: Mutex<ResultView>,
    start: usize,
    bytes: usize,
    ranks: u32,
    /// Counts results that had been written to when they were let go.
    written: Arc<AtomicU64>,
}

impl Result {
    pub(crate) fn new(output: Output, written: &Arc<AtomicU64>) -> PyResult<Self> {
        let mut view = output.result;
        let draft = view.draft().map_err(|error| {
            PyMemoryError::new_err(format!("failed to map a result to be written to: {error}"))
        })?;
        Ok(Self {
            start: draft.map_or(0, |start| start.as_ptr() as usize),
            bytes: view.len(),
            ranks: output.members.ranks,
            view: Mutex::new(view),
            written: Arc::clone(written),
        })
    }
}

#[pymethods]
impl Result {
    fn __len__(&self) -> usize {
        self.bytes
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        interface(py, self.start, self.bytes)
    }

    /// How many ranks took part.
    #[getter]
    fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Lets the sidecar use the memory again, so that any content may appear in it; it stays mapped. Otherwise
    /// this is done when the last array of it is gone.
    fn release(&self) {
        let mut view = crate::locked(&self.view);
        if view.release() {
            self.written.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Result {
    fn drop(&mut self) {
        self.release();
    }
}

fn interface(py: Python<'_>, start: usize, bytes: usize) -> PyResult<Bound<'_, PyDict>> {
    let interface = PyDict::new(py);
    interface.set_item("shape", (bytes,))?;
    interface.set_item("typestr", "|u1")?;
    interface.set_item("data", (start, false))?;
    interface.set_item("version", 3)?;
    Ok(interface)
}
