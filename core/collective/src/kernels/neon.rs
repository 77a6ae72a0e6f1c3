//! NEON of aarch64: 4 lanes. There are no stores past the caches to be had, so streaming stores are plain.
#![expect(unsafe_code, reason = "vector instructions; see `sweep`")]

use std::arch::aarch64::*;
use std::arch::asm;

use super::float::NAN;
use super::lanes::{Lanes, lanes};

type R = uint32x4_t;

/// The instruction set.
pub(super) struct Neon;

#[inline(always)]
fn floats(value: R) -> float32x4_t {
    // SAFETY: changes nothing but the type.
    unsafe { vreinterpretq_f32_u32(value) }
}

#[inline(always)]
fn bits(value: float32x4_t) -> R {
    // SAFETY: changes nothing but the type.
    unsafe { vreinterpretq_u32_f32(value) }
}

#[inline(always)]
fn bytes(value: R) -> uint8x16_t {
    // SAFETY: changes nothing but the type.
    unsafe { vreinterpretq_u8_u32(value) }
}

/// Lanes of `kept` where they are NaN, or where `wins` is set; lanes of `next` elsewhere.
#[inline(always)]
fn keep(wins: R, kept: float32x4_t, next: float32x4_t) -> R {
    // SAFETY: every aarch64 processor that Rust compiles for has NEON.
    unsafe {
        bits(vbslq_f32(
            vornq_u32(wins, vceqq_f32(kept, kept)),
            kept,
            next,
        ))
    }
}

impl Lanes for Neon {
    type Register = R;

    #[inline(always)]
    unsafe fn fence() {}

    lanes! {
        fn splat(value: u32) -> R { vdupq_n_u32(value) }
        fn load(from: *const u8) -> R { vreinterpretq_u32_u8(vld1q_u8(from)) }
        fn store(to: *mut u8, value: R) { vst1q_u8(to, bytes(value)) }
        fn stream(to: *mut u8, value: R) { vst1q_u8(to, bytes(value)) }
        fn prefetch(from: *const u8) {
            asm!("prfm pldl2keep, [{}]", in(reg) from, options(nostack, readonly, preserves_flags));
        }

        fn prefetch_to_write(to: *const u8) {
            asm!("prfm pstl1keep, [{}]", in(reg) to, options(nostack, readonly, preserves_flags));
        }

        fn add_f32(a: R, b: R) -> R { bits(vaddq_f32(floats(a), floats(b))) }
        fn multiply_f32(a: R, b: R) -> R { bits(vmulq_f32(floats(a), floats(b))) }
        fn divide_f32(a: R, b: R) -> R { bits(vdivq_f32(floats(a), floats(b))) }
        // A comparison with NaN is false, so a NaN that comes next is taken.
        fn max_f32(so_far: R, next: R) -> R {
            let (so_far, next) = (floats(so_far), floats(next));
            keep(vcgtq_f32(so_far, next), so_far, next)
        }
        fn min_f32(so_far: R, next: R) -> R {
            let (so_far, next) = (floats(so_far), floats(next));
            keep(vcltq_f32(so_far, next), so_far, next)
        }
        fn canonical(value: R) -> R {
            vbslq_u32(vceqq_f32(floats(value), floats(value)), value, vdupq_n_u32(NAN))
        }
        // The intrinsics of these conversions are not stable.
        fn load_f16(from: *const u8) -> R {
            let (halves, wide): (uint8x8_t, R);
            halves = vld1_u8(from);
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) wide, in(vreg) halves, options(pure, nomem, nostack));
            wide
        }
        fn widen_f16(value: R) -> [R; 2] {
            let (lower, upper): (R, R);
            asm!("fcvtl {0:v}.4s, {1:v}.4h", out(vreg) lower, in(vreg) value, options(pure, nomem, nostack));
            asm!("fcvtl2 {0:v}.4s, {1:v}.8h", out(vreg) upper, in(vreg) value, options(pure, nomem, nostack));
            [lower, upper]
        }
        fn narrow_f16(value: [R; 2]) -> R {
            let halves: R;
            asm!(
                "fcvtn {0:v}.4h, {1:v}.4s",
                "fcvtn2 {0:v}.8h, {2:v}.4s",
                out(vreg) halves, in(vreg) value[0], in(vreg) value[1],
                options(pure, nomem, nostack)
            );
            halves
        }

        fn unzip(value: [R; 2]) -> [R; 2] {
            [vuzp1q_u32(value[0], value[1]), vuzp2q_u32(value[0], value[1])]
        }
        fn zip(value: [R; 2]) -> [R; 2] {
            [vzip1q_u32(value[0], value[1]), vzip2q_u32(value[0], value[1])]
        }

        fn and(a: R, b: R) -> R { vandq_u32(a, b) }
        fn or(a: R, b: R) -> R { vorrq_u32(a, b) }
        fn add(a: R, b: R) -> R { vaddq_u32(a, b) }
        fn subtract(a: R, b: R) -> R { vsubq_u32(a, b) }
        // The count is a constant in the end: with a register of equal counts the compiler sees it.
        fn shift_left<const BITS: u32>(value: R) -> R { vshlq_u32(value, vdupq_n_s32(BITS as i32)) }
        fn shift_right<const BITS: u32>(value: R) -> R { vshlq_u32(value, vdupq_n_s32(-(BITS as i32))) }
        fn choose_below(value: R, limit: R, a: R, b: R) -> R { vbslq_u32(vcltq_u32(value, limit), a, b) }
        fn max_i32(a: R, b: R) -> R {
            vreinterpretq_u32_s32(vmaxq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b)))
        }
        fn min_i32(a: R, b: R) -> R {
            vreinterpretq_u32_s32(vminq_s32(vreinterpretq_s32_u32(a), vreinterpretq_s32_u32(b)))
        }

        fn lower_to_upper_16(value: R) -> R {
            vreinterpretq_u32_u16(vshlq_n_u16::<8>(vreinterpretq_u16_u32(value)))
        }
        fn halve_i16(value: R) -> R { vreinterpretq_u32_s16(vshrq_n_s16::<1>(vreinterpretq_s16_u32(value))) }
        fn interleave_u8(even: [R; 2], odd: [R; 2]) -> R {
            let [even, odd] = [even, odd].map(|[lower, upper]| {
                vuzp1q_u16(vreinterpretq_u16_u32(lower), vreinterpretq_u16_u32(upper))
            });
            vreinterpretq_u32_u16(vsliq_n_u16::<8>(even, odd))
        }
        fn set_where_u8(value: R, key: R, byte: u8) -> R {
            let byte = vdupq_n_u8(byte);
            vreinterpretq_u32_u8(vbslq_u8(vceqq_u8(bytes(key), byte), byte, bytes(value)))
        }
        fn add_u8(a: R, b: R) -> R { vreinterpretq_u32_u8(vaddq_u8(bytes(a), bytes(b))) }
        fn max_u8(a: R, b: R) -> R { vreinterpretq_u32_u8(vmaxq_u8(bytes(a), bytes(b))) }
        fn min_u8(a: R, b: R) -> R { vreinterpretq_u32_u8(vminq_u8(bytes(a), bytes(b))) }
        fn add_i64(a: R, b: R) -> R {
            vreinterpretq_u32_s64(vaddq_s64(vreinterpretq_s64_u32(a), vreinterpretq_s64_u32(b)))
        }
        fn max_i64(a: R, b: R) -> R {
            let (a, b) = (vreinterpretq_s64_u32(a), vreinterpretq_s64_u32(b));
            vreinterpretq_u32_s64(vbslq_s64(vcgtq_s64(a, b), a, b))
        }
        fn min_i64(a: R, b: R) -> R {
            let (a, b) = (vreinterpretq_s64_u32(a), vreinterpretq_s64_u32(b));
            vreinterpretq_u32_s64(vbslq_s64(vcltq_s64(a, b), a, b))
        }
    }
}
