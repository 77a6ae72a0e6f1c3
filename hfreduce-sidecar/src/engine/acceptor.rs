//! The socket of local processes, and connections to it that have not attached yet.

use std::collections::BTreeMap;
use std::time::Duration;

use hfreduce_client::attach::{AttachChannel, ClientMessage, Listener};
use tracing::{debug, warn};

use super::poller::Poller;
use super::{KIND, LISTENER, PENDING};
use crate::limits::PENDING_PROCESSES;

/// How long nobody is let in after one could not be: descriptors may come back.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Acceptor {
    listener: Listener,
    /// Until when nobody is accepted.
    shut_until: Option<Duration>,
    pending: BTreeMap<u64, AttachChannel>,
    next: u64,
}

impl Acceptor {
    pub(super) fn new(listener: Listener, poller: &Poller) -> rustix::io::Result<Self> {
        poller.watch(&listener, LISTENER)?;
        Ok(Self {
            listener,
            shut_until: None,
            pending: BTreeMap::new(),
            next: 0,
        })
    }

    pub(super) fn accept(&mut self, now: Duration, poller: &Poller) {
        match self.listener.accept() {
            Ok(None) => {}
            Ok(Some(_)) if self.pending.len() >= PENDING_PROCESSES => {
                warn!("too many local connections that do not attach");
            }
            Ok(Some(channel)) => {
                let number = self.next;
                self.next = (number + 1) & !KIND;
                if poller.watch(&channel, PENDING | number).is_ok() {
                    self.pending.insert(number, channel);
                }
            }
            Err(error) => {
                // A connection that waits would wake the engine for nothing, without end.
                warn!(%error, "failed to accept a local process, which has to wait");
                poller.forget(&self.listener);
                self.shut_until = Some(now + ACCEPT_PAUSE);
            }
        }
    }

    /// Lets processes in again, some time after one could not be.
    pub(super) fn reopen(&mut self, now: Duration, poller: &Poller) {
        if self.shut_until.is_some_and(|until| now >= until)
            && poller.watch(&self.listener, LISTENER).is_ok()
        {
            self.shut_until = None;
        }
    }

    /// The first message of a connection, which is the caller's from here on.
    pub(super) fn receive(
        &mut self,
        number: u64,
        poller: &Poller,
    ) -> Option<(AttachChannel, ClientMessage)> {
        let message = match self.pending.get(&number)?.receive::<ClientMessage>() {
            Ok(message) => message?,
            Err(error) => {
                debug!(%error, "a local connection ended before it attached");
                self.pending.remove(&number);
                return None;
            }
        };
        let channel = self.pending.remove(&number)?;
        poller.forget(&channel);
        Some((channel, message))
    }
}
