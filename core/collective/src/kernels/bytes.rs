//! The 8-bit floats. They go in through f16, of which e5m2 is the upper half and e4m3, divided by 256, a part: so no
//! f32 is subnormal, which makes additions ten times slower on some processors. They are rounded from f32, since by
//! way of f16 they would be rounded twice.
#![expect(unsafe_code, reason = "vector instructions; see `sweep`")]

use std::marker::PhantomData;

use super::Store;
use super::float::{self, NAN_8, Narrow};
use super::formats::{Four, arithmetic, each, put, scaling};
use super::lanes::Lanes;
use super::sweep::Vector;

/// e4m3, in f32 divided by 256: exact as long as no factor brings a product out of f32's normal numbers.
pub(super) struct E4m3<L>(PhantomData<L>);
/// e4m3, in f32.
pub(super) struct ExactE4m3<L>(PhantomData<L>);
/// e5m2, in f32.
pub(super) struct E5m2<L>(PhantomData<L>);
/// How far ahead the 8-bit formats ask for memory: a block of theirs takes longer.
const AHEAD_8: usize = 4096;

/// f32s of the f16s in two registers: of the even bytes, then of the odd ones, each with the lower half first.
#[inline(always)]
pub(super) unsafe fn widen_bytes<L: Lanes>(even: L::Register, odd: L::Register) -> Four<L> {
    // SAFETY: passed on to the caller.
    unsafe {
        let ([a, b], [c, d]) = (L::widen_f16(even), L::widen_f16(odd));
        [a, b, c, d]
    }
}

/// Sums in the order of `widen_bytes` as bytes, rounded as `Narrow::round` does. What is too large becomes `beyond`,
/// which is infinity or the NaN; NaN becomes a NaN of either sign.
#[inline(always)]
pub(super) unsafe fn round_bytes<L: Lanes, const DROPPED: u32>(
    format: &Narrow,
    beyond: u8,
    sums: Four<L>,
) -> L::Register {
    // SAFETY: passed on to the caller.
    unsafe {
        let below_half = (1u32 << (DROPPED - 1)) - 1;
        let bias = L::splat(below_half.wrapping_sub(format.rebase()));
        let magic = L::splat(format.magic());
        let [a, b, c, d] = each!(sums, sum => {
            let magnitude = L::and(sum, L::splat(0x7fff_ffff));
            let odd = L::and(L::shift_right::<DROPPED>(sum), L::splat(1));
            let normal = L::shift_right::<DROPPED>(L::add(L::add(magnitude, bias), odd));
            let subnormal = L::subtract(L::add_f32(magnitude, magic), magic);
            let rounded =
                L::choose_below(magnitude, L::splat(format.normal()), subnormal, normal);
            let bounded = L::min_i32(rounded, L::splat(u32::from(beyond)));
            let number = if beyond == NAN_8 {
                bounded
            } else {
                let infinity = L::splat(f32::INFINITY.to_bits());
                L::choose_below(infinity, magnitude, L::splat(u32::from(NAN_8)), bounded)
            };
            L::or(number, L::and(L::shift_right::<24>(sum), L::splat(0x80)))
        });
        L::interleave_u8([a, b], [c, d])
    }
}

/// Bytes without their signs.
#[inline(always)]
pub(super) unsafe fn magnitudes<L: Lanes>(bytes: L::Register) -> L::Register {
    // SAFETY: passed on to the caller.
    unsafe { L::and(bytes, L::splat(0x7f7f_7f7f)) }
}

impl<L: Lanes> Vector for E5m2<L> {
    type Lanes = L;
    type Exact = Self;
    type Sums = Four<L>;
    const ELEMENT: usize = 1;
    const BYTES: usize = size_of::<L::Register>();
    const AHEAD: usize = AHEAD_8;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Four<L> {
        // SAFETY: passed on to the caller.
        unsafe {
            let bytes = L::load(from);
            widen_bytes::<L>(
                L::lower_to_upper_16(bytes),
                L::and(bytes, L::splat(0xff00_ff00)),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, sums: Four<L>, store: Store) {
        const DROPPED: u32 = float::E5M2.dropped();
        // SAFETY: passed on to the caller.
        unsafe {
            let bytes = round_bytes::<L, DROPPED>(&float::E5M2, 0x7c, sums);
            let bytes = L::set_where_u8(bytes, magnitudes::<L>(bytes), NAN_8);
            put::<L>(to, 0, bytes, store);
        }
    }

    arithmetic!(add_f32, max_f32, min_f32);
    scaling!();
}

/// e4m3 divided by 256 has the bias of f16, hence the place of its bits in one: without infinity and NaN, which sums
/// of e4m3 do not need. The largest magnitude among an element's sources shows whether one was NaN.
const E4M3_BY_256: Narrow = Narrow {
    fraction: float::E4M3.fraction,
    bias: float::F16.bias,
};

/// Sums of e4m3, with the largest magnitude that went into each.
#[derive(Clone, Copy)]
pub(super) struct Watched<R> {
    sums: [R; 4],
    largest: R,
}

/// The arithmetic of e4m3's sums.
macro_rules! watched {
    (scaling $($method:ident),*) => {
        $(
            #[inline(always)]
            unsafe fn $method(watched: Self::Sums, by: f32) -> Self::Sums {
                // SAFETY: passed on to the caller.
                let sums = unsafe { <E5m2<L> as Vector>::$method(watched.sums, by) };
                Watched { sums, ..watched }
            }
        )*
    };
    ($($method:ident),*) => {
        $(
            #[inline(always)]
            unsafe fn $method(a: Self::Sums, b: Self::Sums) -> Self::Sums {
                // SAFETY: passed on to the caller.
                unsafe {
                    Watched {
                        sums: <E5m2<L> as Vector>::$method(a.sums, b.sums),
                        largest: L::max_u8(a.largest, b.largest),
                    }
                }
            }
        )*
    };
}

/// e4m3 in one scale or the other: loads multiply by 256 or do not, and rounding goes by the format that it makes.
macro_rules! e4m3 {
    ($vector:ident, $format:expr, $is_exact:expr) => {
        impl<L: Lanes> Vector for $vector<L> {
            type Lanes = L;
            type Exact = ExactE4m3<L>;
            type Sums = Watched<L::Register>;
            const ELEMENT: usize = 1;
            const BYTES: usize = size_of::<L::Register>();
            const AHEAD: usize = AHEAD_8;

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Self::Sums {
                // SAFETY: passed on to the caller.
                unsafe {
                    let bytes = L::load(from);
                    // Sign, a zero in front of the exponent, exponent and fraction.
                    let place = L::splat(0xbf80_bf80);
                    let even = L::and(L::halve_i16(L::lower_to_upper_16(bytes)), place);
                    let odd = L::and(L::halve_i16(bytes), place);
                    let sums = widen_bytes::<L>(even, odd);
                    Watched {
                        sums: if $is_exact { <E5m2<L> as Vector>::multiply(sums, 256.0) } else { sums },
                        largest: magnitudes::<L>(bytes),
                    }
                }
            }

            #[inline(always)]
            unsafe fn store(to: *mut u8, watched: Self::Sums, store: Store) {
                const DROPPED: u32 = float::E4M3.dropped();
                // SAFETY: passed on to the caller.
                unsafe {
                    let bytes = round_bytes::<L, DROPPED>(&$format, NAN_8, watched.sums);
                    let largest = L::max_u8(watched.largest, magnitudes::<L>(bytes));
                    put::<L>(to, 0, L::set_where_u8(bytes, largest, NAN_8), store);
                }
            }

            watched!(sum, max, min);
            watched!(scaling divide, multiply);
        }
    };
}

e4m3!(E4m3, E4M3_BY_256, false);
e4m3!(ExactE4m3, float::E4M3, true);

/// Two blocks at a time: while one is rounded, sums of the other go on.
pub(super) struct Twice<V>(PhantomData<V>);

/// A function of both blocks.
macro_rules! both {
    ($($method:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            #[inline(always)]
            unsafe fn $method(sums: Self::Sums, $($argument: $type),*) -> Self::Sums {
                // SAFETY: passed on to the caller.
                unsafe { [V::$method(sums[0], $($argument),*), V::$method(sums[1], $($argument),*)] }
            }
        )*
    };
    ($($method:ident)*) => {
        $(
            #[inline(always)]
            unsafe fn $method(a: Self::Sums, b: Self::Sums) -> Self::Sums {
                // SAFETY: passed on to the caller.
                unsafe { [V::$method(a[0], b[0]), V::$method(a[1], b[1])] }
            }
        )*
    };
}

impl<V: Vector> Vector for Twice<V> {
    type Lanes = V::Lanes;
    type Exact = Twice<V::Exact>;
    type Sums = [V::Sums; 2];
    const ELEMENT: usize = V::ELEMENT;
    const BYTES: usize = 2 * V::BYTES;
    const AHEAD: usize = V::AHEAD;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self::Sums {
        // SAFETY: passed on to the caller.
        unsafe { [V::load(from), V::load(from.add(V::BYTES))] }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, sums: Self::Sums, store: Store) {
        // SAFETY: passed on to the caller.
        unsafe {
            V::store(to, sums[0], store);
            V::store(to.add(V::BYTES), sums[1], store);
        }
    }

    both!(sum max min);
    both!(divide(divisor: f32); multiply(factor: f32););
}
