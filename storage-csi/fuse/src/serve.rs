//! Threads that read requests and hand them to a file system, and the promise that each gets an
//! answer. What the answer is belongs to the handler.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;

use crate::answer::Answer;
use crate::connection::{Error, FuseConnection};
use crate::request::{Request, Unique};

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
/// ioctl for which there is no safe call. A handler that panics answers `EIO` and ends no thread;
/// where a panic ends the process, a successor asks for the request again.
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
        if catch_unwind(AssertUnwindSafe(|| handler(request, replier))).is_err() {
            tracing::error!(%unique, "the file system panicked");
        }
    }
    Ok(())
}
