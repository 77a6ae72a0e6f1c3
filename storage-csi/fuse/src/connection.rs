//! One mount's connection: the first agreement, reading requests, writing answers and
//! notifications. It keeps a descriptor, what was agreed, and two counts; which requests are open
//! only the kernel and the caller know. Threads share it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;

use crate::abi::LEAST_BUFFER_BYTES;
use crate::answer::Answer;
use crate::init::{self, ConnectionOptions, InitFlags, Negotiated, Offer};
use crate::notification::Notification;
use crate::request::{Refusal, RefusalReason, Request, Unique};

/// Why a connection cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Kernel and file system do not come together.
    #[error(transparent)]
    Init(#[from] init::Error),
    /// The mount was gone before its first request.
    #[error("failed to establish a FUSE connection: the mount is gone")]
    Gone,
    /// The kernel gives no request.
    #[error("failed to read a request of a FUSE connection")]
    Read(#[source] Errno),
    /// The kernel does not take an answer; whoever waits for it gets EIO.
    #[error("failed to answer request {unique} with {answer}")]
    Answer {
        /// Of the request.
        unique: Unique,
        /// The answer, without its data.
        answer: String,
        /// What the kernel said.
        source: Errno,
    },
    /// The kernel does not take a notification.
    #[error("failed to notify the kernel of {notification}")]
    Notify {
        /// The notification.
        notification: String,
        /// What the kernel said.
        source: Errno,
    },
    /// Its kernel is too old.
    #[error(
        "failed to ask for requests again: the kernel sends none twice; use Linux 6.9 or newer, or \
         unmount and mount again"
    )]
    NoResend,
}

/// Where a request is read into. Threads have one each.
#[derive(Debug)]
pub struct RequestBuffer(Vec<u8>);

/// Requests that were answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusalCounts {
    /// For what no file system of ours does.
    pub unsupported: u64,
    /// Not as the protocol says: the kernel or we understand it wrongly.
    pub malformed: u64,
}

/// The connection between a mount and its file system.
#[derive(Debug)]
pub struct FuseConnection {
    device: OwnedFd,
    negotiated: Negotiated,
    unsupported: AtomicU64,
    malformed: AtomicU64,
}

impl FuseConnection {
    /// Agrees with the kernel on a fresh descriptor of [`mount`](crate::mount::mount).
    pub fn establish(device: OwnedFd, options: &ConnectionOptions) -> Result<Self, Error> {
        let mut buffer = vec![0; LEAST_BUFFER_BYTES];
        let length = read(device.as_fd(), &mut buffer)?.ok_or(Error::Gone)?;
        let offer = Offer::parse(&buffer[..length])?;
        let (negotiated, answer) = offer.agree(options)?;
        match rustix::io::write(&device, &answer) {
            Ok(_) => Ok(Self::from_fd(device, negotiated)),
            Err(Errno::NOENT | Errno::NODEV) => Err(Error::Gone),
            Err(source) => Err(Error::Answer {
                unique: Unique(0),
                answer: format!("{negotiated:?}"),
                source,
            }),
        }
    }

    /// Goes on where another process was, with its descriptor and the state that it saved.
    pub fn from_fd(device: OwnedFd, negotiated: Negotiated) -> Self {
        Self {
            device,
            negotiated,
            unsupported: AtomicU64::new(0),
            malformed: AtomicU64::new(0),
        }
    }

    /// The descriptor, for another process. The mount lives while anybody has it.
    pub fn into_fd(self) -> OwnedFd {
        self.device
    }

    /// What holds on this connection.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// What was answered here so far.
    pub fn refusals(&self) -> RefusalCounts {
        RefusalCounts {
            unsupported: self.unsupported.load(Ordering::Relaxed),
            malformed: self.malformed.load(Ordering::Relaxed),
        }
    }

    /// A buffer that every request fits into.
    pub fn buffer(&self) -> RequestBuffer {
        RequestBuffer(vec![0; self.negotiated.buffer_bytes()])
    }

    /// Waits for the next request; none once the mount is gone. What is not understood is answered,
    /// counted and logged here.
    pub fn next<'b>(&self, buffer: &'b mut RequestBuffer) -> Result<Option<Request<'b>>, Error> {
        let length = loop {
            let Some(length) = read(self.device.as_fd(), &mut buffer.0)? else {
                return Ok(None);
            };
            match Request::parse(&buffer.0[..length]) {
                Ok(_) => break length,
                Err(refusal) => self.refuse(&refusal),
            }
        };
        // Parsed again, since a borrow that is returned cannot begin in the loop.
        Ok(Request::parse(&buffer.0[..length]).ok())
    }

    fn refuse(&self, refusal: &Refusal) {
        let count = match refusal.reason {
            RefusalReason::NameTooLong => None,
            RefusalReason::Unsupported | RefusalReason::Invalid(_) => Some(&self.unsupported),
            RefusalReason::Malformed(_) => {
                tracing::warn!(%refusal, "refused a request of the kernel");
                Some(&self.malformed)
            }
        };
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if !refusal.wants_answer() {
            return;
        }
        let answer = Answer::Error(refusal.reason.errno());
        if let Err(error) = self.answer(refusal.unique, &answer) {
            tracing::error!(%error, "a refused request has no answer");
        }
    }

    /// Answers a request. That nobody waits for it any more is no error.
    pub fn answer(&self, unique: Unique, answer: &Answer<'_>) -> Result<(), Error> {
        let encoded = answer.encode(unique);
        match write_all(self.device.as_fd(), &encoded.slices()) {
            // Interrupted, answered by a predecessor, or unmounted.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(source) => Err(Error::Answer {
                unique,
                answer: answer.to_string(),
                source,
            }),
        }
    }

    /// Notifies the kernel. That it does not hold what is meant is no error.
    pub fn notify(&self, notification: &Notification<'_>) -> Result<(), Error> {
        let can_resend = self.negotiated.flags.has(InitFlags::HAS_RESEND);
        if *notification == Notification::Resend && !can_resend {
            return Err(Error::NoResend);
        }
        let bytes = notification.encode();
        match write_all(self.device.as_fd(), &[std::io::IoSlice::new(&bytes)]) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => Ok(()),
            Err(source) => Err(Error::Notify {
                notification: format!("{notification:?}"),
                source,
            }),
        }
    }
}

impl AsFd for FuseConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Bytes of the next request; none once the mount is gone.
fn read(device: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
    loop {
        match rustix::io::read(device, &mut *buffer) {
            Ok(length) => return Ok(Some(length)),
            Err(Errno::NODEV) => return Ok(None),
            // A signal came for us, or one for the program whose request this was.
            Err(Errno::INTR | Errno::NOENT) => {}
            // Another holder of the descriptor wants no reads that wait.
            Err(Errno::AGAIN) => wait(device)?,
            Err(errno) => return Err(Error::Read(errno)),
        }
    }
}

fn wait(device: BorrowedFd<'_>) -> Result<(), Error> {
    match rustix::event::poll(&mut [PollFd::new(&device, PollFlags::IN)], None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(Error::Read(errno)),
    }
}

/// The kernel takes a message whole or not at all.
fn write_all(device: BorrowedFd<'_>, slices: &[std::io::IoSlice<'_>]) -> Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::io::writev(device, slices)).map(drop)
}
