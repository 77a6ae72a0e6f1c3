//! A process's side: sessions, and what becomes of a request when its sidecar ends or does not answer.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Error, FRAME_LIMIT_BYTES, Frames, Reply, Request, Word};

/// How long to wait between two looks for a sidecar.
const RETRY: Duration = Duration::from_millis(50);
/// The kernel takes no time for no limit.
const SHORTEST: Duration = Duration::from_millis(1);
/// How long a sidecar may take to say that a request is not under way any more.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Hears requests at a connection until it ends, and answers with what `answer` makes of each.
    fn serve(
        listener: &UnixListener,
        mut answer: impl FnMut(&Request) -> Option<Word>,
    ) -> Vec<Request> {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut frames, mut heard) = (Frames::new(FRAME_LIMIT_BYTES), Vec::new());
        let mut bytes = [0; 100];
        while let Ok(read @ 1..) = stream.read(&mut bytes) {
            frames.push(&bytes[..read]);
            while let Some(frame) = frames.next().unwrap() {
                let request = Request::decode(frame).unwrap();
                let sequence = request.sequence;
                let word = answer(&request);
                heard.push(request);
                let Some(word) = word else {
                    return heard;
                };
                let reply = Reply { sequence, word };
                stream.write_all(&reply.encode()).unwrap();
            }
        }
        heard
    }

    fn echo(request: &Request) -> Word {
        let body = request.body.clone();
        body.map_or(Word::Cancelled, Word::Answer)
    }

    #[test]
    fn what_a_sidecar_left_unanswered_is_said_again_to_the_next_under_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let serving = thread::spawn(move || {
            let mut answers = 0;
            let first = serve(&listener, |request| {
                answers += 1;
                (answers == 1).then(|| echo(request))
            });
            (first, serve(&listener, |request| Some(echo(request))))
        });
        let client = Client::new(&path);
        for body in [b"one", b"two"] {
            assert_eq!(client.call(body.to_vec(), PATIENCE).unwrap(), body);
        }
        drop(client);
        let (first, second) = serving.join().unwrap();
        assert_eq!(first[1], second[0]);
        assert_eq!((first[0].sequence, first[1].sequence), (1, 2));
    }

    #[test]
    fn a_late_request_is_cancelled_and_is_answered_if_it_was_done_by_then() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sock");
        let listener = UnixListener::bind(&path).unwrap();
        for done in [false, true] {
            thread::scope(|scope| {
                let serving = scope.spawn(|| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut frames = Frames::new(FRAME_LIMIT_BYTES);
                    let mut heard: Vec<Request> = Vec::new();
                    let mut bytes = [0; 100];
                    while heard.len() < 2 {
                        let read = stream.read(&mut bytes).unwrap();
                        frames.push(&bytes[..read]);
                        while let Some(frame) = frames.next().unwrap() {
                            heard.push(Request::decode(frame).unwrap());
                        }
                    }
                    let word = match done {
                        true => Word::Answer(b"done".to_vec()),
                        false => Word::Cancelled,
                    };
                    let sequence = heard[1].sequence;
                    stream
                        .write_all(&Reply { sequence, word }.encode())
                        .unwrap();
                    heard
                });
                let client = Client::new(&path);
                let answered = client.call(b"call".to_vec(), Duration::from_millis(20));
                match done {
                    true => assert_eq!(answered.unwrap(), b"done"),
                    false => assert!(matches!(answered, Err(Error::Timeout(_)))),
                }
                let heard = serving.join().unwrap();
                assert_eq!(heard[1].body, None);
                assert_eq!((heard[0].sequence, heard[1].sequence), (1, 2));
            });
        }
    }

    #[test]
    fn threads_have_sessions_of_their_own_and_use_them_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let serving = thread::spawn(move || serve(&listener, |request| Some(echo(request))));
        let client = Client::new(&path);
        for _ in 0..3 {
            client.call(Vec::new(), PATIENCE).unwrap();
        }
        let mine = client.session().unwrap();
        assert_ne!(client.session().unwrap().number, mine.number);
        assert_eq!(mine.sequence, 3);
        drop((client, mine));
        assert_eq!(serving.join().unwrap().len(), 3);
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let client = Client::new(&dir.path().join("store.sock"));
        let error = client.call(Vec::new(), Duration::ZERO).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("store.sock") && text.contains("container hfreduce"),
            "{text}"
        );
    }
}
