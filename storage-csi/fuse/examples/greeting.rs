//! The smallest file system on this transport: one file that nobody can change. `greeting FOLDER` makes the folder if need
//! be, mounts there, and serves until somebody unmounts. A scenario runs it in a pod, to see that other pods get the mount.

use std::error::Error;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{env, fs};

use fuse::Errno;
use fuse::answer::{Answer, Attributes, FileKind, NamedInode, Opened};
use fuse::connection::FuseConnection;
use fuse::init::ConnectionOptions;
use fuse::mount::{MountOptions, mount};
use fuse::request::{FileHandle, FileOperation, FileTime, Inode, Request};
use fuse::serve::serve;

const NAME: &[u8] = b"greeting";
const TEXT: &[u8] = b"served by another pod\n";
const FILE: Inode = Inode(2);
/// Nothing changes, so the kernel may keep what it knows.
const VALID: Duration = Duration::from_secs(3600);

fn main() -> Result<(), Box<dyn Error>> {
    let folder = env::args_os().nth(1).map(PathBuf::from);
    let folder = folder.ok_or("say where to mount: greeting FOLDER")?;
    fs::create_dir_all(&folder)?;
    let options = MountOptions {
        read_only: true,
        ..MountOptions::default()
    };
    let device = mount(&folder, &options)?;
    let connection = FuseConnection::establish(device, &ConnectionOptions::default())?;
    serve(
        &Arc::new(connection),
        NonZeroUsize::MIN,
        |request, replier| {
            // Whoever asked may be gone.
            replier.answer(&answer(&request)).ok();
        },
    )?;
    Ok(())
}

fn answer(request: &Request<'_>) -> Answer<'static> {
    let inode = request.inode;
    let operation = request.operation;
    if let FileOperation::Lookup { name } = operation {
        if inode != Inode::ROOT || name.as_bytes() != NAME {
            return Answer::NoName(VALID);
        }
        Answer::Name(NamedInode {
            attributes: attributes(FILE),
            generation: 0,
            name_valid: VALID,
            attributes_valid: VALID,
        })
    } else if let FileOperation::GetAttributes { .. } = operation {
        Answer::Attributes(attributes(inode), VALID)
    } else if let FileOperation::Open { .. } = operation {
        Answer::Opened(Opened::new(FileHandle(inode.0)))
    } else if let FileOperation::Read { offset, size, .. } = operation {
        let rest = usize::try_from(offset).ok().and_then(|at| TEXT.get(at..));
        let rest = rest.unwrap_or_default();
        Answer::Data(rest.get(..size as usize).unwrap_or(rest))
    } else if let FileOperation::Release { .. } | FileOperation::Flush { .. } = operation {
        Answer::Done
    } else {
        Answer::Error(Errno::NOSYS)
    }
}

fn attributes(inode: Inode) -> Attributes {
    let (kind, permissions, size) = if inode == FILE {
        (FileKind::Regular, 0o444, TEXT.len() as u64)
    } else {
        (FileKind::Directory, 0o555, 0)
    };
    Attributes {
        inode,
        kind,
        permissions,
        size,
        blocks: 1,
        block_bytes: 4096,
        links: 1,
        uid: 0,
        gid: 0,
        device: 0,
        atime: FileTime::default(),
        mtime: FileTime::default(),
        ctime: FileTime::default(),
    }
}
