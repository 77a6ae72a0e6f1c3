//! What is done to one folder: looked at, made, mounted, unmounted, removed. These block, but never
//! on a mount that this process serves: nothing here makes a request of one.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use fuse::mount::Unmount;
use rustix::mount::MountFlags;
use tracing::{info, warn};

use crate::Mounter;
use crate::error::CsiError;

/// Of folders for mounts; what is mounted has its own mode.
const FOLDER_MODE: u32 = 0o750;
/// More mounts than this above each other are nobody's intention.
const STACK_LIMIT: usize = 16;

/// Whether nobody writes through the mount at a folder.
pub(super) fn is_read_only(folder: &Path) -> Result<bool, CsiError> {
    let table = fuse::mount::table()?;
    let entry = table.iter().rfind(|entry| entry.folder == folder);
    Ok(entry.is_some_and(|entry| entry.is_read_only))
}

/// What a folder is to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountedVolume {
    /// Nothing is mounted there.
    Nothing,
    /// The volume is, and this process serves it.
    Live,
    /// Something of ours is that this process does not serve: it is nobody's any more.
    Dead,
}

/// What is at a folder. Anything but the volume or a dead mount is in the way.
pub(super) fn look(
    mounter: &impl Mounter,
    folder: &Path,
    id: &str,
) -> Result<MountedVolume, CsiError> {
    let table = fuse::mount::table()?;
    let Some(entry) = table.iter().rfind(|entry| entry.folder == folder) else {
        return Ok(MountedVolume::Nothing);
    };
    if !entry.is_ours() {
        return Err(CsiError::Foreign {
            folder: folder.to_owned(),
            file_system_type: entry.file_system_type.clone(),
        });
    }
    // A bind mount lives as long as the mount that the mounter made.
    let source = &entry.source;
    let is_served = table.iter().any(|other| {
        other.device == entry.device
            && other.source == *source
            && mounter.is_serving(source, &other.folder)
    });
    if !is_served {
        Ok(MountedVolume::Dead)
    } else if source == id {
        Ok(MountedVolume::Live)
    } else {
        Err(CsiError::OtherVolume {
            folder: folder.to_owned(),
            source_name: source.clone(),
        })
    }
}

/// Makes a folder in one that is there. A link is not followed.
pub(super) fn make(folder: &Path) -> Result<(), CsiError> {
    let failed = |doing| {
        move |source| CsiError::Folder {
            doing,
            folder: folder.to_owned(),
            source,
        }
    };
    match DirBuilder::new().mode(FOLDER_MODE).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let found = fs::symlink_metadata(folder).map_err(failed("look at"))?;
            if found.is_dir() {
                return Ok(());
            }
            let folder = folder.to_owned();
            Err(CsiError::NoFolder { folder })
        }
        made => made.map_err(failed("make")),
    }
}

/// Mounts what is at one folder at another one, too.
pub(super) fn bind(from: &Path, to: &Path, is_read_only: bool) -> Result<(), CsiError> {
    let failed = |doing| {
        move |errno: rustix::io::Errno| CsiError::Folder {
            doing,
            folder: to.to_owned(),
            source: errno.into(),
        }
    };
    rustix::mount::mount_bind(from, to).map_err(failed("mount a volume at"))?;
    if is_read_only && let Err(error) = forbid_writing(to) {
        // It must not stay as it was not wanted; if it does, the next call finds it.
        fuse::mount::unmount(to, Unmount::Detach).ok();
        return Err(error);
    }
    Ok(())
}

/// Makes one bind mount read-only. It fails while files are open for writing.
pub(super) fn forbid_writing(folder: &Path) -> Result<(), CsiError> {
    // All flags of the mount are set anew: these are those of `fuse::mount::mount`.
    let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount_remount(folder, flags, "").map_err(|errno| CsiError::Folder {
        doing: "make read-only the mount at",
        folder: folder.to_owned(),
        source: errno.into(),
    })
}

/// Unmounts a volume, and what is dead. A mount that lives and is used stays, which is an error.
pub(super) fn unmount(mounter: &impl Mounter, folder: &Path, id: &str) -> Result<(), CsiError> {
    for _ in 0..STACK_LIMIT {
        let how = match look(mounter, folder, id)? {
            MountedVolume::Nothing => return Ok(()),
            MountedVolume::Live => Unmount::WhenUnused,
            MountedVolume::Dead => {
                info!(folder = %folder.display(), "detaching a dead mount");
                Unmount::Detach
            }
        };
        fuse::mount::unmount(folder, how)?;
    }
    Err(CsiError::TooDeep {
        folder: folder.to_owned(),
        limit: STACK_LIMIT,
    })
}

/// Removes a folder that is empty and has no mount. Never more than that: what is in it may be
/// somebody's only copy.
pub(super) fn remove(folder: &Path) -> Result<(), CsiError> {
    use io::ErrorKind::{DirectoryNotEmpty, NotADirectory, NotFound, ResourceBusy};
    match fs::remove_dir(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == NotFound => Ok(()),
        Err(error) if [DirectoryNotEmpty, NotADirectory, ResourceBusy].contains(&error.kind()) => {
            warn!(folder = %folder.display(), %error, "left a folder where it is");
            Ok(())
        }
        Err(source) => Err(CsiError::Folder {
            doing: "remove",
            folder: folder.to_owned(),
            source,
        }),
    }
}
