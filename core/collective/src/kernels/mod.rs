//! Combining k buffers into one in a single pass: the only place where payload bytes are computed on. Owns the
//! arithmetic of every type and operator, and the choice of instruction set, made once.
//!
//! - f16 and bf16 are summed in f32 and rounded once, to nearest even. Sources are taken in their order.
//! - NaN wins over every number in all operators and comes out as the quiet NaN with sign 0 of its type.
//! - Of two equal zeros of different sign, MAX and MIN take the later source's.
//! - Integers wrap. Averages of integers truncate towards zero.
//! - All instruction sets give the bits of the scalar reference.

mod float;
mod scalar;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::sync::OnceLock;

use crate::dtype::DType;
use crate::op::{Divide, ReduceOp};

/// A kernel for one type: operator, destination, sources, division.
type Kernel = fn(ReduceOp, &mut [u8], &[&[u8]], Divide);

/// An instruction set there are kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain code: the reference.
    Scalar,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    Avx512,
}

impl Isa {
    /// Every set, slowest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// Whether this processor has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Self::Scalar => true,
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
        };
        #[cfg(not(target_arch = "x86_64"))]
        return self == Self::Scalar;
    }
}

/// The kernels of one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    isa: Isa,
    f32: Kernel,
    f16: Kernel,
    bf16: Kernel,
    u8: Kernel,
    i32: Kernel,
    i64: Kernel,
}

impl Kernels {
    /// The fastest this processor has; looked up once.
    pub fn best() -> &'static Self {
        static BEST: OnceLock<Kernels> = OnceLock::new();
        BEST.get_or_init(|| {
            Isa::ALL
                .into_iter()
                .rev()
                .find_map(Self::of)
                .unwrap_or_else(Self::scalar)
        })
    }

    /// Those of an instruction set, where the processor has it.
    #[must_use]
    pub fn of(isa: Isa) -> Option<Self> {
        if !isa.is_available() {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        return Some(match isa {
            Isa::Scalar => Self::scalar(),
            Isa::Avx2 => Self {
                isa,
                f32: x86::avx2::reduce::<x86::F32x8>,
                f16: x86::avx2::reduce::<x86::F16x8>,
                bf16: x86::avx2::reduce::<x86::Bf16x8>,
                u8: x86::avx2::reduce::<x86::U8x32>,
                i32: x86::avx2::reduce::<x86::I32x8>,
                i64: x86::avx2::reduce::<x86::I64x4>,
            },
            Isa::Avx512 => Self {
                isa,
                f32: x86::avx512::reduce::<x86::F32x16>,
                f16: x86::avx512::reduce::<x86::F16x16>,
                bf16: x86::avx512::reduce::<x86::Bf16x16>,
                u8: x86::avx512::reduce::<x86::U8x64>,
                i32: x86::avx512::reduce::<x86::I32x16>,
                i64: x86::avx512::reduce::<x86::I64x8>,
            },
        });
        #[cfg(not(target_arch = "x86_64"))]
        return Some(Self::scalar());
    }

    fn scalar() -> Self {
        Self {
            isa: Isa::Scalar,
            f32: scalar::reduce::<scalar::F32>,
            f16: scalar::reduce::<scalar::F16>,
            bf16: scalar::reduce::<scalar::Bf16>,
            u8: scalar::reduce::<u8>,
            i32: scalar::reduce::<i32>,
            i64: scalar::reduce::<i64>,
        }
    }

    /// Which instruction set these are.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Combines `sources` into `destination`, with a division on the way. There is at least one source, and all
    /// are as long as the destination, a multiple of the type's size.
    pub fn reduce(
        &self,
        dtype: DType,
        op: ReduceOp,
        destination: &mut [u8],
        sources: &[&[u8]],
        divide: Divide,
    ) {
        let length = destination.len();
        assert!(
            (1..=sources.len()).contains(&divide.first) && divide.by > 0,
            "something to combine, something to divide and to divide by"
        );
        assert!(
            sources.iter().all(|source| source.len() == length),
            "sources as long as the result"
        );
        assert!(length.is_multiple_of(dtype.size()), "whole elements");
        let kernel = match dtype {
            DType::F32 => self.f32,
            DType::F16 => self.f16,
            DType::Bf16 => self.bf16,
            DType::U8 => self.u8,
            DType::I32 => self.i32,
            DType::I64 => self.i64,
        };
        kernel(op, destination, sources, divide);
    }
}

/// [`Kernels::reduce`] with the fastest kernels.
pub fn reduce(
    dtype: DType,
    op: ReduceOp,
    destination: &mut [u8],
    sources: &[&[u8]],
    divide: Divide,
) {
    Kernels::best().reduce(dtype, op, destination, sources, divide);
}
