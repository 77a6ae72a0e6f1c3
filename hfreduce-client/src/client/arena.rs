//! Memory for inputs that stays with the process: a model's gradients live in it, so nothing is copied to call with them.

use std::ptr::NonNull;
use std::sync::Arc;

use super::buffer::InputSegment;
use super::{InputBuffer, Shared};
use crate::cuda::{self, CudaDevice, RegisteredOnce};

/// A segment whose places are inputs of operations, as many and as often as the caller likes. Whoever writes to it
/// writes elsewhere than operations in flight read; the sidecar adds up whatever lies there. Keep it until its
/// operations are over.
#[derive(Debug)]
pub struct Arena {
    /// Before the memory.
    registration: RegisteredOnce,
    shared: Arc<Shared>,
    inputs: InputSegment,
}

impl Arena {
    /// None only of a buffer without a segment.
    pub(super) fn new(buffer: InputBuffer) -> Option<Self> {
        let shared = buffer.shared();
        let (input, _) = buffer.into_segment()?;
        Some(Self {
            registration: RegisteredOnce::default(),
            shared,
            inputs: input,
        })
    }

    /// Bytes of it: at least as many as were asked for.
    #[expect(clippy::len_without_is_empty, reason = "a segment is never empty")]
    pub fn len(&self) -> usize {
        self.inputs.segment.len()
    }

    /// Where it begins: mapped, for reading and writing, until this is dropped.
    pub fn start(&self) -> NonNull<u8> {
        self.inputs.segment.place()
    }

    /// Where a range of it begins.
    pub(crate) fn range(&self, offset: usize, bytes: usize) -> Result<NonNull<u8>, cuda::Error> {
        let length = self.len();
        match offset.checked_add(bytes) {
            // Inside, so the address is too.
            Some(end) if end <= length => {
                Ok(self.start().map_addr(|start| start.saturating_add(offset)))
            }
            Some(_) | None => Err(cuda::Error::Bounds {
                offset,
                bytes,
                length,
            }),
        }
    }

    /// Lets a GPU copy from and to it.
    pub(crate) fn register(&self, device: &Arc<CudaDevice>) -> Result<(), cuda::Error> {
        self.registration
            .register(device, (self.start(), self.len()), false)
    }

    pub(super) fn number(&self) -> u32 {
        self.inputs.number
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Not kept for other inputs: an operation in flight may still read it, and then the sidecar keeps it.
        if let Ok(mut state) = self.shared.lock() {
            state.give_back(&self.inputs);
        }
    }
}
