//! How the engine sleeps. A node with tree peers sleeps on descriptors: their sockets and the wake descriptors of its processes. One
//! without sleeps on words of the memory that it shares with its processes, which costs half as much, and a thread of its
//! own watches the descriptors meanwhile: they only signal that processes come and go.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use link::event_count::{EventCount, WAIT_LIMIT, WaitOn, WakeFor};
use link::ring::WaitSlot;
use rustix::event::{PollFd, PollFlags, Timespec, epoll};

/// How often the watching thread looks whether it is still needed.
const LOOK: Duration = Duration::from_secs(1);

/// Everything that the engine may sleep on.
#[derive(Debug)]
pub(super) struct Poller {
    poll: Arc<OwnedFd>,
    watcher: Option<Watcher>,
}

/// The thread that watches descriptors while the engine sleeps on words.
#[derive(Debug)]
struct Watcher(Arc<Watched>);

#[derive(Debug, Default)]
struct Watched {
    /// Notified when a descriptor is ready.
    engine: AtomicU32,
    /// Notified when the engine has looked.
    thread: AtomicU32,
    /// Some are ready that the engine has not looked at.
    ready: AtomicBool,
    over: AtomicBool,
}

impl Poller {
    pub(super) fn new() -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self {
            poll: Arc::new(poll),
            watcher: None,
        })
    }

    /// From here on the engine sleeps on words, where the kernel can.
    pub(super) fn use_words(&mut self) -> io::Result<()> {
        let probe = AtomicU32::new(0);
        if !EventCount::wait_any(&[EventCount::of(&probe)], Duration::ZERO) {
            return Ok(());
        }
        let watched = Arc::new(Watched::default());
        let (poll, ours) = (Arc::clone(&self.poll), Arc::clone(&watched));
        thread::Builder::new()
            .name("watch".to_owned())
            .spawn(move || ours.watch(&poll))?;
        self.watcher = Some(Watcher(watched));
        Ok(())
    }

    /// How those who wake the engine have to do it.
    pub(super) fn how(&self) -> WaitOn {
        match self.watcher {
            Some(_) => WaitOn::Futex,
            None => WaitOn::WakeFd,
        }
    }

    /// Wakes the engine with this token when a descriptor has something to say.
    pub(super) fn watch(&self, source: &impl AsFd, token: u64) -> rustix::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        epoll::add(&*self.poll, source, data, epoll::EventFlags::IN)
    }

    /// The same also when it takes something again, or not any more.
    pub(super) fn watch_room(&self, source: impl AsFd, token: u64, room: bool) {
        let mut flags = epoll::EventFlags::IN;
        flags.set(epoll::EventFlags::OUT, room);
        let data = epoll::EventData::new_u64(token);
        epoll::modify(&*self.poll, source, data, flags).ok();
    }

    /// A descriptor wakes the engine no more. Closing does not do it where the other side holds the same open file.
    pub(super) fn forget(&self, source: impl AsFd) {
        epoll::delete(&*self.poll, source).ok();
    }

    /// Looks at the descriptors without sleeping, where that is not for nothing.
    pub(super) fn look(&self, events: &mut Vec<epoll::Event>) -> rustix::io::Result<()> {
        let Some(Watcher(watched)) = &self.watcher else {
            return self.wait(events, Duration::ZERO);
        };
        if !watched.ready.load(Ordering::Acquire) {
            return Ok(());
        }
        self.wait(events, Duration::ZERO)
    }

    /// The engine has dealt with the descriptors that were ready.
    pub(super) fn looked(&self) {
        if let Some(Watcher(watched)) = &self.watcher
            && watched.ready.swap(false, Ordering::AcqRel)
        {
            let _ = EventCount::of(&watched.thread).notify();
        }
    }

    /// Sleeps until something happens, at most for `limit`. On words: those of `workers` and `wait_slots`, on which the
    /// engine has prepared to wait.
    pub(super) fn sleep(
        &self,
        workers: EventCount<'_>,
        wait_slots: impl Iterator<Item = WaitSlot>,
        events: &mut Vec<epoll::Event>,
        limit: Duration,
    ) -> rustix::io::Result<()> {
        let Some(Watcher(watched)) = &self.watcher else {
            // Rounded up, since the kernel may count in milliseconds and waking up early means spinning.
            return self.wait(events, limit + Duration::from_millis(1));
        };
        let own = EventCount::of(&watched.engine);
        own.prepare_wait(WaitOn::Futex, WakeFor::Anything);
        if !watched.ready.load(Ordering::SeqCst) {
            let wait_slots: Vec<WaitSlot> = wait_slots.take(WAIT_LIMIT - 2).collect();
            let others = wait_slots.iter().map(WaitSlot::event_count);
            let event_counts: Vec<EventCount<'_>> =
                [own, workers].into_iter().chain(others).collect();
            let _ = EventCount::wait_any(&event_counts, limit);
        }
        own.cancel_wait();
        self.look(events)
    }

    fn wait(&self, events: &mut Vec<epoll::Event>, limit: Duration) -> rustix::io::Result<()> {
        let limit = Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        let capacity = rustix::buffer::spare_capacity(events);
        match epoll::wait(&*self.poll, capacity, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Watched {
    fn watch(&self, poll: &impl AsFd) {
        let look = Timespec {
            tv_sec: LOOK.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        while !self.over.load(Ordering::Acquire) {
            let mut fds = [PollFd::new(poll, PollFlags::IN)];
            let ready = rustix::event::poll(&mut fds, Some(&look));
            if !matches!(ready, Ok(1..)) {
                continue;
            }
            let own = EventCount::of(&self.thread);
            own.prepare_wait(WaitOn::Futex, WakeFor::Anything);
            self.ready.store(true, Ordering::SeqCst);
            let _ = EventCount::of(&self.engine).notify();
            while self.ready.load(Ordering::SeqCst) && !self.over.load(Ordering::Acquire) {
                own.wait(LOOK);
            }
            own.cancel_wait();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Release);
        let _ = EventCount::of(&self.0.thread).notify();
    }
}
