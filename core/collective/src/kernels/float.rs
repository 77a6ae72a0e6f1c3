//! Conversions between f32 and the two 16-bit formats, bit by bit: what every vector kernel has to equal.
//! Round to nearest, ties to even; subnormals are kept; every NaN becomes the one quiet NaN with sign 0, so that
//! the result does not depend on the processor.

/// The NaN that comes out of every kernel.
pub(super) const NAN: u32 = 0x7fc0_0000;

/// bf16 is the upper half of an f32.
pub(super) fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Drops the lower half. Adding it carries into the exponent as rounding requires, up to infinity.
pub(super) fn to_bf16(value: f32) -> u16 {
    let bits = canonical(value).to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    let kept = if value.is_nan() { bits } else { rounded };
    (kept >> 16) as u16
}

/// f16: 5 bits of exponent, 10 of fraction.
pub(super) fn from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits) & 0x3ff;
    let magnitude = match exponent {
        // A subnormal is its fraction times 2^-24, exactly.
        0 => (fraction as f32 * f32::from_bits((127 - 24) << 23)).to_bits(),
        0x1f => 0x7f80_0000 | (fraction << 13),
        _ => ((exponent + 127 - 15) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// Rounds once, also into subnormals.
pub(super) fn to_f16(value: f32) -> u16 {
    let bits = canonical(value).to_bits();
    let sign = ((bits >> 16) & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    let half = match magnitude {
        0x7f80_0001.. => 0x7e00,
        // 65520 and more rounds to infinity.
        0x477f_f000.. => 0x7c00,
        // From 2^-14 on: rebase the exponent, round away 13 bits of fraction.
        0x3880_0000.. => {
            let rebased = magnitude - ((127 - 15) << 23);
            (rebased + 0xfff + ((rebased >> 13) & 1)) >> 13
        }
        // Adding 0.5 puts the unit of an f16 subnormal, 2^-24, at the end of the f32's fraction.
        _ => (f32::from_bits(magnitude) + 0.5).to_bits() - 0.5f32.to_bits(),
    };
    sign | half as u16
}

/// The same number, or the one NaN.
pub(super) fn canonical(value: f32) -> f32 {
    if value.is_nan() {
        f32::from_bits(NAN)
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_16_bit_value_is_widened_as_the_reference_does() {
        for bits in 0..=u16::MAX {
            let same = |ours: f32, theirs: f32| {
                assert!(
                    ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                    "{bits:#x}"
                );
            };
            same(from_bf16(bits), bf16::from_bits(bits).to_f32());
            same(from_f16(bits), f16::from_bits(bits).to_f32());
        }
    }

    #[test]
    fn values_around_every_16_bit_value_are_rounded_as_the_reference_does() {
        for upper in 0..=u16::MAX {
            for lower in [
                0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x7fff, 0x8000, 0x8001, 0xffff,
            ] {
                let value = f32::from_bits(u32::from(upper) << 16 | lower);
                if value.is_nan() {
                    assert_eq!((to_bf16(value), to_f16(value)), (0x7fc0, 0x7e00));
                } else {
                    assert_eq!(to_bf16(value), bf16::from_f32(value).to_bits(), "{value:e}");
                    assert_eq!(to_f16(value), f16::from_f32(value).to_bits(), "{value:e}");
                }
            }
        }
    }
}
