//! Passes the ranks' output through, whole lines at a time so that ranks do not cut into each
//! other's, each with its rank before it where there are several, and keeps the last of it for the
//! report.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits::TAIL_BYTES;

/// A longer line is passed on in parts of this size: the memory of a stream is bounded. Prefixes
/// come on top, one for each byte at the most, where all lines are empty.
const LINE_BYTES: usize = 64 * 1024;
/// A line without an end (a prompt, a progress bar) is passed on after this time.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};
/// Two streams for each of up to 64 ranks: the threads only copy, so their stacks are small.
const STACK_BYTES: usize = 64 * 1024;

/// The last bytes that a rank printed, of both its streams. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    bytes: Arc<Mutex<VecDeque<u8>>>,
}

impl Tail {
    /// Adds what was printed; the oldest goes.
    pub(crate) fn push(&self, printed: &[u8]) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = &printed[printed.len().saturating_sub(TAIL_BYTES)..];
        let excess = (bytes.len() + kept.len()).saturating_sub(TAIL_BYTES);
        bytes.drain(..excess);
        bytes.extend(kept);
    }

    /// The tail as text; it starts at a line's beginning when there is one.
    pub(crate) fn text(&self) -> String {
        let bytes: Vec<u8> = self
            .bytes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .copied()
            .collect();
        let start = match bytes.iter().position(|&byte| byte == b'\n') {
            Some(newline) if bytes.len() == TAIL_BYTES && newline + 1 < bytes.len() => newline + 1,
            Some(_) | None => 0,
        };
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }
}

/// One of our streams, which all ranks write to. Clones share it.
#[derive(Debug)]
pub(crate) struct Shared<W> {
    stream: Arc<Mutex<Stream<W>>>,
}

#[derive(Debug)]
struct Stream<W> {
    to: W,
    /// The rank whose line has not ended yet.
    open: Option<usize>,
}

impl<W> Shared<W> {
    pub(crate) fn new(to: W) -> Self {
        let stream = Stream { to, open: None };
        Self {
            stream: Arc::new(Mutex::new(stream)),
        }
    }

    /// The stream as one rank writes to it, with `prefix` before each line.
    pub(crate) fn of(&self, rank: usize, prefix: &str) -> Lines<W> {
        Lines {
            stream: Arc::clone(&self.stream),
            rank,
            prefix: prefix.to_owned(),
        }
    }
}

/// A stream of ours for the lines of one rank.
#[derive(Debug)]
pub(crate) struct Lines<W> {
    stream: Arc<Mutex<Stream<W>>>,
    rank: usize,
    prefix: String,
}

impl<W: Write> Lines<W> {
    /// Writes lines. The last one may go on later; if another rank writes before, it ends here.
    fn write(&self, printed: &[u8]) {
        let Some(last) = printed.last() else {
            return;
        };
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut goes_on = stream.open == Some(self.rank);
        let mut out = Vec::with_capacity(printed.len());
        if stream.open.is_some() && !goes_on {
            out.push(b'\n');
        }
        for line in printed.split_inclusive(|&byte| byte == b'\n') {
            // PyTorch puts the same before each line of a traceback.
            if !goes_on && !line.starts_with(self.prefix.as_bytes()) {
                out.extend_from_slice(self.prefix.as_bytes());
            }
            out.extend_from_slice(line);
            goes_on = false;
        }
        stream.open = (*last != b'\n').then_some(self.rank);
        // Nobody reads our output any more: the ranks go on without it.
        let _unread = stream.to.write_all(&out).and_then(|()| stream.to.flush());
    }
}

/// Copies a rank's stream to ours until it ends, on a thread of its own: a slow reader of our
/// output may hold up the ranks, but never the passing on of signals.
pub(crate) fn pass_through<R, W>(
    from: R,
    to: Lines<W>,
    tail: Tail,
) -> io::Result<thread::JoinHandle<()>>
where
    R: Read + AsFd + Send + 'static,
    W: Write + Send + 'static,
{
    thread::Builder::new()
        .name("output".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || copy(from, &to, &tail))
}

fn copy<R: Read + AsFd, W: Write>(mut from: R, to: &Lines<W>, tail: &Tail) {
    let mut buffer = vec![0; LINE_BYTES];
    let mut held = 0;
    loop {
        if held > 0 && !readable_soon(&from) {
            to.write(&buffer[..held]);
            held = 0;
        }
        let read = match from.read(&mut buffer[held..]) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        tail.push(&buffer[held..held + read]);
        let filled = held + read;
        let whole = match buffer[..filled].iter().rposition(|&byte| byte == b'\n') {
            Some(newline) => newline + 1,
            None if filled == buffer.len() => filled,
            None => 0,
        };
        to.write(&buffer[..whole]);
        buffer.copy_within(whole..filled, 0);
        held = filled - whole;
    }
    to.write(&buffer[..held]);
}

fn readable_soon(from: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(from, PollFlags::IN)];
    // An error counts as readable: the read that follows says what it is.
    !matches!(poll(&mut fds, Some(&PATIENCE)), Ok(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_bounded_and_starts_with_a_whole_line() {
        let tail = Tail::default();
        for line in 0..1000 {
            tail.push(format!("line {line}\n").as_bytes());
        }
        let text = tail.text();
        assert!(
            text.len() <= TAIL_BYTES && text.len() > TAIL_BYTES - 20,
            "{}",
            text.len()
        );
        assert!(
            text.starts_with("line ") && text.ends_with("line 999\n"),
            "{text}"
        );
    }

    #[test]
    fn the_report_keeps_the_last_2_kib_of_a_rank() {
        let tail = Tail::default();
        tail.push(b"a");
        tail.push(&[b'x'; 2047]);
        assert!(tail.text().len() == 2048 && tail.text().starts_with('a'));
        tail.push(b"b");
        let text = tail.text();
        assert!(text.len() == 2048 && text.starts_with('x') && text.ends_with("xb"));
    }

    #[test]
    fn one_print_longer_than_the_tail_keeps_its_end() {
        let tail = Tail::default();
        tail.push(b"before");
        tail.push(&[b'x'; TAIL_BYTES * 3]);
        tail.push(b"end");
        assert_eq!(tail.text().len(), TAIL_BYTES);
        assert!(tail.text().ends_with("xend"));
    }

    /// What comes out when ranks write this one after the other.
    fn written(prefixes: &[&str], writes: &[(usize, &str)]) -> String {
        let shared = Shared::new(Vec::new());
        let lines = |(rank, prefix): (usize, &&str)| shared.of(rank, prefix);
        let ranks: Vec<_> = prefixes.iter().enumerate().map(lines).collect();
        for (rank, printed) in writes {
            ranks[*rank].write(printed.as_bytes());
        }
        let stream = shared.stream.lock().unwrap();
        String::from_utf8(stream.to.clone()).unwrap()
    }

    #[test]
    fn each_line_names_its_rank_and_a_line_in_parts_once() {
        let writes = [
            (0, "a\n\nb\n"),
            (1, "50 %"),
            (1, "\r100 %\nc"),
            (1, "\n"),
            (0, "d"),
        ];
        let expected =
            "[rank0]: a\n[rank0]: \n[rank0]: b\n[rank1]: 50 %\r100 %\n[rank1]: c\n[rank0]: d";
        assert_eq!(written(&["[rank0]: ", "[rank1]: "], &writes), expected);
    }

    #[test]
    fn a_line_ends_where_another_rank_writes() {
        let writes = [(0, "waits for "), (1, "b\n"), (0, "peers\n"), (1, "c\n")];
        let expected = "[rank0]: waits for \n[rank1]: b\n[rank0]: peers\n[rank1]: c\n";
        assert_eq!(written(&["[rank0]: ", "[rank1]: "], &writes), expected);
    }

    #[test]
    fn what_pytorch_has_marked_is_not_marked_twice() {
        let writes = [
            (0, "[rank0]: Traceback\n[rank0]:   File\n"),
            (0, "[rank1]: x\n"),
        ];
        let expected = "[rank0]: Traceback\n[rank0]:   File\n[rank0]: [rank1]: x\n";
        assert_eq!(written(&["[rank0]: "], &writes), expected);
    }

    #[test]
    fn without_a_prefix_nothing_is_added() {
        assert_eq!(
            written(&[""], &[(0, "a\nb"), (0, "c"), (0, "\n")]),
            "a\nbc\n"
        );
    }
}
