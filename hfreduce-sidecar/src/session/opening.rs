//! The groups that a process opens.

use collective::machine::GroupId;
use hfreduce_client::client::NO_SEGMENT;
use hfreduce_client::entry::{CallOutcome, FailureKind, SegmentRange};

use super::{Error, Ranks, Session, Taken};

impl Session {
    /// Notes a group of so many ranks that the process opens, or refuses at once what is no group.
    pub(super) fn open(
        &mut self,
        ranks: &mut Ranks,
        ticket: u64,
        (group, count): (GroupId, u32),
        how: (bool, i8),
        place: SegmentRange,
    ) -> Result<Option<Taken>, Error> {
        let rank = self.rank();
        let refused = if ranks.lane(group, rank).is_some() {
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
        let members: Vec<u32> = match read {
            Ok(bytes) => {
                let words = bytes.as_chunks().0.iter();
                words.map(|word| u32::from_ne_bytes(*word)).collect()
            }
            Err(text) => {
                self.fail(ticket, FailureKind::Refused, text)?;
                return Ok(Some(Taken::Nothing));
            }
        };
        let open = ranks.open((group, rank), members, how, ticket);
        let open = open.map(|open| Taken::Open(group, open));
        Ok(Some(open.unwrap_or(Taken::Nothing)))
    }

    /// A group that it has opened stands. These are over, and it need not remember them.
    pub fn opened(&mut self, ticket: u64, over: &[GroupId], epoch: u32) -> Result<(), Error> {
        self.held.insert(ticket, None);
        self.say_what_is_over(over)?;
        let outcome = CallOutcome::Done {
            segment: NO_SEGMENT,
            bytes: 0,
            epoch: epoch.into(),
        };
        self.complete(ticket, outcome)
    }
}
