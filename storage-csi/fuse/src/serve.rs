//! Threads that read requests and hand them to a file system, and the promise that each gets an
//! answer. What the answer is belongs to the handler.

use std::cell::Cell;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use rustix::io::Errno;

use crate::answer::Answer;
use crate::connection::{Error, FuseConnection};
use crate::request::{Request, Unique};

#[cfg(panic = "abort")]
compile_error!(
    "a request whose handler panics is answered with EIO, which needs unwinding: remove `panic = \"abort\"` from the profile"
);

thread_local! {
    static ANSWERING: Cell<bool> = const { Cell::new(false) };
}

/// Returns true while this thread answers a request. A panic then costs that answer: the program gets `EIO`, and the mounts
/// of the process go on. A hook that ends the process on a panic asks this first.
pub fn is_answering() -> bool {
    ANSWERING.get()
}

fn answering<T>(run: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ANSWERING.set(self.0);
        }
    }
    let _restore = Restore(ANSWERING.replace(true));
    run()
}

/// A task that goes on with a request after its handler has returned. Whoever runs it must survive its panic, as tokio does;
/// then its [`Replier`] is dropped.
#[derive(Debug)]
pub struct Answering<F>(pub F);

impl<F: Future + Unpin> Future for Answering<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        answering(|| Pin::new(&mut self.0).poll(context))
    }
}

/// The most threads of one connection. A handler that waits for long keeps its [`Replier`] and
/// returns, so that more than one for each processor brings little.
pub const THREAD_LIMIT: usize = 64;

/// The right and the duty to answer one request: dropped without an answer, it answers `EIO`. It
/// may outlive the call of the handler.
#[derive(Debug)]
pub struct Replier {
    connection: Arc<FuseConnection>,
    /// None when the kernel waits for no answer any more.
    unique: Option<Unique>,
}

impl Replier {
    /// For a request that was read from the connection.
    pub fn new(connection: Arc<FuseConnection>, request: &Request<'_>) -> Self {
        Self {
            connection,
            unique: request.wants_answer().then_some(request.unique),
        }
    }

    /// Answers, if the kernel waits for an answer.
    pub fn answer(mut self, answer: &Answer<'_>) -> Result<(), Error> {
        match self.unique.take() {
            Some(unique) => self.connection.answer(unique, answer),
            None => Ok(()),
        }
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        let Some(unique) = self.unique.take() else {
            return;
        };
        if let Err(error) = self.connection.answer(unique, &Answer::Error(Errno::IO)) {
            tracing::error!(%unique, %error, "a request has no answer");
        }
    }
}

/// Serves until the mount is gone. All threads read one descriptor: a queue for each would need an
/// ioctl for which there is no safe call. A handler that panics answers `EIO` and ends no thread,
/// and [`is_answering`] tells a hook so.
pub fn serve<H>(
    connection: &Arc<FuseConnection>,
    threads: NonZeroUsize,
    handler: H,
) -> Result<(), Error>
where
    H: Fn(Request<'_>, Replier) + Sync,
{
    let threads = threads.get().min(THREAD_LIMIT);
    thread::scope(|scope| {
        let work = || work(connection, &handler);
        let spawn = |number| {
            let named = thread::Builder::new().name(format!("fuse-{number}"));
            let spawned = named.spawn_scoped(scope, work);
            spawned.inspect_err(|error| tracing::warn!(%error, "serves with fewer threads"))
        };
        let others: Vec<_> = (1..threads)
            .map_while(|number| spawn(number).ok())
            .collect();
        let mut result = work();
        for other in others {
            // A thread of ours has nothing to panic with: handlers are caught.
            result = result.and(other.join().unwrap_or(Ok(())));
        }
        result
    })
}

fn work<H>(connection: &Arc<FuseConnection>, handler: &H) -> Result<(), Error>
where
    H: Fn(Request<'_>, Replier) + Sync,
{
    let mut buffer = connection.buffer();
    while let Some(request) = connection.next(&mut buffer)? {
        let replier = Replier::new(Arc::clone(connection), &request);
        let unique = request.unique;
        // Its state is its own business: what it shares between threads it has to keep whole
        // anyway.
        let handled = AssertUnwindSafe(|| answering(|| handler(request, replier)));
        if catch_unwind(handled).is_err() {
            tracing::error!(%unique, "the file system panicked");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    #[test]
    fn a_request_is_answered_while_its_task_is_polled_and_at_no_other_time() {
        let mut nobody = Context::from_waker(Waker::noop());
        let task = pin!(Answering(Box::pin(async { is_answering() })));
        assert_eq!(task.poll(&mut nobody), Poll::Ready(true));
        assert!(!is_answering());
        let panics = catch_unwind(|| answering(|| assert!(!is_answering())));
        assert!(panics.is_err() && !is_answering());
    }
}
