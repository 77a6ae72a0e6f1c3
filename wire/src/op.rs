//! The words that a trainer and its sidecar share about an operation: element types, reductions
//! and kinds. Their byte codes are part of the ring's and the frames' layout and never change.

/// Implements the byte code of a field-less enum, both ways.
macro_rules! codes {
    ($type:ident { $($variant:ident = $code:literal => $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in the order of the codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The byte that stands for it on the wire.
            pub const fn code(self) -> u8 {
                match self { $(Self::$variant => $code),+ }
            }

            /// The value a byte stands for, if any.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

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

/// Type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 half precision, accumulated in single precision.
    F16,
    /// bfloat16, accumulated in single precision.
    BF16,
    /// Unsigned byte; sums wrap.
    U8,
    /// 32-bit integer; sums wrap.
    I32,
    /// 64-bit integer; sums wrap.
    I64,
    /// 4 bits of exponent, 3 of fraction, no infinity; accumulated in single precision.
    E4M3,
    /// 5 bits of exponent, 2 of fraction; accumulated in single precision.
    E5M2,
}

codes!(DType {
    F32 = 1 => "f32",
    F16 = 2 => "f16",
    BF16 = 3 => "bf16",
    U8 = 4 => "u8",
    I32 = 5 => "i32",
    I64 = 6 => "i64",
    E4M3 = 7 => "e4m3",
    E5M2 = 8 => "e5m2",
});

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            Self::U8 | Self::E4M3 | Self::E5M2 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
        }
    }
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

codes!(ReduceOp {
    Sum = 1 => "sum",
    Avg = 2 => "avg",
    Max = 3 => "max",
    Min = 4 => "min",
    PremulSum = 5 => "premul_sum",
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

codes!(OpKind {
    AllReduce = 1 => "allreduce",
    Reduce = 2 => "reduce",
    Broadcast = 3 => "broadcast",
    AllGather = 4 => "allgather",
    Barrier = 5 => "barrier",
    Close = 6 => "close",
    ReduceScatter = 7 => "reduce_scatter",
    Gather = 8 => "gather",
    Scatter = 9 => "scatter",
    AllToAll = 10 => "alltoall",
    Send = 11 => "send",
    Receive = 12 => "recv",
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

/// How a sum of floats is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Numerics {
    /// To the elements' type on every level of the tree between nodes.
    #[default]
    Fast,
    /// Once, where the sum is complete: until then 16-bit and 8-bit floats travel in f32.
    Precise,
    /// Once, and all elements are added up in one order, wherever they lie.
    Bitwise,
}

codes!(Numerics {
    Fast = 0 => "fast",
    Precise = 1 => "precise",
    Bitwise = 2 => "bitwise",
});

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

/// Words of an encoded call.
pub const CALL_WORDS: usize = 4;

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

    /// The call as words, for rings and frames: the first holds four codes and the factor.
    pub const fn encode(&self) -> [u64; CALL_WORDS] {
        let [a, b, c, d] = self.factor_bits.to_le_bytes();
        let codes = u64::from_le_bytes([
            self.kind.code(),
            self.dtype.code(),
            self.reduce.code(),
            self.numerics.code(),
            a,
            b,
            c,
            d,
        ]);
        [codes, self.root as u64, self.count, self.tag]
    }

    /// The call that words stand for, if any.
    pub fn decode(words: &[u64; CALL_WORDS]) -> Option<Self> {
        let [codes, root, count, tag] = *words;
        let [kind, dtype, reduce, numerics, a, b, c, d] = codes.to_le_bytes();
        let kind = OpKind::from_code(kind)?;
        let reduce = ReduceOp::from_code(reduce)?;
        let factor_bits = u32::from_le_bytes([a, b, c, d]);
        if factor_bits != 0 && reduce != ReduceOp::PremulSum {
            return None;
        }
        let numerics = Numerics::from_code(numerics)?;
        if numerics != Numerics::Fast && !kind.reduces() {
            return None;
        }
        Some(Self {
            kind,
            dtype: DType::from_code(dtype)?,
            reduce,
            factor_bits,
            root: u32::try_from(root).ok()?,
            count,
            tag,
            numerics,
        })
    }
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({} x {})", self.kind, self.count, self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_code_names_one_value_and_the_rest_none() {
        let dtypes = (0..=u8::MAX).filter_map(DType::from_code);
        assert!(dtypes.eq(DType::ALL.iter().copied()));
        let reductions = (0..=u8::MAX).filter_map(ReduceOp::from_code);
        assert!(reductions.eq(ReduceOp::ALL.iter().copied()));
        let kinds = (0..=u8::MAX).filter_map(OpKind::from_code);
        assert!(kinds.eq(OpKind::ALL.iter().copied()));
        assert!(
            DType::ALL
                .iter()
                .all(|dtype| DType::from_code(dtype.code()) == Some(*dtype))
        );
    }

    #[test]
    fn a_factor_travels_with_its_operator_only() {
        let call = Call::premul_sum(DType::E5M2, -0.75, 9);
        assert_eq!(Call::decode(&call.encode()), Some(call));
        let sum = Call {
            reduce: ReduceOp::Sum,
            ..call
        };
        assert_eq!(Call::decode(&sum.encode()), None);
    }

    #[test]
    fn a_mode_travels_with_what_reduces_only() {
        for numerics in Numerics::ALL.iter().copied() {
            let sum = Call {
                numerics,
                ..Call::all_reduce(DType::BF16, ReduceOp::Avg, 9)
            };
            assert_eq!(Call::decode(&sum.encode()), Some(sum));
            let gather = Call {
                kind: OpKind::AllGather,
                ..sum
            };
            let fast = numerics == Numerics::Fast;
            assert_eq!(Call::decode(&gather.encode()), fast.then_some(gather));
        }
    }

    proptest! {
        #[test]
        fn words_are_a_call_or_are_refused(
            words in any::<[u64; CALL_WORDS]>(),
            codes in any::<[u8; 4]>(),
            factor in any::<u32>(),
        ) {
            let [kind, dtype, reduce, numerics] = codes.map(|code| code % 14);
            let [a, b, c, d] = factor.to_le_bytes();
            let mut likely = words;
            likely[0] = u64::from_le_bytes([kind, dtype, reduce, numerics % 4, 0, 0, 0, 0]);
            likely[1] %= 1 << 32;
            let mut scaled = likely;
            scaled[0] = u64::from_le_bytes([kind, dtype, reduce, 0, a, b, c, d]);
            for words in [words, likely, scaled] {
                if let Some(call) = Call::decode(&words) {
                    prop_assert_eq!(call.encode(), words);
                }
            }
        }
    }
}
