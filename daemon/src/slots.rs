//! The pool of pending connections, shared by the tasks that serve them: a connection holds a slot
//! and learns when it has to make room for another.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use link::pending::{Pending, PendingTicket};

/// So many slots. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Mutex<Pending<CancellationToken>>>);

/// A slot of one connection, until it is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Slots,
    source: IpAddr,
    ticket: PendingTicket,
    evicted: CancellationToken,
}

impl Slots {
    /// So many, all free.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self(Arc::new(Mutex::new(Pending::new(capacity))))
    }

    /// A slot for a new connection; when none is free, another connection makes room.
    #[must_use]
    pub fn admit(&self, source: IpAddr) -> Slot {
        let evicted = CancellationToken::new();
        let admission = self.pool().admit(source, evicted.clone());
        if let Some(other) = admission.evicted {
            other.cancel();
        }
        Slot {
            slots: self.clone(),
            source,
            ticket: admission.ticket,
            evicted,
        }
    }

    // The pool is whole after every step, so a panic elsewhere does not spoil it.
    fn pool(&self) -> MutexGuard<'_, Pending<CancellationToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Waits until another connection needs this slot.
    pub async fn evicted(&self) {
        self.evicted.cancelled().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.pool().settle(self.source, self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_slot_is_free_again_when_it_is_dropped_and_makes_room_when_none_is() {
        let source = IpAddr::from(Ipv4Addr::LOCALHOST);
        let slots = Slots::new(2);
        let (first, second) = (slots.admit(source), slots.admit(source));
        drop(first);
        let third = slots.admit(source);
        assert!(!second.evicted.is_cancelled());
        let _fourth = slots.admit(source);
        assert!(second.evicted.is_cancelled());
        drop(second);
        assert!(!third.evicted.is_cancelled());
        assert_eq!(slots.pool().len(), 2);
    }
}
