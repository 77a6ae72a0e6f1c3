//! A libibverbs for machines without RDMA, loaded by path in the tests: devices whose queue pairs write into memory of
//! this very process. It is stricter than devices are (queues have exactly the depth that was asked for, and every
//! rule of the verbs that we must keep is checked), and it fails on request. How requests travel is in
//! `device`; here are the functions that programs call.
//!
//! A test that wants a library of its own loads a copy of the file: each has its own state.

#![expect(
    unsafe_code,
    clippy::missing_safety_doc,
    reason = "the functions of a C library; their callers keep libibverbs' rules"
)]

mod device;

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use device::{FakePair, FakeQueue, Fault, Memory, state};
use link::verbs::abi;

/// Two devices: the first two names are theirs.
const NAMES: [&std::ffi::CStr; 2] = [c"fake0", c"fake1"];
static DEVICES: [u8; NAMES.len()] = [0, 1];

const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EINVAL: i32 = 22;
/// An empty place of a table.
const ENODATA: i32 = 61;

fn fail<T>(errno: i32) -> *mut T {
    set_errno(errno);
    null_mut()
}

/// Sets errno, which the caller of a C function looks at.
fn set_errno(errno: i32) {
    unsafe extern "C" {
        fn __errno_location() -> *mut c_int;
    }
    // SAFETY: the C library's own address of this thread's errno.
    unsafe { *__errno_location() = errno };
}

/// For tests: the next thing that happens is this. `code` and `value` are [`Fault`]'s.
#[unsafe(no_mangle)]
pub extern "C" fn fake_inject(code: u32, value: u64) {
    if let Some(fault) = Fault::new(code, value) {
        state().inject(fault);
    }
}

/// For tests: objects that were made and not freed.
#[unsafe(no_mangle)]
pub extern "C" fn fake_alive() -> u64 {
    state().alive
}

/// For tests: the timeout of the pair that was last allowed to send, and above it how often it sends again.
#[unsafe(no_mangle)]
pub extern "C" fn fake_path() -> u64 {
    let (timeout, retries) = state().path;
    u64::from(retries) << 8 | u64::from(timeout)
}

/// For tests: the flags with which the memory at this place of the list was registered, and its bytes; 0 past the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_registered(place: u64, bytes: *mut u64) -> c_uint {
    let state = state();
    let Some(memory) = state.memory.values().nth(place as usize) else {
        return 0;
    };
    // SAFETY: the caller's variable.
    unsafe { *bytes = memory.bytes };
    memory.access
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut abi::IbvDevice {
    let there = if state().no_device { 0 } else { DEVICES.len() };
    let mut list: Vec<*mut abi::IbvDevice> = DEVICES
        .iter()
        .take(there)
        .map(|device| std::ptr::from_ref(device).cast_mut().cast())
        .collect();
    // As long in any case, so that it can be freed; the end is marked.
    list.resize(DEVICES.len() + 1, null_mut());
    state().alive += 1;
    // SAFETY: the caller's variable.
    unsafe { *count = there as c_int };
    Box::into_raw(list.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut abi::IbvDevice) {
    state().alive -= 1;
    let list = std::ptr::slice_from_raw_parts_mut(list, DEVICES.len() + 1);
    // SAFETY: made by `ibv_get_device_list`, freed once.
    drop(unsafe { Box::from_raw(list) });
}

/// Which of the devices a pointer is.
fn index(device: *mut abi::IbvDevice) -> usize {
    let first = DEVICES.as_ptr() as usize;
    (device as usize - first) % NAMES.len()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_name(device: *mut abi::IbvDevice) -> *const c_char {
    NAMES[index(device)].as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_open_device(device: *mut abi::IbvDevice) -> *mut abi::IbvContext {
    let mut state = state();
    if state
        .take(|fault| matches!(fault, Fault::OpenRefused))
        .is_some()
    {
        return fail(EINVAL);
    }
    state.alive += 1;
    let ops = abi::ContextOps {
        control: [0; 11],
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        more_control: [0; 12],
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        last_control: [0; 5],
    };
    Box::into_raw(Box::new(abi::IbvContext {
        device,
        ops,
        cmd_fd: -1,
        async_fd: -1,
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut abi::IbvContext) -> c_int {
    state().alive -= 1;
    // SAFETY: made by `ibv_open_device`, freed once.
    drop(unsafe { Box::from_raw(context) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    _: *mut abi::IbvContext,
    attributes: *mut abi::DeviceAttributes,
) -> c_int {
    // SAFETY: the caller's structure.
    unsafe { (*attributes).phys_port_cnt = 1 };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut abi::IbvContext,
    port: u8,
    attributes: *mut abi::PortAttributes,
) -> c_int {
    if port != 1 {
        return EINVAL;
    }
    // SAFETY: the caller's open device, and structure.
    let (device, attributes) = unsafe { (index((*context).device), &mut *attributes) };
    let mut state = state();
    if state
        .take(|fault| matches!(fault, Fault::PortMute))
        .is_some()
    {
        return EIO;
    }
    let down = state.down.contains(&device);
    attributes.state = if down { 1 } else { abi::PORT_ACTIVE };
    attributes.active_mtu = 5;
    attributes.gid_tbl_len = 4;
    attributes.link_layer = match state.infiniband {
        Some(by_gid) => {
            attributes.flags = (by_gid >> device & 1) as u8 * abi::PORT_NEEDS_GLOBAL_HEADER;
            attributes.lid = device as u16 + 1;
            abi::LINK_LAYER_INFINIBAND
        }
        None => abi::LINK_LAYER_ETHERNET,
    };
    0
}

/// A link-local GID of each kind, and an IPv4 address of RoCE v2: 192.0.2.10 and 192.0.2.11.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut abi::IbvContext,
    _: u32,
    place: u32,
    entry: *mut abi::GidEntry,
    _: u32,
    size: usize,
) -> c_int {
    // SAFETY: the caller's open device, and structure.
    let (device, entry) = unsafe { (index((*context).device) as u8, &mut *entry) };
    let local = [
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        device + 1,
    ];
    let routed = [
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0xff,
        0xff,
        192,
        0,
        2,
        10 + device,
    ];
    let (gid, kind) = match place {
        0 if state().infiniband.is_some() => (local, abi::GID_TYPE_INFINIBAND),
        _ if state().infiniband.is_some() => return ENODATA,
        0 => (local, abi::GID_TYPE_ROCE_V1),
        1 => (local, abi::GID_TYPE_ROCE_V2),
        2 => (routed, abi::GID_TYPE_ROCE_V2),
        _ => return ENODATA,
    };
    assert_eq!(size, size_of::<abi::GidEntry>());
    entry.gid = gid;
    entry.gid_type = kind;
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(_: *mut abi::IbvContext) -> *mut abi::ProtectionDomain {
    state().alive += 1;
    Box::into_raw(Box::new(0u8)).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut abi::ProtectionDomain) -> c_int {
    state().alive -= 1;
    // SAFETY: made by `ibv_alloc_pd`, freed once.
    drop(unsafe { Box::from_raw(domain.cast::<u8>()) });
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_mr_iova2(
    pd: *mut abi::ProtectionDomain,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut abi::MemoryRegion {
    assert_eq!(
        iova, addr as u64,
        "our regions are named by their addresses"
    );
    let waits = || (1..=length as u64).contains(&state().register_waits);
    while waits() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let mut state = state();
    if state
        .take(|fault| matches!(fault, Fault::RegisterRefused))
        .is_some()
    {
        return fail(ENOMEM);
    }
    let key = state.register(Memory {
        start: addr as u64,
        bytes: length as u64,
        access,
    });
    state.alive += 1;
    Box::into_raw(Box::new(abi::MemoryRegion {
        context: null_mut(),
        pd,
        addr,
        length,
        handle: key,
        lkey: key,
        rkey: key,
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(region: *mut abi::MemoryRegion) -> c_int {
    // SAFETY: made by `ibv_reg_mr_iova2`, freed once.
    let region = unsafe { Box::from_raw(region) };
    let mut state = state();
    state.alive -= 1;
    state.memory.remove(&region.lkey);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut abi::IbvContext) -> *mut abi::IbvChannel {
    let Some(fd) = device::event_fd() else {
        return fail(ENOMEM);
    };
    state().alive += 1;
    Box::into_raw(Box::new(abi::IbvChannel {
        context,
        fd,
        refcnt: 0,
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut abi::IbvChannel) -> c_int {
    state().alive -= 1;
    // SAFETY: made by `ibv_create_comp_channel`, freed once.
    let channel = unsafe { Box::from_raw(channel) };
    assert_eq!(channel.refcnt, 0, "a queue of the channel is still there");
    device::close(channel.fd);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut abi::IbvContext,
    cqe: c_int,
    _: *mut c_void,
    channel: *mut abi::IbvChannel,
    _: c_int,
) -> *mut abi::IbvCompletionQueue {
    // SAFETY: the caller's channel.
    let fd = unsafe {
        (*channel).refcnt += 1;
        (*channel).fd
    };
    let mut state = state();
    state.alive += 1;
    let raw = abi::IbvCompletionQueue {
        context,
        channel,
        cq_context: null_mut(),
        handle: 0,
        cqe,
    };
    let queue = Box::into_raw(Box::new(FakeQueue { raw, events: 0 }));
    state.add_queue(queue as usize, cqe as usize, fd);
    queue.cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(queue: *mut abi::IbvCompletionQueue) -> c_int {
    // SAFETY: made by `ibv_create_cq`, freed once.
    let fake = unsafe { Box::from_raw(queue.cast::<FakeQueue>()) };
    assert_eq!(
        fake.events, 0,
        "an event was not acknowledged: this would wait for ever"
    );
    // SAFETY: the channel outlives its queues.
    unsafe { (*fake.raw.channel).refcnt -= 1 };
    let mut state = state();
    state.alive -= 1;
    state.remove_queue(queue as usize);
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut abi::IbvChannel,
    queue: *mut *mut abi::IbvCompletionQueue,
    context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's channel.
    let fd = unsafe { (*channel).fd };
    if !device::take_event(fd) {
        return -1;
    }
    let Some(found) = state().queue_of(fd) else {
        return -1;
    };
    // SAFETY: a live queue, and the caller's variables.
    unsafe {
        (*(found as *mut FakeQueue)).events += 1;
        *queue = found as *mut abi::IbvCompletionQueue;
        *context = null_mut();
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(queue: *mut abi::IbvCompletionQueue, events: c_uint) {
    // SAFETY: a live queue.
    let fake = unsafe { &mut *queue.cast::<FakeQueue>() };
    fake.events = fake
        .events
        .checked_sub(events)
        .expect("more acknowledged than got");
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut abi::ProtectionDomain,
    init: *mut abi::PairInit,
) -> *mut abi::IbvQueuePair {
    // SAFETY: the caller's structure.
    let init = unsafe { &*init };
    let mut state = state();
    if init.cap.max_inline_data > 0
        && state
            .take(|fault| matches!(fault, Fault::InlineRefused))
            .is_some()
    {
        return fail(EINVAL);
    }
    state.alive += 1;
    let number = state.add_pair(init);
    let pair = FakePair {
        raw: abi::IbvQueuePair {
            // SAFETY: the caller's queue.
            context: unsafe { (*init.send_cq).context },
            qp_context: null_mut(),
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: null_mut(),
            handle: number,
            qp_num: number,
            state: 0,
            qp_type: init.qp_type,
        },
    };
    Box::into_raw(Box::new(pair)).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    pair: *mut abi::IbvQueuePair,
    to: *mut abi::PairAttributes,
    mask: c_int,
) -> c_int {
    // SAFETY: a live queue pair, and the caller's structure.
    let (number, to) = unsafe { ((*pair).qp_num, &*to) };
    state().modify(number, to, mask)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(pair: *mut abi::IbvQueuePair) -> c_int {
    // SAFETY: made by `ibv_create_qp`, freed once.
    let pair = unsafe { Box::from_raw(pair.cast::<FakePair>()) };
    let mut state = state();
    state.alive -= 1;
    state.remove_pair(pair.raw.qp_num);
    0
}

unsafe extern "C" fn poll_cq(
    queue: *mut abi::IbvCompletionQueue,
    entries: c_int,
    completions: *mut abi::WorkCompletion,
) -> c_int {
    // SAFETY: the caller's array of as many entries.
    let into = unsafe { std::slice::from_raw_parts_mut(completions, entries as usize) };
    state().poll(queue as usize, into)
}

unsafe extern "C" fn req_notify_cq(queue: *mut abi::IbvCompletionQueue, _: c_int) -> c_int {
    state().arm(queue as usize);
    0
}

unsafe extern "C" fn post_send(
    pair: *mut abi::IbvQueuePair,
    request: *mut abi::SendRequest,
    _: *mut *mut abi::SendRequest,
) -> c_int {
    // SAFETY: the caller's queue pair and request, whose list has as many pieces as it says.
    let (number, request, pieces) = unsafe {
        let request = &*request;
        assert!(request.next.is_null(), "we post one request at a time");
        let pieces = match request.num_sge {
            0 => &[],
            count => std::slice::from_raw_parts(request.sg_list, count as usize),
        };
        ((*pair).qp_num, request, pieces)
    };
    state().send(number, request, pieces)
}

unsafe extern "C" fn post_recv(
    pair: *mut abi::IbvQueuePair,
    request: *mut abi::ReceiveRequest,
    _: *mut *mut abi::ReceiveRequest,
) -> c_int {
    // SAFETY: the caller's queue pair and request.
    let (number, id) = unsafe { ((*pair).qp_num, (*request).wr_id) };
    state().receive(number, id)
}
