//! What was delivered to this process in its groups, which nobody else remembers when its sidecar is killed. Of a group that it has
//! closed it knows until the sidecar says that all was delivered to all ranks, because one that was not may need it open.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::OpKind;
use crate::attach::RestoredGroup;
use crate::entry::{CallOutcome, FailureKind, Submission};

/// The group of all ranks.
const WORLD: u64 = 0;

/// A group, as the next sidecar gets it.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) ranks: Arc<[u32]>,
    pub(super) state: RestoredGroup,
}

impl Known {
    fn new(group: u64, ranks: Arc<[u32]>, (replicated, priority): (bool, i8)) -> Self {
        let state = RestoredGroup {
            group,
            replicated,
            priority,
            delivered: 0,
            closed: false,
            failed: false,
        };
        Self { ranks, state }
    }
}

/// The groups of this process.
#[derive(Debug)]
pub(super) struct Groups(BTreeMap<u64, Known>);

impl Default for Groups {
    fn default() -> Self {
        let world = Known::new(WORLD, Arc::default(), (true, 0));
        Self(BTreeMap::from([(WORLD, world)]))
    }
}

impl Groups {
    /// Something has ended. `opens`: the ranks, if it opened a group.
    pub(super) fn ended(
        &mut self,
        submission: &Submission,
        opens: Option<&Arc<[u32]>>,
        outcome: &CallOutcome,
    ) {
        match (*submission, outcome) {
            (
                Submission::Open {
                    group,
                    replicated,
                    priority,
                    ..
                },
                CallOutcome::Done { .. },
            ) => {
                let ranks = opens.cloned().unwrap_or_default();
                let known = Known::new(group, ranks, (replicated, priority));
                self.0.insert(group, known);
            }
            (Submission::Call { group, call, .. }, outcome) if !call.kind.is_between_two() => {
                let Some(Known { state, .. }) = self.0.get_mut(&group) else {
                    return;
                };
                let kind = match outcome {
                    CallOutcome::Done { .. } => None,
                    CallOutcome::Failed { kind, .. } => Some(*kind),
                };
                // Where nothing runs any more, ends say nothing of how far the others are.
                state.failed |= kind == Some(FailureKind::Broken);
                if !state.failed {
                    state.delivered += 1;
                    state.closed = kind.is_none() && call.kind == OpKind::Close;
                }
            }
            (Submission::Open { .. } | Submission::Call { .. } | Submission::Release { .. }, _) => {
            }
        }
    }

    /// Of these all was delivered to all ranks.
    pub(super) fn forget(&mut self, groups: &[u64]) {
        for group in groups {
            // Not one that was opened since under the same number.
            if self.0.get(group).is_some_and(|known| known.state.closed) {
                self.0.remove(group);
            }
        }
    }

    /// The first operation of the world that was not delivered to this process.
    pub(super) fn delivered(&self) -> u64 {
        self.0.get(&WORLD).map_or(0, |world| world.state.delivered)
    }

    /// The other groups.
    pub(super) fn known(&self) -> Vec<Known> {
        self.0
            .range(WORLD + 1..)
            .map(|(_, known)| known.clone())
            .collect()
    }
}
