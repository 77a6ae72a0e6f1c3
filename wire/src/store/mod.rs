//! The unix socket of the store between a process and its sidecar: requests in sessions, each answered once. A session
//! has one request under way and numbers them; when the sidecar is gone, the request is said again to the one in its
//! place. What is asked and answered is bytes here.

mod client;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use client::Client;

/// Largest frame of a process or to it: a request or an answer with 8 MiB of keys and contents, and what describes
/// up to half a million of them.
pub const FRAME_LIMIT_BYTES: usize = 16 << 20;
/// Version of the socket: the wheel in a trainer's image may be older or newer than the sidecar.
pub const VERSION: u8 = 1;

const LENGTH_BYTES: usize = 4;
/// Version, kind, session and number.
const REQUEST_BYTES: usize = 18;
/// Kind and number.
const REPLY_BYTES: usize = 9;
/// Why a request was not answered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not in time. It was not done, and will not be, unless the sidecar did not answer either.
    #[error("the store did not answer within {0:.1?}")]
    Timeout(Duration),
    /// The sidecar will not serve it.
    #[error("the store refused: {0}")]
    Refused(String),
    /// No sidecar is there.
    #[error(
        "failed to reach the store at {path} for {waited:.1?}; look at the restarts and the log of this pod's container hfreduce"
    )]
    Absent {
        /// Its socket.
        path: PathBuf,
        /// For how long.
        waited: Duration,
        /// What the kernel said.
        source: io::Error,
    },
    /// The other side does not keep to the protocol.
    #[error("failed to read what the store said: {0}")]
    Malformed(&'static str),
    /// There is no number for a session.
    #[error("failed to read from /dev/urandom")]
    Random(#[source] io::Error),
}

/// What a process asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The session's number on this node.
    pub session: u64,
    /// The request's number in it: they ascend, and one that is said again keeps its own.
    pub sequence: u64,
    /// What; none to stop waiting for the request before.
    pub body: Option<Vec<u8>>,
}

/// What a sidecar answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The request's number.
    pub sequence: u64,
    /// What.
    pub word: Word,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// Of the store; to a cancellation, of the request before, which was done.
    Answer(Vec<u8>),
    /// The request before was not done and will not be.
    Cancelled,
    /// The sidecar does not serve it, for this reason, and closes the connection.
    Refused(String),
}

/// A frame of these parts.
pub fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(LENGTH_BYTES + length);
    frame.extend((length as u32).to_le_bytes());
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    frame
}

/// Turns bytes as they arrive into frames of at most so many bytes.
#[derive(Debug)]
pub struct Frames {
    limit: usize,
    bytes: Vec<u8>,
    taken: usize,
}

impl Frames {
    /// Nothing has arrived yet.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: Vec::new(),
            taken: 0,
        }
    }

    /// Takes bytes as they arrived. Call `next` until it has no more, then push again.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..std::mem::take(&mut self.taken));
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if it is there.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator could not tell `not yet` from `the stream is broken`"
    )]
    pub fn next(&mut self) -> Result<Option<&[u8]>, Error> {
        let rest = &self.bytes[self.taken..];
        let Some((length, _)) = rest.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.limit {
            return Err(Error::Malformed("a frame is larger than it may be"));
        }
        let start = self.taken + LENGTH_BYTES;
        let Some(frame) = self.bytes.get(start..start + length) else {
            return Ok(None);
        };
        self.taken = start + length;
        Ok(Some(frame))
    }
}

impl Request {
    /// As a frame.
    pub fn encode(&self) -> Vec<u8> {
        let kind = u8::from(self.body.is_none());
        let body = self.body.as_deref().unwrap_or_default();
        let (session, sequence) = (self.session.to_le_bytes(), self.sequence.to_le_bytes());
        frame(&[&[VERSION, kind], &session, &sequence, body])
    }

    /// From a frame.
    pub fn decode(frame: &[u8]) -> Result<Self, Error> {
        let Some((head, body)) = frame.split_first_chunk::<REQUEST_BYTES>() else {
            return Err(Error::Malformed("a request ends too early"));
        };
        let [version, kind, ..] = *head;
        if version != VERSION {
            return Err(Error::Malformed(
                "a request has another version; use a wheel and a sidecar of one release",
            ));
        }
        let (sequence, session) = (word(&head[10..]), word(&head[2..]));
        // So that one after it has a number too.
        if sequence >= u64::MAX / 2 {
            return Err(Error::Malformed("a request has too large a number"));
        }
        let body = match kind {
            0 => Some(body.to_vec()),
            1 if body.is_empty() => None,
            _ => return Err(Error::Malformed("there is no such request")),
        };
        Ok(Self {
            session,
            sequence,
            body,
        })
    }
}

impl Reply {
    /// As a frame.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body): (u8, &[u8]) = match &self.word {
            Word::Answer(bytes) => (0, bytes),
            Word::Cancelled => (1, &[]),
            Word::Refused(reason) => (2, reason.as_bytes()),
        };
        frame(&[&[kind], &self.sequence.to_le_bytes(), body])
    }

    /// From a frame.
    pub fn decode(frame: &[u8]) -> Result<Self, Error> {
        let Some((head, body)) = frame.split_first_chunk::<REPLY_BYTES>() else {
            return Err(Error::Malformed("an answer ends too early"));
        };
        let word_of = match head[0] {
            0 => Word::Answer(body.to_vec()),
            1 => Word::Cancelled,
            2 => Word::Refused(String::from_utf8_lossy(body).into_owned()),
            _ => return Err(Error::Malformed("there is no such answer")),
        };
        Ok(Self {
            sequence: word(&head[1..]),
            word: word_of,
        })
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unframed(frame: &[u8]) -> Vec<u8> {
        let mut frames = Frames::new(FRAME_LIMIT_BYTES);
        // In two pieces, as streams cut them.
        let (one, two) = frame.split_at(frame.len() / 2);
        frames.push(one);
        assert!(frames.next().unwrap().is_none());
        frames.push(two);
        frames.next().unwrap().unwrap().to_vec()
    }

    #[test]
    fn requests_and_replies_are_read_as_they_were_written() {
        for body in [None, Some(Vec::new()), Some(b"body".to_vec())] {
            let request = Request {
                session: 7,
                sequence: 9,
                body,
            };
            assert_eq!(
                Request::decode(&unframed(&request.encode())).unwrap(),
                request
            );
        }
        let words = [
            Word::Answer(b"answer".to_vec()),
            Word::Cancelled,
            Word::Refused("why".to_owned()),
        ];
        for word in words {
            let reply = Reply { sequence: 3, word };
            assert_eq!(Reply::decode(&unframed(&reply.encode())).unwrap(), reply);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            Request::decode(&bytes).ok();
            Reply::decode(&bytes).ok();
            let mut frames = Frames::new(16);
            frames.push(&bytes);
            while let Ok(Some(frame)) = frames.next() {
                assert!(frame.len() <= 16);
            }
        }
    }
}
