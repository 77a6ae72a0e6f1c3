//! AVX2 and F16C: 8 lanes.
#![expect(unsafe_code, reason = "vector instructions; see `sweep`")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::float::NAN;
use super::lanes::{Lanes, all_canonical, lanes};

type R = __m256i;

/// The instruction set.
pub(super) struct Avx2;

#[inline(always)]
fn floats(value: R) -> __m256 {
    // SAFETY: changes nothing but the type.
    unsafe { _mm256_castsi256_ps(value) }
}

#[inline(always)]
fn bits(value: __m256) -> R {
    // SAFETY: changes nothing but the type.
    unsafe { _mm256_castps_si256(value) }
}

impl Lanes for Avx2 {
    type Register = R;

    lanes! {
        fn splat(value: u32) -> R { _mm256_set1_epi32(value as i32) }
        fn load(from: *const u8) -> R { _mm256_loadu_si256(from.cast()) }
        fn store(to: *mut u8, value: R) { _mm256_storeu_si256(to.cast(), value) }
        fn stream(to: *mut u8, value: R) { _mm256_stream_si256(to.cast(), value) }
        fn fence() { _mm_sfence() }
        fn prefetch(from: *const u8) { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
        // Intel's intrinsic becomes a prefetch for reading where the compiler may not use the instruction. Processors
        // of these sets that do not have it take it for no operation.
        fn prefetch_to_write(to: *const u8) {
            asm!("prefetchw [{}]", in(reg) to, options(nostack, readonly, preserves_flags));
        }

        fn add_f32(a: R, b: R) -> R { bits(_mm256_add_ps(floats(a), floats(b))) }
        fn multiply_f32(a: R, b: R) -> R { bits(_mm256_mul_ps(floats(a), floats(b))) }
        fn divide_f32(a: R, b: R) -> R { bits(_mm256_div_ps(floats(a), floats(b))) }
        // The instruction returns its second operand when either is NaN: only a NaN so far has to be kept.
        fn max_f32(so_far: R, next: R) -> R {
            let (so_far, next) = (floats(so_far), floats(next));
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(so_far, so_far);
            bits(_mm256_blendv_ps(_mm256_max_ps(so_far, next), so_far, nan))
        }
        fn min_f32(so_far: R, next: R) -> R {
            let (so_far, next) = (floats(so_far), floats(next));
            let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(so_far, so_far);
            bits(_mm256_blendv_ps(_mm256_min_ps(so_far, next), so_far, nan))
        }
        fn canonical(value: R) -> R {
            let (value, nan) = (floats(value), floats(_mm256_set1_epi32(NAN as i32)));
            bits(_mm256_blendv_ps(value, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(value, value)))
        }
        fn canonical_four(values: [R; 4]) -> [R; 4] {
            let [a, b, c, d] = values;
            let in_ab = _mm256_cmp_ps::<_CMP_UNORD_Q>(floats(a), floats(b));
            let in_cd = _mm256_cmp_ps::<_CMP_UNORD_Q>(floats(c), floats(d));
            let nan = _mm256_or_ps(in_ab, in_cd);
            if _mm256_testz_ps(nan, nan) == 1 { values } else { all_canonical::<Self>(values) }
        }
        fn load_f16(from: *const u8) -> R { bits(_mm256_cvtph_ps(_mm_loadu_si128(from.cast()))) }
        fn widen_f16(value: R) -> [R; 2] {
            let (lower, upper) = (_mm256_castsi256_si128(value), _mm256_extracti128_si256::<1>(value));
            [bits(_mm256_cvtph_ps(lower)), bits(_mm256_cvtph_ps(upper))]
        }
        fn narrow_f16(value: [R; 2]) -> R {
            let lower = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats(value[0]));
            let upper = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(floats(value[1]));
            _mm256_set_m128i(upper, lower)
        }

        fn unzip(value: [R; 2]) -> [R; 2] {
            let (a, b) = (floats(value[0]), floats(value[1]));
            // Shuffles take halves of both in turn.
            let even = bits(_mm256_shuffle_ps::<0b10_00_10_00>(a, b));
            let odd = bits(_mm256_shuffle_ps::<0b11_01_11_01>(a, b));
            [
                _mm256_permute4x64_epi64::<0b11_01_10_00>(even),
                _mm256_permute4x64_epi64::<0b11_01_10_00>(odd),
            ]
        }
        fn zip(value: [R; 2]) -> [R; 2] {
            let [even, odd] = value;
            let lower = _mm256_unpacklo_epi32(even, odd);
            let upper = _mm256_unpackhi_epi32(even, odd);
            [
                _mm256_permute2x128_si256::<0x20>(lower, upper),
                _mm256_permute2x128_si256::<0x31>(lower, upper),
            ]
        }

        fn and(a: R, b: R) -> R { _mm256_and_si256(a, b) }
        fn or(a: R, b: R) -> R { _mm256_or_si256(a, b) }
        fn add(a: R, b: R) -> R { _mm256_add_epi32(a, b) }
        fn subtract(a: R, b: R) -> R { _mm256_sub_epi32(a, b) }
        // The count is a constant in the end: with a register of equal counts the compiler sees it.
        fn shift_left<const BITS: u32>(value: R) -> R { _mm256_sllv_epi32(value, _mm256_set1_epi32(BITS as i32)) }
        fn shift_right<const BITS: u32>(value: R) -> R { _mm256_srlv_epi32(value, _mm256_set1_epi32(BITS as i32)) }
        fn choose_below(value: R, limit: R, a: R, b: R) -> R {
            _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi32(limit, value))
        }
        fn max_i32(a: R, b: R) -> R { _mm256_max_epi32(a, b) }
        fn min_i32(a: R, b: R) -> R { _mm256_min_epi32(a, b) }

        fn lower_to_upper_16(value: R) -> R { _mm256_slli_epi16::<8>(value) }
        fn halve_i16(value: R) -> R { _mm256_srai_epi16::<1>(value) }
        fn interleave_u8(even: [R; 2], odd: [R; 2]) -> R {
            let even = _mm256_packus_epi32(even[0], even[1]);
            let odd = _mm256_packus_epi32(odd[0], odd[1]);
            let bytes = _mm256_or_si256(even, _mm256_slli_epi16::<8>(odd));
            // Packing takes halves of both in turn.
            _mm256_permute4x64_epi64::<0b11_01_10_00>(bytes)
        }
        fn set_where_u8(value: R, key: R, byte: u8) -> R {
            let byte = _mm256_set1_epi8(byte as i8);
            _mm256_blendv_epi8(value, byte, _mm256_cmpeq_epi8(key, byte))
        }
        fn add_u8(a: R, b: R) -> R { _mm256_add_epi8(a, b) }
        fn max_u8(a: R, b: R) -> R { _mm256_max_epu8(a, b) }
        fn min_u8(a: R, b: R) -> R { _mm256_min_epu8(a, b) }
        fn add_i64(a: R, b: R) -> R { _mm256_add_epi64(a, b) }
        fn max_i64(a: R, b: R) -> R { _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi64(a, b)) }
        fn min_i64(a: R, b: R) -> R { _mm256_blendv_epi8(a, b, _mm256_cmpgt_epi64(a, b)) }
    }
}
