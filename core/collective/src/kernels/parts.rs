//! Sums whose parts travel in f32: one pass, as `sweep`, over elements and partials, that leaves elements or partials
//! behind. A partial is plain f32s in the order of the elements, on every processor, so what a format keeps apart in its
//! registers is put in order here.
#![expect(unsafe_code, reason = "vector instructions; see `sweep`")]

use std::marker::PhantomData;

use super::bytes::{E5m2, magnitudes, round_bytes, widen_bytes};
use super::float::{self, NAN, NAN_8};
use super::formats::{Bf16, F16, Four, arithmetic, each, get, put, scaling};
use super::lanes::Lanes;
use super::sweep::{Block, LARGEST, Operator, Vector, head, read, write};
use super::{Parts, Store};

/// Elements whose sums can be written and read as f32s. Sums hold any f32, NaN included.
pub(super) trait PartVector: Vector {
    /// Reads as many f32s as a block has elements, at any alignment.
    unsafe fn load_part(from: *const u8) -> Self::Sums;
    /// Writes so many. Streaming needs the alignment of a line.
    unsafe fn store_part(to: *mut u8, sums: Self::Sums, store: Store);
}

/// The partials of some elements, as elements of their own.
pub(super) struct AsF32<V>(PhantomData<V>);

/// What is done with sums is done by the elements.
macro_rules! same_as_elements {
    ($($method:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            #[inline(always)]
            unsafe fn $method($($argument: $type),*) -> V::Sums {
                // SAFETY: passed on to the caller.
                unsafe { V::$method($($argument),*) }
            }
        )*
    };
}

impl<V: PartVector> Vector for AsF32<V> {
    type Lanes = V::Lanes;
    type Exact = Self;
    type Sums = V::Sums;
    const ELEMENT: usize = 4;
    const BYTES: usize = V::BYTES / V::ELEMENT * 4;
    const AHEAD: usize = V::AHEAD;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> V::Sums {
        // SAFETY: passed on to the caller.
        unsafe { V::load_part(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, sums: V::Sums, store: Store) {
        // SAFETY: passed on to the caller.
        unsafe { V::store_part(to, sums, store) }
    }

    same_as_elements! {
        sum(so_far: V::Sums, next: V::Sums);
        max(so_far: V::Sums, next: V::Sums);
        min(so_far: V::Sums, next: V::Sums);
        divide(sums: V::Sums, divisor: f32);
        multiply(sums: V::Sums, factor: f32);
    }
}

/// Adds up elements and partials into either.
///
/// # Safety
/// Needs `V`'s instruction set, and as many numbers in everything.
#[inline(always)]
pub(super) unsafe fn sweep<V: PartVector, D: Vector<Sums = V::Sums>, O: Operator>(
    operator: O,
    into: &mut [u8],
    parts: &Parts<'_>,
    store: Store,
) {
    let block = V::BYTES / V::ELEMENT;
    let count = into.len() / D::ELEMENT;
    let (head, store) = head::<D>(into, store);
    let head = head / D::ELEMENT;
    // SAFETY: `at` and the numbers behind it that are read and written stay within `count`, which everything has;
    // behind the head, what is streamed lies on a line. Prefetches may go past the end: they do not fault.
    unsafe {
        piecewise::<V, D, O>(operator, into, parts, 0, head);
        let mut at = head;
        while count - at >= block {
            let sums = combine::<V, O, true>(operator, parts, at, block);
            write::<D>(into, at * D::ELEMENT, sums, store);
            at += block;
        }
        piecewise::<V, D, O>(operator, into, parts, at, count);
        if store == Store::Streaming {
            V::Lanes::fence();
        }
    }
}

/// The numbers from `at` to `end`, by way of blocks in memory.
///
/// # Safety
/// As `sweep`, with `end` within the count.
#[inline(always)]
unsafe fn piecewise<V: PartVector, D: Vector<Sums = V::Sums>, O: Operator>(
    operator: O,
    into: &mut [u8],
    parts: &Parts<'_>,
    at: usize,
    end: usize,
) {
    const { assert!(D::BYTES <= LARGEST && AsF32::<V>::BYTES <= LARGEST) };
    let block = V::BYTES / V::ELEMENT;
    let mut at = at;
    while at < end {
        let count = block.min(end - at);
        // SAFETY: `at` and `count` stay within `end`; blocks hold what a vector reads and writes.
        unsafe {
            let sums = combine::<V, O, false>(operator, parts, at, count);
            let mut written = Block([0; LARGEST]);
            D::store(written.0.as_mut_ptr(), sums, Store::Cached);
            let (from, bytes) = (at * D::ELEMENT, count * D::ELEMENT);
            into[from..from + bytes].copy_from_slice(&written.0[..bytes]);
        }
        at += count;
    }
}

/// The sums of one block: of `count` numbers from `at` on, which are the `WHOLE` block or less.
///
/// # Safety
/// Needs `V`'s instruction set and so many numbers.
#[inline(always)]
unsafe fn combine<V: PartVector, O: Operator, const WHOLE: bool>(
    operator: O,
    parts: &Parts<'_>,
    at: usize,
    count: usize,
) -> V::Sums {
    let (narrow, narrow_bytes) = (at * V::ELEMENT, count * V::ELEMENT);
    let (wide, wide_bytes) = (at * 4, count * 4);
    // SAFETY: passed on to the caller.
    unsafe {
        let first = read::<V, WHOLE>(parts.sources[0], narrow, narrow_bytes);
        let mut sums = operator.leave::<V>(0, operator.enter::<V>(0, first));
        let mut index = 1;
        for source in &parts.sources[1..] {
            let next = operator.enter::<V>(index, read::<V, WHOLE>(source, narrow, narrow_bytes));
            sums = operator.leave::<V>(index, O::combine::<V>(sums, next));
            index += 1;
        }
        for part in parts.partials {
            let next = read::<AsF32<V>, WHOLE>(part, wide, wide_bytes);
            let next = operator.enter::<V>(index, next);
            sums = operator.leave::<V>(index, O::combine::<V>(sums, next));
            index += 1;
        }
        sums
    }
}

/// Four registers of f32s.
#[inline(always)]
unsafe fn load_four<L: Lanes>(from: *const u8) -> Four<L> {
    // SAFETY: passed on to the caller.
    unsafe {
        [
            get::<L>(from, 0),
            get::<L>(from, 1),
            get::<L>(from, 2),
            get::<L>(from, 3),
        ]
    }
}

/// The same back, with the one NaN.
#[inline(always)]
unsafe fn store_four<L: Lanes>(to: *mut u8, sums: Four<L>, store: Store) {
    // SAFETY: passed on to the caller.
    unsafe {
        let [a, b, c, d] = L::canonical_four(sums);
        put::<L>(to, 0, a, store);
        put::<L>(to, 1, b, store);
        put::<L>(to, 2, c, store);
        put::<L>(to, 3, d, store);
    }
}

impl<L: Lanes> PartVector for F16<L> {
    #[inline(always)]
    unsafe fn load_part(from: *const u8) -> Four<L> {
        // SAFETY: passed on to the caller.
        unsafe { load_four::<L>(from) }
    }

    #[inline(always)]
    unsafe fn store_part(to: *mut u8, sums: Four<L>, store: Store) {
        // SAFETY: passed on to the caller.
        unsafe { store_four::<L>(to, sums, store) }
    }
}

/// Even and odd elements of each half of a block.
impl<L: Lanes> PartVector for Bf16<L> {
    #[inline(always)]
    unsafe fn load_part(from: *const u8) -> Four<L> {
        // SAFETY: passed on to the caller.
        unsafe {
            let [a, b, c, d] = load_four::<L>(from);
            let ([a, b], [c, d]) = (L::unzip([a, b]), L::unzip([c, d]));
            [a, b, c, d]
        }
    }

    #[inline(always)]
    unsafe fn store_part(to: *mut u8, sums: Four<L>, store: Store) {
        // SAFETY: passed on to the caller.
        unsafe {
            let [a, b, c, d] = sums;
            let ([a, b], [c, d]) = (L::zip([a, b]), L::zip([c, d]));
            store_four::<L>(to, [a, b, c, d], store);
        }
    }
}

/// Even elements, then odd ones, each with those of the lower half first.
impl<L: Lanes> PartVector for E5m2<L> {
    #[inline(always)]
    unsafe fn load_part(from: *const u8) -> Four<L> {
        // SAFETY: passed on to the caller.
        unsafe {
            let [a, b, c, d] = load_four::<L>(from);
            let ([even_lower, odd_lower], [even_upper, odd_upper]) =
                (L::unzip([a, b]), L::unzip([c, d]));
            [even_lower, even_upper, odd_lower, odd_upper]
        }
    }

    #[inline(always)]
    unsafe fn store_part(to: *mut u8, sums: Four<L>, store: Store) {
        // SAFETY: passed on to the caller.
        unsafe {
            let [even_lower, even_upper, odd_lower, odd_upper] = sums;
            let ([a, b], [c, d]) = (
                L::zip([even_lower, odd_lower]),
                L::zip([even_upper, odd_upper]),
            );
            store_four::<L>(to, [a, b, c, d], store);
        }
    }
}

/// e4m3, in f32 as it is: partials may be NaN, so NaN is kept in the sums and not beside them.
pub(super) struct E4m3Parts<L>(PhantomData<L>);

impl<L: Lanes> Vector for E4m3Parts<L> {
    type Lanes = L;
    type Exact = Self;
    type Sums = Four<L>;
    const ELEMENT: usize = 1;
    const BYTES: usize = size_of::<L::Register>();
    const AHEAD: usize = <E5m2<L> as Vector>::AHEAD;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Four<L> {
        // SAFETY: passed on to the caller.
        unsafe {
            let bytes = L::load(from);
            // Sign, a zero in front of the exponent, exponent and fraction: an f16 that is 256 times smaller.
            let place = L::splat(0xbf80_bf80);
            let even = L::and(L::halve_i16(L::lower_to_upper_16(bytes)), place);
            let odd = L::and(L::halve_i16(bytes), place);
            let scale = L::splat(256f32.to_bits());
            // What has the bits of NaN comes out as 480 by then.
            let nan = L::splat(480f32.to_bits());
            each!(widen_bytes::<L>(even, odd), small => {
                let value = L::multiply_f32(small, scale);
                let magnitude = L::and(value, L::splat(0x7fff_ffff));
                L::choose_below(magnitude, nan, value, L::splat(NAN))
            })
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, sums: Four<L>, store: Store) {
        const DROPPED: u32 = float::E4M3.dropped();
        // SAFETY: passed on to the caller.
        unsafe {
            let bytes = round_bytes::<L, DROPPED>(&float::E4M3, NAN_8, sums);
            let bytes = L::set_where_u8(bytes, magnitudes::<L>(bytes), NAN_8);
            put::<L>(to, 0, bytes, store);
        }
    }

    arithmetic!(add_f32, max_f32, min_f32);
    scaling!();
}

impl<L: Lanes> PartVector for E4m3Parts<L> {
    #[inline(always)]
    unsafe fn load_part(from: *const u8) -> Four<L> {
        // SAFETY: passed on to the caller.
        unsafe { <E5m2<L> as PartVector>::load_part(from) }
    }

    #[inline(always)]
    unsafe fn store_part(to: *mut u8, sums: Four<L>, store: Store) {
        // SAFETY: passed on to the caller.
        unsafe { <E5m2<L> as PartVector>::store_part(to, sums, store) }
    }
}
