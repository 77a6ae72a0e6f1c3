//! Memory of the trainer's that its owner, such as PyTorch, knows by an address: copies from it and to it. Here, and nowhere
//! else, such an address becomes bytes.
//!
//! Who makes a [`HostMemory`] vouches for it: it is mapped for reading, and for writing where it is copied to, and stays so
//! until the copy is over. It is never a slice, because other threads of the trainer may use it meanwhile. What they write
//! during a copy is copied or not, as with every backend of PyTorch.

/// So many bytes of somebody's.
#[derive(Clone, Copy, Debug)]
pub struct HostMemory {
    start: *mut u8,
    bytes: usize,
}

// SAFETY: an address; who vouches for the memory does so for all threads.
#[expect(unsafe_code, reason = "an address as a name")]
unsafe impl Send for HostMemory {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "an address as a name")]
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// So many bytes that begin where their owner says.
    #[must_use]
    pub const fn of_owner(start: *mut u8, bytes: usize) -> Self {
        Self { start, bytes }
    }

    /// Copies it to `target`, or as much of it as that is long.
    #[expect(unsafe_code, reason = "a copy from an address")]
    pub fn copy_to(self, target: &mut [u8]) {
        let bytes = self.bytes.min(target.len());
        // SAFETY: mapped for as many bytes, as its owner says; and apart, since nobody else has the address of a target
        // that is borrowed for writing.
        unsafe { std::ptr::copy_nonoverlapping(self.start, target.as_mut_ptr(), bytes) };
    }

    /// Copies `source` to it, or as much of it as there is room for.
    #[expect(unsafe_code, reason = "a copy to an address")]
    pub fn copy_from(self, source: &[u8]) {
        let bytes = self.bytes.min(source.len());
        // SAFETY: mapped for writing for as many bytes, as its owner says; and apart, since nobody may write to a source
        // that is borrowed.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.start, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_as_long_as_the_shorter_one() {
        let mut tensor = [1, 2, 3, 4];
        let memory = HostMemory::of_owner(tensor.as_mut_ptr(), tensor.len());
        let mut target = [0; 6];
        memory.copy_to(&mut target);
        assert_eq!(target, [1, 2, 3, 4, 0, 0]);
        memory.copy_to(&mut target[4..]);
        assert_eq!(target, [1, 2, 3, 4, 1, 2]);
        memory.copy_from(&[9; 2]);
        memory.copy_to(&mut target);
        assert_eq!(target, [9, 9, 3, 4, 1, 2]);
        memory.copy_from(&[7; 9]);
        assert_eq!(tensor, [7; 4]);
    }
}
