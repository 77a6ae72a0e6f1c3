//! Collectives as pure logic: trees over zones, schedules as data, the sans-IO machine of one node, the
//! rendezvous of an attempt, and the SIMD kernels that reduce. Leaves bytes on the move, sockets, threads and
//! time to `hfreduce-sidecar` and the operator.

pub mod check;
pub mod dtype;
pub mod encoding;
pub mod kernels;
pub mod known_sums;
pub mod layout;
pub mod limits;
pub mod machine;
pub mod membership;
pub mod numerics;
pub mod op;
pub mod recovery;
pub mod reduce_op;
pub mod schedule;
pub mod session;
pub mod tree;
pub mod work_queue;

pub use dtype::DType;
pub use layout::Layout;
pub use numerics::{Arithmetic, Form, Numerics};
pub use op::{Call, CallError, OpKind};
pub use reduce_op::{Factor, ReduceOp, Scale};
pub use tree::DoubleTree;
