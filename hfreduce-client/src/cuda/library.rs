//! The CUDA driver's library, loaded when it is asked for, so that one wheel starts on machines with and without GPUs.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Error, abi};
use link::loaded::Loaded;

/// The library's name; the container runtime puts the one of the machine's driver into the container.
pub const NAME: &str = "libcuda.so.1";

/// The functions that we use.
#[derive(Debug)]
pub struct CudaLibrary {
    pub(super) get_error_string: abi::GetErrorString,
    pub(super) device_get: abi::DeviceGet,
    pub(super) device_get_attribute: abi::DeviceGetAttribute,
    pub(super) primary_context_retain: abi::PrimaryContextRetain,
    pub(super) primary_context_release: abi::PrimaryContextRelease,
    pub(super) context_push: abi::ContextPush,
    pub(super) context_pop: abi::ContextPop,
    pub(super) stream_create: abi::StreamCreate,
    pub(super) stream_destroy: abi::StreamDestroy,
    pub(super) stream_wait_event: abi::StreamWaitEvent,
    pub(super) stream_is_capturing: abi::StreamIsCapturing,
    pub(super) event_create: abi::EventCreate,
    pub(super) event_destroy: abi::EventDestroy,
    pub(super) event_record: abi::EventRecord,
    pub(super) event_query: abi::EventQuery,
    pub(super) event_synchronize: abi::EventSynchronize,
    pub(super) host_register: abi::HostRegister,
    pub(super) host_unregister: abi::HostUnregister,
    pub(super) copy_to_host: abi::CopyToHost,
    pub(super) copy_to_device: abi::CopyToDevice,
    pub(super) copy_on_device: abi::CopyOnDevice,
    pub(super) device_get_count: abi::DeviceGetCount,
    pub(super) device_get_uuid: abi::DeviceGetUuid,
    pub(super) device_get_p2p_attribute: abi::DeviceGetP2pAttribute,
    pub(super) memory_allocate: abi::MemoryAllocate,
    pub(super) memory_free: abi::MemoryFree,
    pub(super) ipc_get_handle: abi::IpcGetHandle,
    pub(super) ipc_open_handle: abi::IpcOpenHandle,
    pub(super) ipc_close_handle: abi::IpcCloseHandle,
    pub(super) module_load: abi::ModuleLoad,
    pub(super) module_unload: abi::ModuleUnload,
    pub(super) module_get_function: abi::ModuleGetFunction,
    pub(super) launch_kernel: abi::LaunchKernel,
}

impl CudaLibrary {
    /// Loads the machine's driver, or the library at `path`, and initialises it.
    #[expect(unsafe_code, reason = "loading code and calling into it")]
    pub fn load(path: Option<&Path>) -> Result<Arc<Self>, Error> {
        let path = path.map_or_else(|| PathBuf::from(NAME), Path::to_path_buf);
        // SAFETY: the initialisers are the driver's, or those of a library that the caller chose by its path; either is
        // code that this process trusts.
        let loaded = unsafe { Loaded::open(path) }?;
        // SAFETY: the type of what each becomes is the function's own, as `abi` declares it.
        let (init, functions) = unsafe {
            let init: abi::Init = loaded.function("cuInit")?;
            let functions = Self {
                get_error_string: loaded.function("cuGetErrorString")?,
                device_get: loaded.function("cuDeviceGet")?,
                device_get_attribute: loaded.function("cuDeviceGetAttribute")?,
                primary_context_retain: loaded.function("cuDevicePrimaryCtxRetain")?,
                primary_context_release: loaded.function("cuDevicePrimaryCtxRelease_v2")?,
                context_push: loaded.function("cuCtxPushCurrent_v2")?,
                context_pop: loaded.function("cuCtxPopCurrent_v2")?,
                stream_create: loaded.function("cuStreamCreate")?,
                stream_destroy: loaded.function("cuStreamDestroy_v2")?,
                stream_wait_event: loaded.function("cuStreamWaitEvent")?,
                stream_is_capturing: loaded.function("cuStreamIsCapturing")?,
                event_create: loaded.function("cuEventCreate")?,
                event_destroy: loaded.function("cuEventDestroy_v2")?,
                event_record: loaded.function("cuEventRecord")?,
                event_query: loaded.function("cuEventQuery")?,
                event_synchronize: loaded.function("cuEventSynchronize")?,
                host_register: loaded.function("cuMemHostRegister_v2")?,
                host_unregister: loaded.function("cuMemHostUnregister")?,
                copy_to_host: loaded.function("cuMemcpyDtoHAsync_v2")?,
                copy_to_device: loaded.function("cuMemcpyHtoDAsync_v2")?,
                copy_on_device: loaded.function("cuMemcpyDtoDAsync_v2")?,
                device_get_count: loaded.function("cuDeviceGetCount")?,
                device_get_uuid: loaded.function("cuDeviceGetUuid")?,
                device_get_p2p_attribute: loaded.function("cuDeviceGetP2PAttribute")?,
                memory_allocate: loaded.function("cuMemAlloc_v2")?,
                memory_free: loaded.function("cuMemFree_v2")?,
                ipc_get_handle: loaded.function("cuIpcGetMemHandle")?,
                ipc_open_handle: loaded.function("cuIpcOpenMemHandle_v2")?,
                ipc_close_handle: loaded.function("cuIpcCloseMemHandle")?,
                module_load: loaded.function("cuModuleLoadData")?,
                module_unload: loaded.function("cuModuleUnload")?,
                module_get_function: loaded.function("cuModuleGetFunction")?,
                launch_kernel: loaded.function("cuLaunchKernel")?,
            };
            (init, functions)
        };
        // SAFETY: takes no pointer; flags must be 0.
        let status = unsafe { init(0) };
        functions.check("initialise the CUDA driver", status)?;
        Ok(Arc::new(functions))
    }

    /// An error in the driver's words.
    #[expect(unsafe_code, reason = "a string of the driver's")]
    pub(super) fn check(&self, doing: &'static str, status: abi::CudaStatus) -> Result<(), Error> {
        if status == abi::SUCCESS {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: the variable is ours.
        let known = unsafe { (self.get_error_string)(status, &raw mut text) } == abi::SUCCESS;
        let text = if known && !text.is_null() {
            // SAFETY: a string of the driver's, which stays.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        } else {
            "an error without a name".to_owned()
        };
        Err(Error::Call {
            doing,
            status,
            text,
        })
    }
}
