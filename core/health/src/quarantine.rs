//! Which nodes are kept from jobs because a validation failed, and which are let back. A node comes
//! out by a run that passes what had failed, never by time, by an error or by what is not seen.
//! Leaves the taint to the operator.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::Check;
use crate::due::{DueNode, DuePolicy, DueRun, by_age, owners};
use crate::verdict::Verdict;

/// How many of a policy's nodes may be in quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuarantineLimits {
    /// Percent of the policy's nodes, though at least one.
    pub percent: u32,
    /// Nodes of a leaf, whoever brought them there.
    pub per_leaf: usize,
}

/// What a run says that counts for quarantine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// When it got its node, in seconds since the epoch. None: it never did.
    pub started: Option<i64>,
    /// The boot of the node that it ran on. Empty: it left no report.
    pub boot: String,
    /// Checks and places with a Fail.
    pub failed: BTreeSet<(Check, String)>,
    /// Checks and places where every result is a Pass.
    pub passed: BTreeSet<(Check, String)>,
    /// Whether its node was seen in quarantine since it failed. Then it brings the node there no
    /// more: if the node is in none now, a person let it out.
    pub answered: bool,
}

impl Findings {
    /// Sorts results, each with its check, device and verdict.
    pub fn sort<'a>(&mut self, results: impl IntoIterator<Item = (Check, &'a str, Verdict)>) {
        let mut doubtful = BTreeSet::new();
        for (check, device, verdict) in results {
            let place = (check, check.place(device).to_owned());
            match verdict {
                Verdict::Pass => self.passed.insert(place),
                Verdict::Fail => self.failed.insert(place.clone()) | doubtful.insert(place),
                Verdict::Skipped | Verdict::Warn | Verdict::Error => doubtful.insert(place),
            };
        }
        self.passed.retain(|place| !doubtful.contains(place));
    }
}

/// A node that comes into quarantine, or out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// The node.
    pub node: String,
    /// The run that brings or brought it there.
    pub run: String,
    /// The boot of the node that this was decided for: on another one it does not hold.
    pub boot: String,
}

/// A policy's nodes in quarantine, once the plan is carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuarantineSummary {
    /// Its nodes in quarantine, whoever brought them there.
    pub quarantined: Vec<String>,
    /// Its nodes that belong there, and for which a limit leaves no room.
    pub held: Vec<String>,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuarantinePlan {
    /// Nodes that come into quarantine.
    pub begin: Vec<Quarantine>,
    /// Nodes that come out of it.
    pub end: Vec<Quarantine>,
    /// Names of failed runs whose node is in quarantine, which is yet to be noted on them.
    pub answered: Vec<String>,
    /// Each policy by its name.
    pub policies: BTreeMap<String, QuarantineSummary>,
}

/// Plans for all policies at once. The lists are complete, and their order does not matter. A
/// policy that only reports brings no node into quarantine; every node may come out.
#[must_use]
pub fn quarantine(policies: &[DuePolicy], nodes: &[DueNode], runs: &[DueRun]) -> QuarantinePlan {
    let by_age = by_age(policies);
    let owners = owners(&by_age);
    let mut by_node: BTreeMap<&str, Vec<&DueRun>> = BTreeMap::new();
    for run in runs {
        by_node.entry(&run.node).or_default().push(run);
    }
    let mut plan = QuarantinePlan::default();
    let summaries = by_age
        .iter()
        .map(|policy| (policy.name.clone(), QuarantineSummary::default()));
    plan.policies.extend(summaries);
    let mut leaves: BTreeMap<&str, usize> = BTreeMap::new();
    let mut candidates = Vec::new();
    for node in nodes {
        let history = History::new(
            node,
            by_node.get(node.name.as_str()).map_or(&[], Vec::as_slice),
        );
        let owner = owners.get(node.name.as_str()).map(|&age| by_age[age]);
        if let Some(by) = &node.quarantine {
            *leaves.entry(&node.leaf).or_default() += 1;
            let summary = owner.and_then(|owner| plan.policies.get_mut(&owner.name));
            if let Some(summary) = summary {
                summary.quarantined.push(node.name.clone());
            }
            plan.answered
                .extend(history.unanswered().map(|run| run.name.clone()));
            if history.may_end(by) {
                plan.end.push(history.quarantine(by));
            }
        } else if let Some(owner) = owner
            && let Some(limits) = owner.quarantine
            && let Some(run) = history.begins()
        {
            candidates.push((
                run.finished,
                node,
                owner,
                limits,
                history.quarantine(&run.name),
            ));
        }
    }
    // For each policy once: walking the nodes for each that failed took seconds in a large cluster.
    let limited = by_age.iter().filter(|_| !candidates.is_empty());
    let most: BTreeMap<&str, usize> = limited
        .filter_map(|policy| Some((policy.name.as_str(), policy.quarantine?.most(policy, nodes))))
        .collect();
    // Those that failed first come first.
    candidates.sort_by_key(|(failed, node, ..)| (*failed, &node.name));
    for (_, node, owner, limits, begin) in candidates {
        let summary = plan.policies.entry(owner.name.clone()).or_default();
        let in_leaf = leaves.entry(&node.leaf).or_default();
        let leaf_has_room = node.leaf.is_empty() || *in_leaf < limits.per_leaf;
        if leaf_has_room && summary.quarantined.len() < most[owner.name.as_str()] {
            *in_leaf += 1;
            summary.quarantined.push(node.name.clone());
            plan.begin.push(begin);
        } else {
            summary.held.push(node.name.clone());
        }
    }
    plan
}

impl QuarantineLimits {
    /// Of a policy's nodes that exist.
    fn most(self, policy: &DuePolicy, nodes: &[DueNode]) -> usize {
        let present = nodes
            .iter()
            .filter(|node| policy.nodes.contains(&node.name));
        let percent = usize::try_from(self.percent).unwrap_or(usize::MAX);
        (present.count().saturating_mul(percent) / 100).max(1)
    }
}

/// The finished runs of a node since it exists.
struct History<'a> {
    node: &'a DueNode,
    runs: Vec<&'a DueRun>,
}

impl<'a> History<'a> {
    fn new(node: &'a DueNode, runs: &[&'a DueRun]) -> Self {
        let of_node = |run: &&&DueRun| run.finished.is_some_and(|end| end >= node.created);
        let mut runs: Vec<_> = runs.iter().filter(of_node).copied().collect();
        runs.sort_by_key(|run| (run.finished, &run.name));
        Self { node, runs }
    }

    fn failed(&self) -> impl Iterator<Item = &'a DueRun> {
        let runs = self.runs.iter().copied();
        runs.filter(|run| run.verdict == Some(Verdict::Fail))
    }

    fn unanswered(&self) -> impl Iterator<Item = &'a DueRun> {
        self.failed().filter(|run| !run.findings.answered)
    }

    /// The run that brings the node into quarantine: the first that failed and is neither answered
    /// nor passed since.
    fn begins(&self) -> Option<&'a DueRun> {
        self.unanswered().find(|run| !self.is_passed(run))
    }

    /// Whether the run that the quarantine names, and all that failed after it, are passed. Of one
    /// that is not there nobody knows what failed.
    fn may_end(&self, by: &str) -> bool {
        let Some(cause) = self.failed().find(|run| run.name == by) else {
            return false;
        };
        let mut since = self.failed().filter(|run| run.finished >= cause.finished);
        since.all(|run| self.is_passed(run))
    }

    /// Whether a run that started later, on the present boot, passes every check that failed.
    fn is_passed(&self, failed: &DueRun) -> bool {
        let places = &failed.findings.failed;
        let passes = |run: &&DueRun| {
            let findings = &run.findings;
            findings.started >= failed.finished
                && !findings.boot.is_empty()
                && findings.boot == self.node.boot
                && places.is_subset(&findings.passed)
        };
        !places.is_empty() && self.runs.iter().any(passes)
    }

    fn quarantine(&self, run: &str) -> Quarantine {
        Quarantine {
            node: self.node.name.clone(),
            run: run.to_owned(),
            boot: self.node.boot.clone(),
        }
    }
}

#[cfg(test)]
#[path = "quarantine_tests.rs"]
mod tests;
