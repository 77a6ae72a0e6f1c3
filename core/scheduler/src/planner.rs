//! The order of a planning pass: every job advances by itself, then nodes are given away, then what
//! is left over is removed. Jobs whose last plan is still being written keep their place in the
//! queue, but get no new plan.

use crate::absence::doubts;
use crate::assign::assign;
use crate::draft::Draft;
use crate::gang::Wake;
use crate::ledger::Ledger;
use crate::node::States;
use crate::plan::{Action, JobPlan, Plan};
use crate::policy::Policy;
use crate::release::orphans;
use crate::shrink::gone;
use crate::snapshot::{Absent, JobKey, Snapshot};
use crate::time::Timestamp;

/// What to write now. The same arguments give the same plan, whatever the order of the lists.
pub fn plan(snapshot: &Snapshot, policy: &Policy, now: Timestamp) -> Plan {
    plan_with(snapshot, &States::new(snapshot, policy, now), policy, now)
}

/// The same, with the states of the snapshot's nodes at that moment, for those who show them as well.
pub fn plan_with<'a>(
    snapshot: &'a Snapshot,
    states: &'a States<'a>,
    policy: &'a Policy,
    now: Timestamp,
) -> Plan {
    let ledger = Ledger::new(snapshot, states, policy, now);
    let mut wake = Wake::default();
    let mut jobs = Vec::new();
    let mut drafts = Vec::new();
    for (key, view) in ledger.views() {
        if ledger.is_untouchable(key) {
            continue;
        }
        let Some(job) = view.job else {
            if !ledger.is_absent(&Absent::Job(key.clone())) {
                continue;
            }
            push(&mut jobs, &ledger, key, orphans(view, policy));
            continue;
        };
        let mut draft = Draft::new(job, view, policy, now);
        if job.deleting {
            draft.tear_down(&ledger);
            push(&mut jobs, &ledger, key, draft.actions);
        } else {
            draft.advance(&ledger, &mut wake);
            draft.tell_doubt();
            if ledger.gets_nodes(key) {
                draft.want = None;
            }
            drafts.push(draft);
        }
    }
    let dry_runs = match snapshot.is_stale {
        true => Vec::new(),
        false => assign(&mut drafts, &ledger, &mut wake),
    };
    for mut draft in drafts {
        draft.record();
        draft.take_note();
        draft.sweep(&ledger, &mut wake);
        draft.let_go(&ledger, &mut wake);
        let status = &draft.status;
        let promised = status.promised(now).map(|promise| promise.until);
        let crosses = status
            .no_zone_since
            .map(|since| since + policy.crossing_patience);
        let later = [status.retry_at, promised, crosses];
        for when in later.into_iter().flatten().filter(|when| *when > now) {
            wake.at(when);
        }
        push(&mut jobs, &ledger, &draft.job.key, draft.actions);
    }
    if let Some(when) = ledger.trusted_at() {
        wake.at(when);
    }
    if let Some(when) = ledger.states().wake() {
        wake.at(when);
    }
    jobs.sort_by(|a, b| a.job.cmp(&b.job));
    Plan {
        jobs,
        wake_at: wake.get(),
        confirm: doubts(&ledger),
        dry_runs,
        gone: gone(&ledger),
    }
}

fn push(jobs: &mut Vec<JobPlan>, ledger: &Ledger<'_>, job: &JobKey, actions: Vec<Action>) {
    if !actions.is_empty() && !ledger.is_under_way(job) {
        jobs.push(JobPlan {
            job: job.clone(),
            actions,
        });
    }
}
