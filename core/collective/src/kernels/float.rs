//! Conversions between f32 and the narrow formats, bit by bit: what every vector kernel has to equal.
//! Round to nearest, ties to even; subnormals are kept; every NaN becomes the one quiet NaN with sign 0, so that
//! the result does not depend on the processor.

/// The NaN that comes out of every kernel.
pub(super) const NAN: u32 = 0x7fc0_0000;
/// The NaN of both 8-bit formats, as PyTorch's casts give it; e4m3 has no other.
pub(super) const NAN_8: u8 = 0x7f;

/// A format laid out as IEEE 754 does, narrower than f32.
pub(super) struct Narrow {
    /// Bits of its fraction.
    pub(super) fraction: u32,
    /// Bias of its exponent.
    pub(super) bias: u32,
}

impl Narrow {
    /// Bits that rounding drops from an f32's fraction.
    pub(super) const fn dropped(&self) -> u32 {
        23 - self.fraction
    }

    /// What an f32's bits exceed this format's by, once the latter are in their place.
    pub(super) const fn rebase(&self) -> u32 {
        (127 - self.bias) << 23
    }

    /// Its smallest normal number, as an f32.
    pub(super) const fn normal(&self) -> u32 {
        (128 - self.bias) << 23
    }

    /// The f32 to add so that this format's smallest subnormal comes to be the last bit of the sum.
    pub(super) const fn magic(&self) -> u32 {
        (151 - self.bias - self.fraction) << 23
    }

    /// A number of this format, without sign, infinity and NaN.
    fn widen(&self, magnitude: u32) -> f32 {
        if magnitude >> self.fraction == 0 {
            let unit = f32::from_bits((128 - self.bias - self.fraction) << 23);
            magnitude as f32 * unit
        } else {
            f32::from_bits((magnitude << self.dropped()) + self.rebase())
        }
    }

    /// The magnitude of a number in this format, rounded once; beyond its largest number it goes on counting.
    fn round(&self, value: f32) -> u32 {
        let magnitude = value.to_bits() & 0x7fff_ffff;
        if magnitude < self.normal() {
            let magic = self.magic();
            return (f32::from_bits(magnitude) + f32::from_bits(magic)).to_bits() - magic;
        }
        let odd = (magnitude >> self.dropped()) & 1;
        let below_half = (1 << (self.dropped() - 1)) - 1;
        (magnitude - self.rebase() + below_half + odd) >> self.dropped()
    }
}

/// IEEE 754 binary16.
pub(super) const F16: Narrow = Narrow {
    fraction: 10,
    bias: 15,
};
/// Up to 448, without infinity.
pub(super) const E4M3: Narrow = Narrow {
    fraction: 3,
    bias: 7,
};
/// The upper half of an f16.
pub(super) const E5M2: Narrow = Narrow {
    fraction: 2,
    bias: 15,
};

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
    let magnitude = u32::from(bits) & 0x7fff;
    let wide = match magnitude {
        0x7c00.. => f32::from_bits(0x7f80_0000 | (magnitude & 0x3ff) << F16.dropped()),
        _ => F16.widen(magnitude),
    };
    with_sign(wide, bits >> 15)
}

/// 65520 and more rounds to infinity.
pub(super) fn to_f16(value: f32) -> u16 {
    if value.is_nan() {
        return 0x7e00;
    }
    let sign = (value.to_bits() >> 16 & 0x8000) as u16;
    sign | F16.round(value).min(0x7c00) as u16
}

/// e4m3: 4 bits of exponent, 3 of fraction.
pub(super) fn from_e4m3(bits: u8) -> f32 {
    let wide = match bits & 0x7f {
        NAN_8 => f32::NAN,
        magnitude => E4M3.widen(u32::from(magnitude)),
    };
    with_sign(wide, u16::from(bits >> 7))
}

/// 464 is halfway to the NaN and rounds to 448, which is even; more becomes the NaN.
pub(super) fn to_e4m3(value: f32) -> u8 {
    let rounded = E4M3.round(value).min(u32::from(NAN_8)) as u8;
    if value.is_nan() || rounded == NAN_8 {
        return NAN_8;
    }
    sign_8(value) | rounded
}

/// e5m2: 5 bits of exponent, 2 of fraction.
pub(super) fn from_e5m2(bits: u8) -> f32 {
    from_f16(u16::from(bits) << 8)
}

/// 61440 and more rounds to infinity.
pub(super) fn to_e5m2(value: f32) -> u8 {
    if value.is_nan() {
        return NAN_8;
    }
    sign_8(value) | E5M2.round(value).min(0x7c) as u8
}

/// The same number of 64 bits, or the one NaN of that type.
pub(super) fn canonical_f64(value: f64) -> f64 {
    if value.is_nan() {
        f64::from_bits(0x7ff8_0000_0000_0000)
    } else {
        value
    }
}

/// The same number, or the one NaN.
pub(super) fn canonical(value: f32) -> f32 {
    if value.is_nan() {
        f32::from_bits(NAN)
    } else {
        value
    }
}

fn with_sign(magnitude: f32, sign: u16) -> f32 {
    f32::from_bits(magnitude.to_bits() | u32::from(sign) << 31)
}

fn sign_8(value: f32) -> u8 {
    (value.to_bits() >> 24 & 0x80) as u8
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

    /// What the bits of an 8-bit format stand for, by the definition, in a type that rounds nothing here; `None` for
    /// infinity and NaN.
    fn by_definition(format: &Narrow, bits: u8, largest: u8) -> Option<f64> {
        let magnitude = bits & 0x7f;
        let exponent = i32::from(magnitude >> format.fraction);
        let fraction =
            f64::from(magnitude & ((1 << format.fraction) - 1)) / 2f64.powi(format.fraction as i32);
        let bias = format.bias as i32;
        let value = match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
        };
        let sign = if bits & 0x80 == 0 { 1.0 } else { -1.0 };
        (magnitude <= largest).then_some(sign * value)
    }

    type Format = (&'static Narrow, u8, u8, fn(u8) -> f32, fn(f32) -> u8);
    /// Format, its largest number, what is next to it, and our conversions.
    const FORMATS: [Format; 2] = [
        (&E4M3, 0x7e, NAN_8, from_e4m3, to_e4m3),
        (&E5M2, 0x7b, 0x7c, from_e5m2, to_e5m2),
    ];

    #[test]
    fn every_8_bit_value_is_what_its_definition_says() {
        for (format, largest, _, from, to) in FORMATS {
            for bits in 0..=u8::MAX {
                let wide = from(bits);
                assert_eq!(wide.is_sign_negative(), bits & 0x80 != 0);
                match by_definition(format, bits, largest) {
                    Some(value) => {
                        assert_eq!(f64::from(wide), value, "{bits:#x}");
                        assert_eq!(to(wide), bits);
                    }
                    None if format.bias == 15 && bits & 0x7f == 0x7c => {
                        assert!(wide.is_infinite());
                        assert_eq!(to(wide), bits);
                    }
                    None => {
                        assert!(wide.is_nan(), "{bits:#x}");
                        assert_eq!(to(wide), NAN_8);
                    }
                }
            }
        }
    }

    #[test]
    fn what_lies_between_two_8_bit_values_goes_to_the_nearer_and_halfway_to_the_even_one() {
        for (format, largest, beyond, from, to) in FORMATS {
            for lower in 0..=largest {
                let low = from(lower);
                let upper = lower + 1;
                // Beyond the largest value the scale goes on for one step.
                let high = if upper <= largest {
                    by_definition(format, upper, largest).unwrap()
                } else {
                    2.0 * f64::from(low) - by_definition(format, lower - 1, largest).unwrap()
                };
                let rounded_up = if upper <= largest { upper } else { beyond };
                let middle = ((f64::from(low) + high) / 2.0) as f32;
                let even = if lower % 2 == 0 { lower } else { rounded_up };
                let just = |bits: u32| f32::from_bits(bits);
                for (value, expected) in [
                    (low, lower),
                    (just(middle.to_bits() - 1), lower),
                    (middle, even),
                    (just(middle.to_bits() + 1), rounded_up),
                    (high as f32, rounded_up),
                ] {
                    assert_eq!(to(value), expected, "{value:e}");
                    let negative = if expected == NAN_8 {
                        NAN_8
                    } else {
                        expected | 0x80
                    };
                    assert_eq!(to(-value), negative, "-{value:e}");
                }
            }
            assert_eq!(to(f32::MAX), beyond);
            assert_eq!(to(f32::INFINITY), beyond);
            assert_eq!(to(f32::from_bits(1)), 0);
            assert_eq!(to(-f32::from_bits(1)), 0x80);
        }
        assert_eq!((to_e4m3(464.0), to_e4m3(464.001)), (0x7e, NAN_8));
        assert_eq!((to_e5m2(61439.9), to_e5m2(61440.0)), (0x7b, 0x7c));
    }
}
