//! Memory that client and sidecar share: input buffers that the sidecar reads, and results that it wrote.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{Error, NO_SEGMENT, Shared};
use crate::attach::Members;
use crate::cuda::{self, CudaDevice, RegisteredOnce};
use link::cow_result::CowResult;
use link::segment::{self, Segment, SegmentView};

/// A result's segment, mapped for reading.
#[derive(Debug)]
pub(super) struct Mapped {
    /// Before the memory.
    registration: RegisteredOnce,
    view: SegmentView,
}

impl Mapped {
    pub(super) fn open(fd: &OwnedFd, bytes: usize) -> Result<Self, segment::Error> {
        Ok(Self {
            registration: RegisteredOnce::default(),
            view: SegmentView::open(fd, bytes)?,
        })
    }

    /// Lets a GPU copy from it.
    fn register(&self, device: &Arc<CudaDevice>) -> Result<(), cuda::Error> {
        let place = (self.view.start(), self.view.len());
        self.registration.register(device, place, true)
    }
}

impl Deref for Mapped {
    type Target = SegmentView;

    fn deref(&self) -> &SegmentView {
        &self.view
    }
}

/// A segment of the sidecar's for inputs.
#[derive(Debug)]
pub(super) struct InputSegment {
    pub(super) number: u32,
    pub(super) segment: Segment,
}

/// Memory for an input. It starts at a page; dropping it keeps it for the next buffer of its size.
#[derive(Debug)]
pub struct InputBuffer {
    shared: Arc<Shared>,
    /// Empty only while it is being dropped.
    inputs: Option<InputSegment>,
    bytes: usize,
}

impl InputBuffer {
    pub(super) fn new(shared: Arc<Shared>, input: InputSegment, bytes: usize) -> Self {
        Self {
            shared,
            inputs: Some(input),
            bytes,
        }
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }

    pub(super) fn number(&self) -> u32 {
        self.inputs
            .as_ref()
            .map_or(NO_SEGMENT, |input| input.number)
    }

    /// The segment and the bytes in use: what an operation in flight keeps.
    pub(super) fn into_segment(mut self) -> Option<(InputSegment, usize)> {
        self.inputs.take().map(|input| (input, self.bytes))
    }
}

impl Deref for InputBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.inputs
            .as_ref()
            .map_or(&[], |input| &input.segment.bytes()[..self.bytes])
    }
}

impl DerefMut for InputBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.inputs.as_mut().map_or(&mut [], |input| {
            &mut input.segment.bytes_mut()[..self.bytes]
        })
    }
}

impl Drop for InputBuffer {
    fn drop(&mut self) {
        if let Some(input) = self.inputs.take()
            && let Ok(mut state) = self.shared.lock()
        {
            state.keep_idle(input);
        }
    }
}

/// What an operation left: its result, and its input.
#[derive(Debug)]
pub struct Output {
    /// The result.
    pub result: ResultView,
    /// The input, to be filled again.
    pub input: Option<InputBuffer>,
    /// Who took part: what an average was divided by.
    pub members: Arc<Members>,
}

/// The result of an operation, read where the sidecar wrote it. Dropping it lets the sidecar use the
/// memory again, so drop it soon: a later call may wait for it, on every rank.
#[derive(Debug)]
pub struct ResultView {
    shared: Arc<Shared>,
    ticket: u64,
    /// Which sidecar has made it.
    life: u64,
    view: Option<Arc<Mapped>>,
    bytes: usize,
    drafted: bool,
    held: bool,
}

impl ResultView {
    pub(super) fn new(
        shared: Arc<Shared>,
        (ticket, life): (u64, u64),
        view: Option<Arc<Mapped>>,
        bytes: usize,
    ) -> Self {
        Self {
            shared,
            ticket,
            life,
            view,
            bytes,
            drafted: false,
            held: true,
        }
    }

    /// Where a copy of the result begins that this process may write to, in whole; the result and what others read
    /// stay as they are. It is a copy only of the pages that are written. The address is good until this is dropped,
    /// its content until [`ResultView::release`]. None for a result without bytes.
    pub fn draft(&mut self) -> Result<Option<NonNull<u8>>, Error> {
        let Some(view) = &self.view else {
            return Ok(None);
        };
        let start = view.draft()?.start();
        self.drafted = true;
        Ok(Some(start))
    }

    /// Lets a GPU copy from it. False for a result without bytes.
    pub(crate) fn register(&self, device: &Arc<CudaDevice>) -> Result<bool, cuda::Error> {
        self.view
            .as_ref()
            .map_or(Ok(false), |view| view.register(device).map(|()| true))
    }

    /// Lets the sidecar use the memory again: from now on any content may appear in it. Says whether the draft is known
    /// to have been written to.
    pub fn release(&mut self) -> bool {
        if !std::mem::replace(&mut self.held, false) {
            return false;
        }
        let Ok(mut state) = self.shared.lock() else {
            return false; // In a forked child, whose pages are no business of the sidecar's.
        };
        let mut written = false;
        if self.drafted
            && let Some(view) = &self.view
        {
            match view.draft().and_then(CowResult::revert) {
                Ok(was) => written = was,
                Err(error) => {
                    // It would hide the next result.
                    state.lose(error.to_string());
                }
            }
        }
        if state.release(self.ticket, self.life) {
            let link = state.link();
            drop(state);
            link.wake_fd.notify();
        }
        written
    }
}

impl Deref for ResultView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.view
            .as_ref()
            .map_or(&[], |view| &view.bytes()[..self.bytes])
    }
}

impl Drop for ResultView {
    fn drop(&mut self) {
        self.release();
    }
}
