//! Processes that come and go. Every process is lost or leaves alone; what that means for the others is asked of the machine.

use collective::machine::Input;
use tracing::{info, warn};

use super::{Engine, Notice};
use crate::session::{Error, SessionEvent};

impl Engine {
    /// A connection that has not attached says something.
    pub(super) fn greet(&mut self, number: u64) {
        let Some((channel, message)) = self.acceptor.receive(number, &self.poller) else {
            return;
        };
        let admitted = self
            .local
            .admit(channel, &message, &self.poller, self.telemetry.metrics());
        if let Some(rank) = admitted {
            if !self.local.ranks().has_lost_memory() {
                self.send_members(rank);
            }
            self.local.note_returned(rank);
        }
    }

    /// Sends a process the members of this epoch.
    pub(super) fn send_members(&mut self, rank: usize) {
        let epoch = self.driver.config().fence.epoch;
        let sent = self.local.send_members(rank, epoch, self.members.ranks());
        if let Err(error) = sent {
            self.lose_session(rank, &error);
        }
    }

    pub(super) fn read_socket(&mut self, rank: usize) {
        match self.local.read_socket(rank) {
            Ok(SessionEvent::Nothing) => {}
            Ok(SessionEvent::Asks { group }) => {
                let sent = self.local.send_whom(rank, self.waits_for(group, rank));
                if let Err(error) = sent {
                    self.lose_session(rank, &error);
                }
            }
            Ok(SessionEvent::Detached) => {
                // What it wrote before it left counts.
                self.memory.hurry(true);
                self.take_entries(rank);
                self.memory.hurry(false);
                self.depart(rank);
            }
            Err(error) => self.lose_session(rank, &error),
        }
    }

    /// A process leaves in good order. One that never called anything may come again.
    fn depart(&mut self, rank: usize) {
        if self.local.is_attached(rank) {
            info!(local_rank = rank, "process detached");
            // First the record: a sidecar that dies here must not leave one that waits for the process.
            let left = self.local.detach(rank);
            self.close_session(rank);
            self.hand_in(left);
        }
    }

    /// Answers processes whose segments have been made since.
    pub(super) fn answer_requests(&mut self) {
        for (rank, error) in self.local.answer_requests() {
            self.lose_session(rank, &error);
        }
    }

    /// Announces to the processes which segments of results are gone.
    pub(super) fn forget_gone(&mut self) {
        let gone = self.memory.take_gone();
        if !gone.is_empty() {
            for (rank, error) in self.local.forget_segments(&gone) {
                self.lose_session(rank, &error);
            }
        }
    }

    pub(super) fn lose_session(&mut self, rank: usize, error: &Error) {
        if self.local.is_attached(rank) {
            warn!(%error, local_rank = rank, "process lost");
            self.close_session(rank);
            self.local.ranks_mut().lose(rank);
            self.control.notify(Notice::RankLost);
            self.handle(Input::RankLost { rank });
        }
    }

    fn close_session(&mut self, rank: usize) {
        for op in self
            .local
            .close(rank, &self.poller, self.telemetry.metrics())
        {
            self.memory.drop_holder(op);
        }
    }
}
