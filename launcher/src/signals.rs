//! Turns signals into messages on a channel. The first process of a container ignores every signal
//! it has no handler for, so each one that matters is named here.

use std::io;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread;

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// A signal that the launcher acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// SIGTERM or SIGINT.
    Stop,
    /// SIGCHLD: somebody ended.
    Child,
    /// Any other: the ranks' business.
    PassOn(i32),
}

/// Sends a notice for each signal from now on. When the channel is full the notice is dropped:
/// signals coalesce anyway, and the receiver looks at every child on each of its turns.
pub(crate) fn listen(notices: SyncSender<Notice>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGCHLD, SIGHUP, SIGUSR1, SIGUSR2])?;
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let sent = match signal {
                    // A stop must not be lost, so this one may wait for room.
                    SIGTERM | SIGINT => notices.send(Notice::Stop).is_ok(),
                    SIGCHLD => !disconnected(notices.try_send(Notice::Child)),
                    other => !disconnected(notices.try_send(Notice::PassOn(other))),
                };
                if !sent {
                    return;
                }
            }
        })?;
    Ok(())
}

fn disconnected(sent: Result<(), TrySendError<Notice>>) -> bool {
    matches!(sent, Err(TrySendError::Disconnected(_)))
}
