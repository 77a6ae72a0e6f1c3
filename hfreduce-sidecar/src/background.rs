//! Work that may take long, on a thread beside the engine: pages of new memory are faulted in and those of old memory
//! given back at a gigabyte a second or less, and the engine has to say meanwhile that this node is alive. Owns the
//! thread and its queue; what is done, and what its outcome means, is the business of whoever asks.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;

use tracing::warn;

use crate::limits::QUEUE_LIMIT;
use crate::stop::Stop;

/// What is done before each piece of work: nothing, but in tests that make memory slow.
#[derive(Clone, Default)]
pub struct Before(Option<Arc<dyn Fn() + Send + Sync>>);

impl Before {
    /// Calls this.
    pub fn call(before: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(before)))
    }

    /// Does it.
    pub(crate) fn run(&self) {
        if let Some(before) = &self.0 {
            before();
        }
    }
}

impl fmt::Debug for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Before").finish_non_exhaustive()
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unable {
    /// Too much waits already.
    #[error("{QUEUE_LIMIT} other segments are being made")]
    Busy,
    /// The thread could not be started, or has ended.
    #[error("the thread that makes segments could not be started, or has ended")]
    Gone,
}

/// A thread that does one piece of work after the other. It starts with the first one, so it runs where its owner does, and
/// ends with its owner.
#[derive(Debug)]
pub struct Background {
    name: &'static str,
    work: Option<SyncSender<Work>>,
    /// Notified when an answer is there.
    wakes: Stop,
    before: Before,
}

/// An answer that will come. Nobody works for one that is dropped, and what was made for it is dropped on the thread.
#[derive(Debug)]
pub struct BackgroundAnswer<T> {
    answer: Receiver<T>,
    /// Looked at by the thread.
    _wanted: Arc<()>,
}

impl<T> BackgroundAnswer<T> {
    /// What came of it; none while it is under way.
    pub fn take(&self) -> Option<Result<T, Unable>> {
        match self.answer.try_recv() {
            Ok(answer) => Some(Ok(answer)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(Unable::Gone)),
        }
    }
}

impl Background {
    /// A thread of this name; the wake descriptor of `wakes` wakes who waits for its answers.
    #[must_use]
    pub fn new(name: &'static str, wakes: Stop, before: Before) -> Self {
        Self {
            name,
            work: None,
            wakes,
            before,
        }
    }

    /// Asks for something.
    pub fn ask<T: Send + 'static>(
        &mut self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> Result<BackgroundAnswer<T>, Unable> {
        let (sender, answer) = sync_channel(1);
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        let wakes = self.wakes.clone();
        self.send(Box::new(move || {
            if Weak::strong_count(&is_wanted) == 0 {
                return;
            }
            // Who does not wait any more leaves it to be dropped here.
            sender.send(make()).ok();
            drop(sender);
            wakes.wake_fd().notify();
        }))
        .map_err(|(_work, why)| why)?;
        Ok(BackgroundAnswer {
            answer,
            _wanted: wanted,
        })
    }

    /// Drops something there, or here if too much waits.
    pub fn drop_there<T: Send + 'static>(&mut self, value: T) {
        self.send(Box::new(move || drop(value))).ok();
    }

    fn send(&mut self, work: Work) -> Result<(), (Work, Unable)> {
        let Some(queue) = self.start() else {
            return Err((work, Unable::Gone));
        };
        queue.try_send(work).map_err(|error| match error {
            TrySendError::Full(work) => (work, Unable::Busy),
            TrySendError::Disconnected(work) => (work, Unable::Gone),
        })
    }

    fn start(&mut self) -> Option<&SyncSender<Work>> {
        if self.work.is_none() {
            let (sender, work) = sync_channel::<Work>(QUEUE_LIMIT);
            let before = self.before.clone();
            let named = thread::Builder::new().name(self.name.to_owned());
            let spawned = named.spawn(move || {
                for piece in work {
                    before.run();
                    piece();
                }
            });
            match spawned {
                Ok(_detached) => self.work = Some(sender),
                Err(error) => warn!(%error, name = self.name, "failed to start a thread"),
            }
        }
        self.work.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::{Duration, Instant};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// One that works only when it is allowed to.
    fn held() -> (Background, Sender<()>) {
        let (allow, allowed) = channel::<()>();
        let allowed = std::sync::Mutex::new(allowed);
        let before = Before::call(move || {
            allowed.lock().unwrap().recv().ok();
        });
        let wakes = Stop::new().unwrap();
        (Background::new("test", wakes, before), allow)
    }

    fn wait<T>(answer: &BackgroundAnswer<T>) -> Result<T, Unable> {
        let start = Instant::now();
        loop {
            if let Some(answer) = answer.take() {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "waited too long");
            thread::yield_now();
        }
    }

    #[test]
    fn what_is_asked_for_comes_when_it_is_made_and_nobody_waits_meanwhile() {
        let (mut background, allow) = held();
        let (first, second) = (background.ask(|| 1).unwrap(), background.ask(|| 2).unwrap());
        assert!(first.take().is_none() && second.take().is_none());
        allow.send(()).unwrap();
        assert_eq!(wait(&first), Ok(1));
        assert!(second.take().is_none());
        allow.send(()).unwrap();
        assert_eq!(wait(&second), Ok(2));
    }

    #[test]
    fn what_nobody_waits_for_any_more_is_not_made_or_dropped() {
        let (mut background, allow) = held();
        let (made, makes) = channel();
        let (begun, begins) = channel();
        let (go_on, goes_on) = channel::<()>();
        let value = Arc::new(());
        let kept = Arc::downgrade(&value);
        let under_way = background.ask(move || {
            begun.send(()).unwrap();
            goes_on.recv().ok();
            value
        });
        let waiting = background.ask(move || made.send(()));
        allow.send(()).unwrap();
        begins.recv_timeout(PATIENCE).unwrap();
        drop((under_way, waiting));
        go_on.send(()).unwrap();
        allow.send(()).unwrap();
        let last = background.ask(|| ()).unwrap();
        allow.send(()).unwrap();
        wait(&last).unwrap();
        assert_eq!(
            kept.strong_count(),
            0,
            "it was made for nobody, and is kept"
        );
        assert!(makes.try_recv().is_err(), "it was made for nobody");
    }

    #[test]
    fn more_than_may_wait_is_refused() {
        let (mut background, allow) = held();
        let mut answers = Vec::new();
        let refused = loop {
            match background.ask(|| ()) {
                Ok(answer) => answers.push(answer),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused, Unable::Busy);
        // One may be under way.
        assert!(answers.len() <= QUEUE_LIMIT + 1);
        drop(allow);
        wait(&answers[0]).unwrap();
    }
}
