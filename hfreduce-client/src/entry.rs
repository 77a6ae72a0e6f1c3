//! What the entries of the two rings say: calls and releases towards the sidecar, outcomes back. Owns
//! the layout in words; the sidecar checks segments and sizes against its own tables.

use collective::encoding::{CALL_WORDS, call_from_words, call_to_words};

use crate::{Call, OpKind, parts};
use link::ring::{COMPLETION_WORDS, SUBMISSION_WORDS};

/// Longest text of a failure: what an outcome's entry leaves for it.
pub const TEXT_LIMIT_BYTES: usize = (COMPLETION_WORDS - TEXT_AT) * 8;

const CALL: u64 = 1;
const RELEASE: u64 = 2;
const OPEN: u64 = 3;
const DONE: u64 = 1;
const MISMATCH: u64 = 2;
const BROKEN: u64 = 3;
const REFUSED: u64 = 4;
/// First word of the text; the word before it is its length.
const TEXT_AT: usize = 3;

/// Not an entry that this version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read an entry of the ring: {0}")]
pub struct MalformedEntry(&'static str);

/// Where an input lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRange {
    /// The segment's number, given by the sidecar.
    pub segment: u32,
    /// The first byte, a multiple of 64.
    pub offset: u64,
}

/// Bytes that a call reads of a rank of a group of this `size`; none if there are more than memory
/// can hold. Of an all-to-all, those that say how many follow.
#[must_use]
pub fn input_bytes(call: &Call, rank: u32, size: u32) -> Option<usize> {
    let elements = usize::try_from(call.count).ok()?;
    let bytes = || elements.checked_mul(call.dtype.size());
    match call.kind {
        OpKind::AllReduce { .. }
        | OpKind::Reduce { .. }
        | OpKind::AllGather
        | OpKind::ReduceScatter { .. }
        | OpKind::Gather { .. }
        | OpKind::Send { .. } => bytes(),
        OpKind::Broadcast { root } if root == rank => bytes(),
        OpKind::Scatter { root } if root == rank => bytes()?.checked_mul(size as usize),
        OpKind::AllToAll { .. } => Some(parts::bytes(size)),
        OpKind::Broadcast { .. }
        | OpKind::Scatter { .. }
        | OpKind::Barrier
        | OpKind::Close
        | OpKind::Receive { .. } => Some(0),
    }
}

/// What a process asks of its sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// Take part in an operation.
    Call {
        /// The process's number for it; each is used once.
        ticket: u64,
        /// Of which group: one that it has opened, or 0 for the world.
        group: u64,
        /// The operation.
        call: Call,
        /// Where this rank's contribution lies.
        input: SegmentRange,
    },
    /// Open a group of ranks.
    Open {
        /// The process's number for it.
        ticket: u64,
        /// The group's number.
        group: u64,
        /// How many ranks it has.
        ranks: u32,
        /// Whether its ranks do the same work, so that some can go on without others.
        replicated: bool,
        /// What it computes goes before what groups of a lower priority compute; 0 is the world's.
        priority: i8,
        /// Where the ranks lie, four bytes each.
        input: SegmentRange,
    },
    /// The result of a finished operation is not read any more.
    Release {
        /// The operation.
        ticket: u64,
    },
}

impl Submission {
    /// As words.
    pub fn encode(&self) -> [u64; SUBMISSION_WORDS] {
        let mut words = [0; SUBMISSION_WORDS];
        match self {
            Self::Call {
                ticket,
                group,
                call,
                input,
            } => {
                words[..2].copy_from_slice(&[CALL, *ticket]);
                words[2..2 + CALL_WORDS].copy_from_slice(&call_to_words(call));
                words[6..9].copy_from_slice(&[u64::from(input.segment), input.offset, *group]);
            }
            Self::Open {
                ticket,
                group,
                ranks,
                replicated,
                priority,
                input,
            } => {
                words[..2].copy_from_slice(&[OPEN, *ticket]);
                let manner = [u64::from(*replicated), i64::from(*priority) as u64];
                words[2] = u64::from(*ranks);
                words[3..5].copy_from_slice(&manner);
                words[6..9].copy_from_slice(&[u64::from(input.segment), input.offset, *group]);
            }
            Self::Release { ticket } => words[..2].copy_from_slice(&[RELEASE, *ticket]),
        }
        words
    }

    /// From words.
    pub fn decode(words: &[u64; SUBMISSION_WORDS]) -> Result<Self, MalformedEntry> {
        let [kind, ticket, c0, c1, c2, c3, segment, offset, group, ..] = *words;
        let input = || {
            let segment = u32::try_from(segment).map_err(|_| MalformedEntry("no such segment"))?;
            Ok(SegmentRange { segment, offset })
        };
        match kind {
            CALL => Ok(Self::Call {
                ticket,
                group,
                call: call_from_words(&[c0, c1, c2, c3])
                    .map_err(|_| MalformedEntry("no such call"))?,
                input: input()?,
            }),
            OPEN => Ok(Self::Open {
                ticket,
                group,
                ranks: u32::try_from(c0).map_err(|_| MalformedEntry("no such number of ranks"))?,
                replicated: c1 != 0,
                priority: i8::try_from(c2 as i64)
                    .map_err(|_| MalformedEntry("no such priority"))?,
                input: input()?,
            }),
            RELEASE => Ok(Self::Release { ticket }),
            _ => Err(MalformedEntry("no such kind of submission")),
        }
    }
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Ranks called different operations; the next operation runs.
    Mismatch,
    /// A member is gone or the gang is over; nothing runs any more.
    Broken,
    /// One rank's call cannot be carried out: it fails on every rank, each of which has called it as its next
    /// operation; the one after that runs.
    Refused,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallOutcome {
    /// The result lies at the start of a segment.
    Done {
        /// The segment's number.
        segment: u32,
        /// Bytes of the result.
        bytes: u64,
        /// The epoch whose members took part.
        epoch: u64,
    },
    /// There is none.
    Failed {
        /// Why.
        kind: FailureKind,
        /// The same for a person, naming who has to be looked at.
        text: String,
    },
}

/// The outcome of an operation, for the process that called it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The process's number for it.
    pub ticket: u64,
    /// How it ended.
    pub outcome: CallOutcome,
}

impl Completion {
    /// As words.
    pub fn encode(&self) -> [u64; COMPLETION_WORDS] {
        let mut words = [0; COMPLETION_WORDS];
        words[1] = self.ticket;
        match &self.outcome {
            CallOutcome::Done {
                segment,
                bytes,
                epoch,
            } => {
                words[0] = DONE;
                words[2..5].copy_from_slice(&[u64::from(*segment), *bytes, *epoch]);
            }
            CallOutcome::Failed { kind, text } => {
                words[0] = match kind {
                    FailureKind::Mismatch => MISMATCH,
                    FailureKind::Broken => BROKEN,
                    FailureKind::Refused => REFUSED,
                };
                let mut end = text.len().min(TEXT_LIMIT_BYTES);
                while !text.is_char_boundary(end) {
                    end -= 1;
                }
                words[2] = end as u64;
                let parts = text.as_bytes()[..end].chunks(8);
                for (word, part) in words[TEXT_AT..].iter_mut().zip(parts) {
                    let mut bytes = [0; 8];
                    bytes[..part.len()].copy_from_slice(part);
                    *word = u64::from_le_bytes(bytes);
                }
            }
        }
        words
    }

    /// From words.
    pub fn decode(words: &[u64; COMPLETION_WORDS]) -> Result<Self, MalformedEntry> {
        let [kind, ticket, length, first, second, ..] = *words;
        let failed = |kind| {
            let bytes: Vec<u8> = words[TEXT_AT..]
                .iter()
                .flat_map(|word| word.to_le_bytes())
                .take(length.min(TEXT_LIMIT_BYTES as u64) as usize)
                .collect();
            CallOutcome::Failed {
                kind,
                text: String::from_utf8_lossy(&bytes).into_owned(),
            }
        };
        let outcome = match kind {
            DONE => CallOutcome::Done {
                segment: u32::try_from(length).map_err(|_| MalformedEntry("no such segment"))?,
                bytes: first,
                epoch: second,
            },
            MISMATCH => failed(FailureKind::Mismatch),
            BROKEN => failed(FailureKind::Broken),
            REFUSED => failed(FailureKind::Refused),
            _ => return Err(MalformedEntry("no such kind of outcome")),
        };
        Ok(Self { ticket, outcome })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::DType;

    #[test]
    fn what_is_encoded_is_decoded() {
        let call = Submission::Call {
            ticket: 9,
            group: 5 << 33,
            call: Call::new(OpKind::AllGather, DType::Bf16, 1 << 40),
            input: SegmentRange {
                segment: 3,
                offset: 64,
            },
        };
        assert_eq!(Submission::decode(&call.encode()), Ok(call));
        let open = Submission::Open {
            ticket: 10,
            group: 7,
            ranks: 128,
            replicated: true,
            priority: -3,
            input: SegmentRange {
                segment: 3,
                offset: 0,
            },
        };
        assert_eq!(Submission::decode(&open.encode()), Ok(open));
        let release = Submission::Release { ticket: 9 };
        assert_eq!(Submission::decode(&release.encode()), Ok(release));
        let done = Completion {
            ticket: 9,
            outcome: CallOutcome::Done {
                segment: 3,
                bytes: 1 << 40,
                epoch: 7,
            },
        };
        assert_eq!(Completion::decode(&done.encode()), Ok(done));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let failed = Completion {
            ticket: 1,
            outcome: CallOutcome::Failed {
                kind: FailureKind::Broken,
                text: "é".repeat(1000),
            },
        };
        let CallOutcome::Failed { text, .. } =
            Completion::decode(&failed.encode()).unwrap().outcome
        else {
            panic!("a failure stays one");
        };
        assert_eq!(text, "é".repeat(TEXT_LIMIT_BYTES / 2));
    }

    proptest! {
        #[test]
        fn arbitrary_words_never_panic(
            kind in 0u64..6,
            words in prop::collection::vec(any::<u64>(), COMPLETION_WORDS),
        ) {
            let mut completion = [0; COMPLETION_WORDS];
            completion.copy_from_slice(&words);
            completion[0] = kind;
            let _ = Completion::decode(&completion);
            let mut submission = [0; SUBMISSION_WORDS];
            submission.copy_from_slice(&words[..SUBMISSION_WORDS]);
            submission[0] = kind;
            let _ = Submission::decode(&submission);
        }
    }
}
