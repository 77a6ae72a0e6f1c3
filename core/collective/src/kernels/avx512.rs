//! AVX-512 F, BW, VL and DQ: 16 lanes.
#![expect(unsafe_code, reason = "vector instructions; see `sweep`")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::float::NAN;
use super::lanes::{Lanes, all_canonical, lanes};

type R = __m512i;

/// The instruction set.
pub(super) struct Avx512;

#[inline(always)]
fn floats(value: R) -> __m512 {
    // SAFETY: changes nothing but the type.
    unsafe { _mm512_castsi512_ps(value) }
}

#[inline(always)]
fn bits(value: __m512) -> R {
    // SAFETY: changes nothing but the type.
    unsafe { _mm512_castps_si512(value) }
}

impl Lanes for Avx512 {
    type Register = R;

    lanes! {
        fn splat(value: u32) -> R { _mm512_set1_epi32(value as i32) }
        fn load(from: *const u8) -> R { _mm512_loadu_si512(from.cast()) }
        fn store(to: *mut u8, value: R) { _mm512_storeu_si512(to.cast(), value) }
        fn stream(to: *mut u8, value: R) { _mm512_stream_si512(to.cast(), value) }
        fn fence() { _mm_sfence() }
        fn prefetch(from: *const u8) { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
        // Intel's intrinsic becomes a prefetch for reading where the compiler may not use the instruction. Processors
        // of these sets that do not have it take it for no operation.
        fn prefetch_to_write(to: *const u8) {
            asm!("prefetchw [{}]", in(reg) to, options(nostack, readonly, preserves_flags));
        }

        fn add_f32(a: R, b: R) -> R { bits(_mm512_add_ps(floats(a), floats(b))) }
        fn multiply_f32(a: R, b: R) -> R { bits(_mm512_mul_ps(floats(a), floats(b))) }
        fn divide_f32(a: R, b: R) -> R { bits(_mm512_div_ps(floats(a), floats(b))) }
        // The instruction returns its second operand when either is NaN: only a NaN so far has to be kept.
        fn max_f32(so_far: R, next: R) -> R {
            let (so_far, next) = (floats(so_far), floats(next));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(so_far, so_far);
            bits(_mm512_mask_blend_ps(nan, _mm512_max_ps(so_far, next), so_far))
        }
        fn min_f32(so_far: R, next: R) -> R {
            let (so_far, next) = (floats(so_far), floats(next));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(so_far, so_far);
            bits(_mm512_mask_blend_ps(nan, _mm512_min_ps(so_far, next), so_far))
        }
        fn canonical(value: R) -> R {
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(floats(value), floats(value));
            _mm512_mask_blend_epi32(nan, value, _mm512_set1_epi32(NAN as i32))
        }
        fn canonical_four(values: [R; 4]) -> [R; 4] {
            let [a, b, c, d] = values;
            let in_ab = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(floats(a), floats(b));
            let in_cd = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(floats(c), floats(d));
            if in_ab | in_cd == 0 { values } else { all_canonical::<Self>(values) }
        }
        fn load_f16(from: *const u8) -> R { bits(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))) }
        fn widen_f16(value: R) -> [R; 2] {
            let (lower, upper) = (_mm512_castsi512_si256(value), _mm512_extracti64x4_epi64::<1>(value));
            [bits(_mm512_cvtph_ps(lower)), bits(_mm512_cvtph_ps(upper))]
        }
        fn narrow_f16(value: [R; 2]) -> R {
            let lower = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats(value[0]));
            let upper = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats(value[1]));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(lower), upper)
        }

        fn unzip(value: [R; 2]) -> [R; 2] {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            let [a, b] = value;
            [_mm512_permutex2var_epi32(a, even, b), _mm512_permutex2var_epi32(a, odd, b)]
        }
        fn zip(value: [R; 2]) -> [R; 2] {
            let lower = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let upper = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            let [even, odd] = value;
            [_mm512_permutex2var_epi32(even, lower, odd), _mm512_permutex2var_epi32(even, upper, odd)]
        }

        fn and(a: R, b: R) -> R { _mm512_and_si512(a, b) }
        fn or(a: R, b: R) -> R { _mm512_or_si512(a, b) }
        fn add(a: R, b: R) -> R { _mm512_add_epi32(a, b) }
        fn subtract(a: R, b: R) -> R { _mm512_sub_epi32(a, b) }
        fn shift_left<const BITS: u32>(value: R) -> R { _mm512_slli_epi32::<BITS>(value) }
        fn shift_right<const BITS: u32>(value: R) -> R { _mm512_srli_epi32::<BITS>(value) }
        fn choose_below(value: R, limit: R, a: R, b: R) -> R {
            _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(value, limit), b, a)
        }
        fn max_i32(a: R, b: R) -> R { _mm512_max_epi32(a, b) }
        fn min_i32(a: R, b: R) -> R { _mm512_min_epi32(a, b) }

        fn lower_to_upper_16(value: R) -> R { _mm512_slli_epi16::<8>(value) }
        fn halve_i16(value: R) -> R { _mm512_srai_epi16::<1>(value) }
        fn interleave_u8(even: [R; 2], odd: [R; 2]) -> R {
            let even = _mm512_packus_epi32(even[0], even[1]);
            let odd = _mm512_packus_epi32(odd[0], odd[1]);
            let bytes = _mm512_or_si512(even, _mm512_slli_epi16::<8>(odd));
            // Packing takes quarters of both in turn.
            _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), bytes)
        }
        fn set_where_u8(value: R, key: R, byte: u8) -> R {
            let byte = _mm512_set1_epi8(byte as i8);
            _mm512_mask_mov_epi8(value, _mm512_cmpeq_epi8_mask(key, byte), byte)
        }
        fn add_u8(a: R, b: R) -> R { _mm512_add_epi8(a, b) }
        fn max_u8(a: R, b: R) -> R { _mm512_max_epu8(a, b) }
        fn min_u8(a: R, b: R) -> R { _mm512_min_epu8(a, b) }
        fn add_i64(a: R, b: R) -> R { _mm512_add_epi64(a, b) }
        fn max_i64(a: R, b: R) -> R { _mm512_max_epi64(a, b) }
        fn min_i64(a: R, b: R) -> R { _mm512_min_epi64(a, b) }
    }
}
