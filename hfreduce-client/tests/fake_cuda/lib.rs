//! A CUDA driver for machines without GPUs, loaded by path in the tests. Nothing that a stream is given runs before
//! somebody waits or looks; then heads of streams run in an order drawn from a seed, as far as the rules of streams and
//! events allow: a copy that does not wait for what it needs reads what was there before, for most seeds. It is stricter
//! than the driver: host memory has to be registered, and device memory allocated here.

#![expect(
    unsafe_code,
    clippy::missing_safety_doc,
    clippy::unwrap_used,
    reason = "the functions of a C library; their callers keep the driver's rules"
)]

mod kernels;
mod machine;
mod memory;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use hfreduce_client::cuda::abi;
use kernels::Kernel;
use machine::{Work, machine};

/// For tests: a new order of everything that comes, and what the device can do.
#[unsafe(no_mangle)]
pub extern "C" fn fake_seed(seed: u64, reads_only: c_int) {
    machine().begin(seed, reads_only != 0);
}

/// For tests: so many devices on machine `node`, of which each second one shares an NVLink with the one before.
#[unsafe(no_mangle)]
pub extern "C" fn fake_links(node: u64, devices: c_int) {
    machine().set_links(node, devices);
}

/// For tests: a kernel that writes these bytes to memory of the device, when its turn comes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_write(
    stream: u64,
    target: abi::DevicePointer,
    content: *const u8,
    bytes: usize,
) {
    // SAFETY: the test's own memory.
    let content = unsafe { std::slice::from_raw_parts(content, bytes) }.to_vec();
    machine().give(stream, Work::Write { target, content });
}

/// For tests: memory of the device, filled with `value`.
#[unsafe(no_mangle)]
pub extern "C" fn fake_alloc(bytes: usize, value: u8) -> abi::DevicePointer {
    machine().allocate(bytes, value, false)
}

/// For tests: a stream of the trainer's, made as PyTorch makes them.
#[unsafe(no_mangle)]
pub extern "C" fn fake_stream() -> u64 {
    machine().stream(true)
}

/// For tests: a stream that waits for the default stream, as it does for this one.
#[unsafe(no_mangle)]
pub extern "C" fn fake_blocking_stream() -> u64 {
    machine().stream(false)
}

/// For tests: memory that PyTorch's allocator was given back: it gives it to the next kernel of the stream on which it was
/// allocated, which writes to it.
#[unsafe(no_mangle)]
pub extern "C" fn fake_free(stream: u64, start: abi::DevicePointer, bytes: usize) {
    fake_fill(stream, start, bytes, 0xDD);
}

/// For tests: a kernel that runs until `fake_end`, such as one of NCCL's that waits for another rank.
#[unsafe(no_mangle)]
pub extern "C" fn fake_spin(stream: u64) -> u64 {
    machine().spin(stream)
}

/// For tests: lets a kernel of `fake_spin` end.
#[unsafe(no_mangle)]
pub extern "C" fn fake_end(kernel: u64) {
    machine::end(kernel);
}

/// For tests: whether functions of the driver that may wait for the whole device do. Until this is called the seed decides.
#[unsafe(no_mangle)]
pub extern "C" fn fake_synchronize(always: c_int) {
    machine().synchronize(always != 0);
}

/// For tests: how often a stream was made to wait for an event.
#[unsafe(no_mangle)]
pub extern "C" fn fake_waits(stream: u64) -> u64 {
    machine().waits(stream)
}

/// For tests: how many threads wait for the whole device.
#[unsafe(no_mangle)]
pub extern "C" fn fake_waiting() -> u64 {
    machine().waiting()
}

/// For tests: from here on memory that is mapped for reading is refused, whatever the device says of itself.
#[unsafe(no_mangle)]
pub extern "C" fn fake_refuse() {
    machine().refuse();
}

/// For tests: a kernel that fills memory of the device, when its turn comes.
#[unsafe(no_mangle)]
pub extern "C" fn fake_fill(stream: u64, target: abi::DevicePointer, bytes: usize, value: u8) {
    let work = Work::Fill {
        target,
        bytes,
        value,
    };
    machine().give(stream, work);
}

/// For tests: a kernel that copies memory of the device, when its turn comes.
#[unsafe(no_mangle)]
pub extern "C" fn fake_copy(
    stream: u64,
    source: abi::DevicePointer,
    target: abi::DevicePointer,
    bytes: usize,
) {
    let work = Work::Move {
        source,
        target,
        bytes,
    };
    machine().give(stream, work);
}

/// For tests: runs all that streams were given, and copies memory of the device to `target`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_read(source: abi::DevicePointer, target: *mut u8, bytes: usize) {
    let mut machine = machine();
    while machine.step() {}
    // SAFETY: the test's own memory.
    unsafe { std::slice::from_raw_parts_mut(target, bytes) }
        .copy_from_slice(machine.memory(source, bytes));
}

/// For tests: a graph is captured on the stream, or not any more.
#[unsafe(no_mangle)]
pub extern "C" fn fake_capture(stream: u64, captures: c_int) {
    machine().capture(stream, captures != 0);
}

/// For tests: registrations, events and retained contexts that are there.
#[unsafe(no_mangle)]
pub extern "C" fn fake_alive() -> u64 {
    machine().alive()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> abi::CudaStatus {
    if flags == 0 {
        abi::SUCCESS
    } else {
        abi::INVALID_VALUE
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(
    status: abi::CudaStatus,
    text: *mut *const c_char,
) -> abi::CudaStatus {
    let said = match status {
        abi::INVALID_VALUE => c"invalid argument",
        abi::NO_DEVICE => c"no such device",
        abi::NOT_SUPPORTED => c"not supported",
        _ => return abi::INVALID_VALUE,
    };
    // SAFETY: the caller's variable.
    unsafe { *text = said.as_ptr() };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> abi::CudaStatus {
    if !(0..machine().devices()).contains(&ordinal) {
        return abi::NO_DEVICE;
    }
    // SAFETY: the caller's variable.
    unsafe { *device = ordinal };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    _: c_int,
) -> abi::CudaStatus {
    if attribute != abi::ATTRIBUTE_READ_ONLY_HOST_REGISTER {
        return abi::INVALID_VALUE;
    }
    // SAFETY: the caller's variable.
    unsafe { *value = c_int::from(machine().reads_only()) };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    context: *mut abi::Handle,
    _: c_int,
) -> abi::CudaStatus {
    machine().retain(1);
    // SAFETY: the caller's variable.
    unsafe { *context = std::ptr::without_provenance_mut(machine::CONTEXT) };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(_: c_int) -> abi::CudaStatus {
    machine().retain(-1);
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: abi::Handle) -> abi::CudaStatus {
    if context.addr() != machine::CONTEXT {
        return abi::INVALID_VALUE;
    }
    machine::push();
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxPopCurrent_v2(_: *mut abi::Handle) -> abi::CudaStatus {
    machine::pop();
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(
    stream: *mut abi::Handle,
    flags: c_uint,
) -> abi::CudaStatus {
    machine::assert_current();
    let number = machine().stream(flags & abi::STREAM_NON_BLOCKING != 0);
    // SAFETY: the caller's variable.
    unsafe { *stream = std::ptr::without_provenance_mut(number as usize) };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(_: abi::Handle) -> abi::CudaStatus {
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(
    stream: abi::Handle,
    event: abi::Handle,
    _: c_uint,
) -> abi::CudaStatus {
    machine::assert_current();
    machine().wait(stream.addr() as u64, event.addr() as u64)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(
    stream: abi::Handle,
    status: *mut c_int,
) -> abi::CudaStatus {
    let captures = machine().captures(stream.addr() as u64);
    // SAFETY: the caller's variable.
    unsafe { *status = c_int::from(captures) };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut abi::Handle, _: c_uint) -> abi::CudaStatus {
    machine::assert_current();
    let number = machine().event();
    // SAFETY: the caller's variable.
    unsafe { *event = std::ptr::without_provenance_mut(number as usize) };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: abi::Handle) -> abi::CudaStatus {
    machine().forget(event.addr() as u64)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: abi::Handle, stream: abi::Handle) -> abi::CudaStatus {
    machine::assert_current();
    machine().record(event.addr() as u64, stream.addr() as u64)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: abi::Handle) -> abi::CudaStatus {
    let mut machine = machine();
    machine.some_steps();
    if machine.has_come(event.addr() as u64) {
        abi::SUCCESS
    } else {
        abi::NOT_READY
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: abi::Handle) -> abi::CudaStatus {
    let mut machine = machine();
    while !machine.has_come(event.addr() as u64) {
        if !machine.step() {
            return abi::INVALID_VALUE; // It would never come.
        }
    }
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(
    start: *mut c_void,
    bytes: usize,
    flags: c_uint,
) -> abi::CudaStatus {
    machine::assert_current();
    machine::synchronized(false).register(start.addr(), bytes, flags)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(start: *mut c_void) -> abi::CudaStatus {
    machine::synchronized(false).unregister(start.addr())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(
    target: *mut c_void,
    source: abi::DevicePointer,
    bytes: usize,
    stream: abi::Handle,
) -> abi::CudaStatus {
    machine::assert_current();
    machine().fetch(target.addr(), source, bytes, stream.addr() as u64)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    target: abi::DevicePointer,
    source: *const c_void,
    bytes: usize,
    stream: abi::Handle,
) -> abi::CudaStatus {
    machine::assert_current();
    machine().deliver(target, source.addr(), bytes, stream.addr() as u64)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(
    target: abi::DevicePointer,
    source: abi::DevicePointer,
    bytes: usize,
    stream: abi::Handle,
) -> abi::CudaStatus {
    machine::assert_current();
    let mut machine = machine();
    if !machine.memory.has(source, bytes) || !machine.memory.has(target, bytes) {
        return abi::INVALID_VALUE;
    }
    let work = Work::Move {
        source,
        target,
        bytes,
    };
    machine.give(stream.addr() as u64, work);
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> abi::CudaStatus {
    // SAFETY: the caller's variable.
    unsafe { *count = machine().devices() };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut abi::Uuid, device: c_int) -> abi::CudaStatus {
    // SAFETY: the caller's variable.
    unsafe { *uuid = machine().uuid(device) };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    _: c_int,
    one: c_int,
    other: c_int,
) -> abi::CudaStatus {
    // SAFETY: the caller's variable.
    unsafe { *value = c_int::from(machine().is_linked(one, other)) };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(
    start: *mut abi::DevicePointer,
    bytes: usize,
) -> abi::CudaStatus {
    machine::assert_current();
    // SAFETY: the caller's variable.
    unsafe { *start = machine::synchronized(false).allocate(bytes, 0xEE, true) };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(start: abi::DevicePointer) -> abi::CudaStatus {
    known(machine::synchronized(true).memory.release(start, false))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(
    handle: *mut abi::IpcHandle,
    start: abi::DevicePointer,
) -> abi::CudaStatus {
    let Some(exported) = machine().memory.export(start) else {
        return abi::INVALID_VALUE;
    };
    // SAFETY: the caller's variable.
    unsafe { *handle = exported };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    start: *mut abi::DevicePointer,
    handle: abi::IpcHandle,
    _: c_uint,
) -> abi::CudaStatus {
    machine::assert_current();
    let mut machine = machine();
    let place = machine.place();
    if machine.memory.open(place, handle).is_none() {
        return abi::INVALID_VALUE;
    }
    // SAFETY: the caller's variable.
    unsafe { *start = place };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(start: abi::DevicePointer) -> abi::CudaStatus {
    known(machine().memory.release(start, true))
}

/// The module is the text itself: it is only looked into.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(
    module: *mut abi::Handle,
    image: *const c_void,
) -> abi::CudaStatus {
    machine::assert_current();
    drop(machine::synchronized(false));
    // SAFETY: the caller's text, which ends with a zero.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_owned();
    // SAFETY: the caller's variable.
    unsafe { *module = text.into_raw().cast() };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(module: abi::Handle) -> abi::CudaStatus {
    // SAFETY: made in `cuModuleLoadData`.
    drop(unsafe { std::ffi::CString::from_raw(module.cast()) });
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut abi::Handle,
    module: abi::Handle,
    name: *const c_char,
) -> abi::CudaStatus {
    // SAFETY: made in `cuModuleLoadData`, and the caller's text.
    let (text, name) = unsafe { (CStr::from_ptr(module.cast()), CStr::from_ptr(name)) };
    let name = name.to_string_lossy();
    let found = text.to_string_lossy().contains(&format!(".entry {name}("));
    let Some(kernel) = Kernel::named(&name).filter(|_| found) else {
        return abi::INVALID_VALUE;
    };
    // SAFETY: the caller's variable.
    unsafe { *function = std::ptr::without_provenance_mut(kernel.number() + 1) };
    abi::SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: abi::Handle,
    blocks: c_uint,
    _: c_uint,
    _: c_uint,
    threads: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    stream: abi::Handle,
    parameters: *mut *mut c_void,
    _: *mut *mut c_void,
) -> abi::CudaStatus {
    machine::assert_current();
    if blocks == 0 || threads == 0 || threads > 1024 {
        return abi::INVALID_VALUE;
    }
    let kernel = Kernel::of_number(function.addr() - 1);
    // SAFETY: two addresses, a number and a factor, as every kernel of the module has.
    let (own, into, count, scale) = unsafe {
        (
            *(*parameters).cast::<u64>(),
            *(*parameters.add(1)).cast::<u64>(),
            *(*parameters.add(2)).cast::<u64>(),
            *(*parameters.add(3)).cast::<f32>(),
        )
    };
    machine().launch(kernel, (own, into), count, scale, stream.addr() as u64)
}

fn known(was: bool) -> abi::CudaStatus {
    if was {
        abi::SUCCESS
    } else {
        abi::INVALID_VALUE
    }
}
