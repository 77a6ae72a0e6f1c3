//! `launcher pause`: holds the namespaces of a pod, reaps what its containers orphan, and leaves on
//! SIGTERM. It makes one static binary enough for clusters that have no registry to pull from.

use std::process::ExitCode;
use std::sync::mpsc::sync_channel;

use crate::processes;
use crate::report;
use crate::signals::{self, Notice};

/// Waits until it is asked to stop.
pub(crate) fn pause() -> ExitCode {
    let (sender, notices) = sync_channel(1);
    if let Err(error) = signals::listen(sender) {
        return report::print(
            &format!("failed to listen for signals: {error}"),
            ExitCode::FAILURE,
        );
    }
    while let Ok(notice) = notices.recv() {
        match notice {
            Notice::Stop => break,
            Notice::Child => while processes::reap().is_some() {},
            Notice::PassOn(_) => {}
        }
    }
    ExitCode::SUCCESS
}
