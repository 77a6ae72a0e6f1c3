//! Mounts and unmounts, and tells whether a folder is a mount of ours that lives. Who serves it
//! belongs to `connection`.

mod state;

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use crate::init::WRITE_LIMIT_BYTES;
pub use state::{MountEntry, MountState, state, table};

/// Where the kernel gives connections away.
const DEVICE: &str = "/dev/fuse";
/// What the tables of mounts call ours.
pub const FILE_SYSTEM_TYPE: &str = "fuse.fireflyer";

/// Why a folder could not be mounted, unmounted or looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine has no FUSE.
    #[error(
        "failed to open {DEVICE}: it is not there; load the module fuse, and let the container \
         have the device"
    )]
    NoDevice,
    /// The process may not.
    #[error("failed to open {DEVICE}: not permitted; run as root in a privileged container")]
    DeviceNotPermitted,
    /// The kernel gives no connection.
    #[error("failed to open {DEVICE}")]
    Device(#[source] Errno),
    /// The process may not mount.
    #[error("failed to mount at {folder}: not permitted; CAP_SYS_ADMIN is needed")]
    NotPermitted {
        /// Where.
        folder: PathBuf,
    },
    /// A text cannot be given to the kernel.
    #[error("failed to mount at {folder}: the source {source_name:?} has a NUL")]
    Source {
        /// Where.
        folder: PathBuf,
        /// The text.
        source_name: String,
    },
    /// The kernel does not mount.
    #[error("failed to mount at {folder}")]
    Mount {
        /// Where.
        folder: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// The kernel does not unmount.
    #[error("failed to unmount {folder}")]
    Unmount {
        /// Where.
        folder: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// A program uses it.
    #[error("failed to unmount {folder}: it is in use; end the programs that use it, or detach it")]
    Busy {
        /// Where.
        folder: PathBuf,
    },
    /// The table of mounts cannot be read, or does not say what it should.
    #[error("failed to look for the mount at {folder}: {doing}")]
    State {
        /// Where.
        folder: PathBuf,
        /// What failed.
        doing: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What the tables of mounts name as the source, such as the volume.
    pub source: String,
    /// Users other than the one that mounts may use it.
    pub allow_other: bool,
    /// The kernel checks permissions by owner and mode; else the file system does.
    pub default_permissions: bool,
    /// Nobody writes.
    pub read_only: bool,
    /// The most bytes of a read.
    pub max_read_bytes: u32,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            source: "fireflyer".to_owned(),
            allow_other: true,
            default_permissions: true,
            read_only: false,
            max_read_bytes: WRITE_LIMIT_BYTES,
        }
    }
}

impl MountOptions {
    /// As mount(2) takes them. A folder is what is mounted.
    fn text(&self, device: &OwnedFd) -> String {
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let mut text = format!(
            "fd={},rootmode=40000,user_id={uid},group_id={gid},max_read={}",
            device.as_raw_fd(),
            self.max_read_bytes
        );
        for (is_set, option) in [
            (self.allow_other, ",allow_other"),
            (self.default_permissions, ",default_permissions"),
        ] {
            if is_set {
                text += option;
            }
        }
        text
    }
}

/// Mounts at a folder that exists. Programs that use it wait until the connection of the descriptor
/// is established; dropping the descriptor leaves a dead mount behind. Devices and set-user-id
/// programs on it have no effect.
pub fn mount(folder: &Path, options: &MountOptions) -> Result<OwnedFd, Error> {
    let device = open_device()?;
    let folder_of_error = || folder.to_owned();
    // Numbers and words of ours have no NUL, the caller's source could.
    let Ok(text) = CString::new(options.text(&device)) else {
        return Err(Error::Mount {
            folder: folder_of_error(),
            source: Errno::INVAL,
        });
    };
    let source = CString::new(options.source.as_str()).map_err(|_| Error::Source {
        folder: folder_of_error(),
        source_name: options.source.clone(),
    })?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, options.read_only);
    match rustix::mount::mount(&source, folder, FILE_SYSTEM_TYPE, flags, text.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => Err(Error::NotPermitted {
            folder: folder_of_error(),
        }),
        Err(source) => Err(Error::Mount {
            folder: folder_of_error(),
            source,
        }),
    }
}

fn open_device() -> Result<OwnedFd, Error> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(DEVICE, flags, Mode::empty()) {
        Ok(device) => Ok(device),
        Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => Err(Error::NoDevice),
        Err(Errno::ACCESS | Errno::PERM) => Err(Error::DeviceNotPermitted),
        Err(errno) => Err(Error::Device(errno)),
    }
}

/// How to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Fails with [`Error::Busy`] while a program uses it.
    WhenUnused,
    /// Takes it out of the tree at once, also when it is dead; whoever uses it keeps using it.
    Detach,
}

/// Unmounts what is mounted last at a folder. That nothing is mounted there is no error.
pub fn unmount(folder: &Path, how: Unmount) -> Result<(), Error> {
    let flags = UnmountFlags::NOFOLLOW
        | match how {
            Unmount::WhenUnused => UnmountFlags::empty(),
            Unmount::Detach => UnmountFlags::DETACH,
        };
    let folder_of_error = || folder.to_owned();
    match rustix::mount::unmount(folder, flags) {
        // No folder, or no mount.
        Ok(()) | Err(Errno::NOENT | Errno::INVAL) => Ok(()),
        Err(Errno::BUSY) => Err(Error::Busy {
            folder: folder_of_error(),
        }),
        Err(source) => Err(Error::Unmount {
            folder: folder_of_error(),
            source,
        }),
    }
}
