//! Our kernels, as text in the driver's own assembly language (PTX), which it translates for the device it has. Each kernel
//! combines two tensors into the second, one element at a time in each thread.
//!
//! Floats of 16 bits are combined in 32 bits and rounded once, to nearest, ties to even, as the sidecar does; every NaN becomes
//! the one quiet NaN with sign 0, and MAX and MIN keep it. The version and target are old ones, which every driver takes:
//! so bfloat16 is made of integers here, because its instructions are younger.

use std::fmt::Write as _;

/// What is done with two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Sum,
    Max,
    Min,
}

/// The type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Element {
    F32,
    F16,
    BF16,
    I32,
    I64,
    U8,
}

const OPERATORS: [Operator; 3] = [Operator::Sum, Operator::Max, Operator::Min];
const ELEMENTS: [Element; 6] = [
    Element::F32,
    Element::F16,
    Element::BF16,
    Element::I32,
    Element::I64,
    Element::U8,
];

impl Operator {
    const fn word(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

impl Element {
    const fn word(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }

    /// Bytes of one.
    pub(super) const fn bytes(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::U8 => 1,
        }
    }
}

/// What a kernel is called.
pub(super) fn name(operator: Operator, element: Element) -> String {
    format!("{}_{}", operator.word(), element.word())
}

/// All kernels. Their parameters are two addresses, the number of elements, and what each is multiplied with before it is
/// added, which only sums of floats heed.
pub(super) fn module() -> String {
    let mut text = ".version 6.0\n.target sm_50\n.address_size 64\n".to_owned();
    for element in ELEMENTS {
        for operator in OPERATORS {
            let (name, bytes) = (name(operator, element), element.bytes());
            let body = body(operator, element);
            // A String takes whatever is written.
            let _ = write!(
                text,
                "
.visible .entry {name}(.param .u64 own, .param .u64 into, .param .u64 count, .param .f32 scale)
{{
  .reg .pred %p<4>;
  .reg .b16 %h<4>;
  .reg .b32 %r<12>;
  .reg .f32 %f<8>;
  .reg .b64 %d<16>;
  ld.param.u64 %d1, [own];
  ld.param.u64 %d2, [into];
  ld.param.u64 %d3, [count];
  ld.param.f32 %f7, [scale];
  cvta.to.global.u64 %d1, %d1;
  cvta.to.global.u64 %d2, %d2;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mul.wide.u32 %d4, %r1, %r2;
  cvt.u64.u32 %d5, %r3;
  add.u64 %d4, %d4, %d5;
  mul.wide.u32 %d6, %r4, %r2;
NEXT:
  setp.ge.u64 %p1, %d4, %d3;
  @%p1 bra DONE;
  mul.lo.u64 %d7, %d4, {bytes};
  add.u64 %d8, %d1, %d7;
  add.u64 %d9, %d2, %d7;
{body}  add.u64 %d4, %d4, %d6;
  bra NEXT;
DONE:
  ret;
}}
"
            );
        }
    }
    text
}

/// Returns the instructions for the elements at %d8 and %d9; the result goes to %d9.
fn body(operator: Operator, element: Element) -> String {
    let word = operator.word();
    match element {
        Element::I32 => integers("s32", "s32", "%r5", "%r6", word),
        Element::I64 => integers("s64", "s64", "%d10", "%d11", word),
        // Loaded into 16 bits, the narrowest registers; sums wrap where they are stored.
        Element::U8 => integers("u8", "u16", "%h1", "%h2", word),
        Element::F32 => floats(
            "  ld.global.f32 %f1, [%d8];\n  ld.global.f32 %f2, [%d9];\n",
            operator,
            "  st.global.f32 [%d9], %f3;\n",
        ),
        Element::F16 => floats(
            "  ld.global.b16 %h1, [%d8];
  ld.global.b16 %h2, [%d9];
  cvt.f32.f16 %f1, %h1;
  cvt.f32.f16 %f2, %h2;
",
            operator,
            "  cvt.rn.f16.f32 %h3, %f3;
  setp.nan.f32 %p2, %f3, %f3;
  selp.b16 %h3, 0x7e00, %h3, %p2;
  st.global.b16 [%d9], %h3;
",
        ),
        // The upper half of an f32. Rounded by adding what carries where the lower half is more than half, or half and
        // the upper half odd.
        Element::BF16 => floats(
            "  ld.global.u16 %r5, [%d8];
  ld.global.u16 %r6, [%d9];
  shl.b32 %r5, %r5, 16;
  shl.b32 %r6, %r6, 16;
  mov.b32 %f1, %r5;
  mov.b32 %f2, %r6;
",
            operator,
            "  mov.b32 %r7, %f3;
  shr.u32 %r8, %r7, 16;
  and.b32 %r8, %r8, 1;
  add.u32 %r8, %r8, 0x7fff;
  add.u32 %r8, %r8, %r7;
  shr.u32 %r8, %r8, 16;
  setp.nan.f32 %p2, %f3, %f3;
  selp.b32 %r8, 0x7fc0, %r8, %p2;
  st.global.u16 [%d9], %r8;
",
        ),
    }
}

fn integers(stored: &str, held: &str, one: &str, other: &str, word: &str) -> String {
    let word = if word == "sum" { "add" } else { word };
    format!(
        "  ld.global.{stored} {one}, [%d8];
  ld.global.{stored} {other}, [%d9];
  {word}.{held} {other}, {one}, {other};
  st.global.{stored} [%d9], {other};
"
    )
}

/// Elements as %f1 and %f2, the result as %f3.
fn floats(load: &str, operator: Operator, store: &str) -> String {
    let combine = match operator {
        Operator::Sum => {
            "  mul.rn.f32 %f1, %f1, %f7;
  mul.rn.f32 %f2, %f2, %f7;
  add.rn.f32 %f3, %f1, %f2;
"
        }
        Operator::Max => "  max.f32 %f3, %f1, %f2;\n",
        Operator::Min => "  min.f32 %f3, %f1, %f2;\n",
    };
    // Of MAX and MIN the instruction gives the other operand where one is NaN.
    format!(
        "{load}{combine}  setp.nan.f32 %p3, %f1, %f2;
  selp.f32 %f3, 0f7FC00000, %f3, %p3;
  setp.nan.f32 %p3, %f3, %f3;
  selp.f32 %f3, 0f7FC00000, %f3, %p3;
{store}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operator_has_a_kernel_for_every_type() {
        let text = module();
        assert_eq!(text.matches(".visible .entry ").count(), 18);
        for element in ELEMENTS {
            for operator in OPERATORS {
                let entry = format!(".entry {}(", name(operator, element));
                assert!(text.contains(&entry), "{entry}");
            }
        }
    }
}
