//! What a rank of a bench calls: a number of tensors at once, from registered buffers or from memory of its own, and
//! whether the sum is right. Leaves clocks and barriers to who measures.

use std::collections::VecDeque;

use anyhow::{Context, ensure};
use hfreduce_client::client::{CallTicket, Client, InputBuffer};
use hfreduce_client::{Call, DType, Numerics, ReduceOp};
use serde::Serialize;

use super::PATIENCE;

/// Elements after which inputs and sums repeat: a prime, so no divisor of a chunk, and a misplaced one shows.
const PERIOD: usize = 2557;
/// Elements by which each tensor's numbers are ahead of the last one's: a misplaced tensor shows too.
const AHEAD: usize = 31;
/// Ranks that bring numbers, later ones zeros: sums stay exact in every type.
const RANKS: u32 = 32;
/// Numbers are less than this: where there is room, bits go up and down all over an element.
const WIDE: usize = 1 << 17;
const NARROW: usize = 5;

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Inputs lie in registered buffers and results are read in place: gradients that are views of the segment.
    Segment,
    /// Private memory is copied into a registered buffer, and the result copied over it: gradients of plain tensors.
    Copy,
}

/// A tensor whose sum is not what it has to be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[serde(rename_all = "camelCase")]
#[error(
    "rank {rank}: {wrong} of {elements} elements of tensor {tensor} are wrong, the first at {first}: {got} instead of \
     {expected}"
)]
pub(super) struct Wrong {
    /// The rank that got it.
    pub(super) rank: u32,
    /// Which of the tensors, from 0.
    pub(super) tensor: usize,
    pub(super) elements: usize,
    pub(super) wrong: usize,
    /// The first wrong element, from 0.
    pub(super) first: usize,
    /// Bytes of that element as they lie in memory, in hexadecimal.
    pub(super) expected: String,
    pub(super) got: String,
}

/// The tensors of one rank.
pub(super) struct Load<'a> {
    client: &'a Client,
    call: Call,
    inputs: Vec<InputBuffer>,
    /// Tensors of the rank's own; none where they lie in registered buffers.
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
        self.each(|_, _| Ok(()))
    }

    /// Runs once with numbers whose sum is known, and looks at every element of every result. A sum that is wrong is an
    /// error of type [`Wrong`].
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.fill(weight(self.client.standing().rank));
        self.compare()?;
        // What is added over and over again stays what it is.
        for tensor in &mut self.private {
            tensor.fill(0);
        }
        Ok(())
    }

    /// Runs once and looks whether the results are the sums of what `check` has every rank bring.
    fn compare(&mut self) -> anyhow::Result<()> {
        let standing = self.client.standing();
        let dtype = self.call.dtype;
        let weights: usize = (0..standing.world).map(weight).sum();
        // All results are taken, whatever is wrong with one: the next operations are everybody's.
        let mut found = None;
        self.each(|tensor, result| {
            let expected = block(tensor, weights, dtype);
            let wrong = differences(result, &expected, dtype.size());
            found = found.take().or(wrong.map(|(wrong, first)| {
                let expected = expected.chunks(dtype.size()).nth(first % PERIOD);
                let got = result.chunks(dtype.size()).nth(first);
                Wrong {
                    rank: standing.rank,
                    tensor,
                    elements: result.len() / dtype.size(),
                    wrong,
                    first,
                    expected: hex(expected.unwrap_or_default()),
                    got: hex(got.unwrap_or_default()),
                }
            }));
            Ok(())
        })?;
        found.map_or(Ok(()), |wrong| Err(wrong.into()))
    }

    /// Puts numbers into inputs that differ by element and by weight.
    fn fill(&mut self, weight: usize) {
        let dtype = self.call.dtype;
        for (at, input) in self.inputs.iter_mut().enumerate() {
            let numbers = block(at, weight, dtype);
            let private = self.private.get_mut(at).map(Vec::as_mut_slice);
            for tensor in [Some(&mut input[..]), private].into_iter().flatten() {
                for piece in tensor.chunks_mut(numbers.len()) {
                    piece.copy_from_slice(numbers.get(..piece.len()).unwrap_or_default());
                }
            }
        }
    }

    fn each(
        &mut self,
        mut look: impl FnMut(usize, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let tensors = self.inputs.len();
        let mut called: VecDeque<CallTicket> = VecDeque::new();
        let mut back = Vec::with_capacity(tensors);
        let inputs = std::mem::take(&mut self.inputs);
        for (at, mut input) in inputs.into_iter().enumerate() {
            if let Some(tensor) = self.private.get(at) {
                input.copy_from_slice(tensor);
            }
            // A result that nobody takes keeps its memory, so a trainer takes them as they come.
            if called.len() >= hfreduce_client::client::IN_FLIGHT_LIMIT / 2
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
        ticket: CallTicket,
        back: &mut Vec<InputBuffer>,
        look: &mut impl FnMut(usize, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let output = self.client.wait(ticket, PATIENCE)?;
        if let Some(tensor) = self.private.get_mut(back.len()) {
            tensor.copy_from_slice(&output.result);
        }
        look(back.len(), &output.result)?;
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

/// Once all elements before they repeat, of one tensor, times a factor.
fn block(tensor: usize, factor: usize, dtype: DType) -> Vec<u8> {
    let at = |element: usize| (tensor * AHEAD + element) % PERIOD;
    (0..PERIOD)
        .flat_map(|element| encode(number(at(element), dtype) * factor, dtype))
        .collect()
}

/// What an element is before it is multiplied.
const fn number(at: usize, dtype: DType) -> usize {
    match dtype {
        // A multiplier that scatters the numbers over the range.
        DType::F64 | DType::F32 | DType::I32 | DType::I64 => at * 51_749 % WIDE,
        DType::Bf16 | DType::F16 | DType::U8 | DType::I8 | DType::E4m3 | DType::E5m2 => at % NARROW,
    }
}

/// How many elements differ from those of a block over and over, and which is the first; none if they are the same.
fn differences(result: &[u8], block: &[u8], size: usize) -> Option<(usize, usize)> {
    let (mut wrong, mut first) = (0, None);
    for (at, piece) in result.chunks(block.len()).enumerate() {
        if block.get(..piece.len()) == Some(piece) {
            continue;
        }
        let elements = piece.chunks(size).zip(block.chunks(size)).enumerate();
        for (element, _) in elements.filter(|(_, (got, expected))| got != expected) {
            wrong += 1;
            first.get_or_insert(at * (block.len() / size) + element);
        }
    }
    first.map(|first| (wrong, first))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A whole number as an element. Exact as far as the sums of `number` go, but for floats of 8 bits, which have few.
fn encode(number: usize, dtype: DType) -> Vec<u8> {
    let float = (number as f32).to_bits();
    match dtype {
        DType::F64 => (number as f64).to_le_bytes().to_vec(),
        DType::F32 => float.to_le_bytes().to_vec(),
        // The upper half.
        DType::Bf16 => ((float >> 16) as u16).to_le_bytes().to_vec(),
        DType::F16 if number == 0 => vec![0, 0],
        // Exponents are biased by 15 instead of 127; of 23 bits of fraction the upper 10 remain.
        DType::F16 => (((float >> 13) - ((127 - 15) << 10)) as u16)
            .to_le_bytes()
            .to_vec(),
        // Where a sum wraps, the number does so too.
        DType::U8 | DType::I8 => vec![number as u8],
        // They have no more than four bits for a number: zeros show nothing, and time the same.
        DType::E4m3 | DType::E5m2 => vec![0],
        DType::I32 => (number as i32).to_le_bytes().to_vec(),
        DType::I64 => (number as i64).to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::bench::gang::Gang;
    use crate::member::MemberOptions;

    #[test]
    fn the_largest_sum_is_exact_in_every_type() {
        let weights = (0..2 * RANKS).map(weight).sum::<usize>();
        let largest = |dtype| (0..PERIOD).map(|at| number(at, dtype)).max().unwrap() * weights;
        assert!(largest(DType::F32) <= 1 << 24);
        assert!(largest(DType::U8) < 256, "{}", largest(DType::U8));
        assert!(largest(DType::Bf16) <= 256);
    }

    #[test]
    fn every_bit_of_a_wide_element_goes_up_and_down() {
        let all = (0..PERIOD).map(|at| number(at, DType::F32));
        let (ones, zeros) = all.fold((0, 0), |(ones, zeros), one| (ones | one, zeros | !one));
        assert_eq!(ones & zeros & (WIDE - 1), WIDE - 1);
    }

    #[test]
    fn what_differs_is_counted_and_found() {
        let block = block(3, 2, DType::F32);
        let mut result = block.repeat(3);
        result.truncate(2 * block.len() + 40);
        assert_eq!(differences(&result, &block, 4), None);
        let (one, other) = (PERIOD + 7, 2 * PERIOD + 9);
        result[one * 4 + 3] ^= 0x40;
        result[other * 4] ^= 1;
        assert_eq!(differences(&result, &block, 4), Some((2, one)));
    }

    // A bit that flips in the memory of one rank spoils the sum that all of them get.
    #[test]
    fn every_rank_finds_the_element_in_which_one_bit_is_wrong() {
        let gang = Gang::start(1, 2, &MemberOptions::new(std::path::PathBuf::new())).unwrap();
        let wrong: Vec<Wrong> = std::thread::scope(|scope| {
            let ranks: Vec<_> = gang
                .clients
                .iter()
                .map(|client| {
                    scope.spawn(move || {
                        let what = (DType::F32, Numerics::Fast);
                        let mut load =
                            Load::new(client, (4, 256 << 10), what, Mode::Segment).unwrap();
                        let rank = client.standing().rank;
                        load.fill(weight(rank));
                        if rank == 1 {
                            load.inputs[2][4 * 1000 + 2] ^= 0x10;
                        }
                        let wrong = load.compare().unwrap_err().downcast::<Wrong>().unwrap();
                        load.check().unwrap();
                        wrong
                    })
                })
                .collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        gang.stop();
        for (wrong, rank) in wrong.iter().zip(0..) {
            assert_eq!(
                (wrong.rank, wrong.tensor, wrong.wrong, wrong.first),
                (rank, 2, 1, 1000)
            );
            assert_ne!(wrong.expected, wrong.got);
        }
        assert_eq!(wrong.len(), 2);
    }

    #[test]
    fn whole_numbers_are_encoded_as_every_type_means_them() {
        for number in 0..=256 {
            let bits = |dtype| {
                let bytes = encode(number, dtype);
                u16::from_le_bytes([bytes[0], bytes[1]])
            };
            assert_eq!(f16::from_bits(bits(DType::F16)).to_f32(), number as f32);
            assert_eq!(bf16::from_bits(bits(DType::Bf16)).to_f32(), number as f32);
        }
        for dtype in DType::ALL {
            assert_eq!(encode(3, dtype).len(), dtype.size(), "{dtype}");
        }
    }
}
