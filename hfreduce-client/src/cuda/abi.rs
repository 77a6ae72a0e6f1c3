//! What we use of CUDA's driver interface, declared by ourselves: handles, numbers and the functions' types, which have
//! not changed since CUDA 11.1. Names with `_v2` are the driver's own. Public for the stand-in library of the tests.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// What the driver hands out and we only hand back: contexts, streams and events.
pub type Handle = *mut c_void;
/// An address in a device's memory.
pub type DevicePointer = u64;
/// 0, or what went wrong.
pub type CudaStatus = c_int;

pub const SUCCESS: CudaStatus = 0;
pub const INVALID_VALUE: CudaStatus = 1;
pub const NOT_INITIALIZED: CudaStatus = 3;
pub const NO_DEVICE: CudaStatus = 100;
pub const NOT_PERMITTED: CudaStatus = 800;
pub const NOT_SUPPORTED: CudaStatus = 801;
pub const NOT_READY: CudaStatus = 600;

/// A stream that does not wait for the legacy default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// Whoever waits for the event sleeps.
pub const EVENT_BLOCKING_SYNC: c_uint = 1;
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// Host memory that every context may copy from and to.
pub const HOST_REGISTER_PORTABLE: c_uint = 1;
/// Host memory that is mapped for reading.
pub const HOST_REGISTER_READ_ONLY: c_uint = 8;
/// Whether the device takes host memory that is mapped for reading.
pub const ATTRIBUTE_READ_ONLY_HOST_REGISTER: c_int = 113;
/// Of two devices: one can reach the other's memory.
pub const P2P_ACCESS_SUPPORTED: c_int = 2;
/// Of two devices: their link carries atomic operations, which NVLink does and PCIe does not.
pub const P2P_NATIVE_ATOMIC_SUPPORTED: c_int = 3;
/// The other device's memory can be reached as soon as it is mapped.
pub const IPC_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
/// No graph is captured.
pub const CAPTURE_NONE: c_int = 0;

/// What names a device, wherever it is seen from.
pub type Uuid = [u8; 16];

/// What names memory of a device to other processes of the machine.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle(pub [u8; IPC_HANDLE_BYTES]);

pub const IPC_HANDLE_BYTES: usize = 64;

pub type Init = unsafe extern "C" fn(c_uint) -> CudaStatus;
pub type GetErrorString = unsafe extern "C" fn(CudaStatus, *mut *const c_char) -> CudaStatus;
pub type DeviceGet = unsafe extern "C" fn(*mut c_int, c_int) -> CudaStatus;
pub type DeviceGetAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> CudaStatus;
pub type PrimaryContextRetain = unsafe extern "C" fn(*mut Handle, c_int) -> CudaStatus;
pub type PrimaryContextRelease = unsafe extern "C" fn(c_int) -> CudaStatus;
pub type ContextPush = unsafe extern "C" fn(Handle) -> CudaStatus;
pub type ContextPop = unsafe extern "C" fn(*mut Handle) -> CudaStatus;
pub type StreamCreate = unsafe extern "C" fn(*mut Handle, c_uint) -> CudaStatus;
pub type StreamDestroy = unsafe extern "C" fn(Handle) -> CudaStatus;
pub type StreamWaitEvent = unsafe extern "C" fn(Handle, Handle, c_uint) -> CudaStatus;
pub type StreamIsCapturing = unsafe extern "C" fn(Handle, *mut c_int) -> CudaStatus;
pub type EventCreate = unsafe extern "C" fn(*mut Handle, c_uint) -> CudaStatus;
pub type EventDestroy = unsafe extern "C" fn(Handle) -> CudaStatus;
pub type EventRecord = unsafe extern "C" fn(Handle, Handle) -> CudaStatus;
pub type EventQuery = unsafe extern "C" fn(Handle) -> CudaStatus;
pub type EventSynchronize = unsafe extern "C" fn(Handle) -> CudaStatus;
pub type HostRegister = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> CudaStatus;
pub type HostUnregister = unsafe extern "C" fn(*mut c_void) -> CudaStatus;
pub type CopyToHost = unsafe extern "C" fn(*mut c_void, DevicePointer, usize, Handle) -> CudaStatus;
pub type CopyToDevice =
    unsafe extern "C" fn(DevicePointer, *const c_void, usize, Handle) -> CudaStatus;
pub type CopyOnDevice =
    unsafe extern "C" fn(DevicePointer, DevicePointer, usize, Handle) -> CudaStatus;
pub type DeviceGetCount = unsafe extern "C" fn(*mut c_int) -> CudaStatus;
pub type DeviceGetUuid = unsafe extern "C" fn(*mut Uuid, c_int) -> CudaStatus;
pub type DeviceGetP2pAttribute =
    unsafe extern "C" fn(*mut c_int, c_int, c_int, c_int) -> CudaStatus;
pub type MemoryAllocate = unsafe extern "C" fn(*mut DevicePointer, usize) -> CudaStatus;
pub type MemoryFree = unsafe extern "C" fn(DevicePointer) -> CudaStatus;
pub type IpcGetHandle = unsafe extern "C" fn(*mut IpcHandle, DevicePointer) -> CudaStatus;
pub type IpcOpenHandle = unsafe extern "C" fn(*mut DevicePointer, IpcHandle, c_uint) -> CudaStatus;
pub type IpcCloseHandle = unsafe extern "C" fn(DevicePointer) -> CudaStatus;
pub type ModuleLoad = unsafe extern "C" fn(*mut Handle, *const c_void) -> CudaStatus;
pub type ModuleUnload = unsafe extern "C" fn(Handle) -> CudaStatus;
pub type ModuleGetFunction = unsafe extern "C" fn(*mut Handle, Handle, *const c_char) -> CudaStatus;
/// Function; blocks in three dimensions, threads of each; shared memory; stream; parameters; what else is said of them.
pub type LaunchKernel = unsafe extern "C" fn(
    Handle,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Handle,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CudaStatus;
