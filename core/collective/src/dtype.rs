//! Element types the collectives understand. Owns their sizes; arithmetic on them lives in `kernels`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of one element of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DType {
    /// IEEE 754 binary64, accumulated in f64.
    F64,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16, accumulated in f32.
    F16,
    /// The upper half of an f32, accumulated in f32.
    Bf16,
    /// 8 bits: 4 of exponent, 3 of fraction, no infinity, accumulated in f32. PyTorch's `float8_e4m3fn`: up to 448,
    /// and what rounds to more becomes NaN.
    E4m3,
    /// 8 bits: 5 of exponent, 2 of fraction, accumulated in f32. PyTorch's `float8_e5m2`: the upper half of an f16.
    E5m2,
    /// Unsigned byte, wraps.
    U8,
    /// Signed byte, wraps.
    I8,
    /// Signed 32 bit, wraps.
    I32,
    /// Signed 64 bit, wraps.
    I64,
}

impl DType {
    /// Every type, for tables and tests.
    pub const ALL: [Self; 10] = [
        Self::F64,
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::E4m3,
        Self::E5m2,
        Self::U8,
        Self::I8,
        Self::I32,
        Self::I64,
    ];

    /// Bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 | Self::E5m2 | Self::U8 | Self::I8 => 1,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// Whether its elements are floats. They are combined in f32, those of 64 bits in f64.
    #[must_use]
    pub const fn is_float(self) -> bool {
        match self {
            Self::F64 | Self::F32 | Self::F16 | Self::Bf16 | Self::E4m3 | Self::E5m2 => true,
            Self::U8 | Self::I8 | Self::I32 | Self::I64 => false,
        }
    }

    /// The name users write, as PyTorch spells it without the bit width's word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::E4m3 => "e4m3",
            Self::E5m2 => "e5m2",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::I32 => "i32",
            Self::I64 => "i64",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
