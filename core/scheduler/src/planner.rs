//! The order of a planning pass: every job advances by itself, then nodes are given away, then what
//! is left over is removed. Jobs whose last plan is still being written keep their place in the
//! queue, but get no new plan.

use crate::absence::doubts;
use crate::assign::assign;
use crate::gang::Wake;
use crate::job_planner::JobPlanner;
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

/// The same, with the states of the snapshot's nodes at that moment, for those who show them as
/// well.
pub fn plan_with<'a>(
    snapshot: &'a Snapshot,
    states: &'a States<'a>,
    policy: &'a Policy,
    now: Timestamp,
) -> Plan {
    let ledger = Ledger::new(snapshot, states, policy, now);
    let mut wake = Wake::default();
    let mut jobs = Vec::new();
    let mut planners = Vec::new();
    let mut stalled = Vec::new();
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
        let mut planner = JobPlanner::new(job, view, policy, now);
        if job.deleting {
            planner.tear_down(&ledger);
            push(&mut jobs, &ledger, key, planner.actions);
        } else {
            planner.advance(&ledger, &mut wake);
            planner.report_doubt();
            if ledger.gets_nodes(key) {
                planner.want = None;
            }
            planners.push(planner);
        }
    }
    let dry_runs = match snapshot.is_stale {
        true => Vec::new(),
        false => assign(&mut planners, &ledger, &mut wake),
    };
    for mut planner in planners {
        planner.record();
        planner.take_note();
        stalled.extend(planner.stalled.take());
        planner.sweep(&ledger, &mut wake);
        planner.release_pods(&ledger, &mut wake);
        let status = &planner.status;
        let promised = status.promised(now).map(|promise| promise.until);
        let crosses = status
            .no_zone_since
            .map(|since| since + policy.crossing_patience);
        let later = [status.retry_at, promised, crosses];
        for when in later.into_iter().flatten().filter(|when| *when > now) {
            wake.at(when);
        }
        push(&mut jobs, &ledger, &planner.job.key, planner.actions);
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
        stalled,
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
