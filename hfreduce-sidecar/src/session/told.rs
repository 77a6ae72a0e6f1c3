//! What a process that comes back says of its groups to a sidecar that knows nothing of them. It may say anything, and what
//! it was told cannot be checked: a lie ends its own attempt.

use collective::machine::{OpId, WORLD};
use wire::attach::{GROUPS_IN_PACKET, OPERATION_LIMIT, RANKS_LIMIT, ToClient, Told};

use super::{Begin, Error, Lane, Session};

/// A process that has to tell of its groups.
#[derive(Debug)]
pub(super) struct Telling {
    /// Of how many it has not told.
    left: u32,
    /// The ranks of the next, as far as it has listed them.
    ranks: Vec<u32>,
}

impl Telling {
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
    /// Whether it has told of all its groups.
    pub fn has_told_all(&self) -> bool {
        self.telling.left == 0
    }

    /// More ranks of the group that it tells of next.
    pub(super) fn note_ranks(&mut self, ranks: &[u32]) -> Result<(), String> {
        let listed = &mut self.telling.ranks;
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
    pub(super) fn note_group(&mut self, said: &Told) -> Result<(), String> {
        let ranks = std::mem::take(&mut self.telling.ranks);
        let group = said.group;
        if group == WORLD || self.lanes.contains_key(&group) {
            return Err(format!(
                "group {group:x} was told of twice, or is that of all ranks"
            ));
        }
        let lane = Lane::of_told(ranks, self.standing.rank, said)?;
        self.lanes.insert(group, lane);
        self.telling.left -= 1;
        Ok(())
    }

    /// Tells the process which of its groups it need not remember any more.
    pub(super) fn say_what_is_over(&mut self) -> Result<(), Error> {
        for groups in std::mem::take(&mut self.over).chunks(GROUPS_IN_PACKET) {
            let groups = groups.to_vec();
            self.say(&ToClient::Over { groups }, &[])?;
        }
        Ok(())
    }
}

impl Lane {
    /// A group of these ranks as one of them tells of it.
    pub(super) fn of_told(ranks: Vec<u32>, own: u32, said: &Told) -> Result<Self, String> {
        let group = said.group;
        let Ok(rank) = ranks.binary_search(&own) else {
            return Err(format!(
                "group {group:x} was told of without its rank {own}"
            ));
        };
        if said.told >= OPERATION_LIMIT || said.closed && (said.told == 0 || said.failed) {
            return Err(format!(
                "group {group:x} cannot have {} operations that are over and be closed: {}",
                said.told, said.closed
            ));
        }
        let (size, first): (u32, OpId) = (ranks.len() as u32, said.told);
        let failed = || "the group could not be opened again in an epoch before".to_owned();
        Ok(Self {
            replicated: said.replicated,
            priority: said.priority,
            told: first,
            next_op: first,
            closed: said.closed.then(|| first - 1),
            dead: said.failed.then(failed),
            ..Self::new(ranks, rank as u32, size)
        })
    }
}
