//! Passes the ranks' output through, whole lines at a time so that ranks do not cut into each
//! other's, and keeps the last of it for the report.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What is kept of each rank. The report carries one rank's tail and must stay below 3 KiB.
pub(crate) const TAIL_BYTES: usize = 2048;
/// A longer line is passed on in parts of this size: the memory of a stream is bounded.
const LINE_BYTES: usize = 64 * 1024;
/// A line without an end (a prompt, a progress bar) is passed on after this time.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};
/// Two streams for each of up to 64 ranks: the threads only copy, so their stacks are small.
const STACK_BYTES: usize = 64 * 1024;
/// How long the last output may take to arrive after the last rank is over. It is longer only
/// when something the ranks left behind holds their pipes.
pub(crate) const DRAIN: Duration = Duration::from_millis(500);

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

/// Copies a rank's stream to ours until it ends, on a thread of its own: a slow reader of our
/// output may hold up the ranks, but never the passing on of signals.
pub(crate) fn pass_through<R, W>(from: R, to: W, tail: Tail) -> io::Result<thread::JoinHandle<()>>
where
    R: Read + AsFd + Send + 'static,
    W: Write + Send + 'static,
{
    thread::Builder::new()
        .name("output".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || copy(from, to, &tail))
}

fn copy<R: Read + AsFd, W: Write>(mut from: R, mut to: W, tail: &Tail) {
    let mut buffer = vec![0; LINE_BYTES];
    let mut held = 0;
    loop {
        if held > 0 && !readable_soon(&from) {
            write_out(&mut to, &buffer[..held]);
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
        write_out(&mut to, &buffer[..whole]);
        buffer.copy_within(whole..filled, 0);
        held = filled - whole;
    }
    write_out(&mut to, &buffer[..held]);
}

fn readable_soon(from: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(from, PollFlags::IN)];
    // An error counts as readable: the read that follows says what it is.
    !matches!(poll(&mut fds, Some(&PATIENCE)), Ok(0))
}

fn write_out(to: &mut impl Write, bytes: &[u8]) {
    if !bytes.is_empty() {
        // Nobody reads our output any more: the ranks go on without it.
        let _unread = to.write_all(bytes).and_then(|()| to.flush());
    }
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
    fn one_print_longer_than_the_tail_keeps_its_end() {
        let tail = Tail::default();
        tail.push(b"before");
        tail.push(&[b'x'; TAIL_BYTES * 3]);
        tail.push(b"end");
        assert_eq!(tail.text().len(), TAIL_BYTES);
        assert!(tail.text().ends_with("xend"));
    }
}
