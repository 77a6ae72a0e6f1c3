//! The kernels of each vector instruction set: every format and operator, compiled with the set's features. What is seldom
//! reduced has no vector code and is left to `blocks`.
#![expect(unsafe_code, reason = "vector instructions; see `sweep`")]

use super::parts::{self, AsF32, E4m3Parts, PartVector};
use super::sweep::{self, Divided, Max, Min, Multiplied, Operator, Sum, Vector};
use super::{Kernel, PartKernel, Parts, Store, blocks, bytes, formats, scalar};
use crate::dtype::DType;
use crate::numerics::Form;
use crate::reduce_op::{ReduceOp, Scale};

/// One set of kernels: the features it is compiled with and its lanes.
macro_rules! instruction_set {
    ($module:ident, $features:literal, $lanes:ty) => {
        pub(super) mod $module {
            use super::*;

            /// The kernel for a type. Call it only where the instruction set was detected.
            pub(in super::super) fn kernel(dtype: DType) -> Kernel {
                match dtype {
                    DType::F64 => blocks::reduce::<scalar::F64>,
                    DType::F32 => reduce::<formats::F32<$lanes>>,
                    DType::F16 => reduce::<formats::F16<$lanes>>,
                    DType::Bf16 => reduce::<formats::Bf16<$lanes>>,
                    DType::E4m3 => reduce::<bytes::Twice<bytes::E4m3<$lanes>>>,
                    DType::E5m2 => reduce::<bytes::Twice<bytes::E5m2<$lanes>>>,
                    DType::U8 => reduce_integers::<formats::U8<$lanes>, u8>,
                    DType::I8 => blocks::reduce::<i8>,
                    DType::I32 => reduce_integers::<formats::I32<$lanes>, i32>,
                    DType::I64 => reduce_integers::<formats::I64<$lanes>, i64>,
                }
            }

            /// The kernel for sums of a narrow float, of which some are partials. As above.
            pub(in super::super) fn part_kernel(dtype: DType) -> Option<PartKernel> {
                match dtype {
                    DType::F16 => Some(reduce_parts::<formats::F16<$lanes>>),
                    DType::Bf16 => Some(reduce_parts::<formats::Bf16<$lanes>>),
                    DType::E4m3 => Some(reduce_parts::<E4m3Parts<$lanes>>),
                    DType::E5m2 => Some(reduce_parts::<bytes::E5m2<$lanes>>),
                    DType::F64 | DType::F32 | DType::U8 | DType::I8 | DType::I32 | DType::I64 => {
                        None
                    }
                }
            }

            fn reduce_parts<V: PartVector>(
                into: &mut [u8],
                parts: &Parts<'_>,
                scale: Scale,
                store: Store,
            ) {
                match scale {
                    Scale::Not | Scale::Divide { by: 1, .. } => {
                        run_parts::<V, _>(Sum, into, parts, store);
                    }
                    Scale::Divide { first, by } => {
                        let by = by as f32;
                        run_parts::<V, _>(Divided { first, by }, into, parts, store);
                    }
                    Scale::Multiply { first, by } => {
                        let by = by.value();
                        run_parts::<V, _>(Multiplied { first, by }, into, parts, store);
                    }
                }
            }

            fn run_parts<V: PartVector, O: Operator>(
                operator: O,
                into: &mut [u8],
                parts: &Parts<'_>,
                store: Store,
            ) {
                // SAFETY: as in `run`; `Kernels::reduce_parts` has compared the lengths.
                unsafe {
                    match parts.form {
                        Form::Elements => sweep_parts::<V, V, O>(operator, into, parts, store),
                        Form::Partial => {
                            sweep_parts::<V, AsF32<V>, O>(operator, into, parts, store);
                        }
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn sweep_parts<V: PartVector, D: Vector<Sums = V::Sums>, O: Operator>(
                operator: O,
                into: &mut [u8],
                parts: &Parts<'_>,
                store: Store,
            ) {
                // SAFETY: the features are enabled here; lengths are the caller's.
                unsafe { parts::sweep::<V, D, O>(operator, into, parts, store) }
            }

            fn reduce<V: Vector>(
                op: ReduceOp,
                into: &mut [u8],
                sources: &[&[u8]],
                scale: Scale,
                store: Store,
            ) {
                match (op, scale) {
                    (ReduceOp::Max, _) => run::<V, _>(Max, into, sources, store),
                    (ReduceOp::Min, _) => run::<V, _>(Min, into, sources, store),
                    (ReduceOp::And | ReduceOp::Or | ReduceOp::Xor, _) => {
                        unreachable!("bits of floats are not combined")
                    }
                    (_, Scale::Not | Scale::Divide { by: 1, .. }) => {
                        run::<V, _>(Sum, into, sources, store);
                    }
                    (_, Scale::Divide { first, by }) => {
                        let by = by as f32;
                        run::<V, _>(Divided { first, by }, into, sources, store);
                    }
                    (_, Scale::Multiply { first, by }) => {
                        let by = by.value();
                        run::<V::Exact, _>(Multiplied { first, by }, into, sources, store);
                    }
                }
            }

            /// Vectors of integers are not divided, and their bits are not combined.
            fn reduce_integers<V: Vector, E: scalar::Element>(
                op: ReduceOp,
                into: &mut [u8],
                sources: &[&[u8]],
                scale: Scale,
                store: Store,
            ) {
                match (op, scale) {
                    (ReduceOp::Max, _) => run::<V, _>(Max, into, sources, store),
                    (ReduceOp::Min, _) => run::<V, _>(Min, into, sources, store),
                    (ReduceOp::And | ReduceOp::Or | ReduceOp::Xor, _)
                    | (_, Scale::Divide { by: 2.., .. }) => {
                        blocks::reduce::<E>(op, into, sources, scale, store);
                    }
                    (_, Scale::Not | Scale::Divide { .. } | Scale::Multiply { .. }) => {
                        run::<V, _>(Sum, into, sources, store);
                    }
                }
            }

            fn run<V: Vector, O: Operator>(
                operator: O,
                into: &mut [u8],
                sources: &[&[u8]],
                store: Store,
            ) {
                let equal = sources.iter().all(|source| source.len() == into.len());
                assert!(equal, "equal lengths");
                // SAFETY: `kernels::Kernels` hands these functions out only where the features were detected;
                // lengths are equal as just checked.
                unsafe { sweep::<V, O>(operator, into, sources, store) }
            }

            #[target_feature(enable = $features)]
            unsafe fn sweep<V: Vector, O: Operator>(
                operator: O,
                into: &mut [u8],
                sources: &[&[u8]],
                store: Store,
            ) {
                // SAFETY: the features are enabled here; lengths are the caller's.
                unsafe { sweep::sweep::<V, O>(operator, into, sources, store) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
instruction_set!(avx2, "avx2,f16c", super::super::avx2::Avx2);
#[cfg(target_arch = "x86_64")]
instruction_set!(
    avx512,
    "avx512f,avx512bw,avx512vl,avx512dq",
    super::super::avx512::Avx512
);
#[cfg(target_arch = "aarch64")]
instruction_set!(neon, "neon", super::super::neon::Neon);
