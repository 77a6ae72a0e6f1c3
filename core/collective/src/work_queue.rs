//! In which order a node carries out what its machine asks for: what is said goes before what is computed, since others
//! wait for it; and of what is computed, and of the payloads that are sent, those of groups of a higher priority go
//! first. Within a group all stays in the order in which it was asked for.
//!
//! A machine has few chunks of each group out at a time, as many as its edges have slots. So what is urgent overtakes an
//! operation that is under way, and waits for one chunk of it on each node, and for what a link holds already.
//!
//! Slots are each group's own, so what is urgent never waits for those of others. But while as many of its chunks as it has
//! slots are on their way a node has nothing of it to compute, and goes on with others: with the few slots of the default
//! the two share a node about evenly, with 16 hardly. Less urgent groups are not held back for that. To start fewer of their
//! chunks would leave every order as it is, since each group has its own; but an urgent operation may wait for a rank that
//! calls it late, or only after a less urgent one has ended, so they would have to go on slowly, for as long as that takes.
//! More slots for urgent groups would need a priority that all ranks agree on, as both ends of an edge count the same slots;
//! each rank has its own here.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use crate::machine::{Effect, Frame, GroupId};

/// What is to be carried out. At most what a machine has out at a time.
#[derive(Debug, Default)]
pub struct WorkQueue {
    said: VecDeque<Effect>,
    computed: BTreeMap<(Reverse<i8>, u64), Effect>,
    pushed: u64,
    /// Of groups that have another than the world, 0.
    priorities: BTreeMap<GroupId, i8>,
}

impl WorkQueue {
    /// What is asked for a group from here on has this priority.
    pub fn prefer(&mut self, group: GroupId, priority: i8) {
        self.priorities.insert(group, priority);
    }

    /// The group is over.
    pub fn forget(&mut self, group: GroupId) {
        self.priorities.remove(&group);
    }

    /// The machine asks for this, after everything that it has asked for before.
    pub fn push(&mut self, effect: Effect) {
        if let Effect::Reduce { destination, .. } | Effect::Copy { destination, .. } = &effect {
            let priority = self.priority(destination.buffer.group());
            self.computed
                .insert((Reverse(priority), self.pushed), effect);
            self.pushed += 1;
            return;
        }
        let place = self.overtakes(&effect).unwrap_or(self.said.len());
        self.said.insert(place, effect);
    }

    /// What is to be carried out next.
    pub fn pop(&mut self) -> Option<Effect> {
        let said = self.said.pop_front();
        said.or_else(|| self.computed.pop_first().map(|(_, effect)| effect))
    }

    /// Whether this is computed for a group that is not the most urgent. Whoever has done it looks for what has come before
    /// going on: a chunk that is more urgent may wait there.
    #[must_use]
    pub fn yields(&self, effect: &Effect) -> bool {
        let computes = matches!(effect, Effect::Reduce { .. } | Effect::Copy { .. });
        let priority = effect.group().map_or(0, |group| self.priority(group));
        let mut others = self.priorities.values();
        computes && (priority < 0 || others.any(|other| *other > priority))
    }

    /// Whether there is nothing to say.
    #[must_use]
    pub fn has_said_all(&self) -> bool {
        self.said.is_empty()
    }

    /// How much there is to say.
    #[must_use]
    pub fn unsaid(&self) -> usize {
        self.said.len()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.said.is_empty() && self.computed.is_empty()
    }

    fn priority(&self, group: GroupId) -> i8 {
        self.priorities.get(&group).copied().unwrap_or(0)
    }

    /// The place of the first payload that one goes before: of a less urgent group, and behind everything that was asked
    /// for its own group or for the node. What that says holds for what follows it.
    fn overtakes(&self, effect: &Effect) -> Option<usize> {
        let urgency = self.urgency(effect)?;
        let stays = |other: &Effect| match other.group() {
            None => !is_heartbeat(other),
            group => group == effect.group(),
        };
        let behind = self.said.iter().rposition(stays);
        let from = behind.map_or(0, |behind| behind + 1);
        let is_passed = |other| self.urgency(other).is_some_and(|other| other < urgency);
        Some(from + self.said.range(from..).position(is_passed)?)
    }

    /// The priority of a payload that is sent.
    fn urgency(&self, effect: &Effect) -> Option<i8> {
        let sends = matches!(
            effect,
            Effect::Send {
                payload: Some(_),
                ..
            }
        );
        effect
            .group()
            .filter(|_| sends)
            .map(|group| self.priority(group))
    }
}

/// Whether it says no more than that this node lives.
const fn is_heartbeat(effect: &Effect) -> bool {
    matches!(
        effect,
        Effect::Send {
            frame: Frame::Heartbeat,
            ..
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Buffer, Region, Ticket, WORLD};

    fn region(group: GroupId) -> Region {
        Region {
            buffer: Buffer::Result { group, op: 0 },
            offset: 0,
            bytes: 1,
        }
    }

    fn copy(group: GroupId, ticket: u64) -> Effect {
        Effect::Copy {
            ticket: Ticket(ticket),
            source: region(group),
            destination: region(group),
        }
    }

    /// A frame of a group, with a payload or without.
    fn send(group: GroupId, slot: u8, loaded: bool) -> Effect {
        Effect::Send {
            peer: 0,
            frame: Frame::Credit {
                group,
                tree: 0,
                slot,
            },
            payload: loaded.then(|| (Ticket(u64::from(slot)), region(group))),
        }
    }

    /// Groups 7 and 8 are more and less urgent than the world and group 9.
    fn agenda() -> WorkQueue {
        let mut agenda = WorkQueue::default();
        agenda.prefer(7, 1);
        agenda.prefer(8, -1);
        agenda
    }

    fn all(agenda: &mut WorkQueue) -> Vec<Effect> {
        std::iter::from_fn(|| agenda.pop()).collect()
    }

    #[test]
    fn what_is_urgent_is_computed_first_and_the_rest_in_its_order() {
        let mut agenda = agenda();
        for (ticket, group) in (0..).zip([8, WORLD, 7, 8, 9, 7, WORLD]) {
            agenda.push(copy(group, ticket));
        }
        let order = [
            (7, 2),
            (7, 5),
            (WORLD, 1),
            (9, 4),
            (WORLD, 6),
            (8, 0),
            (8, 3),
        ];
        assert_eq!(
            all(&mut agenda),
            order.map(|(group, ticket)| copy(group, ticket))
        );
        agenda.forget(7);
        agenda.push(copy(WORLD, 0));
        agenda.push(copy(7, 1));
        assert_eq!(agenda.pop(), Some(copy(WORLD, 0)));
    }

    #[test]
    fn who_computes_for_a_group_that_is_not_the_most_urgent_looks_around_after_each_chunk() {
        let agenda = agenda();
        assert!(agenda.yields(&copy(8, 0)) && agenda.yields(&copy(WORLD, 0)));
        assert!(!agenda.yields(&copy(7, 0)));
        assert!(!agenda.yields(&send(WORLD, 0, true)));
        assert!(!WorkQueue::default().yields(&copy(WORLD, 0)));
    }

    #[test]
    fn a_payload_overtakes_those_of_less_urgent_groups_but_nothing_of_its_own_or_of_the_node() {
        let mut agenda = agenda();
        let connect = Effect::Connect { peer: 3 };
        let heartbeat = Effect::Send {
            peer: 0,
            frame: Frame::Heartbeat,
            payload: None,
        };
        let [low, mid, high] = [8, WORLD, 7].map(|group| move |slot| send(group, slot, true));
        let said = |group, slot| send(group, slot, false);
        for effect in [
            copy(7, 9),
            low(0),
            connect.clone(),
            low(1),
            said(WORLD, 2),
            heartbeat.clone(),
            mid(3),
            said(7, 4),
            low(5),
            high(6),
            high(7),
            mid(8),
        ] {
            agenda.push(effect);
        }
        assert!(!agenda.has_said_all());
        let order = [
            low(0),
            connect,
            low(1),
            said(WORLD, 2),
            heartbeat,
            mid(3),
            said(7, 4),
            high(6),
            high(7),
            mid(8),
            low(5),
            copy(7, 9),
        ];
        assert_eq!(all(&mut agenda), order);
        assert!(agenda.is_empty());
        agenda.push(low(0));
        agenda.push(said(WORLD, 1));
        agenda.push(high(2));
        assert_eq!(all(&mut agenda), [high(2), low(0), said(WORLD, 1)]);
    }
}
