//! How requests travel in the stand-in library: one process, one lock, one write at a time.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_uint};
use std::os::fd::{BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use link::verbs::abi;
use rustix::event::{EventfdFlags, eventfd};

const ENOMEM: c_int = 12;
const EINVAL: c_int = 22;

const SUCCESS: u32 = 0;
const LOCAL_PROTECTION: u32 = 4;
const FLUSHED: u32 = 5;
const REMOTE_ACCESS: u32 = 10;
const RETRY_EXCEEDED: u32 = 12;

/// Something that goes wrong once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The machine has no device from here on.
    NoDevice,
    OpenRefused,
    RegisterRefused,
    InlineRefused,
    /// The next write that is sent ends with this status.
    Status(u32),
    /// The next write is said to have arrived, and has written nothing.
    Dropped,
    /// Writes wait from here on, and are carried out when completions are polled for: a random number of them, of
    /// random queue pairs. The value is the seed.
    Shuffle(u64),
    /// The port of the device with this number is down from here on.
    PortDown(u64),
    /// All ports speak InfiniBand from here on. Those of devices whose bit is set are reached by their GIDs only.
    InfiniBand(u64),
    /// The next port that is asked for its state does not answer.
    PortMute,
    /// Registering so many bytes or more takes until this is 0.
    RegisterWaits(u64),
}

impl Fault {
    pub(super) fn new(code: u32, value: u64) -> Option<Self> {
        Some(match code {
            0 => Self::NoDevice,
            1 => Self::OpenRefused,
            2 => Self::RegisterRefused,
            3 => Self::InlineRefused,
            4 => Self::Status(value as u32),
            5 => Self::Dropped,
            6 => Self::Shuffle(value),
            7 => Self::PortDown(value),
            8 => Self::InfiniBand(value),
            9 => Self::PortMute,
            10 => Self::RegisterWaits(value),
            _ => return None,
        })
    }
}

#[repr(C)]
pub(super) struct FakeQueue {
    pub(super) raw: abi::IbvCompletionQueue,
    pub(super) events: u32,
}

#[repr(C)]
pub(super) struct FakePair {
    pub(super) raw: abi::IbvQueuePair,
}

/// Registered memory.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) start: u64,
    pub(super) bytes: u64,
    /// What it was registered for.
    pub(super) access: c_uint,
}

impl Memory {
    fn holds(&self, start: u64, bytes: u64) -> bool {
        start >= self.start
            && start - self.start <= self.bytes.saturating_sub(bytes)
            && bytes <= self.bytes
    }
}

struct Queue {
    depth: usize,
    fd: c_int,
    armed: bool,
    overrun: bool,
    there: VecDeque<abi::WorkCompletion>,
}

/// A write that was posted.
struct Sending {
    id: u64,
    signaled: bool,
    /// What was carried inside the request, or where it is.
    data: Result<Vec<u8>, abi::Piece>,
    to: (u64, u32),
    number: Option<u32>,
}

struct Pair {
    queue: usize,
    state: u32,
    peer: u32,
    sends: u32,
    receives: u32,
    inline: u32,
    /// Requests in the send queue: an entry is free again when a completion of its own or of a later one was polled.
    taken: u32,
    unsignaled: u32,
    waiting: VecDeque<Sending>,
    posted: VecDeque<u64>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) alive: u64,
    pub(super) no_device: bool,
    pub(super) down: Vec<usize>,
    pub(super) infiniband: Option<u64>,
    /// From so many bytes on memory is not registered; 0: all is.
    pub(super) register_waits: u64,
    pub(super) memory: BTreeMap<u32, Memory>,
    /// Timeout and retries of the pair that was last allowed to send.
    pub(super) path: (u8, u8),
    faults: Vec<Fault>,
    shuffle: Option<u64>,
    queues: BTreeMap<usize, Queue>,
    pairs: BTreeMap<u32, Pair>,
    next: u32,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The library's state, alone.
pub(super) fn state() -> impl std::ops::DerefMut<Target = State> {
    struct Guard(MutexGuard<'static, Option<State>>);
    impl std::ops::Deref for Guard {
        type Target = State;
        fn deref(&self) -> &State {
            self.0.as_ref().expect("made below")
        }
    }
    impl std::ops::DerefMut for Guard {
        fn deref_mut(&mut self) -> &mut State {
            self.0.as_mut().expect("made below")
        }
    }
    let mut guard = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    guard.get_or_insert_default();
    Guard(guard)
}

impl State {
    pub(super) fn inject(&mut self, fault: Fault) {
        match fault {
            Fault::NoDevice => self.no_device = true,
            Fault::Shuffle(seed) => self.shuffle = Some(seed | 1),
            Fault::PortDown(device) => self.down.push(device as usize),
            Fault::InfiniBand(by_gid) => self.infiniband = Some(by_gid),
            Fault::RegisterWaits(bytes) => self.register_waits = bytes,
            Fault::OpenRefused
            | Fault::RegisterRefused
            | Fault::InlineRefused
            | Fault::PortMute
            | Fault::Status(_)
            | Fault::Dropped => self.faults.push(fault),
        }
    }

    /// A fault that is due, if there is one of this kind.
    pub(super) fn take(&mut self, wanted: impl Fn(&Fault) -> bool) -> Option<Fault> {
        let at = self.faults.iter().position(wanted)?;
        Some(self.faults.remove(at))
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn register(&mut self, memory: Memory) -> u32 {
        let key = self.number();
        self.memory.insert(key, memory);
        key
    }

    pub(super) fn add_queue(&mut self, queue: usize, depth: usize, fd: c_int) {
        let fresh = Queue {
            depth,
            fd,
            armed: false,
            overrun: false,
            there: VecDeque::new(),
        };
        self.queues.insert(queue, fresh);
    }

    pub(super) fn remove_queue(&mut self, queue: usize) {
        assert!(
            self.pairs.values().all(|pair| pair.queue != queue),
            "the queue is in use"
        );
        self.queues.remove(&queue);
    }

    pub(super) fn queue_of(&self, fd: c_int) -> Option<usize> {
        let mut found = self.queues.iter().filter(|(_, queue)| queue.fd == fd);
        found.next().map(|(queue, _)| *queue)
    }

    pub(super) fn add_pair(&mut self, init: &abi::PairInit) -> u32 {
        let number = self.number();
        let fresh = Pair {
            queue: init.send_cq as usize,
            state: 0,
            peer: 0,
            sends: init.cap.max_send_wr,
            receives: init.cap.max_recv_wr,
            inline: init.cap.max_inline_data,
            taken: 0,
            unsignaled: 0,
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
        };
        self.pairs.insert(number, fresh);
        number
    }

    pub(super) fn remove_pair(&mut self, number: u32) {
        self.pairs.remove(&number);
    }

    pub(super) fn modify(&mut self, number: u32, to: &abi::PairAttributes, mask: c_int) -> c_int {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return EINVAL;
        };
        let right = match to.qp_state {
            abi::STATE_INIT => pair.state == 0,
            abi::STATE_READY_TO_RECEIVE => {
                pair.peer = to.dest_qp_num;
                let by_gid = self.infiniband != Some(0);
                pair.state == abi::STATE_INIT
                    && mask & abi::MASK_DEST_QPN != 0
                    && (to.ah_attr.is_global == 1) == by_gid
            }
            abi::STATE_READY_TO_SEND => {
                self.path = (to.timeout, to.retry_cnt);
                pair.state == abi::STATE_READY_TO_RECEIVE
            }
            _ => to.qp_state == abi::STATE_ERROR,
        };
        if !right {
            return EINVAL;
        }
        if to.qp_state == abi::STATE_ERROR {
            self.break_pair(number);
        } else {
            pair.state = to.qp_state;
        }
        0
    }

    pub(super) fn receive(&mut self, number: u32, id: u64) -> c_int {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return EINVAL;
        };
        if pair.posted.len() as u32 >= pair.receives {
            return ENOMEM;
        }
        pair.posted.push_back(id);
        if pair.state == abi::STATE_ERROR {
            self.break_pair(number);
        }
        0
    }

    pub(super) fn send(
        &mut self,
        number: u32,
        request: &abi::SendRequest,
        pieces: &[abi::Piece],
    ) -> c_int {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return EINVAL;
        };
        if pair.state < abi::STATE_READY_TO_SEND || pieces.len() > 1 {
            return EINVAL;
        }
        if pair.taken >= pair.sends {
            return ENOMEM;
        }
        pair.taken += 1;
        let piece = pieces.first().copied().unwrap_or(abi::Piece {
            addr: 0,
            length: 0,
            lkey: 0,
        });
        let data = if piece.length == 0 {
            Ok(Vec::new())
        } else if request.send_flags & abi::SEND_INLINE != 0 {
            assert!(piece.length <= pair.inline, "more than a request can carry");
            Ok(read(piece.addr, piece.length as usize))
        } else {
            Err(piece)
        };
        pair.waiting.push_back(Sending {
            id: request.wr_id,
            signaled: request.send_flags & abi::SEND_SIGNALED != 0,
            data,
            to: (request.remote_addr, request.rkey),
            number: (request.opcode == abi::OP_WRITE_WITH_IMM).then_some(request.imm_data),
        });
        if self.shuffle.is_none() {
            self.carry_out(number, usize::MAX);
        } else if self.pairs[&number].state == abi::STATE_ERROR {
            self.break_pair(number);
        }
        0
    }

    /// Carries out writes of a pair, in order, as long as the peer has receive requests for them.
    fn carry_out(&mut self, number: u32, most: usize) {
        for _ in 0..most {
            let Some(pair) = self.pairs.get_mut(&number) else {
                return;
            };
            if pair.state == abi::STATE_ERROR {
                self.break_pair(number);
                return;
            }
            let (peer, Some(sending)) = (pair.peer, pair.waiting.pop_front()) else {
                return;
            };
            let ready = |pair: &Pair| sending.number.is_none() || !pair.posted.is_empty();
            if self.pairs.get(&peer).is_some_and(|pair| !ready(pair)) {
                // Receiver not ready: tried again for ever, as we ask for.
                if let Some(pair) = self.pairs.get_mut(&number) {
                    pair.waiting.push_front(sending);
                }
                return;
            }
            let status = self.deliver(peer, &sending);
            self.complete_send(number, &sending, status);
            if status != SUCCESS {
                self.break_pair(number);
                if status == REMOTE_ACCESS {
                    self.break_pair(peer);
                }
                return;
            }
        }
    }

    fn deliver(&mut self, peer: u32, sending: &Sending) -> u32 {
        if let Some(Fault::Status(status)) = self.take(|fault| matches!(fault, Fault::Status(_))) {
            return status;
        }
        let connected =
            |pair: &&Pair| (abi::STATE_READY_TO_RECEIVE..abi::STATE_ERROR).contains(&pair.state);
        if self.pairs.get(&peer).filter(connected).is_none() {
            return RETRY_EXCEEDED;
        }
        let data = match &sending.data {
            Ok(inside) => inside.clone(),
            Err(piece) => {
                let bytes = u64::from(piece.length);
                match self.memory.get(&piece.lkey) {
                    Some(memory) if memory.holds(piece.addr, bytes) => {
                        read(piece.addr, piece.length as usize)
                    }
                    Some(_) | None => return LOCAL_PROTECTION,
                }
            }
        };
        let (address, key) = sending.to;
        let bytes = data.len() as u64;
        let allowed = |memory: &&Memory| {
            memory.access & abi::ACCESS_REMOTE_WRITE != 0 && memory.holds(address, bytes)
        };
        if !data.is_empty() && self.memory.get(&key).filter(allowed).is_none() {
            return REMOTE_ACCESS;
        }
        let lost = self.take(|fault| *fault == Fault::Dropped).is_some();
        if !lost {
            write(address, &data);
        }
        if let (Some(number), Some(pair)) = (sending.number, self.pairs.get_mut(&peer)) {
            let (id, queue) = (pair.posted.pop_front().unwrap_or(0), pair.queue);
            let mut completion = completion(id, peer, SUCCESS);
            completion.opcode = abi::COMPLETED_RECEIVE_WITH_IMM;
            completion.imm_data = number;
            completion.byte_len = data.len() as u32;
            self.add_completion(queue, completion);
        }
        SUCCESS
    }

    /// A failed request completes in any case, signaled or not.
    fn complete_send(&mut self, number: u32, sending: &Sending, status: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        if !sending.signaled && status == SUCCESS {
            pair.unsignaled += 1;
            return;
        }
        let queue = pair.queue;
        let mut completion = completion(sending.id, number, status);
        completion.opcode = abi::COMPLETED_WRITE;
        // How many entries of the send queue are free when this is polled.
        completion.src_qp = std::mem::take(&mut pair.unsignaled) + 1;
        self.add_completion(queue, completion);
    }

    /// What is under way or posted is given up.
    fn break_pair(&mut self, number: u32) {
        let Some(pair) = self.pairs.get_mut(&number) else {
            return;
        };
        pair.state = abi::STATE_ERROR;
        let waiting = std::mem::take(&mut pair.waiting);
        let posted = std::mem::take(&mut pair.posted);
        let queue = pair.queue;
        for sending in waiting {
            self.complete_send(number, &sending, FLUSHED);
        }
        for id in posted {
            self.add_completion(queue, completion(id, number, FLUSHED));
        }
    }

    fn add_completion(&mut self, queue: usize, completion: abi::WorkCompletion) {
        let Some(queue) = self.queues.get_mut(&queue) else {
            return;
        };
        if queue.there.len() >= queue.depth {
            queue.overrun = true;
            return;
        }
        queue.there.push_back(completion);
        if std::mem::take(&mut queue.armed) {
            ring(queue.fd);
        }
    }

    pub(super) fn arm(&mut self, queue: usize) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.armed = true;
        }
    }

    pub(super) fn poll(&mut self, queue: usize, into: &mut [abi::WorkCompletion]) -> c_int {
        self.progress();
        let Some(queue) = self.queues.get_mut(&queue) else {
            return -1;
        };
        if queue.overrun {
            return -1;
        }
        let mut found = 0;
        for place in into {
            let Some(mut completion) = queue.there.pop_front() else {
                break;
            };
            if completion.opcode == abi::COMPLETED_WRITE
                && let Some(pair) = self.pairs.get_mut(&completion.qp_num)
            {
                pair.taken -= std::mem::take(&mut completion.src_qp);
            }
            *place = completion;
            found += 1;
        }
        found as c_int
    }

    /// Lets writes that wait travel: all of them, or a random part in a random order of pairs.
    fn progress(&mut self) {
        let mut numbers: Vec<u32> = self.pairs.keys().copied().collect();
        let Some(mut seed) = self.shuffle else {
            for number in numbers {
                self.carry_out(number, usize::MAX);
            }
            return;
        };
        let mut random = |below: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed % below.max(1) as u64) as usize
        };
        while !numbers.is_empty() {
            let number = numbers.swap_remove(random(numbers.len()));
            let most = random(4);
            self.carry_out(number, most);
        }
        self.shuffle = Some(seed);
    }
}

fn completion(id: u64, pair: u32, status: u32) -> abi::WorkCompletion {
    abi::WorkCompletion {
        wr_id: id,
        status,
        opcode: 0,
        vendor_err: 0,
        byte_len: 0,
        imm_data: 0,
        qp_num: pair,
        src_qp: 0,
        wc_flags: 0,
        pkey_index: 0,
        slid: 0,
        sl: 0,
        dlid_path_bits: 0,
    }
}

/// Reads memory as a device does.
fn read(address: u64, bytes: usize) -> Vec<u8> {
    let mut data = vec![0; bytes];
    // SAFETY: registered memory of this process, or what a poster names for the time of the call; its users reckon with
    // others who look at it.
    unsafe { std::ptr::copy(address as *const u8, data.as_mut_ptr(), bytes) };
    data
}

/// Writes memory as a device does.
fn write(address: u64, data: &[u8]) {
    if !data.is_empty() {
        // SAFETY: registered memory of this process, for which the writer had the key; its users reckon with that.
        unsafe { std::ptr::copy(data.as_ptr(), address as *mut u8, data.len()) };
    }
}

/// A descriptor that is readable while there are events.
pub(super) fn event_fd() -> Option<c_int> {
    let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).ok()?;
    Some(fd.into_raw_fd())
}

fn borrowed(fd: c_int) -> BorrowedFd<'static> {
    // SAFETY: made by `event_fd`, and open until its channel is destroyed.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn ring(fd: c_int) {
    let _full = rustix::io::write(borrowed(fd), &1u64.to_ne_bytes());
}

/// Takes an event; false when there is none.
pub(super) fn take_event(fd: c_int) -> bool {
    rustix::io::read(borrowed(fd), &mut [0; 8]).is_ok()
}

pub(super) fn close(fd: c_int) {
    // SAFETY: made by `event_fd`, closed once.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}
