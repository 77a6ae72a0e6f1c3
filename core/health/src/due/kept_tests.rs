//! Tests of `kept`: which runs of policies are deleted.

use super::*;

/// The names that are deleted with a policy of this level.
fn deleted(level: Level, runs: &[DueRun]) -> Vec<String> {
    let policy = DuePolicy {
        level,
        ..policy("weekly", &["a"])
    };
    plan(&[policy], &[node("a")], runs, &mut Waits::default(), NOW).delete
}

#[test]
fn the_newest_run_of_each_level_and_the_newest_fail_are_kept() {
    let quick = DueRun {
        level: Some(Level::Quick),
        ..run("quick", "a", 40)
    };
    let runs = [
        run("1", "a", 10),
        ended(Verdict::Fail, "2", "a", 20),
        ended(Verdict::Fail, "3", "a", 30),
        quick,
        run("5", "a", 50),
        run("6", "a", 60),
    ];
    assert_eq!(deleted(Level::Standard, &runs), ["1", "2", "5"]);
}

#[test]
fn an_error_takes_no_results_place() {
    let runs = [
        ended(Verdict::Fail, "1", "a", 10),
        run("2", "a", 20),
        run("3", "a", 30),
        ended(Verdict::Error, "4", "a", 40),
        ended(Verdict::Skipped, "5", "a", 50),
    ];
    assert_eq!(deleted(Level::Standard, &runs), ["2", "4"]);
    let kept = [runs[0].clone(), runs[2].clone(), runs[4].clone()];
    assert_eq!(deleted(Level::Standard, &kept), [""; 0]);
    let policy = policy("weekly", &["a"]);
    let plan = plan(&[policy], &[node("a")], &kept, &mut Waits::default(), NOW);
    assert_eq!(plan.policies["weekly"].failed, [""; 0]);
}

#[test]
fn at_most_three_runs_are_kept_and_what_the_due_time_derives_from_is_one() {
    let of = |level, run| DueRun {
        level: Some(level),
        ..run
    };
    let runs = [
        of(Level::Full, run("1", "a", 10)),
        of(Level::Full, ended(Verdict::Error, "2", "a", 20)),
        ended(Verdict::Fail, "3", "a", 30),
        run("4", "a", 40),
        of(Level::Quick, run("5", "a", 50)),
    ];
    assert_eq!(deleted(Level::Full, &runs), ["4", "5"]);
    assert_eq!(deleted(Level::Standard, &runs), ["1", "5"]);
    assert_eq!(deleted(Level::Quick, &runs), ["1", "4"]);
}

#[test]
fn what_a_person_created_and_what_is_open_is_not_deleted() {
    let runs = [1, 2, 3].map(|end| DueRun {
        policy: None,
        ..run(&end.to_string(), "a", end)
    });
    assert_eq!(deleted(Level::Standard, &runs), [""; 0]);
    let runs = [run("1", "a", 1), open("2", "a"), open("3", "a")];
    assert_eq!(deleted(Level::Standard, &runs), [""; 0]);
}

#[test]
fn runs_of_a_node_that_is_gone_are_deleted_the_finished_ones_a_week_later() {
    let by_person = DueRun {
        policy: None,
        ..open("2", "gone")
    };
    let runs = [open("1", "gone"), by_person, run("3", "gone", NOW - DAY)];
    let at = |now| {
        plan(
            &[policy("weekly", &["gone"])],
            &[],
            &runs,
            &mut Waits::default(),
            now,
        )
    };
    let now = at(NOW);
    assert_eq!(
        (now.delete, now.next),
        (vec!["1".to_owned()], Some(NOW + 6 * DAY))
    );
    assert_eq!(now.policies["weekly"].running, 0);
    assert_eq!(at(NOW + 6 * DAY).delete, ["1", "3"]);
}
