//! Attaching to a sidecar: to the first, or to one that was started in place of another.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use serde::de::DeserializeOwned;

use super::Error;
use super::keep::Belongings;
use super::shared::{Link, sleep_on};
use crate::attach::{self, AttachChannel, ClientMessage, SidecarAnswer, Standing};
use link::ring::{self, COMPLETION_WORDS, Consumer, Producer, SUBMISSION_WORDS};
use link::segment::Segment;
use link::wake_fd::WakeFd;

pub(super) const REQUEST: &str = "attach";

/// What a sidecar gives to a process that it welcomes.
#[derive(Debug)]
pub(super) struct Attachment {
    pub(super) link: Link,
    pub(super) submissions: Producer<SUBMISSION_WORDS>,
    pub(super) completions: Consumer<COMPLETION_WORDS>,
    pub(super) standing: Standing,
    /// How long to look for another when this one is gone.
    pub(super) patience: Duration,
}

/// Attaches to the sidecar that listens at `socket`, if one does. `again`: what this process has to say if it was attached
/// to another before.
pub(super) fn connect(
    socket: &Path,
    local_rank: u32,
    again: Option<&Belongings>,
    timeout: Duration,
) -> Result<Attachment, Error> {
    let channel = ask(socket, local_rank, again)?;
    let answer = receive(&channel, REQUEST, timeout)?;
    attachment(channel, answer)
}

/// Connects and asks to attach; the answer comes over the connection.
pub(super) fn ask(
    socket: &Path,
    local_rank: u32,
    again: Option<&Belongings>,
) -> Result<AttachChannel, Error> {
    let channel = AttachChannel::connect(socket)?;
    let version = attach::VERSION;
    channel.send(
        &ClientMessage::Attach {
            version,
            local_rank,
            again: again.map(|all| all.delivered),
            groups: again.map_or(0, |all| all.groups.len() as u32),
        },
        &[],
    )?;
    Ok(channel)
}

/// What the answer gives.
pub(super) fn attachment(
    channel: AttachChannel,
    (answer, fds): (SidecarAnswer, Vec<OwnedFd>),
) -> Result<Attachment, Error> {
    let unexpected = || Error::Unexpected { request: REQUEST };
    let (control_bytes, standing, patience_seconds) = match answer {
        SidecarAnswer::Attached {
            control_bytes,
            standing,
            patience_seconds,
        } => (control_bytes, standing, patience_seconds),
        SidecarAnswer::Refused { reason } => {
            return Err(Error::Refused {
                request: REQUEST,
                reason,
            });
        }
        SidecarAnswer::Members(_)
        | SidecarAnswer::Taken { .. }
        | SidecarAnswer::Noted
        | SidecarAnswer::Over { .. }
        | SidecarAnswer::Waits { .. }
        | SidecarAnswer::Input { .. }
        | SidecarAnswer::Result { .. }
        | SidecarAnswer::Gone { .. } => return Err(unexpected()),
    };
    let [control, wake_fd] =
        <[_; 2]>::try_from(fds).map_err(|fds| attach::Error::Descriptors(fds.len()))?;
    let bytes = usize::try_from(control_bytes).unwrap_or(usize::MAX);
    let control = Arc::new(Segment::open(control, bytes)?);
    let (submissions, completions) = ring::client_ends(&control).ok_or_else(unexpected)?;
    Ok(Attachment {
        link: Link {
            channel,
            wake_fd: WakeFd::from_fd(wake_fd),
            outcomes: completions.wait_slot(),
        },
        submissions,
        completions,
        standing,
        patience: Duration::from_secs(patience_seconds.into()),
    })
}

/// The next message, when it has come.
pub(super) fn receive<T: DeserializeOwned>(
    channel: &AttachChannel,
    request: &'static str,
    timeout: Duration,
) -> Result<(T, Vec<OwnedFd>), Error> {
    let start = Instant::now();
    loop {
        if let Some(received) = channel.receive_with_fds()? {
            return Ok(received);
        }
        let waited = start.elapsed();
        if waited > timeout {
            return Err(Error::NoAnswer { request, waited });
        }
        sleep_on(&[PollFd::new(channel, PollFlags::IN)], timeout - waited);
    }
}

/// Whether an error says that no sidecar is there, or none any more: another one may come.
pub(super) fn is_absence(error: &Error) -> bool {
    matches!(
        error,
        Error::Socket(
            attach::Error::Socket { .. } | attach::Error::Closed | attach::Error::Exchange(_)
        )
    )
}
