//! How a reduction combines contributions: the operators, the factor of one of them, and how a step scales what it adds up.
//! The arithmetic itself lives in `kernels`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How contributions are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReduceOp {
    /// Sum; integers wrap.
    Sum,
    /// Sum divided by the number of ranks; integers truncate towards zero. Elements of f64, f32 or integers are
    /// divided once, at the end. Floats of 16 and 8 bits in fast mode are divided where they enter, in f32: a node
    /// rounds the sum of its own ranks' inputs divided by the number of all ranks, plus what its children have sent. So
    /// an average that fits does not overflow on the way; in f16 a node's share that is below 2^-14 loses digits, and
    /// below 2^-25 everything. In e4m3 that is 2^-6 and 2^-10, in e5m2 2^-14 and 2^-17.
    Avg,
    /// Largest; NaN wins.
    Max,
    /// Smallest; NaN wins.
    Min,
    /// Sum of every rank's contribution times a factor, which is the same on all ranks. Floats only. A contribution
    /// is multiplied in f32 where it enters, before it is added; a contribution of f64 in f64, by the same factor.
    PremulSum(Factor),
    /// The bits that all have. Integers only.
    And,
    /// The bits that any has. Integers only.
    Or,
    /// The bits that an odd number of them have. Integers only.
    Xor,
}

impl ReduceOp {
    /// Every operator, for tables and tests.
    pub const ALL: [Self; 8] = [
        Self::Sum,
        Self::Avg,
        Self::Max,
        Self::Min,
        Self::PremulSum(Factor::new(0.625)),
        Self::And,
        Self::Or,
        Self::Xor,
    ];

    /// The name users write.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Max => "max",
            Self::Min => "min",
            Self::PremulSum(_) => "premul_sum",
            Self::And => "band",
            Self::Or => "bor",
            Self::Xor => "bxor",
        }
    }

    /// Whether it adds up.
    #[must_use]
    pub const fn adds(self) -> bool {
        match self {
            Self::Sum | Self::Avg | Self::PremulSum(_) => true,
            Self::Max | Self::Min | Self::And | Self::Or | Self::Xor => false,
        }
    }

    /// Whether it combines bits, and not numbers.
    #[must_use]
    pub const fn is_bitwise(self) -> bool {
        match self {
            Self::And | Self::Or | Self::Xor => true,
            Self::Sum | Self::Avg | Self::Max | Self::Min | Self::PremulSum(_) => false,
        }
    }
}

/// `premul_sum 0.5`: how errors name an operator.
impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::PremulSum(factor) => write!(f, " {}", factor.value()),
            Self::Sum | Self::Avg | Self::Max | Self::Min | Self::And | Self::Or | Self::Xor => {
                Ok(())
            }
        }
    }
}

/// A factor by its bits: calls are fingerprints, which compare as nothing but bits do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Factor(u32);

impl Factor {
    /// Any f32.
    #[must_use]
    pub const fn new(value: f32) -> Self {
        Self(value.to_bits())
    }

    /// From its bits.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The number.
    #[must_use]
    pub const fn value(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// Its bits.
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        self.0
    }
}

/// How one step of a sum scales its sources. Those that were scaled elsewhere come last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Not at all.
    Not,
    /// The sum of the first sources is divided; the others are added to the quotient.
    Divide {
        /// How many of them, at least 1.
        first: usize,
        /// By what, at least 1.
        by: u32,
    },
    /// Each of the first sources is multiplied before it is added. Floats only.
    Multiply {
        /// How many of them, at least 1.
        first: usize,
        /// By what.
        by: Factor,
    },
}
