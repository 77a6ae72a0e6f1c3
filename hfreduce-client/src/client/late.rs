//! Whom an operation waits for: the sidecar knows, and an error that time was up says it.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::{CallTicket, Client, Error};
use crate::attach::{self, ClientMessage};

const REQUEST: &str = "learn whom an operation waits for";

impl Client {
    /// Whom the oldest operation in flight waits for, of the group of this one that this process has called: in words, or
    /// nothing where it waits for nobody.
    pub fn waits_for(&self, ticket: CallTicket, timeout: Duration) -> Result<String, Error> {
        let shared = &self.shared;
        let _turn = shared.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let start = Instant::now();
        let mut state = shared.lock()?;
        let Some(group) = state.group_of(ticket.0)? else {
            return Ok(String::new());
        };
        state.whom = None;
        match state
            .link()
            .channel
            .send(&ClientMessage::Whom { group }, &[])
        {
            Ok(()) => {}
            Err(attach::Error::Closed) => return Ok(String::new()),
            Err(error) => return Err(error.into()),
        }
        loop {
            state.receive();
            if let Some(whom) = state.whom.take() {
                return Ok(whom);
            }
            state.alive()?;
            let waited = start.elapsed();
            if waited >= timeout || !state.is_there() {
                let request = REQUEST;
                return Err(Error::NoAnswer { request, waited });
            }
            state = shared.sleep_on_socket(state, timeout - waited);
        }
    }
}
