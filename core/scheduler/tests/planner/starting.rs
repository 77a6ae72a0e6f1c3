//! The start of a gang: what its pods are at before their trainers run, for how long they may be,
//! and what the status says of it.

use std::sync::Arc;
use std::time::Duration;

use scheduler::{
    Avoided, ConditionKind, EndCause, JobPhase, JobStatus, PodState, Policy, Preparation, Problem,
    Sights, Snapshot, check, plan,
};

use crate::build::{CLASS, at, job};
use crate::decisions::{queue, step};
use crate::properties::apply;

/// A gang whose pods are bound, seen as the planner sees it.
struct Start {
    snapshot: Snapshot,
    sights: Sights,
    policy: Policy,
    /// Number of plans that had something to write.
    records: usize,
}

impl Start {
    fn new(size: u32) -> Self {
        let mut snapshot = queue(&format!("a:{size}"), vec![job("train", size)]);
        step(&mut snapshot, at(0));
        let mut start = Self {
            snapshot,
            sights: Sights::default(),
            policy: Policy::default(),
            records: 0,
        };
        for rank in 0..size {
            start.prepares(rank as usize, 0, "its volumes are mounted");
        }
        start.look(0);
        for rank in 0..size {
            start.joins(rank);
        }
        start.records = 0;
        start
    }

    /// The pod of a rank is at this step.
    fn prepares(&mut self, rank: usize, steps: u32, what: &str) {
        let pod = &mut self.snapshot.pods[rank];
        pod.state = PodState::Starting;
        pod.preparation = Some(Arc::new(Preparation {
            steps,
            joins: false,
            backs_off: false,
            at: what.to_owned(),
        }));
    }

    /// A pull of its image has failed: just now, or the kubelet says that it waits before it tries
    /// again.
    fn cannot_pull(&mut self, rank: usize, backs_off: bool) {
        let pod = &mut self.snapshot.pods[rank];
        pod.state = PodState::Blocked(Problem {
            reason: "ImageError",
            message: "image train:1 of container trainer cannot be pulled".to_owned(),
        });
        pod.preparation = Some(Arc::new(Preparation {
            steps: 3,
            joins: false,
            backs_off,
            at: "gets image train:1 of container trainer".to_owned(),
        }));
    }

    /// Its sidecar waits for the others.
    fn joins(&mut self, rank: u32) {
        let pod = &mut self.snapshot.pods[rank as usize];
        pod.state = PodState::Starting;
        pod.preparation = Some(Arc::new(Preparation {
            steps: 2,
            joins: true,
            backs_off: false,
            at: "joins".to_owned(),
        }));
    }

    /// Plans and writes, so many seconds after the beginning.
    fn look(&mut self, seconds: u64) -> &JobStatus {
        let now = at(seconds);
        let mut seen = self.snapshot.clone();
        self.sights.fill_in(&mut seen, &self.policy, now);
        let plan = plan(&seen, &self.policy, now);
        check(&seen, &self.policy, now, &plan).unwrap();
        self.records += plan.jobs.len();
        apply(&mut self.snapshot, &plan, now);
        &self.snapshot.jobs[0].status
    }

    /// Looks each minute, up to then.
    fn look_until(&mut self, from: u64, to: u64) -> &JobStatus {
        for seconds in (from..to).step_by(60) {
            self.look(seconds);
        }
        self.look(to)
    }

    fn says(&self) -> (&str, &str) {
        let running = &self.snapshot.jobs[0].status.conditions[&ConditionKind::Running];
        (&running.reason, &running.message)
    }
}

const MINUTE: u64 = 60;
const HOUR: u64 = 3600;

#[test]
fn an_init_container_of_forty_minutes_and_an_image_of_forty_after_it_start() {
    let mut start = Start::new(2);
    for rank in [0, 1] {
        start.prepares(rank, 3, "init container model runs");
    }
    start.look_until(2, 40 * MINUTE);
    for rank in [0, 1] {
        start.prepares(rank, 5, "gets image train:1 of container trainer");
    }
    let status = start.look_until(40 * MINUTE + 1, 80 * MINUTE);
    assert_eq!((status.phase, status.attempt), (JobPhase::Starting, 1));
    for pod in &mut start.snapshot.pods {
        pod.state = PodState::Running;
    }
    let status = start.look(80 * MINUTE + 1);
    assert_eq!((status.phase, status.attempt), (JobPhase::Running, 1));
}

#[test]
fn a_preparation_of_any_length_goes_on_as_long_as_it_makes_progress() {
    let mut start = Start::new(2);
    for steps in 3..15 {
        start.prepares(1, steps, "init container runs");
        let since = u64::from(steps - 3) * 110 * MINUTE;
        let status = start.look_until(since + 2, since + 110 * MINUTE);
        assert_eq!((status.phase, status.attempt), (JobPhase::Starting, 1));
    }
}

#[test]
fn a_pod_without_progress_is_named_with_what_it_was_at_and_its_node_is_avoided() {
    let mut start = Start::new(3);
    start.prepares(1, 3, "init container model runs since 2026-11-27T09:10:00Z");
    let status = start.look_until(2, 2 * HOUR);
    assert_eq!(status.phase, JobPhase::Starting);
    let status = start.look(2 * HOUR + 2);
    assert_eq!((status.phase, status.restarts), (JobPhase::Restarting, 0));
    let failure = status.failure.as_ref().unwrap();
    assert_eq!(
        failure.message,
        "node rank 1 on node a-001 made no progress for 7200 s: init container model runs since \
         2026-11-27T09:10:00Z. If it only needs longer, raise startProgressDeadlineSeconds of its \
         class in the Fabric"
    );
    let Avoided { cause, .. } = status.avoided[failure.node.as_ref().unwrap()];
    assert_eq!(cause, EndCause::NotStarted);
}

#[test]
fn containers_that_start_again_and_again_are_no_progress() {
    let mut start = Start::new(2);
    for round in 0..2 * MINUTE {
        start.prepares(1, 3 + u32::try_from(round % 2).unwrap(), "restarts");
        start.look(round * MINUTE + 2);
    }
    let status = start.look_until(2 * HOUR, 2 * HOUR + 3 * MINUTE);
    assert_eq!(status.phase, JobPhase::Restarting);
}

#[test]
fn a_class_says_how_long_its_nodes_may_make_no_progress() {
    let mut start = Start::new(1);
    let ten = Duration::from_secs(10);
    start.policy.start_patience_of.insert(CLASS.into(), ten);
    start.prepares(0, 3, "init container model runs");
    assert_eq!(start.look(5).phase, JobPhase::Starting);
    assert_eq!(start.look(14).phase, JobPhase::Starting);
    assert_eq!(start.look(15).phase, JobPhase::Restarting);
}

#[test]
fn who_has_joined_waits_for_those_who_make_progress() {
    let mut start = Start::new(2);
    start.prepares(1, 0, "mounts its volumes");
    start.look_until(2, 110 * MINUTE);
    start.prepares(1, 1, "gets image hfreduce-sidecar:1");
    let status = start.look_until(110 * MINUTE + 1, 220 * MINUTE);
    assert_eq!((status.phase, status.attempt), (JobPhase::Starting, 1));
    // From then on nobody can be told apart.
    start.joins(1);
    let status = start.look_until(220 * MINUTE + 1, 339 * MINUTE);
    assert_eq!((status.phase, status.attempt), (JobPhase::Starting, 1));
    let status = start.look(340 * MINUTE + 1);
    let failure = status.failure.as_ref().unwrap();
    assert_eq!(failure.message, "the gang did not join in time");
    assert_eq!(failure.node, None);
}

#[test]
fn a_pull_that_fails_after_forty_minutes_has_the_patience_of_a_missing_image() {
    let mut start = Start::new(1);
    start.prepares(0, 3, "gets image train:1 of container trainer");
    start.look_until(2, 40 * MINUTE);
    start.snapshot.pods[0].state = PodState::Blocked(Problem {
        reason: "ImageError",
        message: "image train:1 of container trainer cannot be pulled".to_owned(),
    });
    let status = start.look_until(40 * MINUTE + 1, 50 * MINUTE);
    assert_eq!((status.phase, status.attempt), (JobPhase::Starting, 1));
    // Trying again is no progress.
    start.snapshot.pods[0].state = PodState::Starting;
    start.look(50 * MINUTE + 1);
    start.snapshot.pods[0].state = PodState::Blocked(Problem {
        reason: "ImageError",
        message: "image train:1 of container trainer cannot be pulled".to_owned(),
    });
    let status = start.look(50 * MINUTE + 2);
    assert_eq!(status.phase, JobPhase::Restarting);
}

/// The kubelet says that it waits before it pulls again until that pull has ended.
#[test]
fn a_pull_of_forty_minutes_whose_first_try_failed_goes_on() {
    let mut start = Start::new(1);
    start.cannot_pull(0, false);
    start.look_until(2, 12);
    start.cannot_pull(0, true);
    let status = start.look_until(13, 40 * MINUTE);
    assert_eq!((status.phase, status.attempt), (JobPhase::Starting, 1));
    // It fails: that counts from now on.
    start.cannot_pull(0, false);
    let status = start.look_until(40 * MINUTE + 1, 50 * MINUTE - 1);
    assert_eq!((status.phase, status.attempt), (JobPhase::Starting, 1));
    assert_eq!(start.look(50 * MINUTE).phase, JobPhase::Restarting);
}

#[test]
fn tries_that_fail_one_after_another_are_no_pull_that_goes_on() {
    // As a kubelet tries again: later each time, five minutes at most.
    let tries = [2, 15, 35, 75, 155, 315];
    let mut start = Start::new(1);
    for second in 2..602 {
        start.cannot_pull(
            0,
            !tries
                .iter()
                .any(|try_at| (*try_at..try_at + 10).contains(&second)),
        );
        assert_eq!(start.look(second).phase, JobPhase::Starting, "at {second}");
    }
    assert_eq!(start.look(602).phase, JobPhase::Restarting);
}

#[test]
fn two_failures_far_apart_in_pulls_that_go_on_are_not_one_missing_image() {
    let mut start = Start::new(1);
    for failed_at in [MINUTE, 30 * MINUTE] {
        start.cannot_pull(0, false);
        start.look(failed_at);
        start.prepares(0, 3, "gets image train:1 of container trainer");
        let status = start.look_until(failed_at + 1, failed_at + 20 * MINUTE);
        assert_eq!((status.phase, status.attempt), (JobPhase::Starting, 1));
    }
}

#[test]
fn a_start_that_takes_long_says_whom_it_waits_for_and_is_written_once_a_step() {
    let mut start = Start::new(64);
    for rank in 0..64 {
        start.prepares(rank, 3, "gets image train:1 of container trainer");
    }
    start.look_until(2, MINUTE);
    assert_eq!(
        start.says(),
        (
            "Preparing",
            "Waiting for node rank 63 on node a-063: gets image train:1 of container trainer"
        )
    );
    assert_eq!(start.records, 1);
    // One after the other gets it, in the order in which they were bound.
    for rank in 0..63 {
        start.snapshot.pods[rank].state = PodState::Running;
        start.look(2 * MINUTE + rank as u64);
    }
    assert_eq!(start.records, 1);
    start.prepares(63, 4, "init container model runs");
    start.look(4 * MINUTE);
    assert_eq!(
        start.says(),
        (
            "Preparing",
            "Waiting for node rank 63 on node a-063: init container model runs"
        )
    );
    start.look_until(5 * MINUTE, HOUR);
    assert_eq!(start.records, 2);
}
