//! The numbers that stand for values without fields. They never change; a new value takes a new number, and does not
//! compile until it has one.

use super::Error;
use crate::dtype::DType;
use crate::machine::{OpenReason, ProtocolViolation, Reason};
use crate::numerics::Numerics;

/// The code of a value, and the value of a code.
macro_rules! codes {
    ($of:ident, $from:ident, $what:literal, $type:ident { $($variant:ident = $code:literal,)+ }) => {
        pub(super) const fn $of(value: $type) -> u8 {
            match value { $($type::$variant => $code,)+ }
        }

        pub(super) const fn $from(code: u8) -> Result<$type, Error> {
            match code { $($code => Ok($type::$variant),)+ _ => Err(Error::Field($what)) }
        }
    };
}

codes!(of_dtype, dtype, "element type", DType {
    F32 = 1,
    F16 = 2,
    Bf16 = 3,
    U8 = 4,
    I32 = 5,
    I64 = 6,
    E4m3 = 7,
    E5m2 = 8,
    F64 = 9,
    I8 = 10,
});

codes!(of_numerics, numerics, "numerics mode", Numerics {
    Fast = 0,
    Precise = 1,
    Bitwise = 2,
});

// 0: no reason.
codes!(of_reason, reason, "reason of a refusal", Reason {
    Root = 1,
    Size = 2,
    Input = 3,
    Limit = 4,
    Memory = 5,
    RootLost = 6,
    RanksLost = 7,
    NotReplicated = 8,
    Factor = 9,
    Parts = 10,
    Splits = 11,
    Closed = 12,
    Tags = 13,
    Left = 14,
    Bits = 15,
});

// 0: no reason.
codes!(of_open_reason, open_reason, "reason against a group", OpenReason {
    Ranks = 1,
    Taken = 2,
    Groups = 3,
    Links = 4,
    Gateway = 5,
});

codes!(of_violation, violation, "violation", ProtocolViolation {
    Direction = 1,
    Slot = 2,
    Chunk = 3,
    Tree = 4,
    Operation = 5,
    Group = 6,
    Message = 7,
});
