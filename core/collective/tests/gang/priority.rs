//! What is urgent goes first: nodes that compute one chunk at a time, with groups of different priorities.

use std::collections::BTreeMap;

use collective::machine::{Effect, Frame, GroupId};
use sim::explore;

use crate::groups::{any_world, check};
use crate::world::World;

/// Enough that chunks overtake others several thousand times.
const RUNS: u64 = 500;

/// What a node was asked for, as far as its turn goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Sends(GroupId),
    Computes(GroupId),
    /// Something else, for a group or for the node: what was asked for after it may rely on it.
    Says(Option<GroupId>),
}

/// What each node was asked for and has not begun, as the test knows it, in the order in which it was asked.
#[derive(Debug, Default)]
pub(crate) struct Urgency {
    priorities: BTreeMap<GroupId, i8>,
    waiting: BTreeMap<usize, Vec<Asked>>,
    /// Payloads and computations that went before others that had been asked for earlier.
    sent_early: u64,
    computed_early: u64,
}

impl Urgency {
    fn priority(&self, group: GroupId) -> i8 {
        self.priorities.get(&group).copied().unwrap_or(0)
    }

    fn asked(&mut self, node: usize, effect: &Effect) {
        self.waiting.entry(node).or_default().extend(what(effect));
    }

    /// A node begins with this: nothing more urgent of the same kind waits that could go first.
    fn begins(&mut self, node: usize, effect: &Effect) {
        let Some(begun) = what(effect) else {
            return;
        };
        let mut waiting = self.waiting.remove(&node).unwrap_or_default();
        let at = waiting.iter().position(|one| *one == begun).unwrap();
        for (other_at, other) in waiting.iter().enumerate() {
            let early = u64::from(other_at < at);
            if let (Asked::Computes(own), Asked::Computes(other)) = (begun, *other) {
                assert!(self.priority(other) <= self.priority(own), "{begun:?}");
                self.computed_early += early;
            } else if let (Asked::Sends(own), Asked::Sends(other)) = (begun, *other) {
                let holds = |one: &Asked| match *one {
                    Asked::Says(group) => group.is_none_or(|group| group == other),
                    Asked::Sends(_) | Asked::Computes(_) => false,
                };
                let is_held = waiting[..other_at].iter().any(holds);
                assert!(
                    self.priority(other) <= self.priority(own) || is_held,
                    "node {node}: {begun:?} before {other}"
                );
                self.sent_early += early;
            }
        }
        waiting.remove(at);
        self.waiting.insert(node, waiting);
    }
}

fn what(effect: &Effect) -> Option<Asked> {
    if let Effect::Reduce { destination, .. } | Effect::Copy { destination, .. } = effect {
        return Some(Asked::Computes(destination.buffer.group()));
    }
    if let Effect::Send { frame, payload, .. } = effect {
        if let Some((_, region)) = payload {
            return Some(Asked::Sends(region.buffer.group()));
        }
        return (*frame != Frame::Heartbeat).then(|| Asked::Says(frame.group()));
    }
    Some(Asked::Says(effect.group()))
}

impl World {
    /// A machine asks its node for something.
    pub(crate) fn ask(&mut self, node: usize, effect: Effect) {
        match &mut self.urgency {
            Some(urgency) => {
                urgency.asked(node, &effect);
                self.sidecars[node].agenda.push(effect);
            }
            None => self.carry_out(node, effect),
        }
    }

    /// Goes on with what a node has to do, unless it computes.
    pub(crate) fn begin_next_effects(&mut self, node: usize) {
        while !self.sidecars[node].computes
            && let Some(effect) = self.sidecars[node].agenda.pop()
        {
            if let Some(urgency) = &mut self.urgency {
                urgency.begins(node, &effect);
            }
            self.sidecars[node].computes = matches!(what(&effect), Some(Asked::Computes(_)));
            self.carry_out(node, effect);
        }
    }
}

#[test]
fn what_is_more_urgent_goes_first_whenever_both_are_ready() {
    let (mut runs, mut sent, mut computed) = (0, 0, 0);
    explore(RUNS, &[], |rng| {
        runs += 1;
        let mut world = any_world(rng);
        let groups: Vec<GroupId> = world.groups.keys().copied().collect();
        let mut urgency = Urgency::default();
        for group in groups {
            let priority = rng.range(0..5) as i8 - 2;
            urgency.priorities.insert(group, priority);
            for sidecar in &mut world.sidecars {
                sidecar.agenda.prefer(group, priority);
            }
        }
        world.urgency = Some(urgency);
        world.start();
        world.run(World::all_ended);
        check(&world);
        let urgency = world.urgency.take().unwrap();
        sent += urgency.sent_early;
        computed += urgency.computed_early;
    });
    // Unless one seed is run again.
    if runs >= RUNS {
        let shown = sent > RUNS && computed > RUNS;
        assert!(shown, "{sent} sent and {computed} computed early");
    }
}
