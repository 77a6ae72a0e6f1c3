//! Readiness: a process is ready when every gate it waits for is open. Alive is another question,
//! answered by the endpoint itself.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What the process still waits for. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    closed: Arc<Mutex<BTreeSet<&'static str>>>,
}

/// One thing that must hold before the process is ready, for example `first lists`.
#[derive(Debug)]
pub struct Gate {
    readiness: Readiness,
    name: &'static str,
}

impl Readiness {
    /// Adds a gate, closed.
    pub fn gate(&self, name: &'static str) -> Gate {
        self.closed().insert(name);
        Gate {
            readiness: self.clone(),
            name,
        }
    }

    /// The names of the gates that are closed; empty when the process is ready.
    pub fn missing(&self) -> Vec<&'static str> {
        self.closed().iter().copied().collect()
    }

    // The set is whole at every step, so a panic elsewhere does not spoil it.
    fn closed(&self) -> MutexGuard<'_, BTreeSet<&'static str>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gate {
    /// From now on the process no longer waits for this.
    pub fn open(&self) {
        self.readiness.closed().remove(self.name);
    }

    /// From now on the process waits for this again.
    pub fn close(&self) {
        self.readiness.closed().insert(self.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_once_every_gate_is_open_and_not_before() {
        let readiness = Readiness::default();
        let (lists, socket) = (readiness.gate("first lists"), readiness.gate("socket"));
        lists.open();
        assert_eq!(readiness.missing(), ["socket"]);
        socket.open();
        assert!(readiness.missing().is_empty());
        lists.close();
        assert_eq!(readiness.missing(), ["first lists"]);
    }
}
