//! A trainer process's side of the sidecar: attach, get input buffers, call operations, read results.
//! Owns the process's rings, buffers and tickets. Leaves tensors, streams and work objects to the Python
//! extension, and everything about other ranks to the sidecar.
//!
//! Results lie in memory that all processes of the node share and none of them can write; a result
//! is held until its view is dropped. One client a process; its methods may be called from any thread,
//! and fail with a clear error in a forked child.
//!
//! What may be in flight: the sidecar knows of every call, because only it can match messages, which their two ranks may
//! call for in any order. A queue on this side would hide some of them from it: two ranks that each post more sends than
//! go through it, and then receive the last one first, would wait for each other. So the limit of messages is that of
//! the sidecar and of the machines, and is there for memory's sake: a message that is sent holds a segment of at least 64 KiB and a
//! descriptor until it was received, one that is received a segment of the node's. The ring of submissions only carries
//! calls to the sidecar, which reads it whatever is in flight; who finds it full tries again. The ring of completions
//! has a place for the outcome of each.
//!
//! A sidecar that is killed is started again, and where the gang waits for it this process attaches to it by itself:
//! operations in flight go on, and input buffers and results stay where they are.

mod allocate;
mod arena;
mod attaching;
mod buffer;
mod connect;
mod error;
mod gpu;
mod groups;
mod keep;
mod late;
mod open;
mod shared;
mod state;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use arena::Arena;
pub use attaching::Attaching;
pub use buffer::{InputBuffer, Output, ResultView};
pub use error::Error;
pub use gpu::{GpuCollective, GpuPart, GpuParts};
pub use open::GroupOpening;
use shared::Shared;

use crate::Call;
use crate::attach::{ClientMessage, Members, Standing};
use crate::entry::{self, CallOutcome, SegmentRange, Submission};
pub use crate::limits::{IN_FLIGHT_LIMIT, MESSAGE_LIMIT};
use collective::machine::MAX_MESSAGES;
use link::ring::{self, PushError};

/// What all that may be in flight can leave has room in the ring, so that the sidecar never waits for this process.
const _: () = assert!(
    IN_FLIGHT_LIMIT == ring::CAPACITY / 2
        && MESSAGE_LIMIT as u64 == MAX_MESSAGES
        && IN_FLIGHT_LIMIT + 2 * MESSAGE_LIMIT <= ring::COMPLETION_CAPACITY
);
/// Segment number that stands for none: an operation without input or without result.
pub const NO_SEGMENT: u32 = u32::MAX;
/// How often a sidecar that is not there yet is looked for.
const RETRY: Duration = Duration::from_millis(20);

/// An operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallTicket(u64);

/// A group of ranks: the world, or one that this process has opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// What its ranks call it.
    pub number: u64,
    /// This process in it.
    pub rank: u32,
    /// Its ranks.
    pub size: u32,
}

/// The connection to the node's sidecar. Clones are the same connection.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

impl Client {
    /// Attaches as `local_rank` to the sidecar that listens at `socket`, waiting for it to appear.
    pub fn attach(socket: &Path, local_rank: u32, timeout: Duration) -> Result<Self, Error> {
        Attaching::new(socket, local_rank).go_on(timeout)
    }

    /// Where this process stands in the gang.
    pub fn standing(&self) -> Standing {
        self.shared.standing
    }

    /// Who takes part in the operations of the newest epoch.
    pub fn members(&self, timeout: Duration) -> Result<Arc<Members>, Error> {
        const REQUEST: &str = "learn the members";
        let start = Instant::now();
        let mut state = self.shared.lock()?;
        loop {
            state.receive();
            if let Some(members) = state.members(None) {
                return Ok(members);
            }
            state.alive()?;
            let waited = start.elapsed();
            if waited >= timeout {
                let request = REQUEST;
                return Err(Error::NoAnswer { request, waited });
            }
            state = self.shared.sleep(state, timeout - waited);
        }
    }

    /// The socket this client is attached to.
    pub fn socket(&self) -> &Path {
        &self.shared.socket
    }

    /// Calls an operation. The input belongs to the call until the output is taken; an operation that reads none on
    /// this rank needs none. Waits while as many calls of its kind are in flight as may be, see [`IN_FLIGHT_LIMIT`] and
    /// [`MESSAGE_LIMIT`].
    ///
    /// The n-th call of every rank is the n-th operation, whatever its outcome. A call that the node of one
    /// rank cannot carry out fails on every rank as [`FailureKind::Refused`](crate::entry::FailureKind), and
    /// those behind it run. A call whose result finds the sidecar's memory full of results in use is not
    /// refused: it waits, and so do all ranks, until processes of that node drop enough of theirs. Who waits in
    /// the order of the calls, and drops each result before the next, never keeps it waiting for good.
    pub fn submit(
        &self,
        call: Call,
        input: Option<InputBuffer>,
        timeout: Duration,
    ) -> Result<CallTicket, Error> {
        self.submit_in(self.world(), call, input, timeout)
    }

    /// Calls an operation of a group: the n-th call of each of its ranks in it is its n-th operation. Roots are ranks of
    /// the group. The input of an all-to-all begins with how it is divided ([`crate::parts`]).
    ///
    /// [`OpKind::Send`](crate::OpKind) and `Receive` have no place in that order: the n-th message from one rank to
    /// another under a tag is the n-th that is received so, since the members changed last. One that is under way when its
    /// sidecar is killed fails on both sides. They are counted apart, so that an operation never waits for a message, nor one
    /// that is sent for those that are received.
    pub fn submit_in(
        &self,
        group: Group,
        call: Call,
        mut input: Option<InputBuffer>,
        timeout: Duration,
    ) -> Result<CallTicket, Error> {
        self.submit_from(group, call, &mut input, timeout)
    }

    /// The same, for who may try again: the input is taken only where this succeeds.
    pub fn submit_from(
        &self,
        group: Group,
        call: Call,
        input: &mut Option<InputBuffer>,
        timeout: Duration,
    ) -> Result<CallTicket, Error> {
        check_input(group, call, input.as_ref().map_or(0, |input| input.len()))?;
        let place = place_of(input.as_ref());
        self.submit_place(group, call, place, input, timeout)
    }

    /// Calls an operation whose input begins at `offset` of an arena, a multiple of 64. It may not change before the
    /// output is taken. The rest is as with [`Client::submit_in`].
    pub fn submit_at(
        &self,
        group: Group,
        call: Call,
        arena: &Arena,
        offset: usize,
        timeout: Duration,
    ) -> Result<CallTicket, Error> {
        check_input(group, call, arena.len().saturating_sub(offset))?;
        let place = SegmentRange {
            segment: arena.number(),
            offset: offset as u64,
        };
        self.submit_place(group, call, place, &mut None, timeout)
    }

    /// The group of all ranks.
    pub fn world(&self) -> Group {
        let Standing { rank, world, .. } = self.shared.standing;
        Group {
            number: 0,
            rank,
            size: world,
        }
    }

    fn submit_place(
        &self,
        group: Group,
        call: Call,
        place: SegmentRange,
        input: &mut Option<InputBuffer>,
        timeout: Duration,
    ) -> Result<CallTicket, Error> {
        let submission = |ticket| Submission::Call {
            ticket,
            group: group.number,
            call,
            input: place,
        };
        self.ask(call, submission, input, None, timeout)
    }

    fn ask(
        &self,
        call: Call,
        submission: impl Fn(u64) -> Submission,
        input: &mut Option<InputBuffer>,
        opens: Option<Arc<[u32]>>,
        timeout: Duration,
    ) -> Result<CallTicket, Error> {
        let shared = &self.shared;
        let start = Instant::now();
        let mut state = shared.lock()?;
        loop {
            state.look();
            state.alive()?;
            let waited = start.elapsed();
            if state.has_room(&call) {
                let ticket = state.next_ticket;
                let submission = submission(ticket);
                match state.push(&submission) {
                    Ok(sidecar_sleeps) => {
                        state.next_ticket += 1;
                        let input = input.take().and_then(InputBuffer::into_segment);
                        state.called(ticket, call, submission, input, opens);
                        let link = state.link();
                        drop(state);
                        if sidecar_sleeps {
                            link.wake_fd.notify();
                        }
                        return Ok(CallTicket(ticket));
                    }
                    Err(PushError::Corrupt(corrupt)) => {
                        return Err(state.lose(corrupt.to_string()));
                    }
                    // Releases and messages wait in the ring; the sidecar takes them without our help.
                    Err(PushError::Full) if waited < timeout => {
                        drop(state);
                        std::thread::yield_now();
                        state = shared.lock()?;
                    }
                    Err(PushError::Full) => {
                        let request = "call an operation";
                        return Err(Error::NoAnswer { request, waited });
                    }
                }
            } else if waited >= timeout {
                return Err(Error::Busy { call, waited });
            } else {
                state = shared.sleep(state, timeout - waited);
            }
        }
    }

    /// Waits for an operation and takes its output. After `Error::Timeout` it may be waited for again.
    pub fn wait(&self, ticket: CallTicket, timeout: Duration) -> Result<Output, Error> {
        let shared = &self.shared;
        let start = Instant::now();
        let mut state = shared.lock()?;
        loop {
            state.look();
            if let Some(finished) = state.take_finished(ticket.0)? {
                let (segment, bytes, epoch) = match finished.outcome {
                    CallOutcome::Done {
                        segment,
                        bytes,
                        epoch,
                    } => (segment, bytes, epoch),
                    CallOutcome::Failed { kind, text } => {
                        if let Some((input, _)) = finished.input {
                            state.keep_idle(input);
                        }
                        let call = finished.call;
                        return Err(Error::Operation { call, kind, text });
                    }
                };
                let view = state.result(&finished, segment, bytes)?;
                let Some(members) = state.members(Some(epoch)) else {
                    return Err(state.lose(format!(
                        "it announced a result of epoch {epoch}, whose members it never announced"
                    )));
                };
                // From here on buffers and views are made, whose ends take the lock themselves.
                drop(state);
                let source = (ticket.0, finished.life);
                let result = ResultView::new(Arc::clone(shared), source, view, bytes as usize);
                let input = finished.input;
                let input =
                    input.map(|(input, bytes)| InputBuffer::new(Arc::clone(shared), input, bytes));
                return Ok(Output {
                    result,
                    input,
                    members,
                });
            }
            state.alive()?;
            let waited = start.elapsed();
            if waited >= timeout {
                let call = state.call(ticket.0)?;
                return Err(Error::Timeout {
                    call,
                    waited,
                    why: error::LATE.to_owned(),
                });
            }
            state = shared.sleep(state, timeout - waited);
        }
    }

    /// Whether an operation is over, well or not, so that `wait` returns at once.
    pub fn test(&self, ticket: CallTicket) -> Result<bool, Error> {
        let mut state = self.shared.lock()?;
        state.look();
        Ok(state.is_finished(ticket.0)? || state.alive().is_err())
    }

    /// Ends without a word, as a process that is killed does: for tests of what follows.
    #[doc(hidden)]
    pub fn abandon(self) {
        if let Ok(mut state) = self.shared.lock() {
            state.lose("this process has abandoned it".to_owned());
            state.link().channel.shutdown();
        }
    }

    /// Leaves in good order. Operations in flight fail, here and on other ranks that need this one.
    pub fn close(&self) -> Result<(), Error> {
        let mut state = self.shared.lock()?;
        if state.alive().is_ok() {
            state.link().channel.send(&ClientMessage::Detach, &[]).ok();
            state.lose("this process detached".to_owned());
        }
        Ok(())
    }
}

/// Refuses a call that reads more than the bytes that are given.
fn check_input(group: Group, call: Call, given: usize) -> Result<(), Error> {
    let needed = entry::input_bytes(&call, group.rank, group.size);
    let needed = needed.unwrap_or(usize::MAX);
    if given < needed {
        return Err(Error::Input {
            call,
            needed,
            given,
        });
    }
    Ok(())
}

fn place_of(input: Option<&InputBuffer>) -> SegmentRange {
    SegmentRange {
        segment: input.map_or(NO_SEGMENT, InputBuffer::number),
        offset: 0,
    }
}

#[cfg(test)]
mod again_tests;
#[cfg(test)]
mod gpu_tests;
#[cfg(test)]
mod late_tests;
#[cfg(test)]
mod pair_tests;
#[cfg(test)]
mod tests;
