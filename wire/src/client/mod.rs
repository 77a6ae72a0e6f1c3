//! A trainer process's side of the sidecar: attach, lend input buffers, call operations, read results.
//! Owns the process's rings, buffers and tickets. Leaves tensors, streams and work objects to the Python
//! extension, and everything about other ranks to the sidecar.
//!
//! Results lie in memory that all processes of the node share and none of them can write; a result
//! is held until its view is dropped. One client a process; its methods may be called from any thread,
//! and fail with a clear error in a forked child.

mod arena;
mod buffer;
mod error;
mod shared;
mod state;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

pub use arena::Arena;
pub use buffer::{Buffer, Output, ResultView};
pub use error::Error;
use shared::{Shared, sleep_on};
use state::State;

use crate::attach::{self, Channel, Standing, ToClient, ToSidecar};
use crate::doorbell::patience;
use crate::entry::{Outcome, Place, Submission};
use crate::op::Call;
use crate::ring::{self, Bell, PushError};
use crate::segment::Segment;

/// Calls in flight at once; a further one waits. Half the ring, so that releases always find room.
pub const IN_FLIGHT_LIMIT: usize = ring::CAPACITY / 2;
/// Segment number that stands for none: an operation without input or without result.
pub const NO_SEGMENT: u32 = u32::MAX;
/// How often a sidecar that is not there yet is looked for.
const RETRY: Duration = Duration::from_millis(20);

/// An operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// The connection to the node's sidecar. Clones are the same connection.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// Attaches as `local_rank` to the sidecar that listens at `socket`, waiting for it to appear.
    pub fn attach(socket: &Path, local_rank: u32, timeout: Duration) -> Result<Self, Error> {
        const REQUEST: &str = "attach";
        let start = Instant::now();
        let channel = loop {
            match Channel::connect(socket) {
                Ok(channel) => break channel,
                Err(error) if start.elapsed() > timeout => return Err(error.into()),
                Err(_not_there_yet) => std::thread::sleep(RETRY.min(timeout)),
            }
        };
        let version = attach::VERSION;
        channel.send(
            &ToSidecar::Attach {
                version,
                local_rank,
            },
            &[],
        )?;
        let (message, fds) = loop {
            if let Some(received) = channel.receive_with_fds()? {
                break received;
            }
            let waited = start.elapsed();
            if waited > timeout {
                return Err(Error::NoAnswer {
                    request: REQUEST,
                    waited,
                });
            }
            sleep_on(&[PollFd::new(&channel, PollFlags::IN)], timeout - waited);
        };
        let (control_bytes, standing) = match message {
            ToClient::Welcome {
                control_bytes,
                standing,
            } => (control_bytes, standing),
            ToClient::Refused { reason } => {
                return Err(Error::Refused {
                    request: REQUEST,
                    reason,
                });
            }
            ToClient::Input { .. } | ToClient::Result { .. } | ToClient::Gone { .. } => {
                return Err(Error::Unexpected { request: REQUEST });
            }
        };
        let [control, bell] =
            <[_; 2]>::try_from(fds).map_err(|fds| attach::Error::Descriptors(fds.len()))?;
        let bytes = usize::try_from(control_bytes).unwrap_or(usize::MAX);
        let control = Arc::new(Segment::open(control, bytes)?);
        let (submissions, completions) =
            ring::client_ends(&control).ok_or(Error::Unexpected { request: REQUEST })?;
        Ok(Self {
            shared: Arc::new(Shared {
                owner: std::process::id(),
                socket: socket.to_owned(),
                standing,
                spin: patience(standing.local_world as usize),
                channel,
                bell: Bell::from_fd(bell),
                outcomes: completions.bed(),
                state: Mutex::new(State::new(submissions, completions)),
                looked: Condvar::new(),
                asking: Mutex::new(()),
            }),
        })
    }

    /// Where this process stands in the gang.
    pub fn standing(&self) -> Standing {
        self.shared.standing
    }

    /// The socket this client is attached to.
    pub fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// A buffer of `bytes` for an input, of unspecified content. Buffers that were dropped are used again.
    ///
    /// Fails at once with [`Error::Refused`] where the sidecar lends no more, also while calls in flight hold
    /// what it has lent. Then nothing was called: who goes on with the next call makes it in the place of this
    /// one, and may get a sum of other ranks' other calls. So try again, or leave.
    pub fn buffer(&self, bytes: usize, timeout: Duration) -> Result<Buffer, Error> {
        const REQUEST: &str = "allocate an input buffer";
        let shared = &self.shared;
        let buffer = |lent| Buffer::new(Arc::clone(shared), lent, bytes);
        if let Some(lent) = shared.lock()?.take_idle(bytes) {
            return Ok(buffer(lent));
        }
        let _turn = shared.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let mut state = shared.lock()?;
        state.answers.clear();
        let mut freed_idle = false;
        loop {
            let request = ToSidecar::Allocate {
                bytes: bytes as u64,
            };
            match shared.channel.send(&request, &[]) {
                Ok(()) => {}
                Err(attach::Error::Closed) => {
                    state.hear(&shared.channel);
                    return Err(state.lose("it closed the connection".to_owned()));
                }
                Err(error) => return Err(error.into()),
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
                state = shared.sleep_on_socket(state, timeout - waited);
            };
            match answer {
                Ok(lent) if lent.segment.len() >= bytes => return Ok(buffer(lent)),
                Ok(_too_small) => return Err(Error::Unexpected { request: REQUEST }),
                // The limit counts idle buffers of other sizes too: give them back and ask once more.
                Err(_refused) if !freed_idle && state.free_idle(&shared.channel) => {
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
    pub fn idle_buffer(&self, bytes: usize) -> Result<Option<Buffer>, Error> {
        let lent = self.shared.lock()?.take_idle(bytes);
        Ok(lent.map(|lent| Buffer::new(Arc::clone(&self.shared), lent, bytes)))
    }

    /// Whether the next call finds room at once, if no other thread calls before.
    pub fn has_room(&self) -> Result<bool, Error> {
        let mut state = self.shared.lock()?;
        state.look();
        Ok(state.in_flight() < IN_FLIGHT_LIMIT)
    }

    /// Memory of at least `bytes` for inputs, of unspecified content, which this process keeps. Fails as
    /// [`Client::buffer`] does.
    pub fn arena(&self, bytes: usize, timeout: Duration) -> Result<Arena, Error> {
        let buffer = self.buffer(bytes, timeout)?;
        Arena::new(buffer).ok_or(Error::Unexpected {
            request: "allocate an arena",
        })
    }

    /// Calls an operation. The input is lent until the output is taken; an operation that reads none on
    /// this rank needs none. Waits while `IN_FLIGHT_LIMIT` operations are in flight.
    ///
    /// The n-th call of every rank is the n-th operation, whatever becomes of it. A call that the node of one
    /// rank cannot carry out fails on every rank as [`FailureKind::Refused`](crate::entry::FailureKind), and
    /// those behind it run. A call whose result finds the sidecar's memory full of results in use is not
    /// refused: it waits, and so do all ranks, until processes of that node drop enough of theirs. Who waits in
    /// the order of the calls, and drops each result before the next, never keeps it waiting for good.
    pub fn submit(
        &self,
        call: Call,
        input: Option<Buffer>,
        timeout: Duration,
    ) -> Result<Ticket, Error> {
        self.check_input(call, input.as_ref().map_or(0, |input| input.len()))?;
        let place = Place {
            segment: input.as_ref().map_or(NO_SEGMENT, Buffer::number),
            offset: 0,
        };
        self.submit_place(call, place, input, timeout)
    }

    /// Calls an operation whose input begins at `offset` of an arena, a multiple of 64. It may not change before the
    /// output is taken. The rest is as with [`Client::submit`].
    pub fn submit_at(
        &self,
        call: Call,
        arena: &Arena,
        offset: usize,
        timeout: Duration,
    ) -> Result<Ticket, Error> {
        self.check_input(call, arena.len().saturating_sub(offset))?;
        let place = Place {
            segment: arena.number(),
            offset: offset as u64,
        };
        self.submit_place(call, place, None, timeout)
    }

    /// Refuses a call that reads more than the bytes that are given.
    fn check_input(&self, call: Call, given: usize) -> Result<(), Error> {
        let needed = if call.reads_input_of(self.shared.standing.rank) {
            call.input_bytes().unwrap_or(usize::MAX)
        } else {
            0
        };
        if given < needed {
            return Err(Error::Input {
                call,
                needed,
                given,
            });
        }
        Ok(())
    }

    fn submit_place(
        &self,
        call: Call,
        place: Place,
        input: Option<Buffer>,
        timeout: Duration,
    ) -> Result<Ticket, Error> {
        let shared = &self.shared;
        let start = Instant::now();
        let mut state = shared.lock()?;
        loop {
            state.look();
            state.alive()?;
            let waited = start.elapsed();
            let busy = Error::Busy { call, waited };
            if state.in_flight() < IN_FLIGHT_LIMIT {
                let ticket = state.next_ticket;
                let submission = Submission::Call {
                    ticket,
                    call,
                    input: place,
                };
                match state.push(&submission) {
                    Ok(sidecar_sleeps) => {
                        state.next_ticket += 1;
                        state.called(ticket, call, input.and_then(Buffer::lend));
                        drop(state);
                        if sidecar_sleeps {
                            shared.bell.ring();
                        }
                        return Ok(Ticket(ticket));
                    }
                    Err(PushError::Corrupt(corrupt)) => {
                        return Err(state.lose(corrupt.to_string()));
                    }
                    // Releases wait in the ring; the sidecar takes them without our help.
                    Err(PushError::Full) if waited < timeout => {
                        drop(state);
                        std::thread::yield_now();
                        state = shared.lock()?;
                    }
                    Err(PushError::Full) => return Err(busy),
                }
            } else if waited >= timeout {
                return Err(busy);
            } else {
                state = shared.sleep(state, timeout - waited);
            }
        }
    }

    /// Waits for an operation and takes its output. After `Error::Timeout` it may be waited for again.
    pub fn wait(&self, ticket: Ticket, timeout: Duration) -> Result<Output, Error> {
        let shared = &self.shared;
        let start = Instant::now();
        let mut state = shared.lock()?;
        loop {
            state.look();
            if let Some((call, input, outcome)) = state.take_finished(ticket.0, &shared.channel)? {
                let (segment, bytes) = match outcome {
                    Outcome::Done { segment, bytes } => (segment, bytes),
                    Outcome::Failed { kind, text } => {
                        if let Some((lent, _)) = input {
                            state.keep_idle(lent, &shared.channel);
                        }
                        return Err(Error::Operation { call, kind, text });
                    }
                };
                let view = state.result(segment, bytes)?;
                // From here on buffers and views are made, whose ends take the lock themselves.
                drop(state);
                let result = ResultView::new(Arc::clone(shared), ticket.0, view, bytes as usize);
                let input = input.map(|(lent, bytes)| Buffer::new(Arc::clone(shared), lent, bytes));
                return Ok(Output { result, input });
            }
            state.alive()?;
            let waited = start.elapsed();
            if waited >= timeout {
                let call = state.call(ticket.0)?;
                return Err(Error::Timeout { call, waited });
            }
            state = shared.sleep(state, timeout - waited);
        }
    }

    /// Whether an operation is over, well or not, so that `wait` returns at once.
    pub fn test(&self, ticket: Ticket) -> Result<bool, Error> {
        let mut state = self.shared.lock()?;
        state.look();
        Ok(state.is_finished(ticket.0)? || state.alive().is_err())
    }

    /// Ends without a word, as a process that is killed does: for tests of what follows.
    #[doc(hidden)]
    pub fn abandon(self) {
        self.shared.channel.shutdown();
    }

    /// Leaves in good order. Operations in flight fail, here and on other ranks that need this one.
    pub fn close(&self) -> Result<(), Error> {
        let mut state = self.shared.lock()?;
        if state.alive().is_ok() {
            self.shared.channel.send(&ToSidecar::Detach, &[]).ok();
            state.lose("this process detached".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
