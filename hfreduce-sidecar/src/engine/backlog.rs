//! What the node has to compute, a chunk at a time: for groups of the highest priority first, within one in the order in
//! which it was asked for. Each group has few chunks here at a time, as many as its edges have slots, so what is urgent
//! overtakes an operation that is under way and waits for one chunk of it at most.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use collective::machine::{Effect, GroupId};

/// Reductions and copies.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    waiting: BTreeMap<(Reverse<i8>, u64), Effect>,
    pushed: u64,
    /// Of groups that have another than the world, 0.
    priorities: BTreeMap<GroupId, i8>,
}

impl Backlog {
    /// What is computed for a group from here on.
    pub(super) fn prefer(&mut self, group: GroupId, priority: i8) {
        self.priorities.insert(group, priority);
    }

    /// The group is over.
    pub(super) fn forget(&mut self, group: GroupId) {
        self.priorities.remove(&group);
    }

    pub(super) fn push(&mut self, group: GroupId, effect: Effect) {
        let priority = self.priorities.get(&group).copied().unwrap_or(0);
        self.waiting
            .insert((Reverse(priority), self.pushed), effect);
        self.pushed += 1;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn pop(&mut self) -> Option<Effect> {
        self.waiting.pop_first().map(|(_, effect)| effect)
    }
}

#[cfg(test)]
mod tests {
    use collective::machine::{Buffer, Region, Ticket, WORLD};

    use super::*;

    fn copy(group: GroupId, ticket: u64) -> Effect {
        let region = Region {
            buffer: Buffer::Result { group, op: 0 },
            offset: 0,
            bytes: 1,
        };
        Effect::Copy {
            ticket: Ticket(ticket),
            source: region,
            destination: region,
        }
    }

    #[test]
    fn what_is_urgent_overtakes_and_the_rest_keeps_its_order() {
        let mut backlog = Backlog::default();
        backlog.prefer(7, 1);
        backlog.prefer(8, -1);
        for (ticket, group) in [8, WORLD, 7, 8, 9, 7, WORLD].into_iter().enumerate() {
            backlog.push(group, copy(group, ticket as u64));
        }
        let next = || {
            let Effect::Copy { ticket, .. } = backlog.pop()? else {
                return None;
            };
            Some(ticket.0)
        };
        let order: Vec<u64> = std::iter::from_fn(next).collect();
        assert_eq!(order, [2, 5, 1, 4, 6, 0, 3]);
        backlog.forget(7);
        backlog.push(WORLD, copy(WORLD, 0));
        backlog.push(7, copy(7, 1));
        assert_eq!(backlog.pop(), Some(copy(WORLD, 0)));
    }
}
