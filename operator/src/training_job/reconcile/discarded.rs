//! What a job says when a plan for it was discarded because it broke an invariant.

use scheduler::{Action, ConditionKind, JobPlan, PlanViolation, Snapshot, Timestamp};

/// Instead of a discarded plan: says so on the job, once.
pub(super) fn report(
    snapshot: &Snapshot,
    violation: &PlanViolation,
    now: Timestamp,
) -> Option<JobPlan> {
    let key = &violation.job;
    let job = snapshot.jobs.iter().find(|job| job.key == *key)?;
    let message = format!("a plan for this job was discarded: {violation}; please report it");
    let mut status = job.status.clone();
    let assigned = status.conditions.get(&ConditionKind::Assigned);
    if assigned.is_some_and(|condition| condition.message == message) {
        return None;
    }
    let holds = status.is(ConditionKind::Assigned);
    status.set(
        ConditionKind::Assigned,
        holds,
        "PlanDiscarded",
        &message,
        now,
    );
    let record = Action::Record {
        status: Box::new(status),
        event: None,
    };
    Some(JobPlan {
        job: key.clone(),
        actions: vec![record],
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scheduler::JobKey;

    use super::*;

    // PLAN-1
    #[test]
    fn a_discarded_plan_has_one_condition() {
        let key = JobKey {
            kind: scheduler::JobKind::TrainingJob,
            namespace: "team".into(),
            name: "digits".into(),
            uid: "u-1".into(),
        };
        let mut job = scheduler::Job {
            key: key.clone(),
            created: Timestamp::default(),
            nodes: 1,
            pin: None,
            when_busy: scheduler::WhenBusy::default(),
            class: "a100".into(),
            procs_per_node: Some(8),
            zone_policy: scheduler::ZonePolicy::default(),
            suspend: false,
            grace: Duration::from_secs(80),
            exit: Duration::from_secs(1),
            stall: None,
            max_restarts: 0,
            shrinks: false,
            ttl: None,
            deleting: false,
            finalizer: false,
            observed: true,
            problem: None,
            hold: None,
            dry_run: scheduler::DryRun::Unknown,
            status: scheduler::JobStatus::default(),
            seen: Timestamp::default(),
        };
        let detail = "node n1 is in two gangs".to_owned();
        let violation = PlanViolation {
            job: key,
            invariant: "one-gang-per-node",
            detail,
        };
        let now = Timestamp::from_millis(1000);
        let snapshot = |job: &scheduler::Job| Snapshot {
            jobs: vec![job.clone()],
            ..Snapshot::default()
        };

        let plan = report(&snapshot(&job), &violation, now).unwrap();
        let [
            Action::Record {
                status,
                event: None,
            },
        ] = &plan.actions[..]
        else {
            panic!("not one record: {:?}", plan.actions);
        };
        let condition = &status.conditions[&ConditionKind::Assigned];
        assert!(
            condition.message.contains("node n1 is in two gangs"),
            "{}",
            condition.message
        );
        job.status = (**status).clone();
        assert_eq!(report(&snapshot(&job), &violation, now), None);
    }
}
