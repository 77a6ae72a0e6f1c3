//! The request to leave, from the first that gets it to those who poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use link::wake_fd::WakeFd;

/// Asks a running engine to leave.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    wake_fd: Arc<WakeFd>,
}

impl Stop {
    /// A request that nobody made yet.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            asked: Arc::default(),
            wake_fd: Arc::new(WakeFd::new()?),
        })
    }

    /// Asks: farewells are said, then the engine ends.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        self.wake_fd.notify();
    }

    /// Whether somebody asked.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Notified when somebody asks, for threads that poll.
    pub fn wake_fd(&self) -> &WakeFd {
        &self.wake_fd
    }

    /// The same, for others who want to wake those threads.
    pub(crate) fn wake_fd_handle(&self) -> Arc<WakeFd> {
        Arc::clone(&self.wake_fd)
    }
}
