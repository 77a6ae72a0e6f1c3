//! The native module of the wheel: `hfreduce-client` as Python sees it. Owns the conversion of words, bytes
//! and errors, and gives up the interpreter's lock while it waits. Leaves everything about tensors, groups
//! and work objects to `fireflyer.backend`.

mod call;
mod client;
mod collectives;
mod copying;
mod error;
mod gpu;
mod limits;
mod memory;
mod pair;
mod waiting;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a lock holds; nobody who holds one leaves it half changed.
fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `fireflyer._native`.
#[pyo3::pymodule]
mod _native {
    /// A thread of ours that panics ends the rank: others would wait for what it does.
    #[pymodule_init]
    #[expect(clippy::unnecessary_wraps, reason = "PyO3 asks for it")]
    fn init() -> pyo3::PyResult<()> {
        hfreduce_client::panics::end_process();
        Ok(())
    }

    #[pymodule_export]
    use crate::client::{Client, Group, Ticket};
    #[pymodule_export]
    use crate::collectives::{GpuCollective, GpuQueue};
    #[pymodule_export]
    use crate::gpu::{Copy, Event, Gpu};
    #[pymodule_export]
    use crate::memory::{Arena, Result};
    #[pymodule_export]
    use crate::pair::{Inbox, Pair, pairs_add};
}
