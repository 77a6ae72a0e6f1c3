//! A connection that never blocks: frames that have come, and bytes that have to leave.

use std::io::{self, Read, Write};

use rustix::event::PollFlags;
use wire::store::Frames;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// Reads in a turn, so that one that says much does not keep others waiting.
const READS: usize = 64;

/// A stream and what is under way on it.
#[derive(Debug)]
pub(super) struct Connection<S> {
    pub(super) stream: S,
    frames: Frames,
    outgoing: Vec<u8>,
    /// How much of that has left.
    left: usize,
    /// More than this may not wait to leave.
    limit: usize,
}

impl<S: Read + Write> Connection<S> {
    /// The stream must not block. Frames are at most `frame_limit` bytes.
    pub(super) fn new(stream: S, frame_limit: usize, limit: usize) -> Self {
        Self {
            stream,
            frames: Frames::new(frame_limit),
            outgoing: Vec::new(),
            left: 0,
            limit,
        }
    }

    /// What to poll for.
    pub(super) fn wants(&self) -> PollFlags {
        if self.left < self.outgoing.len() {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        }
    }

    /// Sends a frame, as soon as the other side takes it.
    pub(super) fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        if self.outgoing.len() - self.left + frame.len() > self.limit {
            return Err(io::Error::other("the other side takes nothing"));
        }
        self.outgoing.extend_from_slice(frame);
        self.flush()
    }

    /// Sends what the other side takes now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while self.left < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.left..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.left += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.outgoing.clear();
        self.left = 0;
        Ok(())
    }

    /// Reads what has come, and hands over each frame that is whole. What came before an end counts.
    pub(super) fn read(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut bytes = [0; READ_BYTES];
        for _ in 0..READS {
            let read = match self.stream.read(&mut bytes) {
                Ok(0) => return Err("it was closed".to_owned()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            };
            self.frames.push(&bytes[..read]);
            while let Some(frame) = self.frames.next().map_err(|error| error.to_string())? {
                each(frame)?;
            }
        }
        Ok(())
    }
}
