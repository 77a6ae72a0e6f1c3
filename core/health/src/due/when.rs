//! When a node is due, and why: by the runs that it has had. Leaves to the plan which of the due
//! nodes have a run now.

use super::name::hash;
use super::{DueNode, DuePolicy, DueReason, DueRun};
use crate::limits::SUSPECT_SECONDS;
use crate::verdict::Verdict;

/// What says nothing about a node, an Error or a Skipped, is repeated after this part of the
/// interval.
const REPEAT_ONE_IN: i64 = 8;
/// A node is due before its interval is over, by at least and at most these parts of it. The most
/// spreads the nodes of a fleet; at the least a job that pauses once in an interval finds its nodes
/// due then, and not just after.
const LEAST_JITTER_ONE_IN: i64 = 16;
const MOST_JITTER_ONE_IN: i64 = 8;
/// From this part of the interval on a node is validated where that costs a job nothing or little:
/// when it is idle, and when its job ends or pauses. So it is not old when the next job gets it,
/// which may keep it for an interval.
const EARLY_ONE_IN: i64 = 8;

/// When and why a node is due.
pub(super) struct Due {
    pub(super) at: i64,
    pub(super) reason: DueReason,
    /// From when on it is validated where that costs little.
    pub(super) early: i64,
    /// The end of the run that it follows from, or the node's creation.
    pub(super) since: i64,
}

/// When and how the runs ended that count for a policy, the newest first.
pub(super) fn ends(runs: &[&DueRun], policy: &DuePolicy, node: &DueNode) -> Vec<(i64, Verdict)> {
    let counts = |run: &&&DueRun| run.level >= Some(policy.level);
    let end = |run: &&DueRun| Some((run.finished?, run.verdict.unwrap_or(Verdict::Error)));
    let ends = runs.iter().filter(counts).filter_map(end);
    ends.filter(|(end, _)| *end >= node.created).collect()
}

/// Whether a node in quarantine was started anew since the run that brought it there, and no run
/// has said anything of it since. `runs` are the newest first.
fn restarted(node: &DueNode, runs: &[&DueRun]) -> bool {
    let by = node.quarantine.as_ref();
    let reported = |run: &&&DueRun| !run.findings.boot.is_empty();
    let newest = runs.iter().find(reported);
    let elsewhere = |run: &DueRun| run.findings.boot != node.boot;
    let failed = runs.iter().find(|run| Some(&run.name) == by);
    !node.boot.is_empty()
        && failed.is_some_and(|run| elsewhere(run))
        && newest.is_some_and(|run| elsewhere(run))
}

/// How soon after its newest run a node is due again whose newest measured way was slow: after an
/// hour, and then after twice the time between such runs, or as long as it has not been measured.
/// So a way that stays slow with everybody, as with a floor that is too high, does not cost a run an
/// hour for ever.
fn slow_link(runs: &[&DueRun], since: i64) -> Option<i64> {
    let measured = runs
        .iter()
        .filter_map(|run| Some((run, run.link.as_ref()?)));
    let mut slow = measured.take_while(|(_, link)| !link.is_good);
    let (newest, _) = slow.next()?;
    let mut failed = newest.findings.failed.iter();
    // Of a Fail the cause is known.
    if failed.any(|(check, _)| check.is_shared()) {
        return None;
    }
    let at = newest.finished?;
    let before = slow.next().and_then(|(run, _)| run.finished);
    let gap = before.map_or(0, |before| at.saturating_sub(before).saturating_mul(2));
    Some(gap.max(since.saturating_sub(at)).max(SUSPECT_SECONDS))
}

/// When a node without an open run is due. `runs` are the newest first.
pub(super) fn due(
    policy: &DuePolicy,
    node: &DueNode,
    newest: Option<(i64, Verdict)>,
    runs: &[&DueRun],
) -> Due {
    let since = newest.map_or(node.created, |(end, _)| end);
    let (wait, reason) = match newest {
        None if policy.new_nodes => (0, DueReason::New),
        Some((_, verdict)) if !verdict.says_something() => {
            (policy.interval / REPEAT_ONE_IN, DueReason::Interval)
        }
        Some(_) | None => (
            policy.interval - jitter(policy, &node.name),
            DueReason::Interval,
        ),
    };
    let soon = newest.map_or(0, |_| SUSPECT_SECONDS);
    let hurry = match () {
        () if restarted(node, runs) => Some((SUSPECT_SECONDS, DueReason::Restarted)),
        () if policy.suspect_nodes && node.suspect => Some((soon, DueReason::Suspect)),
        () => slow_link(runs, since).map(|wait| (wait, DueReason::SlowLink)),
    };
    let (wait, reason) = match hurry.filter(|(soon, _)| *soon < wait) {
        Some(hurry) => hurry,
        None => (wait, reason),
    };
    let at = since.saturating_add(wait);
    let has_result = newest.is_some_and(|(_, verdict)| verdict.says_something());
    let early = match has_result {
        true => at.min(since.saturating_add(policy.interval / EARLY_ONE_IN)),
        false => at,
    };
    Due {
        at,
        reason,
        early,
        since,
    }
}

/// How long before the end of its interval a node is due: always the same.
pub(super) fn jitter(policy: &DuePolicy, node: &str) -> i64 {
    let (least, most) = (
        policy.interval / LEAST_JITTER_ONE_IN,
        policy.interval / MOST_JITTER_ONE_IN,
    );
    let choices = u64::try_from(most - least).unwrap_or(0) + 1;
    let chosen = hash([policy.uid.as_bytes(), node.as_bytes()]) % choices;
    least.saturating_add_unsigned(chosen)
}
