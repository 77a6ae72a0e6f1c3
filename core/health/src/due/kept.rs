//! Which finished runs of policies stay: those that due times, states and medians derive from.
//! Leaves the runs that people create to their time to live.

use std::collections::BTreeSet;

use super::DueRun;
use crate::check::Level;
use crate::limits::{GONE_SECONDS, MOST_KEPT};
use crate::verdict::Verdict;

/// Until when a run is kept whose node is gone. None: it is open, and will never end well.
pub(super) fn gone_until(run: &DueRun) -> Option<i64> {
    run.finished.map(|end| end.saturating_add(GONE_SECONDS))
}

/// The finished runs of a node that nothing derives from any more. `runs` are those of policies,
/// the newest first, `level` is that of the policy that has the node, `quarantine` the name of the
/// run that brought the node into quarantine.
pub(super) fn superseded<'a>(
    runs: impl Iterator<Item = &'a DueRun>,
    level: Option<Level>,
    quarantine: Option<&str>,
) -> impl Iterator<Item = &'a DueRun> {
    let runs: Vec<_> = runs.filter(|run| run.finished.is_some()).collect();
    let newest = |wanted: &dyn Fn(&DueRun) -> bool| runs.iter().position(|run| wanted(run));
    // Of two runs with a slow way to a partner the older says how long it has been slow, and with
    // whom else.
    let is_slow = |run: &&DueRun| run.link.as_ref().is_some_and(|link| !link.is_good);
    let mut slow = runs.iter().enumerate().filter(|(_, run)| is_slow(run));
    let slow_before = slow.nth(1).map(|(at, _)| at);
    let has_result = |run: &DueRun| run.verdict.is_some_and(Verdict::says_something);
    // What counts most comes first, since all together may be too many: the first says what has to
    // pass before the quarantine ends, the next two when the node is due and whether it failed.
    let newest = [
        newest(&|run| Some(run.name.as_str()) == quarantine),
        newest(&|run| run.level >= level),
        newest(&|run| run.level >= level && has_result(run)),
        newest(&|run| run.verdict == Some(Verdict::Fail)),
        newest(&|run| run.link.is_some()),
        slow_before,
        newest(&|run| run.level == Some(Level::Full)),
        newest(&|run| run.level == Some(Level::Standard)),
        newest(&|run| run.level == Some(Level::Quick)),
    ];
    let mut kept = BTreeSet::new();
    for at in newest.into_iter().flatten() {
        if kept.len() < MOST_KEPT {
            kept.insert(at);
        }
    }
    let runs = runs.into_iter().enumerate();
    runs.filter(move |(at, _)| !kept.contains(at))
        .map(|(_, run)| run)
}
