//! The least file system over relays: one file of a fixed size. What the kernel asks goes to a relay as it is.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use fuse::Errno;
use fuse::answer::{Answer, Attributes, FileKind, NamedInode, Opened};
use fuse::connection::FuseConnection;
use fuse::init::ConnectionOptions;
use fuse::mount::{MountOptions, mount};
use fuse::request::{FileHandle, FileOperation, FileTime, Inode, Request};
use fuse::serve::{Replier, serve};

use super::BLOCK_BYTES;
use super::relay::{Frame, FrameKind, connect, send, wait};

/// Its only name.
pub(in crate::storage) const FILE_NAME: &str = "file";
const FILE: Inode = Inode(2);
/// Nothing changes but content.
const VALID: Duration = Duration::from_secs(3600);

#[derive(Debug, clap::Args)]
pub(crate) struct Front {
    /// The folder.
    #[arg(long)]
    at: PathBuf,
    /// The first relay.
    #[arg(long)]
    to: SocketAddr,
    /// Bytes of the file.
    #[arg(long)]
    bytes: u64,
    /// Threads, so requests on their way at a time.
    #[arg(long)]
    threads: NonZeroUsize,
}

/// Until it is unmounted.
pub(super) fn run(front: &Front) -> Result<()> {
    let device = mount(&front.at, &MountOptions::default())?;
    let connection = FuseConnection::establish(device, &ConnectionOptions::default())?;
    let relays = Relays {
        to: front.to,
        idle: Mutex::default(),
    };
    let handle = |request: Request<'_>, replier: Replier| {
        if let Err(error) = relays.handle(front.bytes, &request, replier) {
            eprintln!("front: {error:#}");
        }
    };
    serve(&Arc::new(connection), front.threads, handle).context("failed to serve")
}

/// Connections to the first relay: one for each thread, once all have worked.
struct Relays {
    to: SocketAddr,
    idle: Mutex<Vec<TcpStream>>,
}

impl Relays {
    fn handle(&self, size: u64, request: &Request<'_>, replier: Replier) -> Result<()> {
        if let FileOperation::Write { offset, data, .. } = request.operation {
            let frame = Frame {
                kind: FrameKind::Write,
                length: data.len() as u32,
                offset,
            };
            self.ask(|stream| {
                send(stream, frame, data)?;
                wait(stream)
            })?;
            replier.answer(&Answer::Written(frame.length))?;
        } else if let FileOperation::Read {
            offset,
            size: wanted,
            ..
        } = request.operation
        {
            let frame = Frame {
                kind: FrameKind::Read,
                length: u64::from(wanted).min(size.saturating_sub(offset)) as u32,
                offset,
            };
            let mut bytes = vec![0; frame.length as usize];
            self.ask(|mut stream| {
                send(stream, frame, &[])?;
                stream.read_exact(&mut bytes).context("a relay is gone")
            })?;
            replier.answer(&Answer::Data(&bytes))?;
        } else {
            replier.answer(&answer(size, request.inode, request.operation))?;
        }
        Ok(())
    }

    /// Uses a connection that nobody else uses. One that failed is dropped, and its request answers EIO.
    fn ask(&self, use_it: impl FnOnce(&TcpStream) -> Result<()>) -> Result<()> {
        let idle = || self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let found = idle().pop();
        let stream = match found {
            Some(stream) => stream,
            None => connect(self.to)?,
        };
        use_it(&stream)?;
        idle().push(stream);
        Ok(())
    }
}

fn answer(size: u64, inode: Inode, operation: FileOperation<'_>) -> Answer<'static> {
    if let FileOperation::Lookup { name } = operation {
        if inode != Inode::ROOT || name.as_bytes() != FILE_NAME.as_bytes() {
            return Answer::NoName(VALID);
        }
        Answer::Name(NamedInode {
            attributes: attributes(size, FILE),
            generation: 0,
            name_valid: VALID,
            attributes_valid: VALID,
        })
    } else if let FileOperation::GetAttributes { .. } = operation {
        Answer::Attributes(attributes(size, inode), VALID)
    } else if let FileOperation::Open { .. } = operation {
        Answer::Opened(Opened {
            direct_io: true,
            parallel_direct_writes: true,
            no_flush: true,
            ..Opened::new(FileHandle(inode.0))
        })
    } else if let FileOperation::Release { .. } | FileOperation::Flush { .. } = operation {
        Answer::Done
    } else {
        Answer::Error(Errno::NOSYS)
    }
}

fn attributes(size: u64, inode: Inode) -> Attributes {
    let (kind, permissions, size) = if inode == FILE {
        (FileKind::Regular, 0o666, size)
    } else {
        (FileKind::Directory, 0o777, 0)
    };
    Attributes {
        inode,
        kind,
        permissions,
        size,
        blocks: size.div_ceil(512),
        block_bytes: BLOCK_BYTES as u32,
        links: 1,
        uid: 0,
        gid: 0,
        device: 0,
        atime: FileTime::default(),
        mtime: FileTime::default(),
        ctime: FileTime::default(),
    }
}
