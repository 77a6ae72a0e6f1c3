//! How exact sums of floats stay on their way between nodes. Owns the modes that a job or a group chooses from, and
//! what each makes of a call: the type in which parts go up, and how many trees they take.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::dtype::DType;
use crate::op::Call;
use crate::reduce_op::{ReduceOp, Scale};

/// How a sum of floats is rounded. In every mode all ranks get the same bits, and within a node sums are kept in f32,
/// those of f64 in f64. Integers are exact in all of them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Numerics {
    /// What goes up has the type of the elements: rounded on every level of the tree.
    #[default]
    Fast,
    /// Sums of 16-bit and 8-bit floats go up in f32, which is two or four times as much, and are rounded once, at the
    /// root. For f32 and f64, of which there is nothing wider, this is what `Fast` is.
    Precise,
    /// The same, and all floats take one tree, so that each element is added up in one order, wherever it lies: the
    /// result depends neither on how tensors were cut or joined, nor on the size of chunks.
    Bitwise,
}

impl Numerics {
    /// Every mode, for tables and tests.
    pub const ALL: [Self; 3] = [Self::Fast, Self::Precise, Self::Bitwise];

    /// The name users write.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Precise => "precise",
            Self::Bitwise => "bitwise",
        }
    }
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the numbers are that a step of a sum leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Elements of the call's type.
    Elements,
    /// Sums in f32, which are rounded elsewhere.
    Partial,
}

/// What a step of a reduction computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arithmetic {
    /// Type of the elements.
    pub dtype: DType,
    /// How contributions are combined.
    pub op: ReduceOp,
    /// How they are scaled.
    pub scale: Scale,
    /// What is left behind.
    pub form: Form,
}

impl Call {
    /// The type in which a node's part of what is combined goes up.
    #[must_use]
    pub const fn part_dtype(&self) -> DType {
        match (self.numerics, self.reduce_op()) {
            (Numerics::Precise | Numerics::Bitwise, Some(op)) if op.adds() => match self.dtype {
                DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2 => DType::F32,
                DType::F64 | DType::F32 | DType::U8 | DType::I8 | DType::I32 | DType::I64 => {
                    self.dtype
                }
            },
            (Numerics::Fast | Numerics::Precise | Numerics::Bitwise, _) => self.dtype,
        }
    }

    /// Bytes of a part for each byte of the result: more than 1 where parts are sums in f32 of what is narrower.
    #[must_use]
    pub const fn widening(&self) -> u64 {
        (self.part_dtype().size() / self.dtype.size()) as u64
    }

    /// How many trees its chunks take in turn: 1 where the order of a sum must not depend on an element's place.
    #[must_use]
    pub const fn trees(&self) -> u32 {
        match (self.numerics, self.reduce_op()) {
            // Of equal zeros of different sign the order decides, hence MAX and MIN too.
            (Numerics::Bitwise, Some(_)) if self.dtype.is_float() => 1,
            (Numerics::Fast | Numerics::Precise | Numerics::Bitwise, _) => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::OpKind;

    fn call(numerics: Numerics, op: ReduceOp, dtype: DType) -> Call {
        Call {
            kind: OpKind::AllReduce { op },
            dtype,
            count: 1,
            tag: 0,
            numerics,
        }
    }

    #[test]
    fn only_sums_of_narrow_floats_are_widened_and_only_bitwise_floats_take_one_tree() {
        for dtype in DType::ALL {
            for op in ReduceOp::ALL {
                let is_narrow = dtype.is_float() && dtype.size() < 4;
                let adds = matches!(op, ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_));
                for numerics in Numerics::ALL {
                    let call = call(numerics, op, dtype);
                    let widened = is_narrow && adds && numerics != Numerics::Fast;
                    let expected = if widened { 4 / dtype.size() as u64 } else { 1 };
                    assert_eq!(call.widening(), expected, "{call}");
                    let one = dtype.is_float() && numerics == Numerics::Bitwise;
                    assert_eq!(call.trees(), if one { 1 } else { 2 }, "{call}");
                }
            }
        }
        let gather = Call {
            kind: OpKind::AllGather,
            ..call(Numerics::Bitwise, ReduceOp::Sum, DType::Bf16)
        };
        assert_eq!((gather.widening(), gather.trees()), (1, 2));
    }
}
