//! The request to leave, from whoever hears of it first to those who poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use link::bell::Bell;

/// Asks a running engine to leave.
#[derive(Clone, Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    bell: Arc<Bell>,
}

impl Stop {
    /// A request that nobody made yet.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            asked: Arc::default(),
            bell: Arc::new(Bell::new()?),
        })
    }

    /// Asks: farewells are said, then the engine ends.
    pub fn stop(&self) {
        self.asked.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Whether somebody asked.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Rings when somebody asks, for threads that poll.
    pub fn bell(&self) -> &Bell {
        &self.bell
    }
}
