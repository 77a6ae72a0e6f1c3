//! What the tests of the kernels share.

use collective::kernels::{Kernels, Store};
use collective::{DType, ReduceOp, Scale};

/// The sources combined by these kernels.
pub(crate) fn combined(
    kernels: &Kernels,
    dtype: DType,
    op: ReduceOp,
    sources: &[&[u8]],
    scale: Scale,
) -> Vec<u8> {
    let mut destination = vec![0xa5; sources[0].len()];
    let into = &mut destination;
    kernels.reduce(dtype, op, into, sources, scale, Store::Cached);
    destination
}

/// The bytes of 16-bit values.
pub(crate) fn bytes_of(values: impl IntoIterator<Item = u16>) -> Vec<u8> {
    values.into_iter().flat_map(u16::to_ne_bytes).collect()
}
