//! Threads beside the engine that add and copy, so that its own is free for what others wait for: frames, heartbeats and
//! calls. Owns the threads, their queue and what comes back; what is computed, and in which order it is begun, is the
//! engine's business. A piece of work has borrowed all the memory that it reads and writes, so nobody else is given any of
//! it before the piece is done, whatever happens to its operation, its process or its epoch.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use collective::kernels::{self, Store};
use collective::machine::Ticket;
use collective::numerics::Arithmetic;
use link::block::{Reading, Writing};
use link::event_count::{EventCount, WaitOn, WakeFor};
use tracing::{info, warn};

use crate::background::Before;
use crate::stop::Stop;

/// Threads where nothing says how many: with twelve the sums of eight ranks need what an adapter of 100 Gbit/s brings, and
/// no trainer's processors are taken for more.
const DEFAULT_LIMIT: usize = 12;
/// Most threads: so many processors has no machine that this is for.
pub const THREAD_LIMIT: i64 = 1024;
/// Pieces of work that a thread has or that wait for it: it computes one, and the others last while the engine reads what a
/// link has brought. What is more urgent waits for all of these.
const PIECES_OF_A_THREAD: usize = 4;
/// A thread that is given a piece of work this soon after the last one had it waiting.
const NEXT: Duration = Duration::from_micros(50);
/// Work that moves fewer bytes stays on the engine's thread. There and back costs 12 us: an all-reduce of eight ranks that
/// is one piece took 60 to 86 us on the engine's thread and 71 to 95 us on another, for 72 KiB to 2.3 MiB moved, and as long
/// for 4.5 MiB (best of 600, EPYC, two processors). Two threads gained from 0.3 MiB on where 46 pieces were there at once.
/// This is between the two, and below what a chunk of half a MiB moves.
const FROM_BYTES: u64 = 1 << 20;

/// How work is divided between the engine and threads beside it.
#[derive(Clone, Debug)]
pub struct WorkerOptions {
    /// Threads. With fewer than two the engine does all by itself. By default as many as there are processors for them.
    pub threads: Option<usize>,
    /// Work that moves fewer bytes, read and written, stays with the engine.
    pub from_bytes: u64,
    /// What is done before each piece of work: nothing, but in tests that make it slow.
    pub before: Before,
    /// Bytes a second that each thread would move. It computes nothing then and takes only the time: for a bench of the
    /// engine's own thread.
    pub pace: Option<f64>,
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            threads: None,
            from_bytes: FROM_BYTES,
            before: Before::default(),
            pace: None,
        }
    }
}

/// What a piece of work is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Task {
    /// An effect of the machine.
    Effect(Ticket),
    /// A payload that a link has brought, by its number.
    Inbound(u64),
}

impl WorkerOptions {
    /// Threads that compute: at least one, which may be the engine's own.
    pub(crate) fn count(&self) -> usize {
        self.threads.unwrap_or_else(processors).max(1)
    }
}

/// A piece of work, with all the memory that it needs.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) into: Writing,
    pub(crate) from: Vec<Reading>,
    pub(crate) how: How,
}

/// The operation on what is read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum How {
    /// It is added up. So many of those that are read are elements, the rest partials.
    Combine(Arithmetic, usize),
    /// The only one is copied; it is as long as what is written.
    Copy,
}

impl Work {
    fn moved_bytes(&self) -> u64 {
        let read: usize = self.from.iter().map(|bytes| bytes.len()).sum();
        (read + self.into.len()) as u64
    }

    /// Does it, and lets go of the memory.
    pub(crate) fn run(mut self) {
        match self.how {
            How::Combine(arithmetic, elements) => {
                let slices: Vec<&[u8]> = self.from.iter().map(|bytes| &**bytes).collect();
                let (elements, partials) = slices.split_at(elements.min(slices.len()));
                kernels::combine(
                    arithmetic,
                    &mut self.into,
                    elements,
                    partials,
                    Store::Cached,
                );
            }
            How::Copy => {
                for from in &self.from {
                    self.into.copy_from_slice(from);
                }
            }
        }
    }
}

/// A thread has panicked: what it was doing will not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a thread that computes has panicked: the panic is in the log")]
pub struct WorkerPanicked;

/// The threads. They start with the first piece of work that is for them, so they run where the engine does, and end with
/// the value.
#[derive(Debug)]
pub(crate) struct Workers {
    options: WorkerOptions,
    /// None: not started yet.
    threads: Option<Vec<JoinHandle<()>>>,
    shared: Arc<Shared>,
    /// Pieces that were handed over and are not taken back.
    out: usize,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is work, or no more will come.
    comes: Condvar,
    /// The engine sleeps on it, or on this descriptor.
    engine: AtomicU32,
    wakes: Stop,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(Task, Work)>,
    finished: Vec<Task>,
    panicked: bool,
    is_over: bool,
}

impl Workers {
    /// The wake descriptor of `wakes` wakes the engine when something is done.
    pub(crate) fn new(options: WorkerOptions, wakes: Stop) -> Self {
        Self {
            options,
            threads: None,
            shared: Arc::new(Shared {
                state: Mutex::default(),
                comes: Condvar::new(),
                engine: AtomicU32::new(0),
                wakes,
            }),
            out: 0,
        }
    }

    /// Hands over a piece of work. It comes back if the engine has to do it: it is small, or there are no threads. Not to
    /// be called while [`Self::are_busy`].
    pub(crate) fn hand_over(&mut self, task: Task, work: Work) -> Option<Work> {
        if !self.take(&work) {
            return Some(work);
        }
        self.out += 1;
        self.shared.lock().waiting.push_back((task, work));
        self.shared.comes.notify_one();
        None
    }

    /// Whether a piece of work is for them.
    pub(crate) fn take(&mut self, work: &Work) -> bool {
        work.moved_bytes() >= self.options.from_bytes && self.start() > 0
    }

    /// Whether they have all the work that they may have.
    pub(crate) fn are_busy(&self) -> bool {
        let threads = self.threads.as_ref().map_or(0, Vec::len);
        threads > 0 && self.out >= threads * PIECES_OF_A_THREAD
    }

    /// Whether something was handed over that is not taken back.
    pub(crate) const fn have_work(&self) -> bool {
        self.out > 0
    }

    /// Whether something is done that was not taken back.
    fn have_finished(&self) -> bool {
        self.out > 0 && !self.shared.lock().finished.is_empty()
    }

    /// What is done since the last time.
    pub(crate) fn take_finished(&mut self) -> Result<Vec<Task>, WorkerPanicked> {
        if self.out == 0 {
            return Ok(Vec::new());
        }
        let mut state = self.shared.lock();
        if state.panicked {
            return Err(WorkerPanicked);
        }
        let finished = std::mem::take(&mut state.finished);
        self.out -= finished.len();
        Ok(finished)
    }

    /// Announces that the engine is about to sleep. False when something is done.
    pub(crate) fn sleep(&self, how: WaitOn) -> bool {
        self.event_count().prepare_wait(how, WakeFor::Anything);
        !self.have_finished()
    }

    /// Where the engine sleeps until something is done.
    pub(crate) fn event_count(&self) -> EventCount<'_> {
        EventCount::of(&self.shared.engine)
    }

    /// Starts the threads, if that is still to be done. How many there are.
    fn start(&mut self) -> usize {
        let Self {
            options, shared, ..
        } = self;
        let threads = self.threads.get_or_insert_with(|| {
            let wanted = options.threads.unwrap_or_else(processors);
            let wanted = if wanted < 2 { 0 } else { wanted };
            let spawn = |number| {
                let (shared, before) = (Arc::clone(shared), options.before.clone());
                let pace = options.pace.map(Pace::new);
                let named = thread::Builder::new().name(format!("worker-{number}"));
                let spawned = named.spawn(move || shared.work((before, pace), wanted));
                spawned
                    .inspect_err(|error| warn!(%error, number, "failed to start a worker"))
                    .ok()
            };
            let threads: Vec<_> = (0..wanted).map_while(spawn).collect();
            info!(threads = threads.len(), "workers beside the engine");
            threads
        });
        threads.len()
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        let unfinished = std::mem::take(&mut state.waiting);
        drop(state);
        drop(unfinished);
        self.shared.comes.notify_all();
        for thread in self.threads.take().into_iter().flatten() {
            // Its panic is in the log.
            thread.join().ok();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if EventCount::of(&self.engine).notify() {
            self.wakes.wake_fd().notify();
        }
    }

    /// What a thread does until no more work will come.
    fn work(&self, (before, mut pace): (Before, Option<Pace>), threads: usize) {
        while let Some((task, work)) = self.next() {
            let panics = Panics(self);
            before.run();
            match &mut pace {
                None => work.run(),
                Some(pace) => pace.wait_for(work),
            }
            drop(panics);
            let mut state = self.lock();
            state.finished.push(task);
            let backlog = state.waiting.len();
            drop(state);
            if backlog <= threads {
                self.wake();
            }
        }
    }

    fn next(&self) -> Option<(Task, Work)> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(next) = state.waiting.pop_front() {
                return Some(next);
            }
            let woken = self.comes.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Takes the time of a thread that computes.
#[derive(Debug)]
struct Pace {
    bytes_per_second: f64,
    /// When it has done what it had so far, and when it woke up after that.
    done: Instant,
    awake: Instant,
}

impl Pace {
    fn new(bytes_per_second: f64) -> Self {
        let now = Instant::now();
        Self {
            bytes_per_second,
            done: now,
            awake: now,
        }
    }

    fn wait_for(&mut self, work: Work) {
        let time = work.moved_bytes() as f64 / self.bytes_per_second;
        let now = Instant::now();
        // It always wakes up too late, and what waits is begun then as if it had not.
        let is_next = now.saturating_duration_since(self.awake) < NEXT;
        let begun = if is_next { self.done } else { now };
        self.done = begun + Duration::from_secs_f64(time);
        thread::sleep(self.done.saturating_duration_since(now));
        self.awake = Instant::now();
        drop(work);
    }
}

/// Notes that the thread panics, if it does while this is there.
struct Panics<'a>(&'a Shared);

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().panicked = true;
            self.0.wake();
        }
    }
}

/// How many threads may run at once here: as the affinity and the cgroup say.
pub(crate) fn processors() -> usize {
    processors_of_each(1)
}

/// As many for each of some nodes that share this machine.
pub(crate) fn processors_of_each(nodes: usize) -> usize {
    let processors = thread::available_parallelism().map_or(1, usize::from);
    (processors / nodes).clamp(1, DEFAULT_LIMIT)
}

#[cfg(test)]
mod tests {
    use collective::numerics::Form;
    use collective::{DType, ReduceOp, Scale};
    use link::block::Block;
    use link::segment::{Segment, Writers};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);
    /// Of what is copied.
    const BYTES: usize = 64;

    fn block() -> Arc<Block> {
        Block::new(Segment::create("test", 1 << 16, Writers::Creator).unwrap())
    }

    fn workers(threads: usize, before: Before) -> Workers {
        let options = WorkerOptions {
            threads: Some(threads),
            from_bytes: 2 * BYTES as u64,
            before,
            pace: None,
        };
        Workers::new(options, Stop::new().unwrap())
    }

    /// Threads that begin a piece of work only when they are allowed to, and say that they have one.
    fn held(threads: usize) -> (Workers, Sender<()>, Receiver<()>) {
        let (allow, allowed) = channel::<()>();
        let (takes, taken) = channel();
        let allowed = Mutex::new(allowed);
        let before = Before::call(move || {
            takes.send(()).ok();
            allowed.lock().unwrap().recv().ok();
        });
        (workers(threads, before), allow, taken)
    }

    /// Copies the first bytes to a place behind them.
    fn copy(block: &Arc<Block>, place: usize) -> Work {
        let at = (place + 1) * BYTES;
        Work {
            into: block.write(at..at + BYTES).unwrap(),
            from: vec![block.read(0..BYTES).unwrap()],
            how: How::Copy,
        }
    }

    /// What is done, when there are so many.
    fn take(workers: &mut Workers, count: usize) -> Vec<Task> {
        let (mut all, start) = (Vec::new(), Instant::now());
        while all.len() < count {
            let finished = workers.take_finished().unwrap();
            all.extend(finished);
            assert!(start.elapsed() < PATIENCE, "waited too long");
            thread::yield_now();
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn each_piece_of_work_is_done_once_and_as_the_engine_would_do_it() {
        let block = block();
        block.write(0..BYTES).unwrap().fill(7);
        let mut workers = workers(2, Before::default());
        for place in 0..5 {
            assert!(
                workers
                    .hand_over(Task::Inbound(place as u64), copy(&block, place))
                    .is_none()
            );
        }
        let arithmetic = Arithmetic {
            dtype: DType::U8,
            op: ReduceOp::Sum,
            scale: Scale::Not,
            form: Form::Elements,
        };
        let sum = Work {
            into: block.write(4096..4096 + BYTES).unwrap(),
            from: vec![block.read(0..BYTES).unwrap(), block.read(0..BYTES).unwrap()],
            how: How::Combine(arithmetic, 2),
        };
        let ticket = Ticket(0);
        assert!(workers.hand_over(Task::Effect(ticket), sum).is_none());
        let copies = (0..5).map(Task::Inbound);
        let all: Vec<Task> = [Task::Effect(ticket)].into_iter().chain(copies).collect();
        assert_eq!(take(&mut workers, 6), all);
        assert!(
            block
                .read(0..6 * BYTES)
                .unwrap()
                .iter()
                .all(|one| *one == 7)
        );
        let sum = block.read(4096..4096 + BYTES).unwrap();
        assert!(sum.iter().all(|one| *one == 14));
        block.write(0..4096).unwrap();
    }

    #[test]
    fn the_engine_does_what_is_small_and_all_where_it_would_be_the_only_thread_that_computes() {
        let block = block();
        for threads in [0, 1] {
            let mut alone = workers(threads, Before::default());
            assert!(alone.hand_over(Task::Inbound(0), copy(&block, 0)).is_some());
            assert!(!alone.are_busy());
        }
        let small = Work {
            into: block.write(BYTES..2 * BYTES - 1).unwrap(),
            from: vec![block.read(0..BYTES - 1).unwrap()],
            how: How::Copy,
        };
        let mut workers = workers(2, Before::default());
        assert!(workers.hand_over(Task::Inbound(0), small).is_some());
    }

    #[test]
    fn workers_have_no_more_than_they_may_have() {
        let block = block();
        let (mut workers, allow, _taken) = held(2);
        let mut given = 0;
        while !workers.are_busy() {
            assert!(
                workers
                    .hand_over(Task::Inbound(given as u64), copy(&block, given))
                    .is_none()
            );
            given += 1;
        }
        assert_eq!(given, 2 * PIECES_OF_A_THREAD);
        allow.send(()).unwrap();
        take(&mut workers, 1);
        assert!(!workers.are_busy());
        drop(allow);
    }

    #[test]
    fn who_sleeps_is_woken_for_the_last_piece() {
        let block = block();
        let (mut workers, allow, _taken) = held(2);
        assert!(
            workers
                .hand_over(Task::Inbound(0), copy(&block, 0))
                .is_none()
        );
        assert!(workers.sleep(WaitOn::Futex));
        allow.send(()).unwrap();
        let start = Instant::now();
        workers.event_count().wait(PATIENCE);
        assert!(start.elapsed() < PATIENCE);
        assert!(workers.have_finished() && !workers.sleep(WaitOn::Futex));
        take(&mut workers, 1);
        drop(allow);
    }

    // What is under way has borrowed its memory until the threads have ended.
    #[test]
    fn nothing_is_read_or_written_when_the_workers_are_gone() {
        let block = block();
        let (mut workers, allow, taken) = held(2);
        for place in 0..5 {
            assert!(
                workers
                    .hand_over(Task::Inbound(place as u64), copy(&block, place))
                    .is_none()
            );
        }
        assert!(block.write(0..BYTES).is_err());
        taken.recv_timeout(PATIENCE).unwrap();
        let (ended, end) = channel();
        let dropped = thread::spawn(move || {
            drop(workers);
            ended.send(()).unwrap();
        });
        let early = end.recv_timeout(Duration::from_millis(100));
        early.expect_err("threads still read and write");
        drop(allow);
        end.recv_timeout(PATIENCE).unwrap();
        dropped.join().unwrap();
        block.write(0..block.len()).unwrap();
    }

    #[test]
    fn a_panic_of_a_worker_is_an_error_and_not_silence() {
        let block = block();
        let mut workers = workers(2, Before::call(|| panic!("as the test wants it")));
        assert!(
            workers
                .hand_over(Task::Inbound(0), copy(&block, 0))
                .is_none()
        );
        let start = Instant::now();
        while workers.take_finished() == Ok(Vec::new()) {
            assert!(start.elapsed() < PATIENCE, "waited too long");
            thread::yield_now();
        }
        assert_eq!(workers.take_finished(), Err(WorkerPanicked));
    }
}
