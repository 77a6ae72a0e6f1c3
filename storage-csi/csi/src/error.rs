//! Why a call is refused or fails, what its caller reads, and the status that says whether to call
//! again.

use std::error::Error as _;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;

use tonic::{Code, Response, Status};
use tracing::warn;

use crate::capability::CapabilityError;
use crate::mounter::MountError;
use crate::node::PathError;
use crate::parameters::ParameterError;
use crate::size::SizeError;
use crate::volume_store::{StoreUnavailable, VolumeCapacity, VolumeRecord, WantedVolume};

/// Why a call is refused or fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsiError {
    #[error("{field} is missing")]
    Missing { field: &'static str },
    #[error("the name {name:?} is no volume's; use 1 to 128 bytes without control characters")]
    Name { name: String },
    #[error("{0}")]
    Parameter(#[from] ParameterError),
    #[error("{0}")]
    Capability(#[from] CapabilityError),
    #[error("{0}")]
    Size(#[from] SizeError),
    #[error("{0}")]
    Path(#[from] PathError),
    #[error("{what} are not offered; {instead}")]
    NotOffered {
        what: &'static str,
        instead: &'static str,
    },
    #[error("a new volume cannot have {what}; {instead}")]
    NotEmpty {
        what: &'static str,
        instead: &'static str,
    },
    #[error(
        "a volume named {name:?} exists with {} bytes and {}, and {} bytes with {} were asked \
         for; delete it, or ask for the same",
        there.bytes, there.root, wanted.bytes, wanted.root
    )]
    Exists {
        name: String,
        there: VolumeRecord,
        wanted: WantedVolume,
    },
    #[error(
        "there is no room for {bytes} bytes: {} of {} bytes are left; ask for less, delete \
         volumes, or add storage or overcommit to a StoragePool",
        capacity.left_bytes(), capacity.total_bytes
    )]
    NoRoom {
        bytes: u64,
        capacity: VolumeCapacity,
    },
    #[error("there is no volume {id:?}")]
    NoSuchVolume { id: String },
    #[error("failed to reach the volumes: {}; call again", _0.0)]
    Store(StoreUnavailable),
    #[error("staging_target_path is missing; stage the volume first")]
    NotStaged,
    #[error("volume {id:?} is not mounted at {path:?}")]
    NotMounted { id: String, path: String },
    #[error("failed to use {folder}: {source_name:?} is mounted there; unmount it first")]
    OtherVolume {
        folder: PathBuf,
        source_name: String,
    },
    #[error(
        "failed to use {folder}: a file system of type {file_system_type} is mounted there; \
         unmount it first"
    )]
    Foreign {
        folder: PathBuf,
        file_system_type: String,
    },
    #[error(
        "volume {id:?} at {folder} is {}, and a {} mount was asked for; unmount it first",
        writing(*is_read_only), writing(!is_read_only)
    )]
    Incompatible {
        id: String,
        folder: PathBuf,
        is_read_only: bool,
    },
    #[error(
        "volume {id:?} is at {folder} already and its access mode is SINGLE_NODE_SINGLE_WRITER; \
         end the pod that uses it"
    )]
    SingleWriter { id: String, folder: PathBuf },
    #[error("failed to mount volume {id:?} at {folder}: {why}")]
    Unavailable {
        id: String,
        folder: PathBuf,
        why: String,
    },
    #[error("failed to {doing} volume {id:?} at {folder}: {why}")]
    Mounter {
        doing: &'static str,
        id: String,
        folder: PathBuf,
        why: String,
    },
    #[error("{folder} has more than {limit} mounts above each other; unmount them")]
    TooDeep { folder: PathBuf, limit: usize },
    #[error("{folder} is no folder; remove it")]
    NoFolder { folder: PathBuf },
    #[error("failed to {doing} {folder}")]
    Folder {
        doing: &'static str,
        folder: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Mount(#[from] fuse::mount::Error),
    #[error("another call for volume {id:?} is in progress; call again")]
    InProgress { id: String },
    #[error("{limit} calls are in progress; call again")]
    TooMany { limit: usize },
    #[error("failed to end the call: {0}")]
    Task(#[from] tokio::task::JoinError),
}

fn writing(is_read_only: bool) -> &'static str {
    if is_read_only {
        "read-only"
    } else {
        "writable"
    }
}

impl CsiError {
    /// Of a volume that could not be mounted or unmounted.
    pub(crate) fn of_mounter(
        error: MountError,
        doing: &'static str,
        id: &str,
        folder: PathBuf,
    ) -> Self {
        let id = id.to_owned();
        match error {
            MountError::NoSuchVolume => Self::NoSuchVolume { id },
            MountError::Unavailable(why) => Self::Unavailable { id, folder, why },
            MountError::Failed(why) => Self::Mounter {
                doing,
                id,
                folder,
                why,
            },
        }
    }

    fn code(&self) -> Code {
        match self {
            Self::Missing { .. }
            | Self::Name { .. }
            | Self::Parameter(_)
            | Self::Capability(_)
            | Self::Size(SizeError::Negative { .. })
            | Self::Path(_)
            | Self::NotEmpty { .. } => Code::InvalidArgument,
            Self::Size(SizeError::Empty { .. }) => Code::OutOfRange,
            // What never fits is another matter than what would fit if others were deleted.
            Self::NoRoom { bytes, capacity } if *bytes > capacity.total_bytes => Code::OutOfRange,
            Self::NoRoom { .. } => Code::ResourceExhausted,
            Self::NotOffered { .. } => Code::Unimplemented,
            Self::Exists { .. } | Self::Incompatible { .. } => Code::AlreadyExists,
            Self::NoSuchVolume { .. } | Self::NotMounted { .. } => Code::NotFound,
            Self::NotStaged
            | Self::OtherVolume { .. }
            | Self::Foreign { .. }
            | Self::SingleWriter { .. }
            | Self::TooDeep { .. }
            | Self::NoFolder { .. }
            | Self::Mount(fuse::mount::Error::Busy { .. }) => Code::FailedPrecondition,
            Self::Store(_) | Self::Unavailable { .. } | Self::TooMany { .. } => Code::Unavailable,
            Self::InProgress { .. } => Code::Aborted,
            Self::Mounter { .. } | Self::Folder { .. } | Self::Mount(_) | Self::Task(_) => {
                Code::Internal
            }
        }
    }

    fn text(&self) -> String {
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(error) = source {
            // Writing into a text cannot fail.
            write!(text, ": {error}").ok();
            source = error.source();
        }
        text
    }
}

impl From<CsiError> for Status {
    fn from(error: CsiError) -> Self {
        Self::new(error.code(), error.text())
    }
}

/// The answer of a call. This is where an error is logged.
pub(crate) fn answer<T>(
    call: &'static str,
    result: Result<T, CsiError>,
) -> Result<Response<T>, Status> {
    match result {
        Ok(answer) => Ok(Response::new(answer)),
        Err(error) => {
            let (code, error) = (error.code(), error.text());
            warn!(call, ?code, error, "refused a call");
            Err(Status::new(code, error))
        }
    }
}

/// A field that has to be there.
pub(crate) fn needed<'a>(field: &'static str, value: &'a str) -> Result<&'a str, CsiError> {
    if value.is_empty() {
        return Err(CsiError::Missing { field });
    }
    Ok(value)
}
