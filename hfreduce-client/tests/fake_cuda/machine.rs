//! The device behind the stand-in: its memory, and streams whose work runs late and in a drawn order. What the driver does
//! without being asked is here, too: the legacy default stream waits for others and they for it, and some functions wait for
//! the whole device.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use hfreduce_client::cuda::abi;

use crate::kernels::Kernel;
use crate::memory::Memory;

/// The only context.
pub(crate) const CONTEXT: usize = 0xC0DE;

/// The legacy default stream.
const DEFAULT: u64 = 0;

/// What a stream is given.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Write {
        target: u64,
        content: Vec<u8>,
    },
    Combine {
        kernel: Kernel,
        own: u64,
        into: u64,
        bytes: usize,
        scale: f32,
    },
    Fill {
        target: u64,
        bytes: usize,
        value: u8,
    },
    Move {
        source: u64,
        target: u64,
        bytes: usize,
    },
    ToHost {
        source: u64,
        target: usize,
        bytes: usize,
    },
    ToDevice {
        source: usize,
        target: u64,
        bytes: usize,
    },
    /// A record of an event, by its number.
    Record(u64),
    /// Nothing behind it runs before that record has come.
    Wait(u64),
}

#[derive(Debug, Default)]
pub(crate) struct Machine {
    random: u64,
    reads_only: bool,
    /// Whether the driver says that it takes memory which is mapped for reading and then refuses it.
    refuses: bool,
    /// Whether functions that may wait for the whole device do.
    synchronizes: bool,
    /// Which machine's devices these are, and how many there are: each second one is linked with the one before.
    node: u64,
    links: i32,
    pub(crate) memory: Memory,
    streams: BTreeMap<u64, VecDeque<Work>>,
    /// Streams that neither wait for the default stream nor are waited for.
    non_blocking: BTreeSet<u64>,
    capturing: BTreeSet<u64>,
    /// Of each event the last record; 0 for none.
    events: BTreeMap<u64, u64>,
    come: BTreeSet<u64>,
    registered: BTreeMap<usize, usize>,
    contexts: i64,
    next: u64,
    /// Threads that wait for the whole device.
    waiting: u64,
    /// How often each stream was made to wait for an event.
    waits: BTreeMap<u64, u64>,
}

thread_local! {
    static PUSHED: Cell<usize> = const { Cell::new(0) };
}

pub(crate) fn push() {
    PUSHED.set(PUSHED.get() + 1);
}

pub(crate) fn pop() {
    PUSHED.set(PUSHED.get().checked_sub(1).expect("nothing was pushed"));
}

/// Most of the driver's functions need a context.
pub(crate) fn assert_current() {
    assert!(PUSHED.get() > 0, "no context is current");
}

pub(crate) fn machine() -> MutexGuard<'static, Machine> {
    // Never freed: whoever loads the library leaves it loaded.
    static PLACE: OnceLock<Mutex<Machine>> = OnceLock::new();
    PLACE
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
}

/// Signalled when a kernel ends that a test has let end.
static ENDED: Condvar = Condvar::new();

/// Waits for the whole device where the driver always does, or where it may and a seed or a test says so.
pub(crate) fn synchronized(always: bool) -> MutexGuard<'static, Machine> {
    let mut machine = machine();
    if always || machine.synchronizes {
        machine.waiting += 1;
        while !machine.is_idle() {
            machine = ENDED.wait(machine).unwrap_or_else(PoisonError::into_inner);
        }
        machine.waiting -= 1;
    }
    machine
}

/// Lets a kernel end that was begun by [`Machine::spin`].
pub(crate) fn end(kernel: u64) {
    machine().come.insert(kernel);
    ENDED.notify_all();
}

impl Machine {
    pub(crate) fn begin(&mut self, seed: u64, reads_only: bool) {
        self.random = seed.wrapping_mul(2).wrapping_add(1);
        self.reads_only = reads_only;
        self.refuses = false;
        self.synchronizes = self.draw(2) == 0;
    }

    /// Whether functions that may wait for the whole device do, from here on.
    pub(crate) fn synchronize(&mut self, always: bool) {
        self.synchronizes = always;
    }

    pub(crate) fn refuse(&mut self) {
        self.refuses = true;
    }

    pub(crate) fn waits(&self, stream: u64) -> u64 {
        self.waits.get(&stream).copied().unwrap_or_default()
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// Runs all that may run. Whether nothing is left.
    fn is_idle(&mut self) -> bool {
        while self.step() {}
        self.streams.values().all(VecDeque::is_empty)
    }

    /// A kernel that runs until a test lets it end.
    pub(crate) fn spin(&mut self, stream: u64) -> u64 {
        let kernel = self.number();
        self.give(stream, Work::Wait(kernel));
        kernel
    }

    fn draw(&mut self, below: usize) -> usize {
        // A generator of Marsaglia's: xorshift64.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below.max(1) as u64) as usize
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn reads_only(&self) -> bool {
        self.reads_only
    }

    pub(crate) fn allocate(&mut self, bytes: usize, value: u8, exports: bool) -> u64 {
        let start = self.place();
        self.memory.allocate(start, bytes, value, exports);
        start
    }

    /// Where the next piece of memory begins.
    pub(crate) fn place(&mut self) -> u64 {
        (1 << 50) + (self.number() << 32)
    }

    pub(crate) fn memory(&self, place: u64, bytes: usize) -> &[u8] {
        let found = self.memory.bytes(place, bytes);
        found.expect("no memory of the device")
    }

    fn memory_mut(&mut self, place: u64, bytes: usize) -> &mut [u8] {
        let found = self.memory.bytes_mut(place, bytes);
        found.expect("no memory of the device")
    }

    pub(crate) fn set_links(&mut self, node: u64, devices: i32) {
        (self.node, self.links) = (node, devices);
    }

    pub(crate) fn devices(&self) -> i32 {
        self.links.max(1)
    }

    pub(crate) fn uuid(&self, device: i32) -> abi::Uuid {
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&self.node.to_le_bytes());
        uuid[8..12].copy_from_slice(&device.to_le_bytes());
        uuid
    }

    pub(crate) fn is_linked(&self, one: i32, other: i32) -> bool {
        self.links > 1 && one ^ 1 == other
    }

    pub(crate) fn stream(&mut self, is_non_blocking: bool) -> u64 {
        let stream = self.number();
        self.streams.insert(stream, VecDeque::new());
        if is_non_blocking {
            self.non_blocking.insert(stream);
        }
        stream
    }

    /// Gives a stream its next work. What the default stream is given runs behind all that blocking streams were given
    /// before, and before all that they are given later.
    pub(crate) fn give(&mut self, stream: u64, work: Work) {
        let blocking: Vec<u64> = match stream {
            DEFAULT => {
                let others = self.streams.keys().copied();
                others
                    .filter(|other| *other != DEFAULT && !self.non_blocking.contains(other))
                    .collect()
            }
            _ => Vec::new(),
        };
        for other in &blocking {
            self.join(*other, DEFAULT);
        }
        self.push(stream, work);
        for other in blocking {
            self.join(DEFAULT, other);
        }
    }

    /// What `later` is given from here on runs behind all that `earlier` was given.
    fn join(&mut self, earlier: u64, later: u64) {
        let record = self.number();
        self.push(earlier, Work::Record(record));
        self.push(later, Work::Wait(record));
    }

    fn push(&mut self, stream: u64, work: Work) {
        self.streams.entry(stream).or_default().push_back(work);
    }

    pub(crate) fn capture(&mut self, stream: u64, captures: bool) {
        if captures {
            self.capturing.insert(stream);
        } else {
            self.capturing.remove(&stream);
        }
    }

    pub(crate) fn captures(&self, stream: u64) -> bool {
        self.capturing.contains(&stream)
    }

    pub(crate) fn retain(&mut self, by: i64) {
        self.contexts += by;
    }

    pub(crate) fn alive(&self) -> u64 {
        self.contexts as u64 + self.events.len() as u64 + self.registered.len() as u64
    }

    pub(crate) fn event(&mut self) -> u64 {
        let event = self.number();
        self.events.insert(event, 0);
        event
    }

    pub(crate) fn forget(&mut self, event: u64) -> abi::CudaStatus {
        match self.events.remove(&event) {
            Some(_) => abi::SUCCESS,
            None => abi::INVALID_VALUE,
        }
    }

    pub(crate) fn record(&mut self, event: u64, stream: u64) -> abi::CudaStatus {
        let record = self.number();
        let Some(last) = self.events.get_mut(&event) else {
            return abi::INVALID_VALUE;
        };
        *last = record;
        self.give(stream, Work::Record(record));
        abi::SUCCESS
    }

    pub(crate) fn wait(&mut self, stream: u64, event: u64) -> abi::CudaStatus {
        match self.events.get(&event).copied() {
            None => abi::INVALID_VALUE,
            Some(0) => abi::SUCCESS,
            Some(record) => {
                *self.waits.entry(stream).or_default() += 1;
                self.give(stream, Work::Wait(record));
                abi::SUCCESS
            }
        }
    }

    pub(crate) fn has_come(&self, event: u64) -> bool {
        self.events
            .get(&event)
            .is_none_or(|record| *record == 0 || self.come.contains(record))
    }

    pub(crate) fn register(&mut self, start: usize, bytes: usize, flags: u32) -> abi::CudaStatus {
        let read_only = flags & abi::HOST_REGISTER_READ_ONLY != 0;
        if bytes == 0 || self.registered.contains_key(&start) {
            return abi::INVALID_VALUE;
        }
        if read_only && (!self.reads_only || self.refuses) {
            return abi::NOT_SUPPORTED;
        }
        self.registered.insert(start, bytes);
        abi::SUCCESS
    }

    pub(crate) fn unregister(&mut self, start: usize) -> abi::CudaStatus {
        let busy = self.streams.values().flatten().any(|work| match work {
            Work::ToHost { target, .. } => self.is_in(start, *target),
            Work::ToDevice { source, .. } => self.is_in(start, *source),
            Work::Fill { .. }
            | Work::Write { .. }
            | Work::Combine { .. }
            | Work::Move { .. }
            | Work::Record(_)
            | Work::Wait(_) => false,
        });
        assert!(!busy, "memory is unregistered while the device copies");
        match self.registered.remove(&start) {
            Some(_) => abi::SUCCESS,
            None => abi::INVALID_VALUE,
        }
    }

    fn is_in(&self, start: usize, place: usize) -> bool {
        self.registered
            .get(&start)
            .is_some_and(|bytes| (start..start + bytes).contains(&place))
    }

    fn is_registered(&self, place: usize, bytes: usize) -> bool {
        let before = self.registered.range(..=place).next_back();
        before.is_some_and(|(start, length)| place + bytes <= start + length)
    }

    pub(crate) fn fetch(
        &mut self,
        target: usize,
        source: u64,
        bytes: usize,
        stream: u64,
    ) -> abi::CudaStatus {
        if !self.is_registered(target, bytes) || !self.memory.has(source, bytes) {
            return abi::INVALID_VALUE;
        }
        let work = Work::ToHost {
            source,
            target,
            bytes,
        };
        self.give(stream, work);
        abi::SUCCESS
    }

    pub(crate) fn deliver(
        &mut self,
        target: u64,
        source: usize,
        bytes: usize,
        stream: u64,
    ) -> abi::CudaStatus {
        if !self.is_registered(source, bytes) || !self.memory.has(target, bytes) {
            return abi::INVALID_VALUE;
        }
        let work = Work::ToDevice {
            source,
            target,
            bytes,
        };
        self.give(stream, work);
        abi::SUCCESS
    }

    pub(crate) fn launch(
        &mut self,
        kernel: Kernel,
        (own, into): (u64, u64),
        count: u64,
        scale: f32,
        stream: u64,
    ) -> abi::CudaStatus {
        let bytes = count as usize * kernel.bytes();
        if !self.memory.has(own, bytes) || !self.memory.has(into, bytes) {
            return abi::INVALID_VALUE;
        }
        let work = Work::Combine {
            kernel,
            own,
            into,
            bytes,
            scale,
        };
        self.give(stream, work);
        abi::SUCCESS
    }

    /// Runs a few things, or nothing.
    pub(crate) fn some_steps(&mut self) {
        for _ in 0..self.draw(4) {
            self.step();
        }
    }

    /// Runs the head of a stream that may run. False when none may.
    pub(crate) fn step(&mut self) -> bool {
        let ready: Vec<u64> = self
            .streams
            .iter()
            .filter(|(_, works)| match works.front() {
                None => false,
                Some(Work::Wait(record)) => self.come.contains(record),
                Some(_) => true,
            })
            .map(|(stream, _)| *stream)
            .collect();
        if ready.is_empty() {
            return false;
        }
        let stream = ready[self.draw(ready.len())];
        let work = self.streams.get_mut(&stream).and_then(VecDeque::pop_front);
        if let Some(work) = work {
            self.run(work);
        }
        true
    }

    #[expect(unsafe_code, reason = "host memory by its address")]
    fn run(&mut self, work: Work) {
        match work {
            Work::Fill {
                target,
                bytes,
                value,
            } => self.memory_mut(target, bytes).fill(value),
            Work::Write { target, content } => {
                self.memory_mut(target, content.len())
                    .copy_from_slice(&content);
            }
            Work::Combine {
                kernel,
                own,
                into,
                bytes,
                scale,
            } => {
                let own = self.memory(own, bytes).to_vec();
                kernel.run(&own, self.memory_mut(into, bytes), scale);
            }
            Work::Move {
                source,
                target,
                bytes,
            } => {
                let moved = self.memory(source, bytes).to_vec();
                self.memory_mut(target, bytes).copy_from_slice(&moved);
            }
            Work::ToHost {
                source,
                target,
                bytes,
            } => {
                let target: *mut u8 = std::ptr::with_exposed_provenance_mut(target);
                // SAFETY: registered when the copy was begun, and not unregistered while it is under way.
                unsafe { std::slice::from_raw_parts_mut(target, bytes) }
                    .copy_from_slice(self.memory(source, bytes));
            }
            Work::ToDevice {
                source,
                target,
                bytes,
            } => {
                let source: *const u8 = std::ptr::with_exposed_provenance(source);
                // SAFETY: as above.
                let moved = unsafe { std::slice::from_raw_parts(source, bytes) };
                self.memory_mut(target, bytes).copy_from_slice(moved);
            }
            Work::Record(record) => {
                self.come.insert(record);
            }
            Work::Wait(_) => {}
        }
    }
}
