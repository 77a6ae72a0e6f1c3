//! How each type lies in memory and what its sums are kept in, written once for all instruction sets. A block is four
//! registers of sums. The 8-bit floats are in `bytes`.
//!
//! bf16 is taken apart into even and odd elements within the register, so that nothing is moved between lanes, and
//! rounded with integer instructions: the hardware conversion of AVX512-BF16 loses subnormals.
#![expect(unsafe_code, reason = "vector instructions; see `sweep`")]

use std::marker::PhantomData;

use super::Store;
use super::lanes::Lanes;
use super::sweep::Vector;

/// A block's sums.
pub(super) type Four<L> = [<L as Lanes>::Register; 4];

/// f32.
pub(super) struct F32<L>(PhantomData<L>);
/// f16, in f32.
pub(super) struct F16<L>(PhantomData<L>);
/// bf16, in f32.
pub(super) struct Bf16<L>(PhantomData<L>);
/// u8.
pub(super) struct U8<L>(PhantomData<L>);
/// i32.
pub(super) struct I32<L>(PhantomData<L>);
/// i64.
pub(super) struct I64<L>(PhantomData<L>);

/// Writes one register of a block.
#[inline(always)]
pub(super) unsafe fn put<L: Lanes>(to: *mut u8, index: usize, value: L::Register, store: Store) {
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
pub(super) unsafe fn get<L: Lanes>(from: *const u8, index: usize) -> L::Register {
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

/// The scaling of sums that are four registers of f32s.
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

pub(super) use {arithmetic, each, scaling};

macro_rules! whole_registers {
    ($format:ident, $element:ty, $rounded:ident, $sum:ident, $max:ident, $min:ident $(, $scaling:ident)?) => {
        impl<L: Lanes> Vector for $format<L> {
            type Lanes = L;
            type Exact = Self;
            type Sums = Four<L>;
            const ELEMENT: usize = size_of::<$element>();
            const BYTES: usize = 4 * size_of::<L::Register>();
            // So little is done with each byte that asking costs AMD up to a quarter, and gains
            // Intel nothing.
            const AHEAD: usize = 0;

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
            let [a, b, c, d] = L::canonical_four(sums);
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
            let [a, b, c, d] = each!(L::canonical_four(sums), bits => {
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
