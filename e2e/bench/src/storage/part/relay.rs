//! Relays: the least that any chain of replicas does. A block goes on to the next before it is written here, and is answered
//! when both are done. No checksums, no flush, no recovery.

use std::fs::File;
use std::io::{ErrorKind, IoSlice, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::small::{SMALL_BYTES, repeat};
use super::{AlignedBuffer, BLOCK_BYTES, open_direct};

#[derive(Debug, clap::Args)]
pub(crate) struct Relay {
    /// Where it listens.
    #[arg(long)]
    listen: SocketAddr,
    /// The relay behind it.
    #[arg(long)]
    next: Option<SocketAddr>,
    /// Its replica.
    #[arg(long)]
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Hops {
    /// The first relay.
    #[arg(long)]
    to: SocketAddr,
    #[arg(long)]
    count: usize,
}

/// What a relay is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// Bytes follow, for all relays.
    Write,
    /// Bytes are the answer, from the first.
    Read,
    /// Bytes follow, which go over all relays and are written nowhere.
    Hop,
}

const HEADER_BYTES: usize = 16;
/// The answer to what has no bytes.
const DONE: u8 = 1;

/// The beginning of what goes over a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: FrameKind,
    pub(super) length: u32,
    pub(super) offset: u64,
}

impl Frame {
    fn encode(self) -> [u8; HEADER_BYTES] {
        let kind: u32 = match self.kind {
            FrameKind::Write => 1,
            FrameKind::Read => 2,
            FrameKind::Hop => 3,
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..].copy_from_slice(&self.offset.to_le_bytes());
        bytes
    }

    fn decode(bytes: [u8; HEADER_BYTES]) -> Result<Self> {
        let [k0, k1, k2, k3, l0, l1, l2, l3, offset @ ..] = bytes;
        let kind = match u32::from_le_bytes([k0, k1, k2, k3]) {
            1 => FrameKind::Write,
            2 => FrameKind::Read,
            3 => FrameKind::Hop,
            other => bail!("a frame has kind {other}"),
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        ensure!(length as usize <= BLOCK_BYTES, "a frame has {length} bytes");
        let offset = u64::from_le_bytes(offset);
        Ok(Self {
            kind,
            length,
            offset,
        })
    }
}

/// A connection to a relay.
pub(super) fn connect(to: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(to);
    let stream = stream.with_context(|| format!("failed to connect to the relay at {to}"))?;
    stream
        .set_nodelay(true)
        .context("failed to set a socket up")?;
    Ok(stream)
}

/// Sends a frame and its bytes at once.
pub(super) fn send(mut stream: &TcpStream, frame: Frame, bytes: &[u8]) -> Result<()> {
    let header = frame.encode();
    let mut slices = [IoSlice::new(&header), IoSlice::new(bytes)];
    let mut left = &mut slices[..];
    while !left.is_empty() {
        let sent = stream.write_vectored(left);
        match sent.context("failed to send to a relay")? {
            0 => bail!("a relay takes no more"),
            sent => IoSlice::advance_slices(&mut left, sent),
        }
    }
    Ok(())
}

/// Waits for the answer to what has no bytes.
pub(super) fn wait(mut stream: &TcpStream) -> Result<()> {
    let mut answer = [0];
    stream.read_exact(&mut answer).context("a relay is gone")?;
    ensure!(answer == [DONE], "a relay answered {answer:?}");
    Ok(())
}

/// Until it is killed.
pub(super) fn run(relay: &Relay) -> Result<()> {
    let file = Arc::new(open_direct(&relay.file)?);
    let listener = TcpListener::bind(relay.listen);
    let listener = listener.with_context(|| format!("failed to listen on {}", relay.listen))?;
    for stream in listener.incoming() {
        let stream = stream.context("failed to accept a connection")?;
        let (file, next) = (Arc::clone(&file), relay.next);
        thread::spawn(move || {
            if let Err(error) = serve(&stream, &file, next) {
                eprintln!("relay: {error:#}");
            }
        });
    }
    Ok(())
}

fn serve(mut stream: &TcpStream, file: &File, next: Option<SocketAddr>) -> Result<()> {
    stream
        .set_nodelay(true)
        .context("failed to set a socket up")?;
    let next = next.map(connect).transpose()?;
    let mut buffer = AlignedBuffer::new(BLOCK_BYTES);
    loop {
        let mut header = [0; HEADER_BYTES];
        match stream.read_exact(&mut header) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error).context("failed to read a frame"),
        }
        let frame = Frame::decode(header)?;
        let bytes = &mut buffer.bytes()[..frame.length as usize];
        if frame.kind == FrameKind::Read {
            file.read_exact_at(bytes, frame.offset)
                .context("failed to read the replica")?;
            stream.write_all(bytes).context("failed to answer")?;
            continue;
        }
        stream
            .read_exact(bytes)
            .context("failed to read a frame's bytes")?;
        if let Some(next) = &next {
            send(next, frame, bytes)?;
        }
        if frame.kind == FrameKind::Write {
            file.write_all_at(bytes, frame.offset)
                .context("failed to write the replica")?;
        }
        if let Some(next) = &next {
            wait(next)?;
        }
        stream.write_all(&[DONE]).context("failed to answer")?;
    }
}

pub(super) fn hops(hops: &Hops) -> Result<Value> {
    let stream = connect(hops.to)?;
    let bytes = vec![1; SMALL_BYTES];
    let frame = Frame {
        kind: FrameKind::Hop,
        length: SMALL_BYTES as u32,
        offset: 0,
    };
    repeat(hops.count, |_| {
        send(&stream, frame, &bytes)?;
        wait(&stream)
    })
}

#[cfg(test)]
mod tests {
    use super::{BLOCK_BYTES, Frame, FrameKind, HEADER_BYTES};

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let frame = Frame {
            kind: FrameKind::Read,
            length: BLOCK_BYTES as u32,
            offset: 5 << 40,
        };
        assert_eq!(Frame::decode(frame.encode()).unwrap(), frame);
        assert!(Frame::decode([9; HEADER_BYTES]).is_err());
        let length = 1 + BLOCK_BYTES as u32;
        assert!(Frame::decode(Frame { length, ..frame }.encode()).is_err());
    }
}
