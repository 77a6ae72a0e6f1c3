//! The groups that a process opens.

use collective::machine::{GroupId, WORLD};
use wire::client::NO_SEGMENT;
use wire::entry::{FailureKind, Outcome, Place};

use super::{Error, Lane, Session, Taken};

impl Session {
    /// Notes a group that the process opens, or refuses at once what is no group.
    pub(super) fn open(
        &mut self,
        ticket: u64,
        group: GroupId,
        count: u32,
        (replicated, priority): (bool, i8),
        place: Place,
    ) -> Result<Option<Taken>, Error> {
        let refused = if self.lanes.contains_key(&group) {
            Some(format!("group {group:x} is open already"))
        } else if count == 0 {
            Some("a group of no ranks".to_owned())
        } else if count > self.standing.world {
            Some(format!("{count} ranks are more than there are"))
        } else {
            None
        };
        if let Some(text) = refused {
            self.fail(ticket, FailureKind::Refused, text)?;
            return Ok(Some(Taken::Nothing));
        }
        let read = self.place(&"open", place, Some(count as usize * 4));
        let read = read.and_then(|input| {
            let range = input.offset..input.offset + input.bytes;
            let bytes = input.block.read(range);
            bytes.map_err(|_in_use| "the list of ranks is being written".to_owned())
        });
        let ranks: Vec<u32> = match read {
            Ok(bytes) => {
                let words = bytes.as_chunks().0.iter();
                words.map(|word| u32::from_ne_bytes(*word)).collect()
            }
            Err(text) => {
                self.fail(ticket, FailureKind::Refused, text)?;
                return Ok(Some(Taken::Nothing));
            }
        };
        // Whether it is one of them is for the machine to say, to all of them.
        let rank = ranks.iter().take_while(|rank| **rank < self.standing.rank);
        let rank = rank.count() as u32;
        let lane = Lane {
            opening: Some(ticket),
            replicated,
            priority,
            ..Lane::new(ranks, rank, count)
        };
        self.lanes.insert(group, lane);
        Ok(Some(Taken::Open(group)))
    }

    /// A group that it has opened stands. False when it stood before.
    pub fn opened(&mut self, group: GroupId, epoch: u32) -> Result<bool, Error> {
        let lane = self.lanes.get_mut(&group);
        let Some(ticket) = lane.and_then(|lane| lane.opening.take()) else {
            return Ok(false);
        };
        self.held.insert(ticket, None);
        let outcome = Outcome::Done {
            segment: NO_SEGMENT,
            bytes: 0,
            epoch: epoch.into(),
        };
        self.complete(ticket, outcome)?;
        Ok(true)
    }

    /// A group could not be opened, or not again in a new epoch. All that was called in it fails.
    pub fn fail_open(
        &mut self,
        group: GroupId,
        kind: FailureKind,
        text: &str,
    ) -> Result<(), Error> {
        let Some(lane) = self.lanes.get_mut(&group) else {
            return Ok(());
        };
        if let Some(ticket) = lane.opening {
            self.lanes.remove(&group);
            return self.fail(ticket, kind, text.to_owned());
        }
        lane.dead = Some(text.to_owned());
        for called in std::mem::take(&mut lane.in_flight).into_values() {
            self.fail(called.ticket, kind, text.to_owned())?;
        }
        Ok(())
    }

    /// A group is of no use any more.
    pub fn forget_group(&mut self, group: GroupId) {
        self.lanes
            .retain(|of, lane| *of != group || *of == WORLD || lane.opening.is_some());
    }
}
