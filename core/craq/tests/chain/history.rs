//! What clients asked of chunks, and a chunk that does one thing after the other.

use sim::history::{Invocation, Sequential};

#[derive(Clone, Debug)]
pub(crate) struct Chunk;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Write { offset: usize, bytes: Vec<u8> },
    Truncate { length: usize },
    Remove,
    Read,
}

/// What was read; nothing of a write.
pub(crate) type Answer = Option<Vec<u8>>;

pub(crate) type Call = Invocation<Chunk>;

impl Sequential for Chunk {
    type State = Vec<u8>;
    type Call = Ask;
    type Answer = Answer;

    fn step(state: &Vec<u8>, call: &Ask, answer: Option<&Answer>) -> Option<Vec<u8>> {
        let mut next = state.clone();
        match call {
            Ask::Write { offset, bytes } => {
                let end = offset + bytes.len();
                next.resize(next.len().max(end), 0);
                next[*offset..end].copy_from_slice(bytes);
            }
            Ask::Truncate { length } => next.resize(*length, 0),
            Ask::Remove => next.clear(),
            Ask::Read => {
                let read = answer.and_then(Option::as_ref);
                return read.is_none_or(|read| read == state).then_some(next);
            }
        }
        Some(next)
    }
}
