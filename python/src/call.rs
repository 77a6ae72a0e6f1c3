//! A call as Python describes it, `fireflyer.call.Call`; its words are checked here, once.

use hfreduce_client::{DType, Numerics, OpKind, ReduceOp};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The fields in their order.
type Fields<'a> = (&'a str, &'a str, u64, &'a str, f32, u32, u64, &'a str);

/// What one rank calls.
#[derive(Debug)]
pub(crate) struct Call(pub(crate) hfreduce_client::Call);

impl<'a, 'py> FromPyObject<'a, 'py> for Call {
    type Error = PyErr;

    fn extract(call: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let (kind, dtype, count, reduction, factor, root, tag, numerics): Fields<'a> =
            call.extract()?;
        let kind = named(OpKind::ALL, OpKind::name, "operation", kind)?;
        let dtype = named(&DType::ALL, DType::name, "element type", dtype)?;
        let reduce = named(ReduceOp::ALL, ReduceOp::name, "reduction", reduction)?;
        let numerics = named(&Numerics::ALL, Numerics::name, "numerics mode", numerics)?;
        let has_factor = reduce == ReduceOp::PremulSum;
        Ok(Self(hfreduce_client::Call {
            reduce,
            factor_bits: if has_factor { factor.to_bits() } else { 0 },
            root,
            tag,
            // What is only moved is not rounded.
            numerics: if kind.reduces() {
                numerics
            } else {
                Numerics::Fast
            },
            ..hfreduce_client::Call::new(kind, dtype, count)
        }))
    }
}

/// The one of `all` that is called `name`.
fn named<T: Copy>(
    all: &[T],
    name_of: fn(T) -> &'static str,
    what: &str,
    name: &str,
) -> PyResult<T> {
    all.iter()
        .copied()
        .find(|one| name_of(*one) == name)
        .ok_or_else(|| PyValueError::new_err(format!("no {what} is called {name:?}")))
}
