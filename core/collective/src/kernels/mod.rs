//! Combining k buffers into one in a single pass: the only place where payload bytes are computed on. Owns the
//! arithmetic of every type and operator, and the choice of instruction set, made once.
//!
//! - Floats of 16 and 8 bits are summed in f32 and rounded once, to nearest even, those of 64 bits in f64. Sources are
//!   taken in their order.
//! - What is too large becomes infinity, in e4m3, which has none, NaN: as PyTorch casts.
//! - NaN wins over every number in all operators and comes out as the quiet NaN with sign 0 of its type; in the 8-bit
//!   formats as 0x7f.
//! - Of two equal zeros of different sign, MAX and MIN take the later source's.
//! - Where parts travel in f32, sums of elements and of such parts are added in f32 and rounded where they become elements.
//! - Integers wrap. Averages of integers truncate towards zero.
//! - All instruction sets give the bits of the scalar reference. For f64, i8, bits and averages of integers they share
//!   plain loops.

mod float;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod blocks;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod bytes;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod formats;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod parts;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod sweep;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;

use std::sync::OnceLock;

use crate::dtype::DType;
use crate::numerics::{Arithmetic, Form};
use crate::reduce_op::{ReduceOp, Scale};

/// Whether a result is read soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Soon: it stays in the caches.
    Cached,
    /// Not before much else: it goes to memory and leaves the caches to others.
    Streaming,
}

/// A kernel for one type: operator, result, sources, scaling, how the result is stored.
type Kernel = fn(ReduceOp, &mut [u8], &[&[u8]], Scale, Store);

/// A kernel for the sums of one narrow float: result, what is added up, scaling, how the result is stored.
type PartKernel = fn(&mut [u8], &Parts<'_>, Scale, Store);

/// A step of a sum whose parts travel in f32: elements, and behind them sums of elements of other nodes.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Elements, at least one source.
    pub sources: &'a [&'a [u8]],
    /// As many numbers each in f32.
    pub partials: &'a [&'a [u8]],
    /// The form of the sums.
    pub form: Form,
}

/// An instruction set there are kernels for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain code: the reference.
    Scalar,
    /// NEON, of 64-bit Arm.
    Neon,
    /// AVX2 and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and DQ.
    Avx512,
}

impl Isa {
    /// Every set; of those that a processor may have, the slowest first.
    pub const ALL: [Self; 4] = [Self::Scalar, Self::Neon, Self::Avx2, Self::Avx512];

    /// The name users write.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Neon => "neon",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }

    /// Whether this processor has it.
    #[must_use]
    pub fn is_available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Self::Scalar => true,
            Self::Neon => false,
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
            }
        };
        #[cfg(target_arch = "aarch64")]
        return matches!(self, Self::Scalar | Self::Neon);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        return self == Self::Scalar;
    }
}

/// The kernels of one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    isa: Isa,
    kernel: fn(DType) -> Kernel,
    part_kernel: fn(DType) -> Option<PartKernel>,
}

impl Kernels {
    /// The fastest this processor has; looked up once.
    pub fn best() -> &'static Self {
        static BEST: OnceLock<Kernels> = OnceLock::new();
        BEST.get_or_init(|| {
            let kernels = Isa::ALL.into_iter().rev().find_map(Self::of);
            kernels.unwrap_or(Self {
                isa: Isa::Scalar,
                kernel: scalar::kernel,
                part_kernel: scalar::part_kernel,
            })
        })
    }

    /// Those of an instruction set, where the processor has it.
    #[must_use]
    pub fn of(isa: Isa) -> Option<Self> {
        if !isa.is_available() {
            return None;
        }
        type Tables = (fn(DType) -> Kernel, fn(DType) -> Option<PartKernel>);
        let (kernel, part_kernel): Tables = match isa {
            Isa::Scalar => (scalar::kernel, scalar::part_kernel),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => (vector::neon::kernel, vector::neon::part_kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => (vector::avx2::kernel, vector::avx2::part_kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => (vector::avx512::kernel, vector::avx512::part_kernel),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon => return None,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => return None,
        };
        Some(Self {
            isa,
            kernel,
            part_kernel,
        })
    }

    /// Which instruction set these are.
    #[must_use]
    pub const fn isa(&self) -> Isa {
        self.isa
    }

    /// Combines `sources`, scaled on the way, and writes the result. There is at least one source, and all are as long
    /// as the result, a multiple of the type's size.
    pub fn reduce(
        &self,
        dtype: DType,
        op: ReduceOp,
        into: &mut [u8],
        sources: &[&[u8]],
        scale: Scale,
        store: Store,
    ) {
        let length = into.len();
        assert!(!sources.is_empty(), "something to combine");
        assert!(
            sources.iter().all(|source| source.len() == length),
            "sources as long as the result"
        );
        assert!(length.is_multiple_of(dtype.size()), "whole elements");
        assert!(
            !(op.is_bitwise() && dtype.is_float()),
            "bits of integers only"
        );
        let is_sum = op.adds();
        let fits = match scale {
            Scale::Not => true,
            Scale::Divide { first, by } => is_sum && (1..=sources.len()).contains(&first) && by > 0,
            Scale::Multiply { first, .. } => {
                is_sum && (1..=sources.len()).contains(&first) && dtype.is_float()
            }
        };
        assert!(
            fits,
            "sums of what is there are scaled, and floats by any factor"
        );
        (self.kernel)(dtype)(op, into, sources, scale, store);
    }

    /// Adds up what a step brings of a float narrower than f32, scaled on the way; partials count as sources behind the
    /// others. Everything has as many numbers as the result has of its form.
    pub fn reduce_parts(
        &self,
        dtype: DType,
        into: &mut [u8],
        parts: &Parts<'_>,
        scale: Scale,
        store: Store,
    ) {
        const WIDE: usize = DType::F32.size();
        let Some(kernel) = (self.part_kernel)(dtype) else {
            unreachable!("only narrow floats have partials, not {dtype}");
        };
        let width = match parts.form {
            Form::Elements => dtype.size(),
            Form::Partial => WIDE,
        };
        let length = into.len();
        assert!(length.is_multiple_of(width), "whole numbers");
        let count = length / width;
        let are = |all: &[&[u8]], size: usize| all.iter().all(|one| one.len() == count * size);
        assert!(!parts.sources.is_empty(), "something to add up");
        assert!(
            are(parts.sources, dtype.size()) && are(parts.partials, WIDE),
            "as many numbers as the result"
        );
        let all = parts.sources.len() + parts.partials.len();
        let fits = match scale {
            Scale::Not => true,
            Scale::Divide { first, by } => (1..=all).contains(&first) && by > 0,
            Scale::Multiply { first, .. } => (1..=all).contains(&first),
        };
        assert!(fits, "what is there is scaled");
        kernel(into, parts, scale, store);
    }
}

/// [`Kernels::reduce`] with the fastest kernels.
pub fn reduce(
    dtype: DType,
    op: ReduceOp,
    into: &mut [u8],
    sources: &[&[u8]],
    scale: Scale,
    store: Store,
) {
    Kernels::best().reduce(dtype, op, into, sources, scale, store);
}

/// Carries out a step of a reduction with the fastest kernels.
pub fn combine(
    arithmetic: Arithmetic,
    into: &mut [u8],
    sources: &[&[u8]],
    partials: &[&[u8]],
    store: Store,
) {
    let Arithmetic {
        dtype,
        op,
        scale,
        form,
    } = arithmetic;
    if partials.is_empty() && form == Form::Elements {
        reduce(dtype, op, into, sources, scale, store);
        return;
    }
    let parts = Parts {
        sources,
        partials,
        form,
    };
    Kernels::best().reduce_parts(dtype, into, &parts, scale, store);
}
