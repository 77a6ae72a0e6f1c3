//! Completions: what became of requests, in the order in which a device finished them. Owns the queue, the descriptor
//! that becomes readable when there is something, and the words for what can go wrong.

use std::ffi::c_int;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::abi;
use super::{DeviceContext, Error};

/// Completions that are taken from the library at once.
const BATCH: usize = 16;

/// What a request was, now that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// A write of ours has arrived.
    Write,
    /// A write of the peer's has arrived, and said this number.
    Received(u32),
    /// The request failed, or is one that we never make.
    Other,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionStatus(pub(super) u32);

impl CompletionStatus {
    /// Whether it ended well.
    pub fn is_success(self) -> bool {
        self.0 == 0
    }

    /// Whether it was given up because the connection had failed before.
    pub fn is_flushed(self) -> bool {
        self.0 == 5
    }
}

impl fmt::Display for CompletionStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "success",
            1 => "a message was longer than the memory for it",
            2 => "the device could not carry out a request",
            4 => "the device may not use the memory of a request",
            5 => "given up after the connection had failed",
            7 => "the peer sent an answer that makes no sense",
            8 => "the peer wrote where it may not, on this side",
            9 => "the peer's device refused a request as invalid",
            10 => "the peer's device refused access to its memory",
            11 => "the peer's device could not carry out a request",
            12 => "the peer does not answer: it is gone, or the link is down",
            13 => "the peer has no receive request for what is sent",
            16 => "the peer gave up the request",
            19 => "the device failed",
            20 => "the peer did not answer in time",
            21 => "the device reports an error of its own",
            _ => return write!(f, "work completion status {}", self.0),
        })
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedWork {
    /// What the request was called.
    pub id: u64,
    /// The queue pair it was posted to.
    pub pair: u32,
    /// How it ended.
    pub status: CompletionStatus,
    /// What it was.
    pub done: Done,
    /// Bytes that the peer wrote, for what was received.
    pub bytes: u32,
    /// The device's own word for a failure.
    pub vendor: u32,
}

/// A queue of completions with a descriptor to wait for them.
#[derive(Debug)]
pub struct CompletionQueue {
    context: Arc<DeviceContext>,
    channel: NonNull<abi::IbvChannel>,
    pub(super) raw: NonNull<abi::IbvCompletionQueue>,
}

// SAFETY: the library may be called from any thread, and locks what it has to.
#[expect(unsafe_code, reason = "queues may move between threads")]
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "queues may be shared between threads")]
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue for at least so many completions that nobody has looked at.
    #[expect(unsafe_code, reason = "calls into the library")]
    pub fn new(context: &Arc<DeviceContext>, depth: u32) -> Result<Arc<Self>, Error> {
        let library = &context.library;
        // SAFETY: the device is open.
        let channel = unsafe { (library.create_channel)(context.raw.as_ptr()) };
        let channel =
            NonNull::new(channel).ok_or_else(|| Error::last("make a completion channel"))?;
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: device and channel are live; the queue's own pointer is not used.
        let raw = unsafe {
            let nothing = std::ptr::null_mut();
            (library.create_queue)(context.raw.as_ptr(), depth, nothing, channel.as_ptr(), 0)
        };
        let Some(raw) = NonNull::new(raw) else {
            let error = Error::last("make a completion queue");
            // SAFETY: the channel is live, and no queue uses it.
            unsafe { (library.destroy_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Self {
            context: Arc::clone(context),
            channel,
            raw,
        };
        // Looking for events must not wait for them.
        rustix::io::ioctl_fionbio(queue.as_fd(), true)
            .map_err(|errno| Error::call("make a completion channel wait-free", errno.into()))?;
        Ok(Arc::new(queue))
    }

    /// Makes the descriptor readable at the next completion. One that came before this call does not count: poll
    /// again afterwards, before sleeping.
    #[expect(unsafe_code, reason = "a call into the library")]
    pub fn arm(&self) -> Result<(), Error> {
        self.quiet();
        // SAFETY: the queue is live, and its device was opened by a provider that filled in the table.
        let status = unsafe {
            let ops = &self.context.raw.as_ref().ops;
            ops.req_notify_cq.map(|notify| notify(self.raw.as_ptr(), 0))
        };
        Error::check("wait for completions", status.unwrap_or(-1))
    }

    /// Takes the events that make the descriptor readable.
    #[expect(unsafe_code, reason = "calls into the library")]
    pub fn quiet(&self) {
        let (mut queue, mut nothing) = (std::ptr::null_mut(), std::ptr::null_mut());
        let mut events = 0;
        // SAFETY: the channel is live, its descriptor does not block, and both pointers are filled in.
        while unsafe {
            let channel = self.channel.as_ptr();
            (self.context.library.get_event)(channel, &raw mut queue, &raw mut nothing)
        } == 0
        {
            events += 1;
        }
        if events > 0 {
            // SAFETY: as many events as were got are acknowledged; destroying the queue would wait for others.
            unsafe { (self.context.library.ack_events)(self.raw.as_ptr(), events) };
        }
    }

    /// Takes what has completed.
    #[expect(unsafe_code, reason = "calls into the library")]
    pub fn poll(&self, into: &mut Vec<FinishedWork>) -> Result<(), Error> {
        // SAFETY: structures of numbers, of which zero is a valid value.
        let mut batch: [abi::WorkCompletion; BATCH] = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: the queue is live, and there is room for as many as the library gets.
            let found = unsafe {
                let ops = &self.context.raw.as_ref().ops;
                ops.poll_cq
                    .map(|poll| poll(self.raw.as_ptr(), BATCH as c_int, batch.as_mut_ptr()))
            };
            let Ok(found) = usize::try_from(found.unwrap_or(-1)) else {
                let broken = io::Error::other("its completion queue has overrun or is broken");
                return Err(Error::call("poll the RDMA device", broken));
            };
            into.extend(batch.iter().take(found).map(FinishedWork::new));
            if found < BATCH {
                return Ok(());
            }
        }
    }
}

impl AsFd for CompletionQueue {
    #[expect(unsafe_code, reason = "a descriptor of the library's")]
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live, and its descriptor open, as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }
}

impl Drop for CompletionQueue {
    #[expect(unsafe_code, reason = "calls into the library")]
    fn drop(&mut self) {
        let library = &self.context.library;
        // SAFETY: made by the library and freed once, the queue before its channel; queue pairs hold an `Arc` and
        // are gone, and every event was acknowledged when it was taken.
        unsafe {
            (library.destroy_queue)(self.raw.as_ptr());
            (library.destroy_channel)(self.channel.as_ptr());
        }
    }
}

impl FinishedWork {
    fn new(raw: &abi::WorkCompletion) -> Self {
        let status = CompletionStatus(raw.status);
        // Of a failed request only these fields mean anything.
        let done = match raw.opcode {
            _ if !status.is_success() => Done::Other,
            abi::COMPLETED_WRITE => Done::Write,
            abi::COMPLETED_RECEIVE_WITH_IMM => Done::Received(u32::from_be(raw.imm_data)),
            _ => Done::Other,
        };
        Self {
            id: raw.wr_id,
            pair: raw.qp_num,
            status,
            done,
            bytes: raw.byte_len,
            vendor: raw.vendor_err,
        }
    }
}
