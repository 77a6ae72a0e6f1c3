//! Runs that could start and do not: after a while they are withdrawn, so that others have their
//! turn, and their node is tried again later, ever later. All that one leader remembers; a new one
//! begins to count when it sees them.

use std::collections::{BTreeMap, BTreeSet};

use super::{DueNode, DueRun};
use crate::limits::START_SECONDS;

/// Seconds from the first withdrawal from an idle node to its next run. Doubles with each.
const LEAST_PAUSE: i64 = 10 * 60;
/// The longest pause: a fault that lasted for days delays a validation by this much.
const MOST_PAUSE: i64 = 4 * 3600;

/// The record of runs that do not start. It is as large as the nodes and open runs that exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// Since when open runs of policies could have started, by name.
    since: BTreeMap<String, i64>,
    /// By node, until one of its runs starts.
    pauses: BTreeMap<String, Pause>,
}

/// The time in which an idle node has no run, because its last did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pause {
    began: i64,
    length: i64,
}

/// An open run of a policy that is to be deleted, if it has not started since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withdrawal {
    /// The run.
    pub run: String,
    /// Its policy.
    pub policy: String,
    /// Its node.
    pub node: String,
    /// Seconds for which it could have started.
    pub waited: i64,
}

impl Waits {
    /// Notes what does not start, and returns what is to be withdrawn. What people created is
    /// theirs. A run that waits for the job on its node may do so for weeks.
    pub(super) fn withdraw(
        &mut self,
        nodes: &BTreeMap<&str, &DueNode>,
        runs: &[DueRun],
        now: i64,
    ) -> Vec<Withdrawal> {
        self.pauses
            .retain(|node, _| nodes.contains_key(node.as_str()));
        for run in runs {
            let pause = self.pauses.get(&run.node);
            if pause.is_some_and(|pause| run.findings.started >= Some(pause.began)) {
                self.pauses.remove(&run.node);
            }
        }
        let mut seen = BTreeSet::new();
        let mut withdrawn = Vec::new();
        for run in runs {
            let Some(policy) = run.policy.as_ref().filter(|_| run.finished.is_none()) else {
                continue;
            };
            let Some(node) = nodes.get(run.node.as_str()) else {
                continue;
            };
            let waits_for_job = run.is_next && node.job.is_some();
            if run.findings.started.is_some() || waits_for_job {
                continue;
            }
            seen.insert(run.name.as_str());
            let since = *self.since.entry(run.name.clone()).or_insert(now);
            let waited = now.saturating_sub(since);
            if waited >= START_SECONDS {
                withdrawn.push(Withdrawal {
                    run: run.name.clone(),
                    policy: policy.clone(),
                    node: run.node.clone(),
                    waited,
                });
                self.pause(&run.node, now);
            }
        }
        self.since.retain(|run, _| seen.contains(run.as_str()));
        withdrawn.sort_unstable_by(|one, other| one.run.cmp(&other.run));
        withdrawn
    }

    /// When the node, if idle, may have a run again. None: now, as its last one started.
    pub(super) fn again(&self, node: &str) -> Option<i64> {
        let pause = self.pauses.get(node)?;
        Some(pause.began.saturating_add(pause.length))
    }

    /// Begins a pause, unless one lasts: the run is seen until its deletion shows.
    fn pause(&mut self, node: &str, now: i64) {
        if self.again(node).is_some_and(|again| again > now) {
            return;
        }
        let before = self.pauses.get(node);
        let length = before.map_or(LEAST_PAUSE, |before| (2 * before.length).min(MOST_PAUSE));
        let pause = Pause { began: now, length };
        self.pauses.insert(node.to_owned(), pause);
    }
}

#[cfg(test)]
#[path = "waits_tests.rs"]
mod tests;
