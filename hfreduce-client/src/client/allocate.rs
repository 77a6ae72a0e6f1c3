//! Memory for inputs: what is idle here, else asked of the sidecar.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::{Arena, Client, Error, InputBuffer};

const REQUEST: &str = "allocate an input buffer";

impl Client {
    /// A buffer of `bytes` for an input, of unspecified content. Buffers that were dropped are used again.
    ///
    /// Fails at once with [`Error::Refused`] where the sidecar gives no more segments, also while calls in flight hold
    /// what it has given. Then nothing was called: who goes on with the next call makes it in the place of this
    /// one, and may get a sum of other ranks' other calls. So try again, or leave.
    ///
    /// After [`Error::NoAnswer`] the sidecar still makes what was asked for, and the next request that it fits gets it.
    pub fn buffer(&self, bytes: usize, timeout: Duration) -> Result<InputBuffer, Error> {
        let shared = &self.shared;
        let buffer = |input| InputBuffer::new(Arc::clone(shared), input, bytes);
        if let Some(input) = shared.lock()?.take_idle(bytes) {
            return Ok(buffer(input));
        }
        let _turn = shared.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let mut state = shared.lock()?;
        let mut freed_idle = false;
        loop {
            // What came too late for who had asked for it.
            state.receive();
            state.drop_answers(0);
            if let Some(input) = state.take_idle(bytes) {
                return Ok(buffer(input));
            }
            // One request at a time: what was asked for before, perhaps by this very caller, comes first.
            let is_own = state.is_there() && !state.is_asked;
            if is_own {
                state.ask_for_segment(bytes)?;
            }
            let answer = loop {
                state.look();
                if let Some(answer) = state.answers.pop_front() {
                    break answer;
                }
                state.alive()?;
                let waited = start.elapsed();
                if waited >= timeout {
                    return Err(Error::NoAnswer {
                        request: REQUEST,
                        waited,
                    });
                }
                let left = timeout - waited;
                if !state.is_there() {
                    state = shared.sleep(state, left);
                } else if state.is_asked {
                    state = shared.sleep_on_socket(state, left);
                } else {
                    state.ask_for_segment(bytes)?; // The one that was asked is gone.
                }
            };
            match answer {
                Ok(input) if !is_own => state.keep_idle(input),
                Ok(input) if input.segment.len() >= bytes => return Ok(buffer(input)),
                Ok(_too_small) => return Err(Error::Unexpected { request: REQUEST }),
                // Of another size, perhaps.
                Err(_refused) if !is_own => {}
                // The limit counts idle buffers of other sizes too: give them back and ask once more.
                Err(_refused) if !freed_idle && state.free_idle() => {
                    freed_idle = true;
                }
                Err(reason) => {
                    return Err(Error::Refused {
                        request: REQUEST,
                        reason,
                    });
                }
            }
        }
    }

    /// A buffer that was used before, if one of about this size is idle. Never waits.
    pub fn idle_buffer(&self, bytes: usize) -> Result<Option<InputBuffer>, Error> {
        let segment = self.shared.lock()?.take_idle(bytes);
        Ok(segment.map(|input| InputBuffer::new(Arc::clone(&self.shared), input, bytes)))
    }

    /// Memory of at least `bytes` for inputs, of unspecified content, which this process keeps. Fails as
    /// [`Client::buffer`] does.
    pub fn arena(&self, bytes: usize, timeout: Duration) -> Result<Arena, Error> {
        let buffer = self.buffer(bytes, timeout)?;
        Arena::new(buffer).ok_or(Error::Unexpected {
            request: "allocate an arena",
        })
    }
}
