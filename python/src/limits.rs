//! Limits of the native module that a script can reach.

/// Collectives of tensors on GPUs that may wait to be called, each with memory for its input.
///
/// - Unit: collectives of a group
/// - At the limit: waits: whoever begins a further one waits, as long as its time limit allows
/// - Test: `test_who_begins_more_than_may_wait_for_a_gpu_waits`
pub(crate) const QUEUE: usize = 256;
