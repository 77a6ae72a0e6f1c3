//! The CUDA driver's library, loaded when it is asked for, so that one wheel starts on machines with and without GPUs.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Error, abi};

/// The library's name; the container runtime puts the one of the machine's driver into the container.
pub const NAME: &str = "libcuda.so.1";

/// The functions that we use. The library is never unloaded: PyTorch has it too.
#[derive(Debug)]
pub struct Library {
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
}

impl Library {
    /// Loads the machine's driver, or the library at `path`, and initialises it.
    #[expect(unsafe_code, reason = "loading code and calling into it")]
    pub fn load(path: Option<&Path>) -> Result<Arc<Self>, Error> {
        let path = path.map_or_else(|| PathBuf::from(NAME), Path::to_path_buf);
        // SAFETY: the library's initialisers run. They are the driver's, or those of a library that the caller
        // chose by its path; either is code that this process trusts.
        let library = match unsafe { libloading::Library::new(&path) } {
            Ok(library) => library,
            Err(source) => return Err(Error::Load { path, source }),
        };
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the type of what this becomes is the function's own, as `abi` declares it; the address
                // stays good, because the library is never unloaded.
                *unsafe { library.get($name) }.map_err(|_| Error::Old {
                    path: path.clone(),
                    function: $name,
                })?
            };
        }
        let init: abi::Init = function!("cuInit");
        let functions = Self {
            get_error_string: function!("cuGetErrorString"),
            device_get: function!("cuDeviceGet"),
            device_get_attribute: function!("cuDeviceGetAttribute"),
            primary_context_retain: function!("cuDevicePrimaryCtxRetain"),
            primary_context_release: function!("cuDevicePrimaryCtxRelease_v2"),
            context_push: function!("cuCtxPushCurrent_v2"),
            context_pop: function!("cuCtxPopCurrent_v2"),
            stream_create: function!("cuStreamCreate"),
            stream_destroy: function!("cuStreamDestroy_v2"),
            stream_wait_event: function!("cuStreamWaitEvent"),
            stream_is_capturing: function!("cuStreamIsCapturing"),
            event_create: function!("cuEventCreate"),
            event_destroy: function!("cuEventDestroy_v2"),
            event_record: function!("cuEventRecord"),
            event_query: function!("cuEventQuery"),
            event_synchronize: function!("cuEventSynchronize"),
            host_register: function!("cuMemHostRegister_v2"),
            host_unregister: function!("cuMemHostUnregister"),
            copy_to_host: function!("cuMemcpyDtoHAsync_v2"),
            copy_to_device: function!("cuMemcpyHtoDAsync_v2"),
        };
        std::mem::forget(library);
        // SAFETY: takes no pointer; flags must be 0.
        let status = unsafe { init(0) };
        functions.check("initialise the CUDA driver", status)?;
        Ok(Arc::new(functions))
    }

    /// An error in the driver's words.
    #[expect(unsafe_code, reason = "a string of the driver's")]
    pub(super) fn check(&self, doing: &'static str, status: abi::Status) -> Result<(), Error> {
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
