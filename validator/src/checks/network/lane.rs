//! One connection of a session: sends the pattern, or receives and compares it. Nothing here waits
//! longer than its deadline, whatever the other side does.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use link::block::Block;
use link::header::Header as _;
use link::segment::{Segment, Writers};
use link::transport::{BoxedLink, Outgoing, PayloadTarget, Received};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};

use super::protocol::{FRAME_BYTES, FRAMES_AHEAD, Message, Tally, WrongByte};
use crate::checks::BitFlip;
use crate::limits::QUIET;

const FRAME: usize = FRAME_BYTES as usize;
const WORD_BYTES: usize = 8;
/// The pattern repeats after so much. No multiple of a frame, so that a frame that is lost or comes
/// twice is noticed.
const PERIOD_BYTES: usize = FRAME - WORD_BYTES;

/// What is counted: what comes within a time that begins some time after the first data of all
/// lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window<'a> {
    first: &'a OnceLock<Instant>,
    warm_up: Duration,
    pub(crate) length: Duration,
}

impl<'a> Window<'a> {
    /// The first lane that gets data sets `first`.
    pub(crate) fn new(first: &'a OnceLock<Instant>, warm_up_ms: u32, window_ms: u32) -> Self {
        Self {
            first,
            warm_up: Duration::from_millis(warm_up_ms.into()),
            length: Duration::from_millis(window_ms.into()),
        }
    }

    fn contains(&self, now: Instant) -> bool {
        let begin = *self.first.get_or_init(|| now) + self.warm_up;
        (begin..begin + self.length).contains(&now)
    }

    fn end(&self) -> Option<Instant> {
        Some(*self.first.get()? + self.warm_up + self.length)
    }
}

/// A connection of a session.
#[derive(Debug)]
pub(crate) struct Lane {
    link: BoxedLink<Message>,
    /// What is sent, and expected.
    pattern: Arc<Block>,
    /// Where data arrives.
    landing: Arc<Block>,
    deadline: Instant,
    /// A side that says and takes nothing for so long is given up.
    pub(super) quiet: Duration,
    fault: Option<BitFlip>,
}

/// Does the work of all lanes at once, and returns what came out, in their order. The first that
/// fails ends all.
pub(crate) fn on_each<T: Send>(
    links: Vec<BoxedLink<Message>>,
    deadline: Instant,
    fault: Option<BitFlip>,
    work: impl Fn(&mut Lane) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<T>> {
    let pattern = pattern()?;
    let lanes = links.into_iter().enumerate().map(|(lane, link)| {
        Ok(Lane {
            link,
            pattern: Arc::clone(&pattern),
            landing: block(FRAME)?,
            deadline,
            quiet: QUIET,
            fault: fault.filter(|_| lane == 0),
        })
    });
    let lanes = lanes.collect::<anyhow::Result<Vec<_>>>()?;
    let sockets = lanes.iter().map(|lane| lane.link.socket());
    let sockets = sockets.map(|socket| socket.try_clone_to_owned());
    let sockets = sockets.collect::<io::Result<Vec<OwnedFd>>>()?;
    let failure = OnceLock::new();
    let run = |mut lane: Lane| match work(&mut lane) {
        Ok(done) => Some(done),
        Err(error) => {
            let _others_failure = failure.set(error);
            // The other lanes would wait for the other side.
            for socket in &sockets {
                let _closed = shutdown(socket, Shutdown::Both);
            }
            None
        }
    };
    let done: Option<Vec<T>> = thread::scope(|scope| {
        let run = &run;
        let start = |lane| scope.spawn(move || run(lane));
        let threads: Vec<_> = lanes.into_iter().map(start).collect();
        let ends = threads.into_iter().map(|thread| thread.join().ok()?);
        ends.collect::<Vec<_>>().into_iter().collect()
    });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => done.context("a lane's thread panicked"),
    }
}

impl Lane {
    /// Says something that has no data.
    pub(crate) fn say(&mut self, message: Message) -> anyhow::Result<()> {
        self.link.push(&message, None)?;
        loop {
            self.link.flush(&mut Vec::new())?;
            if self.link.is_flushed() {
                return Ok(());
            }
            self.wait(None)?;
        }
    }

    /// What the other side says next, which is no data.
    pub(crate) fn message(&mut self) -> anyhow::Result<Message> {
        loop {
            if let Some(message) = self.poll_message()? {
                return Ok(message);
            }
            self.wait(None)?;
        }
    }

    fn poll_message(&mut self) -> anyhow::Result<Option<Message>> {
        let unasked = &mut |_: &Message| Err("data came that nobody expects".to_owned());
        match self.link.receive(unasked)? {
            Received::Frame(message, _) => Ok(Some(message)),
            Received::Part | Received::Nothing => Ok(None),
        }
    }

    /// Sends until the other side has enough, and returns what it has counted.
    pub(crate) fn send(&mut self) -> anyhow::Result<Tally> {
        let (mut offset, mut ahead, mut left) = (0, 0, Vec::new());
        loop {
            self.in_time()?;
            for _ in ahead..FRAMES_AHEAD {
                let bytes = self.pattern.read(place(offset, FRAME))?;
                let data = Message::Data { bytes: FRAME_BYTES };
                self.link.push(&data, Some(Outgoing { token: 0, bytes }))?;
                offset += u64::from(FRAME_BYTES);
            }
            self.link.flush(&mut left)?;
            ahead = FRAMES_AHEAD - left.len();
            left.clear();
            match self.poll_message()? {
                Some(Message::Enough) => break,
                Some(other) => bail!("the other side said {other:?} while it had to receive"),
                None if ahead == FRAMES_AHEAD => self.wait(None)?,
                None => {}
            }
        }
        self.say(Message::End)?;
        let said = self.message()?;
        let Message::Counted(tally) = said else {
            bail!("the other side said {said:?} and not what it had counted");
        };
        Ok(tally)
    }

    /// Receives and compares until the window is over and nothing more comes.
    pub(crate) fn receive(&mut self, window: &Window<'_>) -> anyhow::Result<Tally> {
        let (mut offset, mut tally, mut over) = (0, Tally::default(), false);
        loop {
            self.in_time()?;
            let landing = Arc::clone(&self.landing);
            let place = &mut |message: &Message| {
                let room = landing.write(0..message.payload_bytes() as usize);
                room.map(PayloadTarget::Into)
                    .map_err(|denied| denied.to_string())
            };
            match self.link.receive(place)? {
                Received::Frame(Message::Data { bytes }, _) => {
                    if window.contains(Instant::now()) {
                        tally.bytes += u64::from(bytes);
                    }
                    let wrong = self.compare(offset, bytes as usize)?;
                    tally.wrong = tally.wrong.or(wrong);
                    offset += u64::from(bytes);
                }
                Received::Frame(Message::End, _) if over => {
                    self.say(Message::Counted(tally))?;
                    return Ok(tally);
                }
                Received::Frame(other, _) => {
                    bail!("the other side said {other:?} while it had to send")
                }
                Received::Part => {}
                Received::Nothing => self.wait(window.end().filter(|_| !over))?,
            }
            if !over && window.end().is_some_and(|end| Instant::now() >= end) {
                over = true;
                self.say(Message::Enough)?;
            }
        }
    }

    /// The first byte of what has arrived that is not what was sent.
    fn compare(&self, offset: u64, bytes: usize) -> anyhow::Result<Option<WrongByte>> {
        if let Some(BitFlip { at, bit }) = self.fault
            && (offset..offset + bytes as u64).contains(&at)
        {
            let at = (at - offset) as usize;
            self.landing.write(at..at + 1)?[0] ^= 1 << bit;
        }
        let expected = self.pattern.read(place(offset, bytes))?;
        let got = self.landing.read(0..bytes)?;
        if expected[..] == got[..] {
            return Ok(None);
        }
        let mut pairs = (offset..).zip(expected.iter().zip(got.iter()));
        let wrong = pairs.find(|(_, (expected, got))| expected != got);
        Ok(wrong.map(|(offset, (&expected, &got))| WrongByte {
            offset,
            expected,
            got,
        }))
    }

    fn in_time(&self) -> anyhow::Result<()> {
        if Instant::now() >= self.deadline {
            bail!("the other side did not finish in time");
        }
        Ok(())
    }

    /// Waits until the link may go on, or until then.
    fn wait(&mut self, until: Option<Instant>) -> anyhow::Result<()> {
        self.in_time()?;
        if !self.link.sleep()? {
            return Ok(());
        }
        let now = Instant::now();
        let patience = (now + self.quiet).min(self.deadline);
        let wake = until.map_or(patience, |until| until.min(patience));
        let limit = Timespec::try_from(wake.saturating_duration_since(now)).ok();
        let events = match self.link.is_blocked() {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        };
        let socket = self.link.socket();
        let mut fds = [PollFd::from_borrowed_fd(socket, events)];
        // A signal interrupts; then it is looked again.
        let is_ready = poll(&mut fds, limit.as_ref()) != Ok(0);
        if !is_ready && Instant::now() >= patience {
            let seconds = patience.saturating_duration_since(now).as_secs_f64();
            bail!("the other side says and takes nothing for {seconds:.1} s");
        }
        Ok(self.link.wake()?)
    }
}

fn block(bytes: usize) -> anyhow::Result<Arc<Block>> {
    let segment = Segment::create("network", bytes, Writers::Creator);
    Ok(Block::new(segment.context("failed to have memory")?))
}

/// A period and a frame, so that a frame lies in one piece wherever it begins.
fn pattern() -> anyhow::Result<Arc<Block>> {
    let block = block(PERIOD_BYTES + FRAME)?;
    let mut bytes = block.write(0..PERIOD_BYTES + FRAME)?;
    for (index, word) in bytes.chunks_exact_mut(WORD_BYTES).enumerate() {
        let index = index % (PERIOD_BYTES / WORD_BYTES);
        let bits = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&bits.rotate_right(23).to_le_bytes());
    }
    drop(bytes);
    Ok(block)
}

/// Where the data of a lane lies in the pattern.
fn place(offset: u64, bytes: usize) -> Range<usize> {
    let start = (offset % PERIOD_BYTES as u64) as usize;
    start..start + bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_the_warm_up_or_later_is_not_counted() {
        let first = OnceLock::new();
        let window = Window::new(&first, 100, 700);
        let begin = Instant::now();
        assert_eq!(window.end(), None);
        for (ms, counts) in [
            (0, false),
            (99, false),
            (100, true),
            (799, true),
            (800, false),
        ] {
            let now = begin + Duration::from_millis(ms);
            assert_eq!(window.contains(now), counts, "after {ms} ms");
        }
        assert_eq!(window.end(), Some(begin + Duration::from_millis(800)));
    }

    #[test]
    fn no_frame_looks_like_one_nearby() {
        let pattern = pattern().unwrap();
        let frame = |number| pattern.read(place(number * FRAME as u64, FRAME)).unwrap();
        for near in 1..20 {
            assert_ne!(frame(100)[..], frame(100 + near)[..]);
        }
        // What is sent is the pattern again and again, however it is cut.
        let across = pattern.read(place(PERIOD_BYTES as u64 - 8, 16)).unwrap();
        assert_eq!(across[8..], frame(0)[..8]);
    }
}
