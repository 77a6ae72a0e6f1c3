//! What a rank asks for: the collective, its arithmetic and its size, with the checks a single call allows.
//! Whether the calls of different ranks agree is decided by `machine`.

use std::fmt;

use crate::dtype::DType;

/// How contributions are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReduceOp {
    /// Sum; integers wrap.
    Sum,
    /// Sum divided by the number of ranks; integers truncate towards zero. f32 and integers are divided once, at
    /// the end. f16 and bf16 are divided where they enter, in f32: a node rounds the sum of its own ranks' inputs
    /// divided by the number of all ranks, plus what its children have sent. So an average that fits does not
    /// overflow on the way; in f16 a node's share that is below 2^-14 loses digits, and below 2^-25 everything.
    Avg,
    /// Largest; NaN wins.
    Max,
    /// Smallest; NaN wins.
    Min,
}

impl ReduceOp {
    /// Every operator, for tables and tests.
    pub const ALL: [Self; 4] = [Self::Sum, Self::Avg, Self::Max, Self::Min];

    /// The name users write.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Avg => "avg",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

/// A division within a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Divide {
    /// The sources, from the first on, that are combined before it: at least 1. The others are combined after.
    pub first: usize,
    /// By what, at least 1. By 1 nothing is divided.
    pub by: u32,
}

impl Divide {
    /// No division.
    pub const NOT: Self = Self { first: 1, by: 1 };
}

/// Which collective, with the arguments that only it has. `root` is a global rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// Every rank gets the combination of all inputs.
    AllReduce { op: ReduceOp },
    /// `root` gets the combination of all inputs.
    Reduce { op: ReduceOp, root: u32 },
    /// Every rank gets `root`'s input.
    Broadcast { root: u32 },
    /// Every rank gets all inputs, one after another in rank order.
    AllGather,
    /// Nobody passes before everybody came.
    Barrier,
}

/// One collective as one rank calls it. All ranks of a group must make equal calls in the same order;
/// the whole value is the fingerprint that travels along the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// Which collective.
    pub kind: OpKind,
    /// Type of the elements.
    pub dtype: DType,
    /// Elements each rank brings (for a broadcast: elements the root brings).
    pub count: u64,
    /// Hash of the tensor's or bucket's name, 0 for none: catches equal shapes in a different order.
    pub tag: u64,
}

/// Largest result of one call: 1 TiB in the smallest chunks still counts in a `u32`.
pub const MAX_RESULT_BYTES: u64 = 1 << 40;

/// Why a call can never run, whatever the other ranks do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The root is not a rank of this group.
    #[error("root {root} is not a rank: the group has ranks 0 to {}", world - 1)]
    Root { root: u32, world: u32 },
    /// The result would be too large.
    #[error(
        "{count} elements of {dtype} over {world} ranks make more than {MAX_RESULT_BYTES} bytes"
    )]
    Size {
        count: u64,
        dtype: DType,
        world: u32,
    },
}

impl Call {
    /// A barrier: no elements.
    #[must_use]
    pub const fn barrier() -> Self {
        Self {
            kind: OpKind::Barrier,
            dtype: DType::U8,
            count: 0,
            tag: 0,
        }
    }

    /// Checks what one call alone can show. A call that was made takes its place in the order of operations even so:
    /// see [`crate::machine::Input::Refuse`].
    pub fn check(&self, world: u32) -> Result<(), CallError> {
        if let OpKind::Reduce { root, .. } | OpKind::Broadcast { root } = self.kind
            && root >= world
        {
            return Err(CallError::Root { root, world });
        }
        let largest = MAX_RESULT_BYTES / u64::from(world) / self.dtype.size() as u64;
        if self.count > largest {
            return Err(CallError::Size {
                count: self.count,
                dtype: self.dtype,
                world,
            });
        }
        Ok(())
    }

    /// Bytes each rank brings in its input buffer. Needs a checked call.
    #[must_use]
    pub const fn input_bytes(&self) -> u64 {
        self.count * self.dtype.size() as u64
    }

    /// Bytes of the result buffer, the same on every node of a group. Needs a checked call.
    #[must_use]
    pub const fn result_bytes(&self, world: u32) -> u64 {
        match self.kind {
            OpKind::AllGather => self.input_bytes() * world as u64,
            OpKind::AllReduce { .. } | OpKind::Reduce { .. } | OpKind::Broadcast { .. } => {
                self.input_bytes()
            }
            OpKind::Barrier => 0,
        }
    }

    /// Whether each node divides what its own ranks bring, because 16 bits may not hold a sum whose average they
    /// hold. Otherwise the root divides.
    #[must_use]
    pub const fn divides_inputs(&self) -> bool {
        let is_half = matches!(self.dtype, DType::F16 | DType::Bf16);
        is_half && matches!(self.reduce_op(), Some(ReduceOp::Avg))
    }

    /// The operator of a call that reduces.
    #[must_use]
    pub const fn reduce_op(&self) -> Option<ReduceOp> {
        match self.kind {
            OpKind::AllReduce { op } | OpKind::Reduce { op, .. } => Some(op),
            OpKind::Broadcast { .. } | OpKind::AllGather | OpKind::Barrier => None,
        }
    }
}

/// `allreduce(sum, 1000 x f32)`: how errors name a call.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, dtype) = (self.count, self.dtype);
        match self.kind {
            OpKind::AllReduce { op } => write!(f, "allreduce({}, {count} x {dtype}", op.name())?,
            OpKind::Reduce { op, root } => {
                write!(f, "reduce({}, {count} x {dtype}, root {root}", op.name())?;
            }
            OpKind::Broadcast { root } => write!(f, "broadcast({count} x {dtype}, root {root}")?,
            OpKind::AllGather => write!(f, "allgather({count} x {dtype}")?,
            OpKind::Barrier => f.write_str("barrier(")?,
        }
        if self.tag != 0 {
            // A barrier has no other words.
            let comma = if self.kind == OpKind::Barrier {
                ""
            } else {
                ", "
            };
            write!(f, "{comma}name {:016x}", self.tag)?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_outside_the_group_and_an_absurd_size_are_refused() {
        let mut call = Call {
            kind: OpKind::Broadcast { root: 4 },
            dtype: DType::F32,
            count: 1,
            tag: 0,
        };
        assert_eq!(call.check(4), Err(CallError::Root { root: 4, world: 4 }));
        assert_eq!(call.check(5), Ok(()));
        call.count = u64::MAX;
        assert!(matches!(call.check(5), Err(CallError::Size { .. })));
    }

    #[test]
    fn a_call_is_named_as_users_write_it() {
        let kind = OpKind::Reduce {
            op: ReduceOp::Avg,
            root: 3,
        };
        let call = Call {
            kind,
            dtype: DType::Bf16,
            count: 7,
            tag: 0xab,
        };
        assert_eq!(
            call.to_string(),
            "reduce(avg, 7 x bf16, root 3, name 00000000000000ab)"
        );
        assert_eq!(Call::barrier().to_string(), "barrier()");
        let named = Call {
            tag: 0xab,
            ..Call::barrier()
        };
        assert_eq!(named.to_string(), "barrier(name 00000000000000ab)");
    }
}
