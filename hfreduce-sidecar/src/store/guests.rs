//! Connections of members to the first member's store, which come to the data port like those of neighbours. The door
//! hands over who names the epoch with this mark.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wire::bell::Bell;

/// Of the word that names the epoch: the connection is the store's, no link.
pub(crate) const MARK: u64 = 1 << 63;

/// A connection with a member of an epoch, which has proved who it is.
pub(crate) type Arrival = (u64, u32, TcpStream);

/// Who may come.
#[derive(Debug)]
struct Expected {
    epoch: u64,
    ranks: BTreeSet<u32>,
    arrivals: Sender<Arrival>,
    bell: Arc<Bell>,
}

/// Whom the store expects at the door: nobody where this node is not the first member.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guests(Arc<Mutex<Option<Expected>>>);

impl Guests {
    fn expected(&self) -> MutexGuard<'_, Option<Expected>> {
        // It is put in place whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these, in this epoch, and nobody of one before.
    pub(crate) fn expect(
        &self,
        epoch: u64,
        ranks: BTreeSet<u32>,
        arrivals: Sender<Arrival>,
        bell: Arc<Bell>,
    ) {
        *self.expected() = Some(Expected {
            epoch,
            ranks,
            arrivals,
            bell,
        });
    }

    /// Whether this member may come.
    pub(crate) fn expects(&self, rank: u32) -> bool {
        let expected = self.expected();
        expected
            .as_ref()
            .is_some_and(|one| one.ranks.contains(&rank))
    }

    /// Whether it may come in the epoch that this word names. None: the word names one for links.
    pub(crate) fn expects_in(&self, word: u64, rank: u32) -> Option<bool> {
        let epoch = (word & MARK != 0).then_some(word & !MARK)?;
        let expected = self.expected();
        let now = expected.as_ref().is_some_and(|one| one.epoch == epoch);
        drop(expected);
        Some(now && self.expects(rank))
    }

    /// Hands one over that came.
    pub(crate) fn hand(&self, word: u64, rank: u32, stream: TcpStream) {
        if let Some(expected) = &*self.expected() {
            expected.arrivals.send((word & !MARK, rank, stream)).ok();
            expected.bell.ring();
        }
    }
}
