//! The kernels for x86-64: one algorithm over a `Vector`, instantiated for AVX2 and AVX-512.
//!
//! Safe code will not do: the compiler does not keep k streams' sums in registers over a loop whose length it does
//! not know, and has no vector form of the f16 conversions. Against the scalar reference f32 was 4 to 5 times, bf16
//! 9 to 17 and f16 16 to 28 times as fast where it was measured; `examples/kernels.rs` prints it.
//!
//! bf16 is rounded with integer instructions: the hardware conversion of AVX512-BF16 loses subnormals. There is no
//! non-temporal prefetch: it was 2 to 4 times slower.
#![expect(unsafe_code, reason = "vector instructions; see above")]

use std::arch::x86_64::*;

use super::float::NAN;
use super::scalar::{self, Bf16, Element, F16, F32};
use crate::op::{Divide, ReduceOp};

/// One register full of sums. All functions need the instruction set the type is named after.
trait Vector {
    /// The same elements one by one.
    type Element: Element;
    /// Sums.
    type Register: Copy;
    /// Bytes in memory that fill one register.
    const BYTES: usize;
    /// Reads `BYTES` bytes at any alignment.
    unsafe fn load(from: *const u8) -> Self::Register;
    /// Rounds and writes `BYTES` bytes at any alignment.
    unsafe fn store(to: *mut u8, sum: Self::Register);
    unsafe fn sum(so_far: Self::Register, next: Self::Register) -> Self::Register;
    unsafe fn max(so_far: Self::Register, next: Self::Register) -> Self::Register;
    unsafe fn min(so_far: Self::Register, next: Self::Register) -> Self::Register;
    /// Only floats: integers are divided by the scalar reference and never get here.
    #[inline(always)]
    unsafe fn divide(sum: Self::Register, _divisor: f32) -> Self::Register {
        sum
    }
}

/// An operator on registers. Needs the instruction set of the vector.
trait Combine {
    unsafe fn combine<V: Vector>(so_far: V::Register, next: V::Register) -> V::Register;
}

struct Sum;
struct Max;
struct Min;

macro_rules! combine {
    ($operator:ty, $method:ident) => {
        impl Combine for $operator {
            #[inline(always)]
            unsafe fn combine<V: Vector>(so_far: V::Register, next: V::Register) -> V::Register {
                // SAFETY: passed on to the caller.
                unsafe { V::$method(so_far, next) }
            }
        }
    };
}

combine!(Sum, sum);
combine!(Max, max);
combine!(Min, min);

/// Registers an iteration fills: enough to hide the latency of an addition, few enough for AVX2's sixteen.
const UNROLL: usize = 4;
/// How far ahead of the loads memory is asked for, in bytes.
const AHEAD: usize = 2048;

/// Combines as many whole registers as there are, and returns the bytes that makes.
///
/// # Safety
/// Needs `V`'s instruction set, and sources of the destination's length.
#[inline(always)]
unsafe fn sweep<V: Vector, C: Combine>(
    destination: &mut [u8],
    sources: &[&[u8]],
    divide: Divide,
) -> usize {
    let (before, after) = sources.split_at(divide.first);
    let Some((first, before)) = before.split_first() else {
        return 0;
    };
    let mut at = 0;
    // SAFETY: `at` plus what is read and written stays within the destination's length, which every source has.
    // Prefetches may go past the end: they do not fault.
    unsafe {
        while at + UNROLL * V::BYTES <= destination.len() {
            let load = |source: &[u8]| -> [V::Register; UNROLL] {
                let from = source.as_ptr().add(at);
                for line in (0..UNROLL * V::BYTES).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(AHEAD + line).cast());
                }
                std::array::from_fn(|lane| V::load(from.add(lane * V::BYTES)))
            };
            let mut sums = load(first);
            for source in before {
                let next = load(source);
                sums = std::array::from_fn(|lane| C::combine::<V>(sums[lane], next[lane]));
            }
            if divide.by != 1 {
                sums = sums.map(|sum| V::divide(sum, divide.by as f32));
            }
            for source in after {
                let next = load(source);
                sums = std::array::from_fn(|lane| C::combine::<V>(sums[lane], next[lane]));
            }
            for (lane, sum) in sums.into_iter().enumerate() {
                V::store(destination.as_mut_ptr().add(at + lane * V::BYTES), sum);
            }
            at += UNROLL * V::BYTES;
        }
        while at + V::BYTES <= destination.len() {
            let mut sum = V::load(first.as_ptr().add(at));
            for source in before {
                sum = C::combine::<V>(sum, V::load(source.as_ptr().add(at)));
            }
            if divide.by != 1 {
                sum = V::divide(sum, divide.by as f32);
            }
            for source in after {
                sum = C::combine::<V>(sum, V::load(source.as_ptr().add(at)));
            }
            V::store(destination.as_mut_ptr().add(at), sum);
            at += V::BYTES;
        }
    }
    at
}

/// One set of kernels: the features it is compiled with and its vectors.
macro_rules! instruction_set {
    ($module:ident, $features:literal) => {
        pub(super) mod $module {
            use super::*;

            #[target_feature(enable = $features)]
            unsafe fn sweep<V: Vector, C: Combine>(
                destination: &mut [u8],
                sources: &[&[u8]],
                divide: Divide,
            ) -> usize {
                // SAFETY: the features are enabled here; lengths are the caller's.
                unsafe { super::sweep::<V, C>(destination, sources, divide) }
            }

            #[expect(private_bounds, reason = "named only in the table below")]
            pub(in super::super) fn reduce<V: Vector>(
                op: ReduceOp,
                destination: &mut [u8],
                sources: &[&[u8]],
                divide: Divide,
            ) {
                let length = destination.len();
                assert!(
                    sources.iter().all(|source| source.len() == length),
                    "equal lengths"
                );
                let integers = !<V::Element as Element>::FLOAT;
                if integers && divide.by != 1 {
                    return scalar::reduce::<V::Element>(op, destination, sources, divide);
                }
                // SAFETY: `kernels::Kernels` hands these functions out only where the features were detected;
                // lengths are equal as just checked.
                let done = unsafe {
                    match op {
                        ReduceOp::Sum | ReduceOp::Avg => {
                            sweep::<V, Sum>(destination, sources, divide)
                        }
                        ReduceOp::Max => sweep::<V, Max>(destination, sources, divide),
                        ReduceOp::Min => sweep::<V, Min>(destination, sources, divide),
                    }
                };
                scalar::reduce_from::<V::Element>(done, op, destination, sources, divide);
            }
        }
    };
}

instruction_set!(avx2, "avx2,f16c");
instruction_set!(avx512, "avx512f,avx512bw,avx512vl,avx512dq");

/// Writes a `Vector` for a type: how it is loaded and stored, and how its registers are combined.
macro_rules! vector {
    (
        $name:ident, $element:ty, $register:ty, $bytes:literal,
        load($from:ident) $load:expr, store($to:ident, $value:ident) $store:expr,
        sum: $sum:path, max: $max:path, min: $min:path
        $(, divide($dividend:ident, $divisor:ident) $divide:expr)?
    ) => {
        pub(super) struct $name;
        impl Vector for $name {
            type Element = $element;
            type Register = $register;
            const BYTES: usize = $bytes;
            #[inline(always)]
            unsafe fn load($from: *const u8) -> $register {
                // SAFETY: reads `BYTES` bytes without alignment, as the caller allows.
                unsafe { $load }
            }
            #[inline(always)]
            unsafe fn store($to: *mut u8, $value: $register) {
                // SAFETY: writes `BYTES` bytes without alignment, as the caller allows.
                unsafe { $store }
            }
            #[inline(always)]
            unsafe fn sum(so_far: $register, next: $register) -> $register {
                // SAFETY: the caller has the instruction set.
                unsafe { $sum(so_far, next) }
            }
            #[inline(always)]
            unsafe fn max(so_far: $register, next: $register) -> $register {
                // SAFETY: the caller has the instruction set.
                unsafe { $max(so_far, next) }
            }
            #[inline(always)]
            unsafe fn min(so_far: $register, next: $register) -> $register {
                // SAFETY: the caller has the instruction set.
                unsafe { $min(so_far, next) }
            }
            $(
                #[inline(always)]
                unsafe fn divide($dividend: $register, $divisor: f32) -> $register {
                    // SAFETY: the caller has the instruction set.
                    unsafe { $divide }
                }
            )?
        }
    };
}

macro_rules! float_vectors {
    ($($name:ident, $element:ty, $register:ty, $bytes:literal, $load:path, $store:path, $sum:path, $max:path, $min:path, $div:path, $set1:path;)*) => {
        $(vector!($name, $element, $register, $bytes,
            load(from) $load(from), store(to, value) $store(to, value),
            sum: $sum, max: $max, min: $min, divide(sum, divisor) $div(sum, $set1(divisor)));)*
    };
}

float_vectors! {
    F32x8, F32, __m256, 32, load_f32x8, store_f32x8, _mm256_add_ps, max_f32x8, min_f32x8, _mm256_div_ps, _mm256_set1_ps;
    F16x8, F16, __m256, 16, load_f16x8, store_f16x8, _mm256_add_ps, max_f32x8, min_f32x8, _mm256_div_ps, _mm256_set1_ps;
    Bf16x8, Bf16, __m256, 16, load_bf16x8, store_bf16x8, _mm256_add_ps, max_f32x8, min_f32x8, _mm256_div_ps, _mm256_set1_ps;
    F32x16, F32, __m512, 64, load_f32x16, store_f32x16, _mm512_add_ps, max_f32x16, min_f32x16, _mm512_div_ps, _mm512_set1_ps;
    F16x16, F16, __m512, 32, load_f16x16, store_f16x16, _mm512_add_ps, max_f32x16, min_f32x16, _mm512_div_ps, _mm512_set1_ps;
    Bf16x16, Bf16, __m512, 32, load_bf16x16, store_bf16x16, _mm512_add_ps, max_f32x16, min_f32x16, _mm512_div_ps, _mm512_set1_ps;
}

macro_rules! integer_vectors {
    ($($name:ident, $element:ty, $register:ty, $bytes:literal, $load:path, $store:path, $sum:path, $max:path, $min:path;)*) => {
        $(vector!($name, $element, $register, $bytes,
            load(from) $load(from.cast()), store(to, value) $store(to.cast(), value),
            sum: $sum, max: $max, min: $min);)*
    };
}

integer_vectors! {
    U8x32, u8, __m256i, 32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_add_epi8, _mm256_max_epu8, _mm256_min_epu8;
    I32x8, i32, __m256i, 32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_add_epi32, _mm256_max_epi32, _mm256_min_epi32;
    I64x4, i64, __m256i, 32, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_add_epi64, max_i64x4, min_i64x4;
    U8x64, u8, __m512i, 64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_add_epi8, _mm512_max_epu8, _mm512_min_epu8;
    I32x16, i32, __m512i, 64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_add_epi32, _mm512_max_epi32, _mm512_min_epi32;
    I64x8, i64, __m512i, 64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_add_epi64, _mm512_max_epi64, _mm512_min_epi64;
}

/// Small functions on registers. Each needs the instruction set of its intrinsics, and loads and stores need as
/// many bytes as the register's elements take in memory; `vector!` passes both on to its caller.
macro_rules! intrinsics {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? $body:block)*) => {
        $(
            #[inline(always)]
            unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: as said above.
                unsafe { $body }
            }
        )*
    };
}

intrinsics! {
    fn load_f32x8(from: *const u8) -> __m256 { _mm256_loadu_ps(from.cast()) }
    fn store_f32x8(to: *mut u8, value: __m256) { _mm256_storeu_ps(to.cast(), canonical_x8(value)) }
    fn load_f16x8(from: *const u8) -> __m256 { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    fn store_f16x8(to: *mut u8, value: __m256) {
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical_x8(value));
        _mm_storeu_si128(to.cast(), halves);
    }
    fn load_bf16x8(from: *const u8) -> __m256 {
        let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
    }
    fn store_bf16x8(to: *mut u8, value: __m256) {
        let bits = _mm256_castps_si256(canonical_x8(value));
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let upper = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, bias));
        // Packs within each half of the register; the four quarters are put in order after.
        let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(upper, upper));
        _mm_storeu_si128(to.cast(), _mm256_castsi256_si128(packed));
    }
    fn canonical_x8(value: __m256) -> __m256 {
        let nan = _mm256_castsi256_ps(_mm256_set1_epi32(NAN as i32));
        _mm256_blendv_ps(value, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value))
    }
    // The instruction returns its second operand when either is NaN: only a NaN so far has to be kept.
    fn max_f32x8(so_far: __m256, next: __m256) -> __m256 {
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(so_far, so_far);
        _mm256_blendv_ps(_mm256_max_ps(so_far, next), so_far, nan)
    }
    fn min_f32x8(so_far: __m256, next: __m256) -> __m256 {
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(so_far, so_far);
        _mm256_blendv_ps(_mm256_min_ps(so_far, next), so_far, nan)
    }
    fn max_i64x4(so_far: __m256i, next: __m256i) -> __m256i {
        _mm256_blendv_epi8(next, so_far, _mm256_cmpgt_epi64(so_far, next))
    }
    fn min_i64x4(so_far: __m256i, next: __m256i) -> __m256i {
        _mm256_blendv_epi8(so_far, next, _mm256_cmpgt_epi64(so_far, next))
    }

    fn load_f32x16(from: *const u8) -> __m512 { _mm512_loadu_ps(from.cast()) }
    fn store_f32x16(to: *mut u8, value: __m512) { _mm512_storeu_ps(to.cast(), canonical_x16(value)) }
    fn load_f16x16(from: *const u8) -> __m512 { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    fn store_f16x16(to: *mut u8, value: __m512) {
        let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(canonical_x16(value));
        _mm256_storeu_si256(to.cast(), halves);
    }
    fn load_bf16x16(from: *const u8) -> __m512 {
        let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
    }
    fn store_bf16x16(to: *mut u8, value: __m512) {
        let bits = _mm512_castps_si512(canonical_x16(value));
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let bias = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let upper = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, bias));
        _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(upper));
    }
    fn canonical_x16(value: __m512) -> __m512 {
        let nan = _mm512_castsi512_ps(_mm512_set1_epi32(NAN as i32));
        _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value), value, nan)
    }
    fn max_f32x16(so_far: __m512, next: __m512) -> __m512 {
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(so_far, so_far);
        _mm512_mask_blend_ps(nan, _mm512_max_ps(so_far, next), so_far)
    }
    fn min_f32x16(so_far: __m512, next: __m512) -> __m512 {
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(so_far, so_far);
        _mm512_mask_blend_ps(nan, _mm512_min_ps(so_far, next), so_far)
    }
}
