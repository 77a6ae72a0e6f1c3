//! What a process that comes back says of its groups to a sidecar that knows nothing of them. It may say anything, and what
//! was delivered to it cannot be checked: a lie ends its own attempt.

use collective::machine::GroupId;
use collective::session::Remembered;
use hfreduce_client::attach::{
    GROUPS_IN_PACKET, OPERATION_LIMIT, RANKS_LIMIT, RestoredGroup, SidecarAnswer,
};

use super::{Begin, Error, Ranks, Session};

/// A process that has to report its groups.
#[derive(Debug)]
pub(super) struct Restoring {
    /// How many it has not reported.
    left: u32,
    /// The ranks of the next, as far as it has listed them.
    ranks: Vec<u32>,
}

impl Restoring {
    pub(super) fn of(begin: Begin) -> Self {
        let left = match begin {
            Begin::Afresh => 0,
            Begin::Again { groups, .. } => groups,
        };
        let ranks = Vec::new();
        Self { left, ranks }
    }
}

impl Session {
    /// Whether it has reported all its groups.
    pub fn is_restored(&self) -> bool {
        self.restoring.left == 0
    }

    /// More ranks of the group that it reports next.
    pub(super) fn note_ranks(&mut self, ranks: &[u32]) -> Result<(), String> {
        let listed = &mut self.restoring.ranks;
        let ascend = listed
            .last()
            .into_iter()
            .chain(ranks)
            .is_sorted_by(|one, next| one < next);
        let exist = ranks.last().is_some_and(|last| *last < self.standing.world);
        if !ascend || !exist || ranks.len() > RANKS_LIMIT {
            return Err(format!(
                "the ranks of a group must ascend and be below {}, at most {RANKS_LIMIT} in a message",
                self.standing.world
            ));
        }
        listed.extend(ranks);
        Ok(())
    }

    /// A group of these ranks.
    pub(super) fn note_group(
        &mut self,
        ranks: &mut Ranks,
        said: &RestoredGroup,
    ) -> Result<(), String> {
        let group = Remembered {
            group: said.group,
            ranks: std::mem::take(&mut self.restoring.ranks),
            replicated: said.replicated,
            priority: said.priority,
            delivered: said.delivered,
            closed: said.closed,
            failed: said.failed,
        };
        if said.delivered >= OPERATION_LIMIT {
            return Err(format!(
                "group {:x} cannot have {} operations that are over",
                said.group, said.delivered
            ));
        }
        let remembered = ranks.remember(self.rank(), group);
        remembered.map_err(|error| error.to_string())?;
        self.restoring.left -= 1;
        Ok(())
    }

    /// Sends the process which of its groups it need not remember any more.
    pub(super) fn say_what_is_over(&self, over: &[GroupId]) -> Result<(), Error> {
        for groups in over.chunks(GROUPS_IN_PACKET) {
            let groups = groups.to_vec();
            self.say(&SidecarAnswer::Over { groups }, &[])?;
        }
        Ok(())
    }
}
