//! What a rank of a bench calls: a number of tensors at once, from the lent buffers or from memory of its own, and
//! whether the sum is right. Leaves clocks and barriers to who measures.

use std::collections::VecDeque;

use anyhow::{Context, ensure};
use wire::client::{Buffer, Client, Ticket};
use wire::{Call, DType, Numerics, ReduceOp};

use super::PATIENCE;

/// Elements after which inputs and sums repeat: no divisor of a chunk, so that a misplaced one shows.
const PERIOD: usize = 5;
/// Ranks that bring numbers, later ones zeros: sums stay below 257, exact in every type.
const RANKS: u32 = 32;

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Inputs lie in the lent buffers and results are read in place: gradients that are views of the segment.
    Segment,
    /// Private memory is copied into a lent buffer, and the result copied over it: gradients of plain tensors.
    Copy,
}

/// The tensors of one rank.
pub(super) struct Load<'a> {
    client: &'a Client,
    call: Call,
    inputs: Vec<Buffer>,
    /// Tensors of the rank's own; none where they lie in the lent buffers.
    private: Vec<Vec<u8>>,
}

impl<'a> Load<'a> {
    /// `tensors` tensors of `bytes` each. Everything is touched here, so that no page is new later.
    pub(super) fn new(
        client: &'a Client,
        (tensors, bytes): (usize, usize),
        (dtype, numerics): (DType, Numerics),
        mode: Mode,
    ) -> anyhow::Result<Self> {
        ensure!(
            tensors > 0 && bytes > 0 && bytes.is_multiple_of(dtype.size()),
            "failed to prepare {tensors} tensors of {bytes} bytes: take whole elements"
        );
        let buffer = || client.buffer(bytes, PATIENCE);
        let mut load = Self {
            client,
            call: Call {
                numerics,
                ..Call::all_reduce(dtype, ReduceOp::Sum, (bytes / dtype.size()) as u64)
            },
            inputs: (0..tensors).map(|_| buffer()).collect::<Result<_, _>>()?,
            private: match mode {
                Mode::Segment => Vec::new(),
                Mode::Copy => vec![vec![0; bytes]; tensors],
            },
        };
        load.fill(0);
        Ok(load)
    }

    /// Calls all tensors at once and waits for every result.
    pub(super) fn run(&mut self) -> anyhow::Result<()> {
        self.each(|_| Ok(()))
    }

    /// Runs once with numbers whose sum is known, and looks at every element of every result.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        let standing = self.client.standing();
        self.fill(weight(standing.rank));
        let dtype = self.call.dtype;
        let weights: usize = (0..standing.world).map(weight).sum();
        let expected = block(|at| encode(at * weights, dtype));
        self.each(|result| {
            let wrong = result
                .chunks(expected.len())
                .position(|piece| expected.get(..piece.len()) != Some(piece));
            match wrong {
                None => Ok(()),
                Some(piece) => {
                    anyhow::bail!("the sum is wrong behind byte {}", piece * expected.len())
                }
            }
        })?;
        // What is added over and over again stays what it is.
        for tensor in &mut self.private {
            tensor.fill(0);
        }
        Ok(())
    }

    /// Puts numbers into inputs that differ by element and by weight.
    fn fill(&mut self, weight: usize) {
        let dtype = self.call.dtype;
        let numbers = block(|at| encode(at * weight, dtype));
        let private = self.private.iter_mut().map(Vec::as_mut_slice);
        for tensor in self
            .inputs
            .iter_mut()
            .map(|input| &mut input[..])
            .chain(private)
        {
            for piece in tensor.chunks_mut(numbers.len()) {
                piece.copy_from_slice(numbers.get(..piece.len()).unwrap_or_default());
            }
        }
    }

    fn each(&mut self, mut look: impl FnMut(&[u8]) -> anyhow::Result<()>) -> anyhow::Result<()> {
        let tensors = self.inputs.len();
        let mut called: VecDeque<Ticket> = VecDeque::new();
        let mut back = Vec::with_capacity(tensors);
        let inputs = std::mem::take(&mut self.inputs);
        for (at, mut input) in inputs.into_iter().enumerate() {
            if let Some(tensor) = self.private.get(at) {
                input.copy_from_slice(tensor);
            }
            // A result that nobody takes keeps its memory, so a trainer takes them as they come.
            if called.len() >= wire::client::IN_FLIGHT_LIMIT / 2
                && let Some(ticket) = called.pop_front()
            {
                self.take(ticket, &mut back, &mut look)?;
            }
            called.push_back(self.client.submit(self.call, Some(input), PATIENCE)?);
        }
        for ticket in called {
            self.take(ticket, &mut back, &mut look)?;
        }
        self.inputs = back;
        Ok(())
    }

    fn take(
        &mut self,
        ticket: Ticket,
        back: &mut Vec<Buffer>,
        look: &mut impl FnMut(&[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let output = self.client.wait(ticket, PATIENCE)?;
        if let Some(tensor) = self.private.get_mut(back.len()) {
            tensor.copy_from_slice(&output.result);
        }
        look(&output.result)?;
        back.push(output.input.context("an operation kept its input")?);
        Ok(())
    }
}

/// What a rank's numbers are multiplied with: a rank that is missing, or there twice, shows.
const fn weight(rank: u32) -> usize {
    if rank < RANKS {
        rank as usize % 3 + 1
    } else {
        0
    }
}

/// Some KiB of repeated elements, so that filling and comparing go by large pieces.
fn block(element: impl Fn(usize) -> Vec<u8>) -> Vec<u8> {
    let once: Vec<u8> = (0..PERIOD).flat_map(element).collect();
    once.repeat(512)
}

/// A small whole number as an element. Exact up to 256 in every type but those of 8 bits, which have few of them.
fn encode(number: usize, dtype: DType) -> Vec<u8> {
    let float = (number as f32).to_bits();
    match dtype {
        DType::F32 => float.to_le_bytes().to_vec(),
        // The upper half.
        DType::BF16 => ((float >> 16) as u16).to_le_bytes().to_vec(),
        DType::F16 if number == 0 => vec![0, 0],
        // Exponents are biased by 15 instead of 127; of 23 bits of fraction the upper 10 remain.
        DType::F16 => (((float >> 13) - ((127 - 15) << 10)) as u16)
            .to_le_bytes()
            .to_vec(),
        DType::U8 => vec![number as u8],
        // They have no more than four bits for a number: zeros show nothing, and time the same.
        DType::E4M3 | DType::E5M2 => vec![0],
        DType::I32 => (number as i32).to_le_bytes().to_vec(),
        DType::I64 => (number as i64).to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn the_largest_sum_is_exact_in_every_type() {
        let largest = (PERIOD - 1) * (0..2 * RANKS).map(weight).sum::<usize>();
        assert!(largest <= 256, "{largest}");
    }

    #[test]
    fn whole_numbers_are_encoded_as_every_type_means_them() {
        for number in 0..=256 {
            let bits = |dtype| {
                let bytes = encode(number, dtype);
                u16::from_le_bytes([bytes[0], bytes[1]])
            };
            assert_eq!(f16::from_bits(bits(DType::F16)).to_f32(), number as f32);
            assert_eq!(bf16::from_bits(bits(DType::BF16)).to_f32(), number as f32);
        }
        for &dtype in DType::ALL {
            assert_eq!(encode(3, dtype).len(), dtype.size(), "{dtype}");
        }
    }
}
