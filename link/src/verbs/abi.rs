//! What we use of libibverbs' binary interface, declared by ourselves: a few structures, whose layout has not changed
//! since the library's first release, and the functions' types. Sizes and places were taken from the C compiler and
//! are asserted here; what the fields mean is said where they are used. Public for the stand-in library of the tests.

#![expect(
    missing_debug_implementations,
    reason = "structures of C, full of pointers"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::offset_of;

/// What the library hands out by pointer and we only hand back.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}
pub type IbvDevice = Opaque;
pub type ProtectionDomain = Opaque;

/// The functions of the data path are in the library's header, where they call these pointers of the device's
/// provider; the others are functions of the library.
#[repr(C)]
pub struct ContextOps {
    pub control: [usize; 11],
    pub poll_cq:
        Option<unsafe extern "C" fn(*mut IbvCompletionQueue, c_int, *mut WorkCompletion) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut IbvCompletionQueue, c_int) -> c_int>,
    pub more_control: [usize; 12],
    pub post_send: Option<
        unsafe extern "C" fn(*mut IbvQueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int,
    >,
    pub post_recv: Option<
        unsafe extern "C" fn(
            *mut IbvQueuePair,
            *mut ReceiveRequest,
            *mut *mut ReceiveRequest,
        ) -> c_int,
    >,
    pub last_control: [usize; 5],
}

/// The beginning of `ibv_context`, as far as we look.
#[repr(C)]
pub struct IbvContext {
    pub device: *mut IbvDevice,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

/// The beginning of `ibv_cq`.
#[repr(C)]
pub struct IbvCompletionQueue {
    pub context: *mut IbvContext,
    pub channel: *mut IbvChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

#[repr(C)]
pub struct IbvChannel {
    pub context: *mut IbvContext,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// The beginning of `ibv_qp`.
#[repr(C)]
pub struct IbvQueuePair {
    pub context: *mut IbvContext,
    pub qp_context: *mut c_void,
    pub pd: *mut ProtectionDomain,
    pub send_cq: *mut IbvCompletionQueue,
    pub recv_cq: *mut IbvCompletionQueue,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
}

#[repr(C)]
pub struct MemoryRegion {
    pub context: *mut IbvContext,
    pub pd: *mut ProtectionDomain,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttributes {
    pub fw_ver: [c_char; 64],
    pub before: [u64; 4],
    pub vendor: [u32; 3],
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub flags_and_sges: [c_int; 3],
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub limits: [c_int; 22],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortAttributes {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct GidEntry {
    pub gid: [u8; 16],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
const _: () = assert!(align_of::<GidEntry>() == 4);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct WorkCompletion {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// In network byte order.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Capabilities {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct PairInit {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCompletionQueue,
    pub recv_cq: *mut IbvCompletionQueue,
    pub srq: *mut c_void,
    pub cap: Capabilities,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct GlobalRoute {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct AddressHandle {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PairAttributes {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: Capabilities,
    pub ah_attr: AddressHandle,
    pub alt_ah_attr: AddressHandle,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Piece {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `ibv_send_wr` with the RDMA arm of its first union; the others are longer and stay unused.
#[repr(C)]
pub struct SendRequest {
    pub wr_id: u64,
    pub next: *mut SendRequest,
    pub sg_list: *mut Piece,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// In network byte order.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub unused: [u32; 19],
}

#[repr(C)]
pub struct ReceiveRequest {
    pub wr_id: u64,
    pub next: *mut ReceiveRequest,
    pub sg_list: *mut Piece,
    pub num_sge: c_int,
}

const _: () = {
    assert!(size_of::<ContextOps>() == 256);
    assert!(offset_of!(ContextOps, poll_cq) == 88 && offset_of!(ContextOps, post_send) == 200);
    assert!(offset_of!(IbvContext, ops) == 8 && offset_of!(IbvContext, async_fd) == 268);
    assert!(offset_of!(IbvCompletionQueue, cqe) == 28 && size_of::<IbvChannel>() == 16);
    assert!(offset_of!(IbvQueuePair, qp_num) == 52 && offset_of!(IbvQueuePair, state) == 56);
    assert!(size_of::<MemoryRegion>() == 48 && offset_of!(MemoryRegion, lkey) == 36);
    assert!(size_of::<DeviceAttributes>() == 232);
    assert!(offset_of!(DeviceAttributes, max_qp_wr) == 112);
    assert!(offset_of!(DeviceAttributes, max_cqe) == 132);
    assert!(offset_of!(DeviceAttributes, phys_port_cnt) == 227);
    assert!(size_of::<PortAttributes>() == 52 && offset_of!(PortAttributes, link_layer) == 46);
    assert!(size_of::<GidEntry>() == 32 && size_of::<Piece>() == 16);
    assert!(size_of::<WorkCompletion>() == 48 && offset_of!(WorkCompletion, qp_num) == 28);
    assert!(size_of::<PairInit>() == 64 && offset_of!(PairInit, qp_type) == 52);
    assert!(size_of::<AddressHandle>() == 32 && size_of::<GlobalRoute>() == 24);
    assert!(size_of::<PairAttributes>() == 144 && offset_of!(PairAttributes, ah_attr) == 56);
    assert!(offset_of!(PairAttributes, pkey_index) == 120);
    assert!(offset_of!(PairAttributes, rate_limit) == 136);
    assert!(size_of::<SendRequest>() == 128 && offset_of!(SendRequest, remote_addr) == 40);
    assert!(size_of::<ReceiveRequest>() == 32);
};

pub const PORT_ACTIVE: c_uint = 4;
/// `IBV_QPF_GRH_REQUIRED`.
pub const PORT_NEEDS_GLOBAL_HEADER: u8 = 1;
pub const LINK_LAYER_INFINIBAND: u8 = 1;
pub const LINK_LAYER_ETHERNET: u8 = 2;
pub const GID_TYPE_INFINIBAND: u32 = 0;
pub const GID_TYPE_ROCE_V1: u32 = 1;
pub const GID_TYPE_ROCE_V2: u32 = 2;

pub const ACCESS_LOCAL_WRITE: c_uint = 1;
pub const ACCESS_REMOTE_WRITE: c_uint = 1 << 1;
pub const ACCESS_RELAXED_ORDERING: c_uint = 1 << 20;

pub const PAIR_RELIABLE: c_uint = 2;
pub const STATE_INIT: c_uint = 1;
pub const STATE_READY_TO_RECEIVE: c_uint = 2;
pub const STATE_READY_TO_SEND: c_uint = 3;
pub const STATE_ERROR: c_uint = 6;

pub const MASK_STATE: c_int = 1;
pub const MASK_ACCESS_FLAGS: c_int = 1 << 3;
pub const MASK_PKEY_INDEX: c_int = 1 << 4;
pub const MASK_PORT: c_int = 1 << 5;
pub const MASK_ADDRESS: c_int = 1 << 7;
pub const MASK_PATH_MTU: c_int = 1 << 8;
pub const MASK_TIMEOUT: c_int = 1 << 9;
pub const MASK_RETRY_COUNT: c_int = 1 << 10;
pub const MASK_RNR_RETRY: c_int = 1 << 11;
pub const MASK_RECEIVE_PSN: c_int = 1 << 12;
pub const MASK_MAX_READ_ATOMIC: c_int = 1 << 13;
pub const MASK_MIN_RNR_TIMER: c_int = 1 << 15;
pub const MASK_SEND_PSN: c_int = 1 << 16;
pub const MASK_MAX_DEST_READ_ATOMIC: c_int = 1 << 17;
pub const MASK_DEST_QPN: c_int = 1 << 20;

pub const OP_WRITE: c_uint = 0;
pub const OP_WRITE_WITH_IMM: c_uint = 1;
pub const SEND_SIGNALED: c_uint = 1 << 1;
pub const SEND_INLINE: c_uint = 1 << 3;

pub const COMPLETED_WRITE: c_uint = 1;
pub const COMPLETED_RECEIVE_WITH_IMM: c_uint = (1 << 7) + 1;

pub type GetDeviceList = unsafe extern "C" fn(*mut c_int) -> *mut *mut IbvDevice;
pub type FreeDeviceList = unsafe extern "C" fn(*mut *mut IbvDevice);
pub type GetDeviceName = unsafe extern "C" fn(*mut IbvDevice) -> *const c_char;
pub type OpenDevice = unsafe extern "C" fn(*mut IbvDevice) -> *mut IbvContext;
pub type CloseDevice = unsafe extern "C" fn(*mut IbvContext) -> c_int;
pub type QueryDevice = unsafe extern "C" fn(*mut IbvContext, *mut DeviceAttributes) -> c_int;
pub type QueryPort = unsafe extern "C" fn(*mut IbvContext, u8, *mut PortAttributes) -> c_int;
pub type QueryGid =
    unsafe extern "C" fn(*mut IbvContext, u32, u32, *mut GidEntry, u32, usize) -> c_int;
pub type AllocPd = unsafe extern "C" fn(*mut IbvContext) -> *mut ProtectionDomain;
pub type DeallocPd = unsafe extern "C" fn(*mut ProtectionDomain) -> c_int;
pub type RegisterMemory = unsafe extern "C" fn(
    *mut ProtectionDomain,
    *mut c_void,
    usize,
    u64,
    c_uint,
) -> *mut MemoryRegion;
pub type DeregisterMemory = unsafe extern "C" fn(*mut MemoryRegion) -> c_int;
pub type CreateChannel = unsafe extern "C" fn(*mut IbvContext) -> *mut IbvChannel;
pub type DestroyChannel = unsafe extern "C" fn(*mut IbvChannel) -> c_int;
pub type CreateQueue = unsafe extern "C" fn(
    *mut IbvContext,
    c_int,
    *mut c_void,
    *mut IbvChannel,
    c_int,
) -> *mut IbvCompletionQueue;
pub type DestroyQueue = unsafe extern "C" fn(*mut IbvCompletionQueue) -> c_int;
pub type GetEvent =
    unsafe extern "C" fn(*mut IbvChannel, *mut *mut IbvCompletionQueue, *mut *mut c_void) -> c_int;
pub type AckEvents = unsafe extern "C" fn(*mut IbvCompletionQueue, c_uint);
pub type CreatePair =
    unsafe extern "C" fn(*mut ProtectionDomain, *mut PairInit) -> *mut IbvQueuePair;
pub type ModifyPair = unsafe extern "C" fn(*mut IbvQueuePair, *mut PairAttributes, c_int) -> c_int;
pub type DestroyPair = unsafe extern "C" fn(*mut IbvQueuePair) -> c_int;
