//! The algorithm of every vector kernel: one pass over all sources, a block of registers at a time, that keeps the
//! sums of the block in registers from the first source to the last. What ends or begins within a block goes through
//! a block's worth of memory on the stack, so that there is one loop and no other arithmetic.
//!
//! Safe code will not do: the compiler does not keep k streams' sums in registers over a loop whose length it does
//! not know, and has no vector form of the f16 conversions. How much faster than the scalar reference that is, and
//! how near to the memory's own speed: docs/measurements/2026-11-kernels.md.
#![expect(unsafe_code, reason = "vector instructions; see above")]

use super::Store;
use super::lanes::Lanes;

/// Bytes that are fetched at once, and that a streaming store has to fill.
const LINE: usize = 64;
/// How far ahead of the stores memory is asked for, in bytes: a store that waits for its line holds up all that follow.
const AHEAD_OF_STORES: usize = 1024;
/// Bytes of the largest block.
pub(super) const LARGEST: usize = 256;

/// A block of elements of one type, combined in registers. All functions need the instruction set of its lanes.
pub(super) trait Vector {
    /// The instruction set.
    type Lanes: Lanes;
    /// The same elements with sums that may be multiplied by anything.
    type Exact: Vector;
    /// Sums of a block.
    type Sums: Copy;
    /// Bytes of one element.
    const ELEMENT: usize;
    /// Bytes of a block in memory.
    const BYTES: usize;
    /// How far ahead of the loads memory is asked for, in bytes. 0: not at all, as the processor
    /// does it well enough by itself.
    const AHEAD: usize = 2048;
    /// Reads a block at any alignment.
    unsafe fn load(from: *const u8) -> Self::Sums;
    /// Rounds and writes a block. Streaming needs the alignment of a line.
    unsafe fn store(to: *mut u8, sums: Self::Sums, store: Store);
    unsafe fn sum(so_far: Self::Sums, next: Self::Sums) -> Self::Sums;
    unsafe fn max(so_far: Self::Sums, next: Self::Sums) -> Self::Sums;
    unsafe fn min(so_far: Self::Sums, next: Self::Sums) -> Self::Sums;
    /// Only floats: integers are divided by the scalar reference and never get here.
    #[inline(always)]
    unsafe fn divide(sums: Self::Sums, _divisor: f32) -> Self::Sums {
        sums
    }
    /// Only floats, as above.
    #[inline(always)]
    unsafe fn multiply(sums: Self::Sums, _factor: f32) -> Self::Sums {
        sums
    }
}

/// What is done with the sources, of which each knows its place. Needs the instruction set of the vector.
pub(super) trait Operator: Copy {
    /// What a source brings, before it is combined.
    #[inline(always)]
    unsafe fn enter<V: Vector>(self, _index: usize, next: V::Sums) -> V::Sums {
        next
    }
    unsafe fn combine<V: Vector>(so_far: V::Sums, next: V::Sums) -> V::Sums;
    /// What is left of the sum once a source is combined.
    #[inline(always)]
    unsafe fn leave<V: Vector>(self, _index: usize, sums: V::Sums) -> V::Sums {
        sums
    }
}

macro_rules! combine {
    ($method:ident) => {
        #[inline(always)]
        unsafe fn combine<V: Vector>(so_far: V::Sums, next: V::Sums) -> V::Sums {
            // SAFETY: passed on to the caller.
            unsafe { V::$method(so_far, next) }
        }
    };
}

/// All sources are added.
#[derive(Clone, Copy)]
pub(super) struct Sum;

impl Operator for Sum {
    combine!(sum);
}

/// The largest.
#[derive(Clone, Copy)]
pub(super) struct Max;

impl Operator for Max {
    combine!(max);
}

/// The smallest.
#[derive(Clone, Copy)]
pub(super) struct Min;

impl Operator for Min {
    combine!(min);
}

/// [`crate::reduce_op::Scale::Divide`].
#[derive(Clone, Copy)]
pub(super) struct Divided {
    pub(super) first: usize,
    pub(super) by: f32,
}

impl Operator for Divided {
    combine!(sum);

    #[inline(always)]
    unsafe fn leave<V: Vector>(self, index: usize, sums: V::Sums) -> V::Sums {
        if index + 1 == self.first {
            // SAFETY: passed on to the caller.
            unsafe { V::divide(sums, self.by) }
        } else {
            sums
        }
    }
}

/// [`crate::reduce_op::Scale::Multiply`].
#[derive(Clone, Copy)]
pub(super) struct Multiplied {
    pub(super) first: usize,
    pub(super) by: f32,
}

impl Operator for Multiplied {
    combine!(sum);

    #[inline(always)]
    unsafe fn enter<V: Vector>(self, index: usize, next: V::Sums) -> V::Sums {
        if index < self.first {
            // SAFETY: passed on to the caller.
            unsafe { V::multiply(next, self.by) }
        } else {
            next
        }
    }
}

/// Combines the sources.
///
/// # Safety
/// Needs `V`'s instruction set, and sources as long as the result, a multiple of the elements' size.
#[inline(always)]
pub(super) unsafe fn sweep<V: Vector, O: Operator>(
    operator: O,
    into: &mut [u8],
    sources: &[&[u8]],
    store: Store,
) {
    let length = into.len();
    let (head, store) = head::<V>(into, store);
    // SAFETY: `at` plus what is read and written stays within the length that everything has; behind the head, what is
    // streamed lies on a line. Prefetches may go past the end: they do not fault.
    unsafe {
        part::<V, O>(operator, into, sources, 0, head);
        let mut at = head;
        while length - at >= V::BYTES {
            let sums = combine::<V, O, true>(operator, sources, at, V::BYTES);
            write::<V>(into, at, sums, store);
            at += V::BYTES;
        }
        part::<V, O>(operator, into, sources, at, length);
        if store == Store::Streaming {
            V::Lanes::fence();
        }
    }
}

/// Bytes before the first block, and how to store the blocks: streaming stores begin on a line, which elements that lie
/// across lines never do.
pub(super) fn head<V: Vector>(into: &[u8], store: Store) -> (usize, Store) {
    let head = into.as_ptr().align_offset(LINE);
    let fits = head.is_multiple_of(V::ELEMENT) && head < into.len();
    match store {
        Store::Streaming if fits => (head, store),
        Store::Streaming | Store::Cached => (0, Store::Cached),
    }
}

/// A block in memory that is not the callers'.
#[repr(align(64))]
pub(super) struct Block(pub(super) [u8; LARGEST]);

/// The bytes from `at` to `end`, by way of blocks that hold nothing but zeros behind them.
///
/// # Safety
/// As `sweep`, with `end` within the length.
#[inline(always)]
unsafe fn part<V: Vector, O: Operator>(
    operator: O,
    into: &mut [u8],
    sources: &[&[u8]],
    at: usize,
    end: usize,
) {
    const { assert!(V::BYTES <= LARGEST) };
    let mut at = at;
    while at < end {
        let bytes = V::BYTES.min(end - at);
        // SAFETY: `at` and `bytes` stay within `end`; blocks hold what a vector reads and writes.
        unsafe {
            let sums = combine::<V, O, false>(operator, sources, at, bytes);
            let mut block = Block([0; LARGEST]);
            V::store(block.0.as_mut_ptr(), sums, Store::Cached);
            into[at..at + bytes].copy_from_slice(&block.0[..bytes]);
        }
        at += bytes;
    }
}

/// The sums of one block: of `bytes` bytes from `at` on, which are the `WHOLE` block or less. There is at least one
/// source.
///
/// # Safety
/// Needs `V`'s instruction set and so many bytes.
#[inline(always)]
unsafe fn combine<V: Vector, O: Operator, const WHOLE: bool>(
    operator: O,
    sources: &[&[u8]],
    at: usize,
    bytes: usize,
) -> V::Sums {
    // SAFETY: passed on to the caller.
    unsafe {
        let first = operator.enter::<V>(0, read::<V, WHOLE>(sources[0], at, bytes));
        let mut sums = operator.leave::<V>(0, first);
        for (index, source) in sources.iter().enumerate().skip(1) {
            let next = operator.enter::<V>(index, read::<V, WHOLE>(source, at, bytes));
            sums = operator.leave::<V>(index, O::combine::<V>(sums, next));
        }
        sums
    }
}

/// Writes a whole block.
///
/// # Safety
/// Needs `V`'s instruction set, so many bytes at `at`, and for streaming the alignment of a line.
#[inline(always)]
pub(super) unsafe fn write<V: Vector>(into: &mut [u8], at: usize, sums: V::Sums, store: Store) {
    // SAFETY: passed on to the caller.
    unsafe {
        let to = into.as_mut_ptr().add(at);
        if store == Store::Cached {
            for line in (0..V::BYTES).step_by(LINE) {
                V::Lanes::prefetch_to_write(to.wrapping_add(AHEAD_OF_STORES + line));
            }
        }
        V::store(to, sums, store);
    }
}

/// One source's share of a block.
///
/// # Safety
/// As `combine`.
#[inline(always)]
pub(super) unsafe fn read<V: Vector, const WHOLE: bool>(
    source: &[u8],
    at: usize,
    bytes: usize,
) -> V::Sums {
    // SAFETY: passed on to the caller; a block on the stack holds what a vector reads.
    unsafe {
        if WHOLE {
            let from = source.as_ptr().add(at);
            if V::AHEAD > 0 {
                for line in (0..V::BYTES).step_by(LINE) {
                    V::Lanes::prefetch(from.wrapping_add(V::AHEAD + line));
                }
            }
            V::load(from)
        } else {
            let mut block = Block([0; LARGEST]);
            block.0[..bytes].copy_from_slice(&source[at..at + bytes]);
            V::load(block.0.as_ptr())
        }
    }
}
