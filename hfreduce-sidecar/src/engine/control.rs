//! The commands that the engine receives, the notices that it sends, and how it stops and leaves.

use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use collective::recovery::EpochReport;

use super::WAKE_FD;
use super::epoch::{EngineCommand, Notice};
use super::poller::Poller;
use crate::stop::Stop;

#[derive(Debug)]
pub(super) struct Control {
    commands: Receiver<EngineCommand>,
    notices: Sender<Notice>,
    stop: Stop,
    /// Since when the epoch ends, and what its machine reports.
    stopping: Option<(Instant, EpochReport)>,
    /// Since when the engine leaves.
    leaving: Option<Instant>,
}

impl Control {
    pub(super) fn new(
        commands: Receiver<EngineCommand>,
        notices: Sender<Notice>,
        stop: Stop,
        poller: &Poller,
    ) -> rustix::io::Result<Self> {
        poller.watch(stop.wake_fd(), WAKE_FD)?;
        Ok(Self {
            commands,
            notices,
            stop,
            stopping: None,
            leaving: None,
        })
    }

    pub(super) fn next(&self) -> Option<EngineCommand> {
        self.commands.try_recv().ok()
    }

    pub(super) fn notify(&self, notice: Notice) {
        self.notices.send(notice).ok();
    }

    /// The engine was notified of a command, or of work that is done in the background.
    pub(super) fn clear_wake_fd(&self) {
        self.stop.wake_fd().clear();
    }

    /// The machine has stopped.
    pub(super) fn begin_stop(&mut self, report: EpochReport) {
        self.stopping = Some((Instant::now(), report));
    }

    /// For how long the epoch has been ending, and what its machine reports.
    pub(super) fn stopping(&self) -> Option<(Duration, &EpochReport)> {
        let stopping = self.stopping.as_ref();
        stopping.map(|(since, report)| (since.elapsed(), report))
    }

    /// The epoch has ended.
    pub(super) fn stopped(&mut self) {
        self.stopping = None;
    }

    /// Whether the engine is asked to leave, and was not before.
    pub(super) fn begins_to_leave(&mut self) -> bool {
        let begins = self.leaving.is_none() && self.stop.is_asked();
        if begins {
            self.leaving = Some(Instant::now());
        }
        begins
    }

    /// For how long it has been leaving.
    pub(super) fn leaving(&self) -> Option<Duration> {
        Some(self.leaving?.elapsed())
    }

    /// Whether something ends that must not wait for long.
    pub(super) fn is_ending(&self) -> bool {
        self.stopping.is_some() || self.leaving.is_some()
    }
}
