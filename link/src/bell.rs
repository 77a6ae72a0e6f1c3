//! A descriptor that one side rings and the other polls: for who has to wait for sockets in the same call. Where both look at
//! shared memory, a `doorbell` costs half as much.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Rings that are forgotten in one call.
const RINGS: usize = 64;

/// Wakes whoever polls it. Ringing and clearing never wait.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// A bell between threads of one process: an eventfd.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(rustix::event::eventfd(0, flags)?))
    }

    /// The two ends of a bell between processes: what is rung at one is heard at the other. An eventfd
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

    /// Rings. A bell that is full of rings rings already.
    pub fn ring(&self) {
        rustix::io::write(&self.0, &1u64.to_ne_bytes()).ok();
    }

    /// Forgets the rings so far, or some of them: then it goes on ringing. False when the other end is
    /// closed, so that polling it makes no sense any more.
    pub fn clear(&self) -> bool {
        let rings = rustix::io::read(&self.0, &mut [0u8; 8 * RINGS]);
        !matches!(rings, Ok(0) | Err(Errno::CONNRESET))
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn an_end_of_a_bell_never_waits_whatever_the_other_does_to_its_own() {
        let (ours, theirs) = Bell::pair().unwrap();
        rustix::fs::fcntl_setfl(&theirs, rustix::fs::OFlags::empty()).unwrap();
        // Were it a counter, it would be full now.
        rustix::io::write(&theirs, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (done, rung) = std::sync::mpsc::channel();
        thread::spawn(move || {
            // More than any buffer holds, and nobody reads.
            (0..10_000).for_each(|_| ours.ring());
            let there = ours.clear() && ours.clear();
            done.send((there, ours)).ok();
        });
        let (there, ours) = rung
            .recv_timeout(std::time::Duration::from_secs(20))
            .unwrap();
        assert!(there, "the other end is open, whether or not it has rung");
        drop(theirs);
        assert!(!ours.clear(), "the other end is closed");
    }
}
