//! What all handles of a client share: the connection, the state behind its lock, and how threads wait. One
//! thread sleeps until an outcome comes, the others until it has looked.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Error;
use super::buffer::Mapped;
use super::connect::Attachment;
use super::state::State;
use crate::attach::{AttachChannel, ClientMessage, Standing};
use link::ring::WaitSlot;
use link::spin::Look;
use link::wake_fd::WakeFd;

/// How often a thread that sleeps looks whether the sidecar lives: 20 times a second, nothing on a processor.
const LOOK: Duration = Duration::from_millis(50);
/// How often a thread that waits for an answer looks whether another one has it.
const ANSWER_LOOK: Duration = Duration::from_millis(5);

/// The connection to one sidecar.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) channel: AttachChannel,
    /// The sidecar's wake descriptor, for when it sleeps on that.
    pub(super) wake_fd: WakeFd,
    /// Where a thread sleeps until an outcome comes.
    pub(super) outcomes: WaitSlot,
}

/// Segments that the state knows no more. They are unmapped by whoever has locked it, after that: the driver of a GPU that
/// they are registered with may wait for what other threads do, and those for the lock.
#[derive(Debug, Default)]
pub(super) struct Gone(Mutex<Vec<Arc<Mapped>>>);

impl Gone {
    pub(super) fn extend(&self, segments: impl IntoIterator<Item = Arc<Mapped>>) {
        self.all().extend(segments);
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Mapped>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The state, locked until this is dropped.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    /// Unlocked before the other field is dropped.
    state: MutexGuard<'a, State>,
    _unmap: Unmap<'a>,
}

#[derive(Debug)]
struct Unmap<'a>(&'a Gone);

impl Drop for Unmap<'_> {
    fn drop(&mut self) {
        let gone = std::mem::take(&mut *self.0.all());
        drop(gone);
    }
}

impl Deref for Locked<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) owner: u32,
    pub(super) socket: PathBuf,
    pub(super) standing: Standing,
    state: Mutex<State>,
    gone: Arc<Gone>,
    /// Notified whenever the thread that sleeps has looked, and when the sidecar has gone or come.
    pub(super) looked: Condvar,
    /// Held while a segment is asked for, so that answers find who asked.
    pub(super) asking: Mutex<()>,
    /// Notified at the end, for the thread that stays with the sidecar.
    pub(super) leaving: Arc<WakeFd>,
}

impl Shared {
    pub(super) fn new(socket: PathBuf, attachment: Attachment) -> std::io::Result<Self> {
        let gone = Arc::<Gone>::default();
        Ok(Self {
            owner: std::process::id(),
            socket,
            standing: attachment.standing,
            state: Mutex::new(State::new(attachment, Arc::clone(&gone))),
            gone,
            looked: Condvar::new(),
            asking: Mutex::new(()),
            leaving: Arc::new(WakeFd::new()?),
        })
    }

    /// The state, in the process it belongs to: a lock that another thread held at the time of a fork
    /// is never free in the child, so the child must not even try.
    pub(super) fn lock(&self) -> Result<Locked<'_>, Error> {
        let child = std::process::id();
        if child != self.owner {
            return Err(Error::Forked {
                owner: self.owner,
                child,
            });
        }
        Ok(self.lock_again())
    }

    /// The state, where it has been locked before.
    fn lock_again(&self) -> Locked<'_> {
        Locked {
            // No code that holds the lock leaves the state half changed.
            state: self.state.lock().unwrap_or_else(PoisonError::into_inner),
            _unmap: Unmap(&self.gone),
        }
    }

    /// Waits until an outcome has come, or another thread has taken some, or the sidecar has gone or come, or time
    /// is over.
    pub(super) fn sleep<'a>(&'a self, mut state: Locked<'a>, limit: Duration) -> Locked<'a> {
        if state.is_there()
            && let Some(look) = state.spin.begin()
        {
            let has_come;
            (state, has_come) = self.look_around(state, &look, limit);
            state.spin.end(&look, has_come);
            if has_come {
                return state;
            }
        }
        if state.sleeper || !state.is_there() {
            state.waiters += 1;
            let Locked { state, _unmap } = state;
            let (state, _timed_out) = self
                .looked
                .wait_timeout(state, limit)
                .unwrap_or_else(PoisonError::into_inner);
            let mut state = Locked { state, _unmap };
            state.waiters -= 1;
            return state;
        }
        if !state.prepare_wait() {
            return state;
        }
        state.sleeper = true;
        let link = state.link();
        drop(state);
        link.outcomes.event_count().wait(limit.min(LOOK));
        let mut state = self.lock_again();
        state.sleeper = false;
        state.awake();
        if !state.look() {
            // Nobody rings for a sidecar that died.
            state.receive();
        }
        if state.waiters > 0 {
            self.looked.notify_all();
        }
        state
    }

    /// Looks for what `sleep` waits for. Says whether it has come. Others have the lock between two looks.
    fn look_around<'a>(
        &'a self,
        mut state: Locked<'a>,
        look: &Look,
        limit: Duration,
    ) -> (Locked<'a>, bool) {
        let unfinished = state.in_flight();
        loop {
            if state.look() || state.in_flight() != unfinished || !state.is_there() {
                return (state, true);
            }
            if look.is_over() || limit.is_zero() {
                return (state, false);
            }
            drop(state);
            thread::yield_now();
            state = self.lock_again();
        }
    }

    /// Waits until the sidecar has answered over the socket, or time is over.
    pub(super) fn sleep_on_socket<'a>(&'a self, state: Locked<'a>, limit: Duration) -> Locked<'a> {
        let link = state.link();
        drop(state);
        sleep_on(
            &[PollFd::new(&link.channel, PollFlags::IN)],
            // Another thread may have taken the answer in its place.
            limit.min(ANSWER_LOOK),
        );
        let mut state = self.lock_again();
        state.receive();
        state
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::process::id() == self.owner {
            let state = self.state.get_mut();
            let state = state.unwrap_or_else(PoisonError::into_inner);
            state.link().channel.send(&ClientMessage::Detach, &[]).ok();
            self.leaving.notify();
        }
    }
}

/// Polls; a signal or an error ends the wait early, which every caller survives by looking again.
pub(super) fn sleep_on(fds: &[PollFd<'_>], limit: Duration) {
    let limit = Timespec::try_from(limit).ok();
    rustix::event::poll(&mut fds.to_vec(), limit.as_ref()).ok();
}
