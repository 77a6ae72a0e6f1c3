//! A descriptor that one side notifies and the other polls, together with its sockets. Where both sides look at shared
//! memory, an [`event count`](crate::event_count) costs half as much.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Notifications that one call takes.
const NOTIFICATIONS: usize = 64;

/// Wakes whoever polls it. Notifying and clearing never wait.
#[derive(Debug)]
pub struct WakeFd(OwnedFd);

impl WakeFd {
    /// Between threads of one process: an eventfd.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    /// The two ends of one between processes: each wakes who polls the other. An eventfd
    /// would be one open file for both: who fills its counter and takes its O_NONBLOCK away puts the
    /// other side to sleep for good. The ends of a socket pair have flags of their own.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = SocketType::STREAM;
        let (one, other) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
        Ok((Self(one), Self(other)))
    }

    /// An end that another process made.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Wakes the other side. Where no notification fits any more, it is awake already.
    pub fn notify(&self) {
        rustix::io::write(&self.0, &1u64.to_ne_bytes()).ok();
    }

    /// Takes the notifications so far, or some of them: then it can still be read. False when the other end is
    /// closed, so that polling it makes no sense any more.
    pub fn clear(&self) -> bool {
        let taken = rustix::io::read(&self.0, &mut [0u8; 8 * NOTIFICATIONS]);
        !matches!(taken, Ok(0) | Err(Errno::CONNRESET))
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_end_never_waits_whatever_the_other_does_to_its_own() {
        let (ours, theirs) = WakeFd::pair().unwrap();
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        // Were it a counter, it would be full now.
        rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (done, notified) = std::sync::mpsc::channel();
        thread::spawn(move || {
            // More than any buffer holds, and nobody reads.
            (0..10_000).for_each(|_| ours.notify());
            let there = ours.clear() && ours.clear();
            done.send((there, ours)).ok();
        });
        let (there, ours) = notified
            .recv_timeout(std::time::Duration::from_secs(20))
            .unwrap();
        assert!(
            there,
            "the other end is open, whether or not it has notified"
        );
        drop(theirs);
        assert!(!ours.clear(), "the other end is closed");
    }
}
