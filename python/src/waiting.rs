//! Waits that Python's signal handlers may interrupt: by an exception of the handler's, such as `KeyboardInterrupt`. Owns
//! the slices of such a wait. What is waited for goes on where it was in the next slice, so that nothing is called twice.

use std::time::{Duration, Instant};

use hfreduce_client::client::Error;
use pyo3::prelude::*;

use crate::error::raise;

/// How often a thread that waits lets the handlers run: those of an interrupt by the user, or of a request to stop.
const SLICE: Duration = Duration::from_millis(100);

/// Waits for at most `limit`, without the interpreter's lock. `attempt` waits for at most as long as it is given, and where
/// that was too short it may be made again.
pub(crate) fn interruptibly<T: Send>(
    py: Python<'_>,
    limit: Duration,
    attempt: impl FnMut(Duration) -> Result<T, Error> + Send,
) -> PyResult<T> {
    interruptibly_or(py, limit, attempt, |error| error)
}

/// The same; `explain` may say more of the error where time is up.
pub(crate) fn interruptibly_or<T: Send>(
    py: Python<'_>,
    limit: Duration,
    mut attempt: impl FnMut(Duration) -> Result<T, Error> + Send,
    explain: impl FnOnce(Error) -> Error + Send,
) -> PyResult<T> {
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        match py.detach(|| in_slice(left.min(SLICE), &mut attempt)) {
            Ok(value) => return Ok(value),
            Err(error) if error.is_late() && left > SLICE => py.check_signals()?,
            Err(error) if error.is_late() => {
                let error = error.after(start.elapsed());
                let error = py.detach(|| explain(error));
                return Err(raise(py, &error));
            }
            Err(error) => return Err(raise(py, &error)),
        }
    }
}

/// One attempt. One that came too late takes the whole slice, so that the next does not follow at once.
fn in_slice<T>(
    slice: Duration,
    attempt: &mut impl FnMut(Duration) -> Result<T, Error>,
) -> Result<T, Error> {
    let start = Instant::now();
    let done = attempt(slice);
    if done.as_ref().is_err_and(Error::is_late) {
        std::thread::sleep(slice.saturating_sub(start.elapsed()));
    }
    done
}
