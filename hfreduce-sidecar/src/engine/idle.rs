//! When the engine sleeps, how deeply, and whom it notifies before. Where it sleeps is `poller`'s.

use std::thread;
use std::time::Duration;

use link::event_count::WakeFor;
use link::spin::Look;
use rustix::event::epoll;

use super::{Engine, Error};

impl Engine {
    /// Sleeps on words from here on, if there is no link whose socket would have to wake it.
    pub(super) fn choose_wait(&mut self) -> Result<(), Error> {
        if self.links.is_empty() {
            self.poller.use_words().map_err(Error::Poll)?;
        }
        Ok(())
    }

    /// Looks at the descriptors, and sleeps before if there is nothing to do: not while there is work, and not
    /// before looking around for a moment after there was, since more may follow soon.
    pub(super) fn rest(
        &mut self,
        busy: bool,
        events: &mut Vec<epoll::Event>,
    ) -> rustix::io::Result<()> {
        // What has ended may let a call go on.
        let has_calls = || self.local.waiting().any(|(_, calls, _)| calls > 0);
        if self.has_effects() || busy && has_calls() {
            return self.poller.look(events);
        }
        // What workers do takes longer than a look.
        if busy
            && !self.workers.have_work()
            && let Some(look) = self.spin.begin()
        {
            let has_come = self.look_around(&look, events)?;
            self.spin.end(&look, has_come);
            if has_come {
                return Ok(());
            }
        }
        let slept = if self.prepare_wait() {
            let until = self.driver.machine().wake_at().saturating_sub(self.now());
            let limit = Duration::from_millis(if self.control.is_ending() { 10 } else { 1000 });
            let limit = until.min(limit);
            let workers = self.workers.event_count();
            self.poller
                .sleep(workers, self.local.wait_slots(), events, limit)
        } else {
            self.poller.look(events)
        };
        self.local.awake();
        self.workers.event_count().cancel_wait();
        slept
    }

    /// Looks for a moment whether something comes. Says whether it has.
    fn look_around(
        &mut self,
        look: &Look,
        events: &mut Vec<epoll::Event>,
    ) -> rustix::io::Result<bool> {
        loop {
            self.poller.look(events)?;
            if !events.is_empty() || self.local.have_entries() || self.links.poll_received() {
                return Ok(true);
            }
            if look.is_over() {
                return Ok(false);
            }
            thread::yield_now();
        }
    }

    /// Announces to everybody who may wake the engine that it is about to sleep, and where. False when something has arrived.
    fn prepare_wait(&mut self) -> bool {
        let (how, depth) = (self.poller.how(), self.depth());
        if !self.workers.sleep(how) {
            return false;
        }
        match self.local.sleep(how, depth) {
            Ok(true) => {}
            Ok(false) => return false,
            Err((rank, error)) => {
                self.lose_session(rank, &error);
                return false;
            }
        }
        match self.links.sleep() {
            Ok(quiet) => quiet,
            Err((peer, error)) => {
                self.lose_link(peer, &error);
                false
            }
        }
    }

    /// Results that come back wake the engine only if something waits for them: that spares a small operation
    /// half of its awakenings.
    fn depth(&self) -> WakeFor {
        let waits =
            self.control.is_ending() || self.local.waiting().any(|(.., for_memory)| for_memory);
        if waits {
            WakeFor::Anything
        } else {
            WakeFor::Urgent
        }
    }
}
