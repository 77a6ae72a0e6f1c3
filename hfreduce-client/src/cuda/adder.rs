//! The one thing that runs on a GPU's processors: combining two tensors on the device, element by element. Everything else
//! is done by copy engines and on the host, and leaves them to the trainer.

use std::ffi::{CString, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::device::Direction;
use super::{CudaDevice, DeviceMemory, Error, abi, ptx};
use crate::{DType, ReduceOp};

/// Threads of a block.
const THREADS: u32 = 512;
/// Blocks at most: enough to keep an NVLink busy, and few enough to leave most processors alone.
const BLOCKS: usize = 64;

/// How two tensors are combined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    operator: ptx::Operator,
    element: ptx::Element,
    /// What each is multiplied with before; of floats that are added up.
    scale: f32,
}

impl Sum {
    /// How a pair combines what goes into a reduction, if a GPU can do that: what comes of it is reduced by the
    /// same words, among half as many ranks, but that a premultiplied sum is a sum from there on.
    #[must_use]
    pub fn of(dtype: DType, op: ReduceOp) -> Option<Self> {
        let (operator, scale) = match op {
            ReduceOp::Sum => (ptx::Operator::Sum, 1.0),
            // The mean of two, as the other half is divided by the other pairs. It cannot overflow.
            ReduceOp::Avg => (ptx::Operator::Sum, 0.5),
            ReduceOp::PremulSum(factor) => (ptx::Operator::Sum, factor.value()),
            ReduceOp::Max => (ptx::Operator::Max, 1.0),
            ReduceOp::Min => (ptx::Operator::Min, 1.0),
            ReduceOp::And | ReduceOp::Or | ReduceOp::Xor => return None,
        };
        let element = match dtype {
            DType::F32 => ptx::Element::F32,
            DType::F16 => ptx::Element::F16,
            DType::Bf16 => ptx::Element::BF16,
            DType::I32 => ptx::Element::I32,
            DType::I64 => ptx::Element::I64,
            DType::U8 => ptx::Element::U8,
            DType::F64 | DType::I8 | DType::E4m3 | DType::E5m2 => return None,
        };
        Some(Self {
            operator,
            element,
            scale,
        })
    }
}

/// Our kernels on one device.
#[derive(Debug)]
pub(super) struct Adder {
    device: Arc<CudaDevice>,
    module: abi::Handle,
}

// SAFETY: the driver's modules may be used from any thread.
#[expect(unsafe_code, reason = "handles of the driver")]
unsafe impl Send for Adder {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "handles of the driver")]
unsafe impl Sync for Adder {}

impl Adder {
    /// Has the driver translate the kernels for this device.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub(super) fn load(device: &Arc<CudaDevice>) -> Result<Self, Error> {
        let text = CString::new(ptx::module()).unwrap_or_default();
        let mut module = null_mut();
        device.call("load kernels into the GPU", |library| {
            // SAFETY: the variable is ours, the text ends with a zero; unloaded in `drop`.
            unsafe { (library.module_load)(&raw mut module, text.as_ptr().cast()) }
        })?;
        Ok(Self {
            device: Arc::clone(device),
            module,
        })
    }

    /// Begins to combine two tensors of the same length, before the copies to the host that are begun later; the result
    /// comes into the second.
    #[expect(unsafe_code, reason = "calls of the driver")]
    pub(super) fn add(&self, sum: Sum, own: DeviceMemory, into: DeviceMemory) -> Result<(), Error> {
        let name = CString::new(ptx::name(sum.operator, sum.element)).unwrap_or_default();
        let mut function = null_mut();
        self.device.call("find a kernel", |library| {
            // SAFETY: the variable is ours, the module is loaded.
            unsafe { (library.module_get_function)(&raw mut function, self.module, name.as_ptr()) }
        })?;
        let count = own.len() / sum.element.bytes();
        let (mut from, mut to, mut elements) = (own.start(), into.start(), count as u64);
        let mut scale = sum.scale;
        let mut parameters: [*mut c_void; 4] = [
            (&raw mut from).cast(),
            (&raw mut to).cast(),
            (&raw mut elements).cast(),
            (&raw mut scale).cast(),
        ];
        let blocks = count.div_ceil(THREADS as usize).clamp(1, BLOCKS) as u32;
        self.device.call("launch a kernel", |library| {
            // SAFETY: the parameters are those of every kernel of the module, in its order, and are read before this
            // returns; the memory is somebody's for as long as the stream needs it, as with copies.
            unsafe {
                (library.launch_kernel)(
                    function,
                    blocks,
                    1,
                    1,
                    THREADS,
                    1,
                    1,
                    0,
                    self.device.stream(Direction::ToHost),
                    parameters.as_mut_ptr(),
                    null_mut(),
                )
            }
        })
    }
}

impl Drop for Adder {
    #[expect(unsafe_code, reason = "calls of the driver")]
    fn drop(&mut self) {
        let module = self.module;
        self.device
            .call("unload kernels", |library| {
                // SAFETY: loaded in `load`.
                unsafe { (library.module_unload)(module) }
            })
            .ok();
    }
}
