//! How each type lies in memory and what its sums are kept in, written once for all instruction sets. A block is four
//! registers of sums. Types narrower than their sums are taken apart within the register - bf16 into even and odd
//! elements, bytes likewise - so that nothing has to be moved between lanes on the way in.
//!
//! bf16 is rounded with integer instructions: the hardware conversion of AVX512-BF16 loses subnormals. The 8-bit
//! floats go in through f16, of which e5m2 is the upper half and e4m3, divided by 256, a part; they are rounded from
//! f32, since by way of f16 they would be rounded twice.
#![expect(unsafe_code, reason = "vector instructions; see `sweep`")]

use std::marker::PhantomData;

use super::Store;
use super::float::{self, NAN_8, Narrow};
use super::lanes::Lanes;
use super::sweep::Vector;

/// A block's sums.
type Four<L> = [<L as Lanes>::Register; 4];

/// f32.
pub(super) struct F32<L>(PhantomData<L>);
/// f16, in f32.
pub(super) struct F16<L>(PhantomData<L>);
/// bf16, in f32.
pub(super) struct Bf16<L>(PhantomData<L>);
/// e4m3, in f32 divided by 256: as exact, and not as soon out of range as a factor might bring it.
pub(super) struct E4m3<L>(PhantomData<L>);
/// e4m3, in f32.
pub(super) struct ExactE4m3<L>(PhantomData<L>);
/// e5m2, in f32.
pub(super) struct E5m2<L>(PhantomData<L>);
/// u8.
pub(super) struct U8<L>(PhantomData<L>);
/// i32.
pub(super) struct I32<L>(PhantomData<L>);
/// i64.
pub(super) struct I64<L>(PhantomData<L>);

/// Writes one register of a block.
#[inline(always)]
unsafe fn put<L: Lanes>(to: *mut u8, index: usize, value: L::Register, store: Store) {
    // SAFETY: passed on to the caller.
    unsafe {
        let to = to.add(index * size_of::<L::Register>());
        match store {
            Store::Cached => L::store(to, value),
            Store::Streaming => L::stream(to, value),
        }
    }
}

/// Reads one register of a block.
#[inline(always)]
unsafe fn get<L: Lanes>(from: *const u8, index: usize) -> L::Register {
    // SAFETY: passed on to the caller.
    unsafe { L::load(from.add(index * size_of::<L::Register>())) }
}

/// The same for each of four registers. No closure: it would be compiled without the instruction set.
macro_rules! each {
    ($four:expr, $one:ident => $body:expr) => {{
        let [a, b, c, d] = $four;
        [
            {
                let $one = a;
                $body
            },
            {
                let $one = b;
                $body
            },
            {
                let $one = c;
                $body
            },
            {
                let $one = d;
                $body
            },
        ]
    }};
}

/// The arithmetic of sums that are four registers.
macro_rules! arithmetic {
    ($sum:ident, $max:ident, $min:ident) => {
        arithmetic! { sum: $sum, max: $max, min: $min }
    };
    ($($method:ident: $lanes:ident),*) => {
        $(
            #[inline(always)]
            unsafe fn $method(a: Four<L>, b: Four<L>) -> Four<L> {
                // SAFETY: passed on to the caller.
                unsafe {
                    [
                        L::$lanes(a[0], b[0]),
                        L::$lanes(a[1], b[1]),
                        L::$lanes(a[2], b[2]),
                        L::$lanes(a[3], b[3]),
                    ]
                }
            }
        )*
    };
}

macro_rules! scaling {
    () => {
        #[inline(always)]
        unsafe fn divide(sums: Four<L>, divisor: f32) -> Four<L> {
            // SAFETY: passed on to the caller.
            unsafe {
                let divisor = L::splat(divisor.to_bits());
                each!(sums, sum => L::divide_f32(sum, divisor))
            }
        }

        #[inline(always)]
        unsafe fn multiply(sums: Four<L>, factor: f32) -> Four<L> {
            // SAFETY: passed on to the caller.
            unsafe {
                let factor = L::splat(factor.to_bits());
                each!(sums, sum => L::multiply_f32(sum, factor))
            }
        }
    };
}

macro_rules! whole_registers {
    ($format:ident, $element:ty, $rounded:ident, $sum:ident, $max:ident, $min:ident $(, $scaling:ident)?) => {
        impl<L: Lanes> Vector for $format<L> {
            type Lanes = L;
            type Exact = Self;
            type Sums = Four<L>;
            const ELEMENT: usize = size_of::<$element>();
            const BYTES: usize = 4 * size_of::<L::Register>();

            #[inline(always)]
            unsafe fn load(from: *const u8) -> Four<L> {
                // SAFETY: passed on to the caller.
                unsafe { [get::<L>(from, 0), get::<L>(from, 1), get::<L>(from, 2), get::<L>(from, 3)] }
            }

            #[inline(always)]
            unsafe fn store(to: *mut u8, sums: Four<L>, store: Store) {
                // SAFETY: passed on to the caller.
                unsafe {
                    put::<L>(to, 0, $rounded::<L>(sums[0]), store);
                    put::<L>(to, 1, $rounded::<L>(sums[1]), store);
                    put::<L>(to, 2, $rounded::<L>(sums[2]), store);
                    put::<L>(to, 3, $rounded::<L>(sums[3]), store);
                }
            }

            arithmetic!($sum, $max, $min);
            $($scaling!();)?
        }
    };
}

whole_registers!(F32, f32, canonical, add_f32, max_f32, min_f32, scaling);
whole_registers!(U8, u8, same, add_u8, max_u8, min_u8);
whole_registers!(I32, i32, same, add, max_i32, min_i32);
whole_registers!(I64, i64, same, add_i64, max_i64, min_i64);

#[inline(always)]
unsafe fn canonical<L: Lanes>(sum: L::Register) -> L::Register {
    // SAFETY: passed on to the caller.
    unsafe { L::canonical(sum) }
}

#[inline(always)]
unsafe fn same<L: Lanes>(sum: L::Register) -> L::Register {
    sum
}

impl<L: Lanes> Vector for F16<L> {
    type Lanes = L;
    type Exact = Self;
    type Sums = Four<L>;
    const ELEMENT: usize = 2;
    const BYTES: usize = 2 * size_of::<L::Register>();

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Four<L> {
        let half = size_of::<L::Register>() / 2;
        // SAFETY: passed on to the caller.
        unsafe {
            [
                L::load_f16(from),
                L::load_f16(from.add(half)),
                L::load_f16(from.add(2 * half)),
                L::load_f16(from.add(3 * half)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, sums: Four<L>, store: Store) {
        // SAFETY: passed on to the caller.
        unsafe {
            let [a, b, c, d] = each!(sums, sum => L::canonical(sum));
            put::<L>(to, 0, L::narrow_f16([a, b]), store);
            put::<L>(to, 1, L::narrow_f16([c, d]), store);
        }
    }

    arithmetic!(add_f32, max_f32, min_f32);
    scaling!();
}

impl<L: Lanes> Vector for Bf16<L> {
    type Lanes = L;
    type Exact = Self;
    type Sums = Four<L>;
    const ELEMENT: usize = 2;
    const BYTES: usize = 2 * size_of::<L::Register>();

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Four<L> {
        // SAFETY: passed on to the caller.
        unsafe {
            let (a, b) = (get::<L>(from, 0), get::<L>(from, 1));
            let upper = L::splat(0xffff_0000);
            [
                L::shift_left::<16>(a),
                L::and(a, upper),
                L::shift_left::<16>(b),
                L::and(b, upper),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut u8, sums: Four<L>, store: Store) {
        // SAFETY: passed on to the caller.
        unsafe {
            let [a, b, c, d] = each!(sums, sum => {
                let bits = L::canonical(sum);
                let odd = L::and(L::shift_right::<16>(bits), L::splat(1));
                L::add(bits, L::add(odd, L::splat(0x7fff)))
            });
            let upper = L::splat(0xffff_0000);
            let ab = L::or(L::shift_right::<16>(a), L::and(b, upper));
            let cd = L::or(L::shift_right::<16>(c), L::and(d, upper));
            put::<L>(to, 0, ab, store);
            put::<L>(to, 1, cd, store);
        }
    }

    arithmetic!(add_f32, max_f32, min_f32);
    scaling!();
}

/// Bits of the f32s of even and of odd bytes, those of the lower half first, as sums come from and go to a register.
#[inline(always)]
unsafe fn widen_bytes<L: Lanes>(even: L::Register, odd: L::Register) -> Four<L> {
    // SAFETY: passed on to the caller.
    unsafe {
        let ([a, b], [c, d]) = (L::widen_f16(even), L::widen_f16(odd));
        [a, b, c, d]
    }
}

/// The other way round: rounds as `Narrow::round` does, to what is `beyond` the largest number or NaN, and signs.
/// NaN comes out as `beyond` too unless that is infinity.
#[inline(always)]
unsafe fn round_bytes<L: Lanes, const DROPPED: u32>(
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
unsafe fn magnitudes<L: Lanes>(bytes: L::Register) -> L::Register {
    // SAFETY: passed on to the caller.
    unsafe { L::and(bytes, L::splat(0x7f7f_7f7f)) }
}

impl<L: Lanes> Vector for E5m2<L> {
    type Lanes = L;
    type Exact = Self;
    type Sums = Four<L>;
    const ELEMENT: usize = 1;
    const BYTES: usize = size_of::<L::Register>();

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
/// of e4m3 do not need. What the largest magnitude among an element's sources was tells whether one was NaN.
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
    ($($method:ident: $lanes:ident),*) => {
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
}

/// e4m3 in one scale or the other.
macro_rules! e4m3 {
    ($vector:ident, $format:expr, $scaled:expr) => {
        impl<L: Lanes> Vector for $vector<L> {
            type Lanes = L;
            type Exact = ExactE4m3<L>;
            type Sums = Watched<L::Register>;
            const ELEMENT: usize = 1;
            const BYTES: usize = size_of::<L::Register>();

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
                        sums: if $scaled { <E5m2<L> as Vector>::multiply(sums, 256.0) } else { sums },
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

            watched!(sum: sum, max: max, min: min);
            watched!(scaling divide, multiply);
        }
    };
}

e4m3!(E4m3, E4M3_BY_256, false);
e4m3!(ExactE4m3, float::E4M3, true);
