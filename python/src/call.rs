//! A call as Python describes it, `fireflyer.call.Call`; its words are checked here, once.

use hfreduce_client::{DType, Factor, Numerics, OpKind, ReduceOp};
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
        let dtype = named(&DType::ALL, DType::name, "element type", dtype)?;
        let numerics = named(&Numerics::ALL, Numerics::name, "numerics mode", numerics)?;
        let op = match reduction {
            "sum" => ReduceOp::Sum,
            "avg" => ReduceOp::Avg,
            "max" => ReduceOp::Max,
            "min" => ReduceOp::Min,
            "premul_sum" => ReduceOp::PremulSum(Factor::new(factor)),
            "band" => ReduceOp::And,
            "bor" => ReduceOp::Or,
            "bxor" => ReduceOp::Xor,
            _ => return Err(unknown("reduction", reduction)),
        };
        let kind = match kind {
            "allreduce" => OpKind::AllReduce { op },
            "reduce" => OpKind::Reduce { op, root },
            "broadcast" => OpKind::Broadcast { root },
            "allgather" => OpKind::AllGather,
            "barrier" => OpKind::Barrier,
            "close" => OpKind::Close,
            "reduce_scatter" => OpKind::ReduceScatter { op },
            "gather" => OpKind::Gather { root },
            "scatter" => OpKind::Scatter { root },
            "alltoall" => OpKind::AllToAll { with: None },
            "send" => OpKind::Send { to: root },
            "recv" => OpKind::Receive { from: root },
            _ => return Err(unknown("operation", kind)),
        };
        let mut call = hfreduce_client::Call::new(kind, dtype, count);
        call.tag = tag;
        // What is only moved is not rounded.
        if call.reduce_op().is_some() {
            call.numerics = numerics;
        }
        Ok(Self(call))
    }
}

/// The one of `all` that is called `name`.
fn named<T: Copy>(
    all: &[T],
    name_of: fn(T) -> &'static str,
    what: &str,
    name: &str,
) -> PyResult<T> {
    let mut all = all.iter().copied();
    all.find(|one| name_of(*one) == name)
        .ok_or_else(|| unknown(what, name))
}

fn unknown(what: &str, name: &str) -> PyErr {
    PyValueError::new_err(format!("no {what} is called {name:?}"))
}
