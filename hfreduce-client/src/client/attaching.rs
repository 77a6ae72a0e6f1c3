//! Attaching for the first time, in as many steps as the caller likes. Waits for a sidecar to appear, asks it once, and
//! waits for its answer. What the answer means is in `connect`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connect::{self, Attachment};
use super::shared::Shared;
use super::{Client, Error, RETRY, keep};
use crate::attach::{self, AttachChannel};

/// A process that is about to attach.
#[derive(Debug)]
pub struct Attaching {
    socket: PathBuf,
    local_rank: u32,
    /// The connection to a sidecar that was asked and has not answered.
    asked: Option<AttachChannel>,
}

impl Attaching {
    /// As `local_rank`, to the sidecar that listens at `socket`, or will.
    pub fn new(socket: &Path, local_rank: u32) -> Self {
        Self {
            socket: socket.to_owned(),
            local_rank,
            asked: None,
        }
    }

    /// Goes on for so long at most. After an error that [`Error::is_late`] it may go on again.
    pub fn go_on(&mut self, timeout: Duration) -> Result<Client, Error> {
        let start = Instant::now();
        let attachment = loop {
            let left = timeout.saturating_sub(start.elapsed());
            match self.attempt(left) {
                Ok(attachment) => break attachment,
                Err(error) if !connect::is_absence(&error) || left.is_zero() => return Err(error),
                Err(_not_there_yet) => std::thread::sleep(RETRY.min(left)),
            }
        };
        let lasts = !attachment.patience.is_zero();
        let shared = Shared::new(self.socket.clone(), attachment);
        let shared = Arc::new(shared.map_err(attach::Error::Exchange)?);
        if lasts && keep::start(&shared).is_err() {
            // Without the thread the end of the sidecar is the end.
            shared.lock()?.be_impatient();
        }
        Ok(Client { shared })
    }

    /// Asks, unless that was done before, and waits for the answer. A sidecar that is asked twice would take the second
    /// connection for another process.
    fn attempt(&mut self, limit: Duration) -> Result<Attachment, Error> {
        let channel = match self.asked.take() {
            Some(channel) => channel,
            None => connect::ask(&self.socket, self.local_rank, None)?,
        };
        match connect::receive(&channel, connect::REQUEST, limit) {
            Ok(answer) => connect::attachment(channel, answer),
            Err(error) => {
                self.asked = (!connect::is_absence(&error)).then_some(channel);
                Err(error)
            }
        }
    }
}
