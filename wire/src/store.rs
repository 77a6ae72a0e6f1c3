//! The unix socket of the store between a process and its sidecar: requests in sessions, each answered once. A session
//! has one request under way and numbers them; when the sidecar is gone, the request is said again to the one in its
//! place. What is asked and answered is bytes here.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

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
/// How long to wait between two looks for a sidecar.
const RETRY: Duration = Duration::from_millis(50);
/// The kernel takes no time for no limit.
const SHORTEST: Duration = Duration::from_millis(1);
/// How long a sidecar may take to say that a request is not under way any more.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

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

/// A process's way to the store, for any of its threads: each that calls has a session of its own meanwhile.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    /// Sessions that nobody uses, of this process.
    idle: Mutex<(u32, Vec<Session>)>,
}

#[derive(Debug)]
struct Session {
    number: u64,
    sequence: u64,
    connection: Option<(UnixStream, Frames)>,
    /// Whether half a request was said, which nobody can take back.
    is_over: bool,
}

impl Client {
    /// To the sidecar that listens there, now or later.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            idle: Mutex::new((std::process::id(), Vec::new())),
        }
    }

    /// Asks, and waits for the answer: also for another sidecar, if this one ends meanwhile. After a timeout the
    /// request is cancelled; if it was done by then it is answered.
    pub fn call(&self, body: Vec<u8>, timeout: Duration) -> Result<Vec<u8>, Error> {
        let mut session = self.session()?;
        let answered = session.ask(&self.path, Some(body), timeout);
        let answered = match answered {
            Err(Error::Timeout(waited)) => match session.ask(&self.path, None, CANCEL_LIMIT) {
                Ok(Word::Cancelled) => {
                    self.keep(session);
                    return Err(Error::Timeout(waited));
                }
                Ok(word) => Ok(word),
                // Whatever comes of it is for a session that is over.
                Err(_) => return Err(Error::Timeout(waited)),
            },
            answered => answered,
        };
        match answered? {
            Word::Answer(bytes) => {
                self.keep(session);
                Ok(bytes)
            }
            Word::Refused(reason) => Err(Error::Refused(reason)),
            Word::Cancelled => Err(Error::Malformed("nothing was to be cancelled")),
        }
    }

    fn session(&self) -> Result<Session, Error> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, sessions) = &mut *idle;
        // What lies in a forked child is in use by its parent.
        if std::mem::replace(owner, std::process::id()) != *owner {
            sessions.clear();
        }
        if let Some(session) = sessions.pop() {
            return Ok(session);
        }
        let mut number = [0; 8];
        let random = std::fs::File::open("/dev/urandom");
        random
            .and_then(|mut file| file.read_exact(&mut number))
            .map_err(Error::Random)?;
        Ok(Session {
            number: u64::from_le_bytes(number),
            sequence: 0,
            connection: None,
            is_over: false,
        })
    }

    fn keep(&self, session: Session) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.0 == std::process::id() {
            idle.1.push(session);
        }
    }
}

impl Session {
    fn ask(
        &mut self,
        path: &Path,
        body: Option<Vec<u8>>,
        timeout: Duration,
    ) -> Result<Word, Error> {
        self.sequence += 1;
        let request = Request {
            session: self.number,
            sequence: self.sequence,
            body,
        };
        let request = request.encode();
        if request.len() > FRAME_LIMIT_BYTES {
            return Err(Error::Refused(format!(
                "{} bytes are asked at once, and {FRAME_LIMIT_BYTES} are the limit",
                request.len()
            )));
        }
        let since = Instant::now();
        loop {
            if self.is_over {
                return Err(Error::Timeout(timeout));
            }
            let left = timeout.saturating_sub(since.elapsed());
            let failed = match self.exchange(path, &request, left) {
                Ok(Some(word)) => return Ok(word),
                Ok(None) => return Err(Error::Timeout(timeout)),
                Err(Attempt::Malformed(error)) => return Err(error),
                Err(Attempt::Io(error)) => error,
            };
            // The sidecar is gone, and what it was asked is asked again.
            self.connection = None;
            let waited = since.elapsed();
            if waited >= timeout {
                return Err(Error::Absent {
                    path: path.to_owned(),
                    waited,
                    source: failed,
                });
            }
            thread::sleep(RETRY.min(timeout - waited));
        }
    }

    /// Says a request and hears its answer; none if it has not come in time.
    fn exchange(
        &mut self,
        path: &Path,
        request: &[u8],
        timeout: Duration,
    ) -> Result<Option<Word>, Attempt> {
        let since = Instant::now();
        let (stream, frames) = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert((UnixStream::connect(path)?, Frames::new(FRAME_LIMIT_BYTES))),
        };
        stream.set_write_timeout(Some(timeout.max(SHORTEST)))?;
        match stream.write_all(request) {
            Ok(()) => {}
            Err(error) if is_timeout(&error) => {
                self.is_over = true;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 1 << 16];
        loop {
            while let Some(frame) = frames.next()? {
                let reply = Reply::decode(frame)?;
                // One to what was given up may come late.
                if reply.sequence == self.sequence {
                    return Ok(Some(reply.word));
                }
            }
            let left = timeout.saturating_sub(since.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut bytes) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok(read) => frames.push(&bytes[..read]),
                Err(error) if is_timeout(&error) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// Why one attempt failed.
enum Attempt {
    /// Another may succeed.
    Io(io::Error),
    Malformed(Error),
}

impl From<io::Error> for Attempt {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Self {
        Self::Malformed(error)
    }
}
