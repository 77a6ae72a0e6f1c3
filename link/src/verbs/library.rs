//! libibverbs, loaded when it is asked for, so that one program starts on machines with and without RDMA. Owns finding
//! the library and its functions; what is done with them is in the files beside.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Error;
use super::abi;
use crate::loaded::Loaded;

/// The library's name, under which every distribution has it.
pub const NAME: &str = "libibverbs.so.1";

/// The functions that we use.
#[derive(Debug)]
pub struct VerbsLibrary {
    pub(super) get_device_list: abi::GetDeviceList,
    pub(super) free_device_list: abi::FreeDeviceList,
    pub(super) get_device_name: abi::GetDeviceName,
    pub(super) open_device: abi::OpenDevice,
    pub(super) close_device: abi::CloseDevice,
    pub(super) query_device: abi::QueryDevice,
    pub(super) query_port: abi::QueryPort,
    pub(super) query_gid: abi::QueryGid,
    pub(super) alloc_pd: abi::AllocPd,
    pub(super) dealloc_pd: abi::DeallocPd,
    pub(super) register_memory: abi::RegisterMemory,
    pub(super) deregister_memory: abi::DeregisterMemory,
    pub(super) create_channel: abi::CreateChannel,
    pub(super) destroy_channel: abi::DestroyChannel,
    pub(super) create_queue: abi::CreateQueue,
    pub(super) destroy_queue: abi::DestroyQueue,
    pub(super) get_event: abi::GetEvent,
    pub(super) ack_events: abi::AckEvents,
    pub(super) create_pair: abi::CreatePair,
    pub(super) modify_pair: abi::ModifyPair,
    pub(super) destroy_pair: abi::DestroyPair,
}

impl VerbsLibrary {
    /// Loads the machine's library, or the one at `path`.
    pub fn load(path: Option<&Path>) -> Result<Arc<Self>, Error> {
        let path = path.map_or_else(|| PathBuf::from(NAME), Path::to_path_buf);
        // A program without a dynamic loader of its own would bring a second C library into the process.
        if cfg!(target_feature = "crt-static") {
            return Err(Error::Static);
        }
        Self::open(path)
    }

    #[expect(unsafe_code, reason = "loading code and calling into it")]
    fn open(path: PathBuf) -> Result<Arc<Self>, Error> {
        // SAFETY: the initialisers are libibverbs', or those of a library that the caller chose by its path; either is
        // code that this process trusts.
        let loaded = unsafe { Loaded::open(path) }?;
        // SAFETY: the type of each field is the function's own, as `abi` declares it.
        let functions = unsafe {
            Self {
                get_device_list: loaded.function("ibv_get_device_list")?,
                free_device_list: loaded.function("ibv_free_device_list")?,
                get_device_name: loaded.function("ibv_get_device_name")?,
                open_device: loaded.function("ibv_open_device")?,
                close_device: loaded.function("ibv_close_device")?,
                query_device: loaded.function("ibv_query_device")?,
                query_port: loaded.function("ibv_query_port")?,
                query_gid: loaded.function("_ibv_query_gid_ex")?,
                alloc_pd: loaded.function("ibv_alloc_pd")?,
                dealloc_pd: loaded.function("ibv_dealloc_pd")?,
                register_memory: loaded.function("ibv_reg_mr_iova2")?,
                deregister_memory: loaded.function("ibv_dereg_mr")?,
                create_channel: loaded.function("ibv_create_comp_channel")?,
                destroy_channel: loaded.function("ibv_destroy_comp_channel")?,
                create_queue: loaded.function("ibv_create_cq")?,
                destroy_queue: loaded.function("ibv_destroy_cq")?,
                get_event: loaded.function("ibv_get_cq_event")?,
                ack_events: loaded.function("ibv_ack_cq_events")?,
                create_pair: loaded.function("ibv_create_qp")?,
                modify_pair: loaded.function("ibv_modify_qp")?,
                destroy_pair: loaded.function("ibv_destroy_qp")?,
            }
        };
        Ok(Arc::new(functions))
    }
}
