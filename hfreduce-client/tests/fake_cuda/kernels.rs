//! What the kernels of a module do, by their names: the types that tests use.

/// A kernel that was found in a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    operator: Operator,
    element: Element,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Sum,
    Max,
    Min,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    F32,
    Bf16,
    I64,
    U8,
}

const OPERATORS: [(&str, Operator); 3] = [
    ("sum", Operator::Sum),
    ("max", Operator::Max),
    ("min", Operator::Min),
];
const ELEMENTS: [(&str, Element, usize); 4] = [
    ("f32", Element::F32, 4),
    ("bf16", Element::Bf16, 2),
    ("i64", Element::I64, 8),
    ("u8", Element::U8, 1),
];

impl Kernel {
    pub(crate) fn named(name: &str) -> Option<Self> {
        let (operator, element) = name.split_once('_')?;
        let (_, operator) = *OPERATORS.iter().find(|(word, _)| *word == operator)?;
        let (_, element, _) = *ELEMENTS.iter().find(|(word, _, _)| *word == element)?;
        Some(Self { operator, element })
    }

    /// All kernels that there are, each with its number as a handle.
    pub(crate) fn of_number(number: usize) -> Self {
        let (_, operator) = OPERATORS[number / ELEMENTS.len()];
        let (_, element, _) = ELEMENTS[number % ELEMENTS.len()];
        Self { operator, element }
    }

    pub(crate) fn number(self) -> usize {
        let operator = OPERATORS.iter().position(|(_, one)| *one == self.operator);
        let element = ELEMENTS.iter().position(|(_, one, _)| *one == self.element);
        operator.unwrap() * ELEMENTS.len() + element.unwrap()
    }

    /// Bytes of an element.
    pub(crate) fn bytes(self) -> usize {
        let found = ELEMENTS.iter().find(|(_, one, _)| *one == self.element);
        found.unwrap().2
    }

    /// Combines `own` with `into`.
    pub(crate) fn run(self, own: &[u8], into: &mut [u8], scale: f32) {
        match self.element {
            Element::F32 => each(own, into, |one: [u8; 4], other| {
                self.floats(f32::from_le_bytes(one), f32::from_le_bytes(other), scale)
                    .to_le_bytes()
            }),
            Element::Bf16 => each(own, into, |one: [u8; 2], other| {
                let [one, other] = [one, other]
                    .map(|bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16));
                let bits = self.floats(one, other, scale).to_bits();
                let rounded = bits + 0x7fff + ((bits >> 16) & 1);
                ((rounded >> 16) as u16).to_le_bytes()
            }),
            Element::I64 => each(own, into, |one: [u8; 8], other| {
                let [one, other] = [one, other].map(i64::from_le_bytes);
                match self.operator {
                    Operator::Sum => one.wrapping_add(other),
                    Operator::Max => one.max(other),
                    Operator::Min => one.min(other),
                }
                .to_le_bytes()
            }),
            Element::U8 => each(own, into, |[one], [other]: [u8; 1]| match self.operator {
                Operator::Sum => [one.wrapping_add(other)],
                Operator::Max => [one.max(other)],
                Operator::Min => [one.min(other)],
            }),
        }
    }

    fn floats(self, one: f32, other: f32, scale: f32) -> f32 {
        match self.operator {
            Operator::Sum => one * scale + other * scale,
            Operator::Max => one.max(other),
            Operator::Min => one.min(other),
        }
    }
}

fn each<const N: usize>(
    own: &[u8],
    into: &mut [u8],
    combine: impl Fn([u8; N], [u8; N]) -> [u8; N],
) {
    let own = own.as_chunks::<N>().0;
    for (into, own) in into.as_chunks_mut::<N>().0.iter_mut().zip(own) {
        *into = combine(*own, *into);
    }
}
