//! Opening groups of ranks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{CallTicket, Client, Error, Group, place_of};
use crate::Call;
use crate::entry::Submission;

/// A group that was asked for and does not stand yet.
#[derive(Debug)]
pub struct GroupOpening {
    ticket: CallTicket,
    number: u64,
    ranks: Arc<[u32]>,
}

impl Client {
    /// Opens a group of these global ranks, which ascend, and waits until all of them have done so alike. The number
    /// is the same for all of them, and is used once. `replicated`: its ranks do the same work, so that some of them
    /// can go on without others. The last call in it is [`Call::close`].
    pub fn open(
        &self,
        number: u64,
        ranks: &[u32],
        replicated: bool,
        timeout: Duration,
    ) -> Result<Group, Error> {
        self.open_with(number, ranks, replicated, 0, timeout)
    }

    /// The same with a priority: what a node computes and sends for the group goes, chunk by chunk, before what it has for
    /// groups of a lower one. The world's is 0.
    pub fn open_with(
        &self,
        number: u64,
        ranks: &[u32],
        replicated: bool,
        priority: i8,
        timeout: Duration,
    ) -> Result<Group, Error> {
        let start = Instant::now();
        let opening = self.begin_open(number, ranks, (replicated, priority), timeout)?;
        self.finish_open(&opening, timeout.saturating_sub(start.elapsed()))
    }

    /// Asks for a group, which [`Client::finish_open`] waits for. It waits for room only, and after an error nothing was
    /// asked for.
    pub fn begin_open(
        &self,
        number: u64,
        ranks: &[u32],
        (replicated, priority): (bool, i8),
        timeout: Duration,
    ) -> Result<GroupOpening, Error> {
        let start = Instant::now();
        let mut list = self.buffer(size_of_val(ranks), timeout)?;
        for (bytes, rank) in list.as_chunks_mut().0.iter_mut().zip(ranks) {
            *bytes = rank.to_ne_bytes();
        }
        let input = place_of(Some(&list));
        let submission = |ticket| Submission::Open {
            ticket,
            group: number,
            ranks: ranks.len() as u32,
            replicated,
            priority,
            input,
        };
        let ranks: Arc<[u32]> = ranks.into();
        let opens = Some(Arc::clone(&ranks));
        let left = timeout.saturating_sub(start.elapsed());
        let ticket = self.ask(Call::barrier(), submission, &mut Some(list), opens, left)?;
        Ok(GroupOpening {
            ticket,
            number,
            ranks,
        })
    }

    /// Waits until all ranks have asked for the group alike. After [`Error::GroupTimeout`] it may be waited for again.
    pub fn finish_open(&self, opening: &GroupOpening, timeout: Duration) -> Result<Group, Error> {
        let GroupOpening {
            ticket,
            number,
            ref ranks,
        } = *opening;
        let said = |error| match error {
            Error::Operation { kind, text, .. } => Error::Group {
                ranks: ranks.len(),
                kind,
                text,
            },
            Error::Timeout { waited, .. } => Error::GroupTimeout {
                ranks: ranks.len(),
                waited,
            },
            other @ (Error::Socket(_)
            | Error::Segment(_)
            | Error::Refused { .. }
            | Error::Unexpected { .. }
            | Error::Group { .. }
            | Error::GroupTimeout { .. }
            | Error::SidecarLost { .. }
            | Error::Busy { .. }
            | Error::NoAnswer { .. }
            | Error::Input { .. }
            | Error::UnknownTicket(_)
            | Error::Gpu(_)
            | Error::Forked { .. }) => other,
        };
        self.wait(ticket, timeout).map_err(said)?;
        self.shared.lock()?.receive(); // Before the answer came which groups are over.
        let own = self.shared.standing.rank;
        Ok(Group {
            number,
            rank: ranks.iter().take_while(|rank| **rank < own).count() as u32,
            size: ranks.len() as u32,
        })
    }
}
