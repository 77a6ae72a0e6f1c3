//! Memory for inputs: what is idle here, else asked of the sidecar.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::{Arena, Client, Error, InputBuffer};
use crate::attach::{self, ClientMessage};

impl Client {
    /// A buffer of `bytes` for an input, of unspecified content. Buffers that were dropped are used again.
    ///
    /// Fails at once with [`Error::Refused`] where the sidecar gives no more segments, also while calls in flight hold
    /// what it has given. Then nothing was called: who goes on with the next call makes it in the place of this
    /// one, and may get a sum of other ranks' other calls. So try again, or leave.
    pub fn buffer(&self, bytes: usize, timeout: Duration) -> Result<InputBuffer, Error> {
        const REQUEST: &str = "allocate an input buffer";
        let shared = &self.shared;
        let buffer = |input| InputBuffer::new(Arc::clone(shared), input, bytes);
        if let Some(input) = shared.lock()?.take_idle(bytes) {
            return Ok(buffer(input));
        }
        let _turn = shared.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let late = |waited| Error::NoAnswer {
            request: REQUEST,
            waited,
        };
        let mut state = shared.lock()?;
        state.drop_answers(0);
        let mut freed_idle = false;
        'ask: loop {
            let request = ClientMessage::Allocate {
                bytes: bytes as u64,
            };
            let life = state.life();
            if state.is_there() {
                match state.link().channel.send(&request, &[]) {
                    Ok(()) => {}
                    Err(attach::Error::Closed) => {
                        state.receive();
                        state.part();
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            let answer = loop {
                state.look();
                if let Some(answer) = state.answers.pop_front() {
                    break answer;
                }
                state.alive()?;
                let waited = start.elapsed();
                if waited >= timeout {
                    return Err(late(waited));
                }
                let left = timeout - waited;
                if !state.is_there() {
                    state = shared.sleep(state, left);
                } else if state.life() != life {
                    continue 'ask; // This one did not get the question.
                } else {
                    state = shared.sleep_on_socket(state, left);
                }
            };
            match answer {
                Ok(input) if input.segment.len() >= bytes => return Ok(buffer(input)),
                Ok(_too_small) => return Err(Error::Unexpected { request: REQUEST }),
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
