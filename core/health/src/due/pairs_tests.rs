//! Tests of `pairs`: who measures the network with whom, and how soon again if it was slow.

use super::*;
use crate::check::Check;

const MINUTES: i64 = 300;

fn full(nodes: &[&str]) -> DuePolicy {
    DuePolicy {
        level: Level::Full,
        ..policy("weekly", nodes)
    }
}

fn of_group(group: &str, node: DueNode) -> DueNode {
    DueNode {
        group: group.to_owned(),
        ..node
    }
}

/// A run that measured the network to a partner.
fn with(partner: &str, is_good: bool, run: DueRun) -> DueRun {
    let partner = partner.to_owned();
    DueRun {
        level: Some(Level::Full),
        verdict: Some(if is_good {
            Verdict::Pass
        } else {
            Verdict::Warn
        }),
        link: Some(LinkResult { partner, is_good }),
        ..run
    }
}

/// Each node that gets a run, with its partner. None is open.
fn pairs(policy: &DuePolicy, nodes: &[DueNode], runs: &[DueRun]) -> Vec<String> {
    let plan = plan_one(policy, nodes, runs, NOW);
    let summary = &plan.policies[&policy.name];
    assert_eq!(summary.running + summary.waiting, plan.create.len());
    pairs_beside(policy, nodes, runs)
}

fn pairs_beside(policy: &DuePolicy, nodes: &[DueNode], runs: &[DueRun]) -> Vec<String> {
    let plan = plan_one(policy, nodes, runs, NOW);
    let create = plan.create.into_iter();
    let pairs = create.map(|run| format!("{}-{}", run.node, run.partner.unwrap_or_default()));
    pairs.collect()
}

#[test]
fn due_nodes_of_a_group_are_validated_two_by_two() {
    let nodes = ["a", "b", "c", "d", "e"];
    let groups = ["one", "two", "one", "two", ""];
    let nodes: Vec<_> = nodes.iter().zip(groups).collect();
    let nodes: Vec<_> = nodes
        .into_iter()
        .map(|(name, group)| of_group(group, node(name)))
        .collect();
    let mut policy = full(&["a", "b", "c", "d", "e"]);
    policy.max_idle_nodes = 8;
    let expected = ["a-c", "c-a", "b-d", "d-b", "e-"];
    assert_eq!(pairs(&policy, &nodes, &[]), expected);
    policy.level = Level::Standard;
    let alone = ["a-", "b-", "c-", "d-", "e-"];
    assert_eq!(pairs(&policy, &nodes, &[]), alone);
}

#[test]
fn a_partner_that_is_not_due_does_if_no_other_is() {
    let nodes = ["a", "b", "c"].map(|name| of_group("one", node(name)));
    let policy = full(&["a", "b", "c"]);
    let ran = |name, age| with("x", true, run(name, name, NOW - age));
    let runs = [ran("a", WEEK), ran("b", HOUR), ran("c", 2 * HOUR)];
    // The one that would be due first.
    assert_eq!(pairs(&policy, &nodes, &runs), ["a-c", "c-a"]);
    let plan = plan_one(&policy, &nodes, &runs, NOW);
    let reasons = [("a", DueReason::Interval), ("c", DueReason::Partner)];
    assert_eq!(created(&plan), reasons);
    // Alone if the others have their runs already.
    let open = [open("1", "b"), open("2", "c")];
    let runs: Vec<_> = runs.into_iter().chain(open).collect();
    assert_eq!(pairs(&policy, &nodes, &runs[..1]).len(), 3);
    let plan = plan_one(&policy, &nodes, &runs, NOW);
    assert_eq!(plan.create[0].partner, None);
}

#[test]
fn the_last_partner_comes_again_only_if_there_is_no_other() {
    let nodes = ["a", "b", "c"].map(|name| of_group("one", node(name)));
    let policy = full(&["a", "b", "c"]);
    let ran = |name, age| with("b", true, run(name, name, NOW - age));
    let runs = [ran("a", WEEK), ran("b", DAY), ran("c", DAY)];
    assert_eq!(pairs(&policy, &nodes, &runs), ["a-c", "c-a", "b-"]);
    assert_eq!(pairs(&policy, &nodes[..2], &runs), ["a-b", "b-a"]);
}

#[test]
fn after_a_slow_way_the_partner_is_rather_one_whose_own_was_good() {
    let names = ["a", "b", "c", "d"];
    let nodes = names.map(|name| of_group("one", node(name)));
    let policy = full(&names);
    let ran = |name, partner, is_good, age| with(partner, is_good, run(name, name, NOW - age));
    // Only c is not due, and only its way was good.
    let mut runs = vec![
        ran("a", "x", false, HOUR),
        ran("b", "y", false, HOUR),
        ran("c", "z", true, MINUTES),
    ];
    assert_eq!(pairs(&policy, &nodes[..3], &runs), ["a-c", "c-a", "b-"]);
    // Of one that was never measured nobody knows better.
    runs.remove(2);
    assert_eq!(pairs(&policy, &nodes[..2], &runs), ["a-b", "b-a"]);
}

#[test]
fn a_jobs_nodes_are_partners_of_each_other() {
    let nodes = [
        of_group("one", used("a", "job")),
        of_group("one", used("b", "other")),
        of_group("one", used("c", "job")),
        of_group("one", node("d")),
    ];
    let policy = full(&["a", "b", "c", "d"]);
    let expected = ["d-", "a-c", "c-a", "b-"];
    assert_eq!(pairs(&policy, &nodes, &[]), expected);
}

#[test]
fn a_pair_waits_until_there_is_room_for_two() {
    let names = ["a", "b", "c", "d"];
    let nodes = names.map(|name| of_group("one", node(name)));
    let mut policy = full(&names);
    policy.max_idle_nodes = 3;
    assert_eq!(pairs(&policy, &nodes, &[]), ["a-b", "b-a"]);
    // Where there is never room for two, each is alone.
    policy.max_idle_nodes = 1;
    assert_eq!(pairs(&policy, &nodes, &[]), ["a-"]);
}

#[test]
fn a_run_that_has_not_started_takes_room_however_old_it_is() {
    let names = ["a", "b", "c"];
    let nodes = names.map(|name| of_group("one", node(name)));
    let mut policy = full(&names);
    policy.max_idle_nodes = 2;
    for age in [60, HOUR] {
        let waits = DueRun {
            created: NOW - age,
            ..open("1", "c")
        };
        assert_eq!(pairs_beside(&policy, &nodes, &[waits]), [""; 0]);
    }
}

#[test]
fn a_slow_way_is_measured_again_soon_and_ever_later_while_it_stays_slow() {
    let policy = full(&["a"]);
    let due_after = |runs: &[DueRun]| {
        let (at, reason) = due_at(&policy, &node("a"), runs);
        (at - NOW, reason)
    };
    let slow = |name, end| with("b", false, run(name, "a", end));
    let good = |name, end| with("b", true, run(name, "a", end));
    assert_eq!(due_after(&[slow("1", NOW)]), (HOUR, DueReason::SlowLink));
    for gap in [HOUR, 2 * HOUR, 40 * HOUR] {
        let runs = [slow("1", NOW - gap), slow("2", NOW)];
        assert_eq!(due_after(&runs), (2 * gap, DueReason::SlowLink));
    }
    let failed = DueRun {
        findings: Findings {
            failed: [(Check::Network, "send".to_owned())].into(),
            ..Findings::default()
        },
        ..slow("2", NOW)
    };
    // As if it were not slow: once a week.
    let runs = [slow("1", NOW - 4 * DAY), slow("2", NOW)];
    assert_eq!(due_after(&runs).1, DueReason::Interval);
    for runs in [
        [slow("1", NOW - HOUR), good("2", NOW)],
        [slow("1", NOW - HOUR), failed],
    ] {
        assert_eq!(due_after(&runs).1, DueReason::Interval);
    }
}

#[test]
fn the_slow_run_before_the_newest_is_kept() {
    let run = |name, is_good, end| with("b", is_good, run(name, "a", end));
    let runs = [
        run("1", false, 10),
        run("2", false, 20),
        run("3", true, 30),
        run("4", false, 40),
    ];
    let plan = plan_one(&full(&["a"]), &[node("a")], &runs, NOW);
    assert_eq!(plan.delete, ["1", "3"]);
    // What was measured last is kept, whatever else ran since.
    let mut runs = vec![run("1", false, 10), run("2", true, 20), run("3", false, 30)];
    let skipped = |name, end| DueRun {
        link: None,
        ..run(name, true, end)
    };
    runs.extend([skipped("4", 40), skipped("5", 50)]);
    let plan = plan_one(&full(&["a"]), &[node("a")], &runs, NOW);
    assert_eq!(plan.delete, ["2", "4"]);
}
