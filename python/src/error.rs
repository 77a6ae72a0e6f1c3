//! Errors as Python raises them: one class, `fireflyer.HFReduceError`, and the whole chain of causes in
//! its text, because Python shows no more than that.

use std::error::Error;
use std::fmt::Write;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The exception for `error`.
pub(crate) fn raise(py: Python<'_>, error: &dyn Error) -> PyErr {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        // Writing to a string does not fail.
        let _ = write!(text, ": {inner}");
        cause = inner.source();
    }
    match CLASS.import(py, "fireflyer.collective_error", "HFReduceError") {
        Ok(class) => PyErr::from_type(class.clone(), text),
        Err(error) => error,
    }
}
