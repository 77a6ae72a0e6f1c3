//! A link between two engines of one process that carries frames without their payload. Like one over RDMA it has memory of
//! its own, where all payloads lie in the same place, and wakes by a descriptor whoever sleeps.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use link::block::Block;
use link::header::Header;
use link::segment::{Segment, Writers};
use link::transport::{Error, Outgoing, Placing, Received, Transport};
use link::wake_fd::WakeFd;

use crate::frame::FencedFrame;

/// One direction.
#[derive(Debug)]
struct Direction {
    frames: Mutex<VecDeque<FencedFrame>>,
    /// Whether the receiver sleeps, on this.
    sleeps: AtomicBool,
    wakes: WakeFd,
}

impl Direction {
    fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            frames: Mutex::default(),
            sleeps: AtomicBool::new(false),
            wakes: WakeFd::new()?,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<FencedFrame>> {
        self.frames.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One end.
#[derive(Debug)]
pub(crate) struct HeaderLink {
    sends: Arc<Direction>,
    receives: Arc<Direction>,
    queued: VecDeque<FencedFrame>,
    /// Of payloads that were given to it.
    tokens: Vec<u64>,
    came: VecDeque<FencedFrame>,
    payload: Arc<Block>,
}

/// The two ends of one, for payloads of so many bytes at most.
pub(crate) fn pair(payload_bytes: u32) -> anyhow::Result<[HeaderLink; 2]> {
    let (there, back) = (Direction::new()?, Direction::new()?);
    let bytes = payload_bytes as usize;
    let payload = Segment::create("fireflyer-bench", bytes, Writers::Creator)?;
    let payload = Block::new(payload);
    let end = |sends: &Arc<Direction>, receives: &Arc<Direction>| HeaderLink {
        sends: Arc::clone(sends),
        receives: Arc::clone(receives),
        queued: VecDeque::new(),
        tokens: Vec::new(),
        came: VecDeque::new(),
        payload: Arc::clone(&payload),
    };
    Ok([end(&there, &back), end(&back, &there)])
}

impl HeaderLink {
    /// Takes what the other end has sent.
    fn fetch(&mut self) {
        if self.came.is_empty() {
            std::mem::swap(&mut self.came, &mut self.receives.lock());
        }
    }
}

impl Transport<FencedFrame> for HeaderLink {
    fn name(&self) -> &'static str {
        "headers"
    }

    fn push(&mut self, header: &FencedFrame, payload: Option<Outgoing>) -> Result<(), Error> {
        self.queued.push_back(*header);
        self.tokens.extend(payload.map(|payload| payload.token));
        Ok(())
    }

    fn flush(&mut self, left: &mut Vec<u64>) -> Result<(), Error> {
        left.append(&mut self.tokens);
        if !self.queued.is_empty() {
            self.sends.lock().append(&mut self.queued);
            if self.sends.sleeps.swap(false, Ordering::SeqCst) {
                self.sends.wakes.notify();
            }
        }
        Ok(())
    }

    fn queued(&self) -> usize {
        self.queued.len()
    }

    fn is_flushed(&self) -> bool {
        self.queued.is_empty()
    }

    fn receive(
        &mut self,
        _place: &mut Placing<'_, FencedFrame>,
    ) -> Result<Received<FencedFrame>, Error> {
        self.fetch();
        let Some(header) = self.came.pop_front() else {
            return Ok(Received::Nothing);
        };
        let bytes = header.payload_bytes() as usize;
        let payload = (bytes > 0).then(|| self.payload.read(0..bytes));
        Ok(Received::Frame(header, payload.transpose()?))
    }

    fn can_send(&self) -> bool {
        true
    }

    fn abandon(&mut self, left: &mut Vec<u64>) {
        left.append(&mut self.tokens);
    }

    fn take_traffic(&mut self) -> (u64, u64) {
        (0, 0)
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.receives.wakes.as_fd()
    }

    fn wake(&mut self) -> Result<(), Error> {
        self.receives.wakes.clear();
        Ok(())
    }

    fn is_polled(&self) -> bool {
        true
    }

    fn receives_in_place(&self) -> bool {
        true
    }

    fn has_more(&self) -> bool {
        !self.came.is_empty()
    }

    fn poll_received(&mut self) -> bool {
        self.fetch();
        self.has_more()
    }

    fn sleep(&mut self) -> Result<bool, Error> {
        self.receives.sleeps.store(true, Ordering::SeqCst);
        self.fetch();
        Ok(!self.has_more())
    }
}
