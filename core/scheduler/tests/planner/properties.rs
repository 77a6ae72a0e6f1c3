//! What holds for the plan of any snapshot. Snapshots are taken from the middle of simulated lives.

use std::time::Duration;

use proptest::prelude::*;
use scheduler::{
    Action, Attempt, JobKey, Plan, Pod, PodState, Policy, Snapshot, Timestamp, check, plan,
};
use sim::Rng;

use crate::build::nodes;
use crate::crowd;

/// Applies a plan as if nothing else happened meanwhile.
pub(crate) fn apply(snapshot: &mut Snapshot, plan: &Plan, now: Timestamp) {
    // Nothing exists but what the snapshot shows.
    snapshot.absent = plan.confirm.iter().cloned().collect();
    for job_plan in &plan.jobs {
        let key = &job_plan.job;
        for action in &job_plan.actions {
            let Snapshot {
                jobs,
                attempts,
                pods,
                ..
            } = snapshot;
            let job = jobs.iter_mut().find(|job| job.key == *key);
            match action {
                Action::AddFinalizer => job.unwrap().finalizer = true,
                Action::RemoveFinalizer => job.unwrap().finalizer = false,
                Action::Record { status, .. } => job.unwrap().status = (**status).clone(),
                Action::CreateAttempt(new) => attempts.push(Attempt {
                    job: key.clone(),
                    number: new.number,
                    nodes: new.nodes.iter().map(|place| place.node.clone()).collect(),
                    crossing: new.crossing,
                    created: now,
                    seen: now,
                }),
                Action::CreateKey { .. } => {}
                Action::CreatePod {
                    attempt,
                    rank,
                    node,
                    finalizer,
                } => {
                    if pod_of(pods, key, *attempt, *rank).is_none() {
                        let decided = attempts.iter();
                        let mut decided =
                            decided.filter(|one| (&one.job, one.number) == (key, *attempt));
                        pods.push(Pod {
                            crossing: decided.any(|one| one.crossing),
                            job: key.clone(),
                            attempt: *attempt,
                            rank: *rank,
                            node: node.clone(),
                            state: PodState::Unbound,
                            terminal: false,
                            delete_by: None,
                            grace: Duration::ZERO,
                            finalizer: *finalizer,
                            unowned: false,
                            preparation: None,
                            since: now,
                        });
                    }
                }
                Action::DeletePod {
                    attempt,
                    rank,
                    grace,
                } => {
                    if let Some(pod) = pod_of(pods, key, *attempt, *rank) {
                        pod.delete_by = Some(now + *grace);
                    }
                }
                Action::StripPod { attempt, rank } => {
                    if let Some(pod) = pod_of(pods, key, *attempt, *rank) {
                        pod.finalizer = false;
                    }
                }
                Action::DeleteAttempt { attempt } => {
                    attempts.retain(|old| (&old.job, old.number) != (key, *attempt));
                }
                Action::DeleteJob => job.unwrap().deleting = true,
            }
            pods.retain(|pod| !pod.terminal || pod.delete_by.is_none() || pod.finalizer);
        }
        snapshot.jobs.retain(|job| !job.deleting || job.finalizer);
    }
}

fn pod_of<'a>(pods: &'a mut [Pod], job: &JobKey, attempt: u32, rank: u32) -> Option<&'a mut Pod> {
    pods.iter_mut()
        .find(|pod| (&pod.job, pod.attempt, pod.rank) == (job, attempt, rank))
}

/// Planning comes to rest: what a plan frees may start others, then nothing is left to write.
pub(crate) fn converges(snapshot: &Snapshot, policy: &Policy, now: Timestamp) {
    let mut state = snapshot.clone();
    for _ in 0..6 {
        let next = plan(&state, policy, now);
        let asks = next.confirm.iter().any(|one| !state.absent.contains(one));
        if next.is_empty() && !asks {
            return;
        }
        check(&state, policy, now, &next).unwrap_or_else(|violation| panic!("{violation}"));
        apply(&mut state, &next, now);
    }
    panic!("still planning: {:#?}", plan(&state, policy, now));
}

/// A snapshot from the middle of random trouble.
fn snapshot(seed: u64, events: usize) -> (Snapshot, Policy, Timestamp) {
    let mut world = crowd::trouble(&mut Rng::new(seed));
    world.advance(events);
    (world.snapshot(), world.policy.clone(), world.now())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_order_of_the_lists_does_not_matter(seed: u64, events in 0_usize..2000) {
        let (mut one, policy, now) = snapshot(seed, events);
        let expected = plan(&one, &policy, now);
        let mut rng = Rng::new(seed);
        rng.shuffle(&mut one.nodes);
        rng.shuffle(&mut one.jobs);
        rng.shuffle(&mut one.attempts);
        rng.shuffle(&mut one.pods);
        rng.shuffle(&mut one.under_way);
        prop_assert_eq!(plan(&one, &policy, now), expected);
    }

    #[test]
    fn every_plan_passes_its_check_and_comes_to_rest(seed: u64, events in 0_usize..2000) {
        let (one, policy, now) = snapshot(seed, events);
        let first = plan(&one, &policy, now);
        prop_assert_eq!(check(&one, &policy, now, &first), Ok(()));
        converges(&one, &policy, now);
    }

    #[test]
    fn nothing_is_planned_for_the_same_moment_again(seed: u64, events in 0_usize..2000) {
        let (one, policy, now) = snapshot(seed, events);
        let wake = plan(&one, &policy, now).wake_at;
        prop_assert!(wake.is_none_or(|wake| wake > now));
    }

    #[test]
    fn what_is_called_unplaceable_does_not_fit_and_the_rest_does(
        sizes in prop::collection::vec(0_u32..12, 1..4),
        needed in 1_u32..30,
        single: bool,
        limit in 0_u32..2,
    ) {
        let text: Vec<String> =
            sizes.iter().zip("abc".chars()).map(|(size, zone)| format!("{zone}:{size}")).collect();
        let mut job = crate::build::job("train", needed);
        if single {
            job.zone_policy = scheduler::ZonePolicy::Single;
        }
        let all = Snapshot { nodes: nodes(&text.join(" ")), jobs: vec![job], ..Snapshot::default() };
        let policy = Policy { max_cross_zone_jobs: limit, ..Policy::default() };
        let mut sizes = sizes;
        sizes.sort_unstable();
        let largest = sizes.pop().unwrap_or(0);
        let crossing = if single || limit == 0 { 0 } else { sizes.pop().unwrap_or(0) };
        let fits = largest + crossing >= needed;
        let plan = plan(&all, &policy, Timestamp::default());
        let started = plan.jobs[0].actions.iter().find_map(|action| match action {
            Action::CreateAttempt(attempt) => Some(attempt.crossing),
            _ => None,
        });
        // It crosses exactly if no zone could hold it.
        prop_assert_eq!(started, fits.then_some(largest < needed));
        let says = format!("{:?}", plan).contains("Unplaceable: needs");
        prop_assert_eq!(says, !fits);
    }
}
