//! What a rank asks for: the collective, its arithmetic and its size, with the checks a single call allows, and what
//! that makes of the contributions at each node. How numbers are combined says `reduce_op`; whether the calls of different
//! ranks agree is decided by `machine`.

use serde::{Deserialize, Serialize};
use std::fmt;

use crate::dtype::DType;
use crate::numerics::Numerics;
use crate::reduce_op::{ReduceOp, Scale};

/// Which collective, with the arguments that only it has. `root` is a global rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum OpKind {
    /// Every rank gets the combination of all inputs.
    AllReduce { op: ReduceOp },
    /// `root` gets the combination of all inputs.
    Reduce { op: ReduceOp, root: u32 },
    /// Every rank gets `root`'s input.
    Broadcast { root: u32 },
    /// Every rank gets all inputs, one after another in rank order.
    AllGather,
    /// The combination of all inputs is shared out: every rank gets an equal part of it, in rank order.
    ReduceScatter { op: ReduceOp },
    /// `root` gets all inputs, one after another in rank order.
    Gather { root: u32 },
    /// Every rank gets its part of `root`'s input, in rank order; `count` is that of a part.
    Scatter { root: u32 },
    /// Every rank gets from every other the part that is meant for it. How large the parts are is for each pair to agree
    /// on: `count` is 0, and `with` nobody. Errors that are about one pair name the other rank and what is moved.
    AllToAll { with: Option<u32> },
    /// Not a collective: one rank's input for another. Those of a pair of ranks and a tag are matched in their order.
    Send { to: u32 },
    /// The other side of it.
    Receive { from: u32 },
    /// Nobody passes before everybody came.
    Barrier,
    /// A barrier that is the last operation of its group.
    Close,
}

/// One collective as one rank calls it. All ranks of a group must make equal calls in the same order;
/// the whole value is the fingerprint that travels along the trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Call {
    /// Which collective.
    pub kind: OpKind,
    /// Type of the elements.
    pub dtype: DType,
    /// Elements each rank brings (for a broadcast: elements the root brings).
    pub count: u64,
    /// Hash of the tensor's or bucket's name, 0 for none: catches equal shapes in a different order. Between two ranks
    /// it says which of their messages are meant.
    pub tag: u64,
    /// How it is rounded, of no meaning where nothing is reduced.
    pub numerics: Numerics,
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
    /// The result cannot be shared out evenly.
    #[error("{count} elements cannot be shared out evenly to {world} ranks")]
    Parts { count: u64, world: u32 },
    /// A factor for elements that are no floats.
    #[error("premul_sum multiplies floats only, and the elements are {dtype}")]
    Factor { dtype: DType },
    /// Bits of elements that are no integers.
    #[error("{op} combines the bits of integers only, and the elements are {dtype}")]
    Bits { op: ReduceOp, dtype: DType },
}

impl Call {
    /// A call without a name, in fast mode.
    #[must_use]
    pub const fn new(kind: OpKind, dtype: DType, count: u64) -> Self {
        Self {
            kind,
            dtype,
            count,
            tag: 0,
            numerics: Numerics::Fast,
        }
    }

    /// Every rank gets the combination of `count` elements of each.
    #[must_use]
    pub const fn all_reduce(dtype: DType, op: ReduceOp, count: u64) -> Self {
        Self::new(OpKind::AllReduce { op }, dtype, count)
    }

    /// A barrier: no elements.
    #[must_use]
    pub const fn barrier() -> Self {
        Self::new(OpKind::Barrier, DType::U8, 0)
    }

    /// The last operation of a group: no elements.
    #[must_use]
    pub const fn close() -> Self {
        Self::new(OpKind::Close, DType::U8, 0)
    }

    /// Checks what one call alone can show. A call that was made takes its place in the order of operations even so:
    /// see [`crate::machine::Input::Refuse`].
    pub fn check(&self, world: u32) -> Result<(), CallError> {
        if let Some(root) = self.kind.root()
            && root >= world
        {
            return Err(CallError::Root { root, world });
        }
        if let Some(ReduceOp::PremulSum(_)) = self.reduce_op()
            && !self.dtype.is_float()
        {
            return Err(CallError::Factor { dtype: self.dtype });
        }
        if let Some(op) = self.reduce_op()
            && op.is_bitwise()
            && self.dtype.is_float()
        {
            let dtype = self.dtype;
            return Err(CallError::Bits { op, dtype });
        }
        if let OpKind::ReduceScatter { .. } = self.kind
            && !self.count.is_multiple_of(u64::from(world))
        {
            let count = self.count;
            return Err(CallError::Parts { count, world });
        }
        let largest = MAX_RESULT_BYTES / u64::from(world) / self.part_dtype().size() as u64;
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

    /// Bytes of the result buffer, the same on every node of a group. What is shared out has its place in it as if it
    /// were not, and only the parts of the node's own ranks are of use. Needs a checked call.
    #[must_use]
    pub const fn result_bytes(&self, world: u32) -> u64 {
        match self.kind {
            OpKind::AllGather => self.input_bytes() * world as u64,
            OpKind::AllReduce { .. }
            | OpKind::Reduce { .. }
            | OpKind::Broadcast { .. }
            | OpKind::ReduceScatter { .. } => self.input_bytes(),
            OpKind::Barrier | OpKind::Close => 0,
            OpKind::Gather { .. }
            | OpKind::Scatter { .. }
            | OpKind::AllToAll { .. }
            | OpKind::Send { .. }
            | OpKind::Receive { .. } => 0,
        }
    }

    /// Bytes of what one rank gets that is nobody else's, [`crate::machine::Buffer::Own`]. Of an all-to-all the parts
    /// say. Needs a checked call.
    #[must_use]
    pub const fn own_bytes(&self, rank: u32, world: u32) -> u64 {
        match self.kind {
            OpKind::Gather { root } if root == rank => self.input_bytes() * world as u64,
            OpKind::Scatter { .. } | OpKind::Receive { .. } => self.input_bytes(),
            OpKind::Gather { .. }
            | OpKind::AllToAll { .. }
            | OpKind::Send { .. }
            | OpKind::AllReduce { .. }
            | OpKind::Reduce { .. }
            | OpKind::Broadcast { .. }
            | OpKind::AllGather
            | OpKind::ReduceScatter { .. }
            | OpKind::Barrier
            | OpKind::Close => 0,
        }
    }

    /// Whether each node scales what its own ranks bring: averages whose parts have few bits, which may not hold a sum
    /// whose average they hold, and contributions with a factor. Other averages are divided at the root.
    #[must_use]
    pub const fn scales_inputs(&self) -> bool {
        match self.reduce_op() {
            Some(ReduceOp::Avg) => self.dtype.is_float() && self.part_dtype().size() < 4,
            Some(ReduceOp::PremulSum(_)) => true,
            Some(
                ReduceOp::Sum
                | ReduceOp::Max
                | ReduceOp::Min
                | ReduceOp::And
                | ReduceOp::Or
                | ReduceOp::Xor,
            )
            | None => false,
        }
    }

    /// How a node scales a chunk: `own` of its `sources` are its own ranks', the others its children's.
    #[must_use]
    pub const fn scale(&self, own: usize, sources: usize, is_root: bool, world: u32) -> Scale {
        match self.reduce_op() {
            Some(ReduceOp::Avg) if self.scales_inputs() => Scale::Divide {
                first: own,
                by: world,
            },
            Some(ReduceOp::Avg) if is_root => Scale::Divide {
                first: sources,
                by: world,
            },
            Some(ReduceOp::PremulSum(by)) => Scale::Multiply { first: own, by },
            Some(
                ReduceOp::Sum
                | ReduceOp::Avg
                | ReduceOp::Max
                | ReduceOp::Min
                | ReduceOp::And
                | ReduceOp::Or
                | ReduceOp::Xor,
            )
            | None => Scale::Not,
        }
    }

    /// The operator of a call that reduces.
    #[must_use]
    pub const fn reduce_op(&self) -> Option<ReduceOp> {
        match self.kind {
            OpKind::AllReduce { op } | OpKind::Reduce { op, .. } | OpKind::ReduceScatter { op } => {
                Some(op)
            }
            OpKind::Broadcast { .. }
            | OpKind::AllGather
            | OpKind::Barrier
            | OpKind::Close
            | OpKind::Gather { .. }
            | OpKind::Scatter { .. }
            | OpKind::AllToAll { .. }
            | OpKind::Send { .. }
            | OpKind::Receive { .. } => None,
        }
    }
}

impl OpKind {
    /// The names users write, in the order of [`Self::index`].
    pub const NAMES: [&str; 12] = [
        "allreduce",
        "reduce",
        "broadcast",
        "allgather",
        "barrier",
        "close",
        "reduce_scatter",
        "gather",
        "scatter",
        "alltoall",
        "send",
        "recv",
    ];

    /// Which of [`Self::NAMES`] it has: for tables with a row for each.
    #[must_use]
    pub const fn index(&self) -> usize {
        match self {
            Self::AllReduce { .. } => 0,
            Self::Reduce { .. } => 1,
            Self::Broadcast { .. } => 2,
            Self::AllGather => 3,
            Self::Barrier => 4,
            Self::Close => 5,
            Self::ReduceScatter { .. } => 6,
            Self::Gather { .. } => 7,
            Self::Scatter { .. } => 8,
            Self::AllToAll { .. } => 9,
            Self::Send { .. } => 10,
            Self::Receive { .. } => 11,
        }
    }

    /// The name users write, in logs, errors and metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        Self::NAMES[self.index()]
    }

    /// The rank that has a part of its own in it, or is the other one of two.
    #[must_use]
    pub const fn root(&self) -> Option<u32> {
        match *self {
            Self::Reduce { root, .. }
            | Self::Broadcast { root }
            | Self::Gather { root }
            | Self::Scatter { root }
            | Self::Send { to: root }
            | Self::Receive { from: root } => Some(root),
            Self::AllToAll { with } => with,
            Self::AllReduce { .. }
            | Self::AllGather
            | Self::ReduceScatter { .. }
            | Self::Barrier
            | Self::Close => None,
        }
    }

    /// Whether ranks get something that nobody else gets, in messages from one rank to another.
    #[must_use]
    pub const fn exchanges(&self) -> bool {
        matches!(
            self,
            Self::Gather { .. } | Self::Scatter { .. } | Self::AllToAll { .. }
        )
    }

    /// Whether two ranks call it, and not all: it has no place in the order of operations.
    #[must_use]
    pub const fn is_between_two(&self) -> bool {
        matches!(self, Self::Send { .. } | Self::Receive { .. })
    }
}

/// `allreduce(sum, 1000 x f32)`: how errors name a call.
impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, dtype) = (self.count, self.dtype);
        write!(f, "{}(", self.kind.name())?;
        match self.kind {
            OpKind::AllReduce { op } | OpKind::ReduceScatter { op } => {
                write!(f, "{op}, {count} x {dtype}")?;
            }
            OpKind::Reduce { op, root } => write!(f, "{op}, {count} x {dtype}, root {root}")?,
            OpKind::Broadcast { root } | OpKind::Gather { root } | OpKind::Scatter { root } => {
                write!(f, "{count} x {dtype}, root {root}")?;
            }
            OpKind::AllGather => write!(f, "{count} x {dtype}")?,
            OpKind::Barrier | OpKind::Close => {}
            OpKind::AllToAll { with: None } => write!(f, "{dtype}")?,
            OpKind::AllToAll { with: Some(rank) } => {
                write!(f, "{count} x {dtype} with rank {rank}")?;
            }
            OpKind::Send { to } => write!(f, "{count} x {dtype} to rank {to}")?,
            OpKind::Receive { from } => write!(f, "{count} x {dtype} from rank {from}")?,
        }
        if self.kind.is_between_two() {
            return match self.tag {
                0 => f.write_str(")"),
                tag => write!(f, ", tag {tag})"),
            };
        }
        if self.numerics != Numerics::Fast {
            write!(f, ", {}", self.numerics)?;
        }
        if self.tag != 0 {
            // A barrier has no other words.
            let comma = match self.kind {
                OpKind::Barrier | OpKind::Close => "",
                OpKind::AllReduce { .. }
                | OpKind::Reduce { .. }
                | OpKind::Broadcast { .. }
                | OpKind::AllGather
                | OpKind::ReduceScatter { .. }
                | OpKind::Gather { .. }
                | OpKind::Scatter { .. }
                | OpKind::AllToAll { .. }
                | OpKind::Send { .. }
                | OpKind::Receive { .. } => ", ",
            };
            write!(f, "{comma}name {:016x}", self.tag)?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce_op::Factor;

    #[test]
    fn a_root_outside_the_group_and_an_absurd_size_are_refused() {
        let mut call = Call::new(OpKind::Broadcast { root: 4 }, DType::F32, 1);
        assert_eq!(call.check(4), Err(CallError::Root { root: 4, world: 4 }));
        assert_eq!(call.check(5), Ok(()));
        call.count = u64::MAX;
        assert!(matches!(call.check(5), Err(CallError::Size { .. })));
    }

    #[test]
    fn integers_have_no_factor() {
        let of = |dtype| Call::all_reduce(dtype, ReduceOp::PremulSum(Factor::new(0.5)), 1);
        for dtype in DType::ALL {
            let refused = Err(CallError::Factor { dtype });
            let expected = if dtype.is_float() { Ok(()) } else { refused };
            assert_eq!(of(dtype).check(1), expected);
        }
        assert_eq!(
            of(DType::E4m3).to_string(),
            "allreduce(premul_sum 0.5, 1 x e4m3)"
        );
    }

    #[test]
    fn bits_of_floats_are_not_combined() {
        for op in [ReduceOp::And, ReduceOp::Or, ReduceOp::Xor] {
            for dtype in DType::ALL {
                let refused = Err(CallError::Bits { op, dtype });
                let expected = if dtype.is_float() { refused } else { Ok(()) };
                assert_eq!(Call::all_reduce(dtype, op, 1).check(1), expected);
            }
        }
        let (op, dtype) = (ReduceOp::Xor, DType::F64);
        assert_eq!(
            CallError::Bits { op, dtype }.to_string(),
            "bxor combines the bits of integers only, and the elements are f64"
        );
    }

    #[test]
    fn a_call_is_named_as_users_write_it() {
        let kind = OpKind::Reduce {
            op: ReduceOp::Avg,
            root: 3,
        };
        let call = Call {
            tag: 0xab,
            ..Call::new(kind, DType::Bf16, 7)
        };
        assert_eq!(
            call.to_string(),
            "reduce(avg, 7 x bf16, root 3, name 00000000000000ab)"
        );
        let precise = Call {
            numerics: Numerics::Precise,
            ..call
        };
        assert_eq!(
            precise.to_string(),
            "reduce(avg, 7 x bf16, root 3, precise, name 00000000000000ab)"
        );
        assert_eq!(Call::barrier().to_string(), "barrier()");
        let named = Call {
            tag: 0xab,
            ..Call::barrier()
        };
        assert_eq!(named.to_string(), "barrier(name 00000000000000ab)");
    }
}
