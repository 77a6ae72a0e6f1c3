//! An operation as a trainer's process describes it: kinds and reductions by name alone, their arguments beside. The
//! collective's own [`collective::Call`] has them in one, and its words are what the ring carries.

use collective::encoding::{CALL_WORDS, call_from_words, call_to_words};
use collective::op;
pub use collective::{DType, Numerics};

/// Implements the name of a field-less enum.
macro_rules! names {
    ($type:ident { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name used in logs, errors and metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

/// How contributions become one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReduceOp {
    /// The sum.
    Sum,
    /// The sum divided by the number of ranks. Floats of 16 and 8 bits are divided on each node, before they are
    /// rounded, so that an average that fits does not overflow on the way; shares of a node that are below
    /// the type's normal range lose digits.
    Avg,
    /// The largest.
    Max,
    /// The smallest.
    Min,
    /// The sum of all contributions times the call's factor. Floats only.
    PremulSum,
}

names!(ReduceOp {
    Sum => "sum",
    Avg => "avg",
    Max => "max",
    Min => "min",
    PremulSum => "premul_sum",
});

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// Every rank gets the reduction of all contributions.
    AllReduce,
    /// The root gets the reduction of all contributions.
    Reduce,
    /// Every rank gets the root's contribution.
    Broadcast,
    /// Every rank gets all contributions, in rank order.
    AllGather,
    /// No rank returns before all have called.
    Barrier,
    /// The same as the last operation of a group.
    Close,
    /// Every rank gets its part of the reduction of all contributions. The result is laid out as a whole, and only that
    /// part of it is of use.
    ReduceScatter,
    /// The root gets all contributions, in rank order.
    Gather,
    /// Every rank gets its part of what the root brings, in rank order; the count is that of a part.
    Scatter,
    /// Every rank gets from each rank the part that is for it. How many elements these have stands before them, see
    /// [`crate::parts`], and the count is 0.
    AllToAll,
    /// Not of all ranks: one rank's contribution goes to the root.
    Send,
    /// The other side of it: the root's contribution comes.
    Receive,
}

names!(OpKind {
    AllReduce => "allreduce",
    Reduce => "reduce",
    Broadcast => "broadcast",
    AllGather => "allgather",
    Barrier => "barrier",
    Close => "close",
    ReduceScatter => "reduce_scatter",
    Gather => "gather",
    Scatter => "scatter",
    AllToAll => "alltoall",
    Send => "send",
    Receive => "recv",
});

impl OpKind {
    /// Whether contributions become one value.
    pub const fn reduces(self) -> bool {
        match self {
            Self::AllReduce | Self::Reduce | Self::ReduceScatter => true,
            Self::Broadcast
            | Self::AllGather
            | Self::Barrier
            | Self::Close
            | Self::Gather
            | Self::Scatter
            | Self::AllToAll
            | Self::Send
            | Self::Receive => false,
        }
    }
}

/// An operation as one rank calls it. Ranks of a group make equal calls in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// What it does.
    pub kind: OpKind,
    /// Type of the elements.
    pub dtype: DType,
    /// How contributions become one; of no meaning where nothing is reduced.
    pub reduce: ReduceOp,
    /// Bits of the single-precision factor of [`ReduceOp::PremulSum`]; 0 with the others.
    pub factor_bits: u32,
    /// Rank of the root in the group, or of the other one of two; of no meaning where there is none.
    pub root: u32,
    /// Elements that each rank brings.
    pub count: u64,
    /// Hash of the tensor's name, 0 for none: two ranks that call different names disagree. Of a message between two
    /// ranks it says which of theirs it is.
    pub tag: u64,
    /// How a sum is rounded; [`Numerics::Fast`] where nothing is reduced.
    pub numerics: Numerics,
}

impl Call {
    /// A call of this kind, with zeros and sums where nothing else is said.
    pub const fn new(kind: OpKind, dtype: DType, count: u64) -> Self {
        Self {
            kind,
            dtype,
            reduce: ReduceOp::Sum,
            factor_bits: 0,
            root: 0,
            count,
            tag: 0,
            numerics: Numerics::Fast,
        }
    }

    /// The reduction of all contributions, for everybody.
    pub const fn all_reduce(dtype: DType, reduce: ReduceOp, count: u64) -> Self {
        Self {
            reduce,
            ..Self::new(OpKind::AllReduce, dtype, count)
        }
    }

    /// The sum of all contributions times a factor, for everybody.
    pub const fn premul_sum(dtype: DType, factor: f32, count: u64) -> Self {
        Self {
            factor_bits: factor.to_bits(),
            ..Self::all_reduce(dtype, ReduceOp::PremulSum, count)
        }
    }

    /// A call that brings nothing and returns when all have called.
    pub const fn barrier() -> Self {
        Self::new(OpKind::Barrier, DType::U8, 0)
    }

    /// The last call in a group.
    pub const fn close() -> Self {
        Self::new(OpKind::Close, DType::U8, 0)
    }

    /// Bytes that each rank brings; none if there are more than memory can hold.
    pub fn input_bytes(&self) -> Option<usize> {
        let count = usize::try_from(self.count).ok()?;
        count.checked_mul(self.dtype.size())
    }

    /// Whether the operation reads what a rank of its group brings.
    pub const fn reads_input_of(&self, rank: u32) -> bool {
        match self.kind {
            OpKind::AllReduce | OpKind::Reduce | OpKind::AllGather | OpKind::ReduceScatter => {
                self.count > 0
            }
            OpKind::Gather | OpKind::Send => self.count > 0,
            OpKind::Broadcast | OpKind::Scatter => self.count > 0 && self.root == rank,
            OpKind::AllToAll => true,
            OpKind::Barrier | OpKind::Close | OpKind::Receive => false,
        }
    }

    /// Bytes that the operation reads of a rank of a group of this `size`; none if there are more than memory can hold.
    /// Of an all-to-all, those that say how many follow.
    pub fn reads_bytes_of(&self, rank: u32, size: u32) -> Option<usize> {
        if !self.reads_input_of(rank) {
            return Some(0);
        }
        match self.kind {
            OpKind::AllToAll => Some(crate::parts::bytes(size)),
            OpKind::Scatter => self.input_bytes()?.checked_mul(size as usize),
            OpKind::AllReduce
            | OpKind::Reduce
            | OpKind::Broadcast
            | OpKind::AllGather
            | OpKind::Barrier
            | OpKind::Close
            | OpKind::ReduceScatter
            | OpKind::Gather
            | OpKind::Send
            | OpKind::Receive => self.input_bytes(),
        }
    }

    /// Whether two ranks call it, and not all of a group.
    pub const fn is_between_two(&self) -> bool {
        matches!(self.kind, OpKind::Send | OpKind::Receive)
    }

    /// The call as words, for the ring.
    pub fn encode(&self) -> [u64; CALL_WORDS] {
        call_to_words(&self.into())
    }

    /// The call that words stand for, if any.
    pub fn decode(words: &[u64; CALL_WORDS]) -> Option<Self> {
        call_from_words(words).ok().map(Self::from)
    }
}

impl From<&Call> for collective::Call {
    fn from(call: &Call) -> Self {
        let op = match call.reduce {
            ReduceOp::Sum => op::ReduceOp::Sum,
            ReduceOp::Avg => op::ReduceOp::Avg,
            ReduceOp::Max => op::ReduceOp::Max,
            ReduceOp::Min => op::ReduceOp::Min,
            ReduceOp::PremulSum => op::ReduceOp::PremulSum(op::Factor::from_bits(call.factor_bits)),
        };
        let root = call.root;
        let kind = match call.kind {
            OpKind::AllReduce => op::OpKind::AllReduce { op },
            OpKind::Reduce => op::OpKind::Reduce { op, root },
            OpKind::Broadcast => op::OpKind::Broadcast { root },
            OpKind::AllGather => op::OpKind::AllGather,
            OpKind::Barrier => op::OpKind::Barrier,
            OpKind::Close => op::OpKind::Close,
            OpKind::ReduceScatter => op::OpKind::ReduceScatter { op },
            OpKind::Gather => op::OpKind::Gather { root },
            OpKind::Scatter => op::OpKind::Scatter { root },
            OpKind::AllToAll => op::OpKind::AllToAll {
                with: root.checked_sub(1),
            },
            OpKind::Send => op::OpKind::Send { to: root },
            OpKind::Receive => op::OpKind::Receive { from: root },
        };
        Self {
            kind,
            dtype: call.dtype,
            count: call.count,
            tag: call.tag,
            numerics: call.numerics,
        }
    }
}

impl From<collective::Call> for Call {
    fn from(call: collective::Call) -> Self {
        let (reduce, factor_bits) = match call.reduce_op() {
            None | Some(op::ReduceOp::Sum) => (ReduceOp::Sum, 0),
            Some(op::ReduceOp::Avg) => (ReduceOp::Avg, 0),
            Some(op::ReduceOp::Max) => (ReduceOp::Max, 0),
            Some(op::ReduceOp::Min) => (ReduceOp::Min, 0),
            Some(op::ReduceOp::PremulSum(factor)) => (ReduceOp::PremulSum, factor.to_bits()),
        };
        let kind = match call.kind {
            op::OpKind::AllReduce { .. } => OpKind::AllReduce,
            op::OpKind::Reduce { .. } => OpKind::Reduce,
            op::OpKind::Broadcast { .. } => OpKind::Broadcast,
            op::OpKind::AllGather => OpKind::AllGather,
            op::OpKind::Barrier => OpKind::Barrier,
            op::OpKind::Close => OpKind::Close,
            op::OpKind::ReduceScatter { .. } => OpKind::ReduceScatter,
            op::OpKind::Gather { .. } => OpKind::Gather,
            op::OpKind::Scatter { .. } => OpKind::Scatter,
            op::OpKind::AllToAll { .. } => OpKind::AllToAll,
            op::OpKind::Send { .. } => OpKind::Send,
            op::OpKind::Receive { .. } => OpKind::Receive,
        };
        let root = if let op::OpKind::AllToAll { with } = call.kind {
            with.map_or(0, |rank| rank.saturating_add(1))
        } else {
            call.kind.root().unwrap_or(0)
        };
        Self {
            kind,
            dtype: call.dtype,
            reduce,
            factor_bits,
            root,
            count: call.count,
            tag: call.tag,
            numerics: call.numerics,
        }
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({} x {})", self.kind, self.count, self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_keeps_its_meaning_in_the_collectives_words() {
        for kind in OpKind::ALL.iter().copied() {
            for reduce in ReduceOp::ALL.iter().copied() {
                let scaled = reduce == ReduceOp::PremulSum && kind.reduces();
                let names_a_rank = matches!(
                    kind,
                    OpKind::Reduce
                        | OpKind::Broadcast
                        | OpKind::Gather
                        | OpKind::Scatter
                        | OpKind::Send
                        | OpKind::Receive
                );
                let call = Call {
                    reduce: if kind.reduces() {
                        reduce
                    } else {
                        ReduceOp::Sum
                    },
                    factor_bits: if scaled { 0.5_f32.to_bits() } else { 0 },
                    root: if names_a_rank { 7 } else { 0 },
                    tag: 5,
                    ..Call::new(kind, DType::Bf16, 9)
                };
                assert_eq!(Call::decode(&call.encode()), Some(call));
            }
        }
    }
}
