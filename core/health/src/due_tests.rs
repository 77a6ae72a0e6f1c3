//! Tests of `due`: one rule each.

use std::slice::from_ref;

use super::when::jitter;
use super::*;

#[path = "due/kept_tests.rs"]
mod kept;
#[path = "due/pairs_tests.rs"]
mod pairs;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
const WEEK: i64 = 7 * DAY;
/// Now, long after everything began.
const NOW: i64 = 1000 * WEEK;

fn policy(name: &str, nodes: &[&str]) -> DuePolicy {
    DuePolicy {
        name: name.to_owned(),
        created: 0,
        uid: format!("uid of {name}"),
        interval: WEEK,
        level: Level::Standard,
        new_nodes: true,
        suspect_nodes: true,
        max_idle_nodes: 4,
        interrupt_after: None,
        suspend: false,
        quarantine: None,
        nodes: nodes.iter().map(|&node| node.to_owned()).collect(),
    }
}

fn node(name: &str) -> DueNode {
    DueNode {
        name: name.to_owned(),
        created: 0,
        idle: true,
        can_start: true,
        suspect: false,
        job: None,
        leaf: String::new(),
        group: String::new(),
        boot: "one".to_owned(),
        quarantine: None,
    }
}

/// A run of the policy `weekly` that passed then.
fn run(name: &str, node: &str, end: i64) -> DueRun {
    DueRun {
        name: name.to_owned(),
        node: node.to_owned(),
        level: Some(Level::Standard),
        policy: Some("weekly".to_owned()),
        is_next: false,
        interrupts: false,
        created: end - 600,
        finished: Some(end),
        verdict: Some(Verdict::Pass),
        findings: Findings::default(),
        link: None,
    }
}

fn ended(verdict: Verdict, name: &str, node: &str, end: i64) -> DueRun {
    DueRun {
        verdict: Some(verdict),
        ..run(name, node, end)
    }
}

fn open(name: &str, node: &str) -> DueRun {
    DueRun {
        created: NOW - 60,
        finished: None,
        verdict: None,
        ..run(name, node, 0)
    }
}

/// The nodes that get a run now, and why.
fn created(plan: &DuePlan) -> Vec<(&str, DueReason)> {
    let create = plan.create.iter();
    create.map(|run| (run.node.as_str(), run.reason)).collect()
}

fn plan_one(policy: &DuePolicy, nodes: &[DueNode], runs: &[DueRun], now: i64) -> DuePlan {
    plan(from_ref(policy), nodes, runs, &mut Waits::default(), now)
}

/// When the only node `a` of the only policy is due, by what is planned just then and just before.
#[track_caller]
fn due_at(policy: &DuePolicy, node: &DueNode, runs: &[DueRun]) -> (i64, DueReason) {
    // One on which nothing can run has no early turn.
    let away = DueNode {
        idle: false,
        ..node.clone()
    };
    let due_then = |now| plan_one(policy, from_ref(&away), runs, now);
    let due = due_then(0).next.unwrap();
    let count = |now| due_then(now).policies[&policy.name].due;
    assert_eq!((count(due - 1), count(due)), (0, 1));
    let planned = plan_one(policy, from_ref(node), runs, due);
    let [(name, reason)] = created(&planned)[..] else {
        panic!("nothing created when due: {planned:?}");
    };
    assert_eq!(name, node.name);
    (due, reason)
}

#[test]
fn a_new_node_is_due_at_once_or_when_an_interval_is_over() {
    let new = DueNode {
        created: 5 * WEEK,
        ..node("a")
    };
    let mut policy = policy("weekly", &["a"]);
    assert_eq!(due_at(&policy, &new, &[]), (5 * WEEK, DueReason::New));
    policy.new_nodes = false;
    let (due, reason) = due_at(&policy, &new, &[]);
    assert_eq!(reason, DueReason::Interval);
    assert!((6 * WEEK - WEEK / 8..=6 * WEEK - WEEK / 16).contains(&due));
}

#[test]
fn a_node_is_due_when_its_newest_run_is_an_interval_old_less_the_jitter() {
    let policy = policy("weekly", &["a"]);
    let runs = [run("old", "a", WEEK), run("new", "a", 2 * WEEK)];
    let (due, reason) = due_at(&policy, &node("a"), &runs);
    assert_eq!(reason, DueReason::Interval);
    assert_eq!(due, 3 * WEEK - jitter(&policy, "a"));
    for verdict in [Verdict::Warn, Verdict::Fail] {
        let runs = [ended(verdict, "new", "a", 2 * WEEK)];
        assert_eq!(due_at(&policy, &node("a"), &runs).0, due);
    }
}

#[test]
fn the_jitter_spreads_the_nodes_of_a_fleet_over_a_sixteenth_of_the_interval() {
    let policy = policy("weekly", &[]);
    let mut slots = [0; 16];
    for number in 0..1600 {
        let jitter = jitter(&policy, &format!("gpu-{number:04}"));
        assert!((WEEK / 16..=WEEK / 8).contains(&jitter));
        slots[((jitter - WEEK / 16) * 16 / (WEEK / 16 + 1)) as usize] += 1;
    }
    assert!(
        slots.iter().all(|slot| (60..=140).contains(slot)),
        "{slots:?}"
    );
    let other = DuePolicy {
        uid: "another".to_owned(),
        ..policy.clone()
    };
    assert_ne!(jitter(&policy, "a"), jitter(&other, "a"));
}

#[test]
fn what_says_nothing_is_repeated_after_an_eighth_of_the_interval() {
    for verdict in [Some(Verdict::Error), Some(Verdict::Skipped), None] {
        let last = DueRun {
            verdict,
            ..run("last", "a", 2 * WEEK)
        };
        let runs = [run("old", "a", WEEK), last];
        let due = due_at(&policy("weekly", &["a"]), &node("a"), &runs);
        assert_eq!(due, (2 * WEEK + WEEK / 8, DueReason::Interval));
    }
}

#[test]
fn a_run_of_anybody_counts_if_its_level_is_high_enough() {
    let policy = policy("weekly", &["a"]);
    let of = |level, owner: Option<&str>| DueRun {
        level,
        policy: owner.map(str::to_owned),
        ..run("new", "a", 2 * WEEK)
    };
    let after = |run| due_at(&policy, &node("a"), &[run]).0;
    let counts = 3 * WEEK - jitter(&policy, "a");
    for level in [Level::Standard, Level::Full] {
        assert_eq!(after(of(Some(level), None)), counts);
        assert_eq!(after(of(Some(level), Some("other"))), counts);
    }
    for level in [None, Some(Level::Quick)] {
        let runs = [of(level, None)];
        let plan = plan_one(&policy, &[node("a")], &runs, NOW);
        assert_eq!(created(&plan), [("a", DueReason::New)]);
    }
}

#[test]
fn a_node_that_came_back_is_new() {
    let back = DueNode {
        created: 3 * WEEK,
        ..node("a")
    };
    let runs = [ended(Verdict::Fail, "before", "a", 3 * WEEK - 1)];
    let policy = policy("weekly", &["a"]);
    assert_eq!(due_at(&policy, &back, &runs), (3 * WEEK, DueReason::New));
    let plan = plan(&[policy], &[back], &runs, &mut Waits::default(), 3 * WEEK);
    assert_eq!(plan.policies["weekly"].failed, [""; 0]);
}

#[test]
fn a_suspect_node_is_due_at_once_but_once_an_hour() {
    let suspect = DueNode {
        suspect: true,
        ..node("a")
    };
    let mut policy = policy("weekly", &["a"]);
    let runs = [run("last", "a", 2 * WEEK)];
    let due = due_at(&policy, &suspect, &runs);
    assert_eq!(due, (2 * WEEK + HOUR, DueReason::Suspect));
    let runs = [ended(Verdict::Error, "last", "a", 2 * WEEK)];
    assert_eq!(due_at(&policy, &suspect, &runs), due);
    policy.new_nodes = false;
    let first = plan_one(&policy, from_ref(&suspect), &[], 0);
    assert_eq!(created(&first), [("a", DueReason::Suspect)]);
    policy.suspect_nodes = false;
    let (due, reason) = due_at(&policy, &suspect, &[run("last", "a", 2 * WEEK)]);
    assert_eq!(
        (due, reason),
        (3 * WEEK - jitter(&policy, "a"), DueReason::Interval)
    );
}

#[test]
fn a_busy_node_is_not_asked_and_an_idle_one_takes_its_turn() {
    let mut nodes = [node("a"), node("b")];
    nodes[0].idle = false;
    let mut policy = policy("weekly", &["a", "b"]);
    policy.max_idle_nodes = 1;
    let runs = [run("one", "a", WEEK), run("two", "b", 2 * WEEK)];
    let busy = plan_one(&policy, &nodes, &runs, NOW);
    assert_eq!(created(&busy), [("b", DueReason::Interval)]);
    assert_eq!(busy.policies["weekly"].due, 1);
    assert_eq!(
        busy.next, None,
        "it is planned again when something changes"
    );
    nodes[0].idle = true;
    let idle = plan(&[policy], &nodes, &runs, &mut Waits::default(), NOW);
    assert_eq!(
        created(&idle),
        [("a", DueReason::Interval)],
        "the longest overdue"
    );
}

#[test]
fn suspect_nodes_do_not_keep_the_others_waiting_for_ever() {
    let mut nodes = [node("a"), node("b")];
    nodes[0].suspect = true;
    let mut policy = policy("weekly", &["a", "b"]);
    policy.max_idle_nodes = 1;
    let runs = [run("one", "a", NOW - 2 * HOUR), run("two", "b", NOW - WEEK)];
    let plan = plan(&[policy], &nodes, &runs, &mut Waits::default(), NOW);
    assert_eq!(created(&plan), [("b", DueReason::Interval)]);
}

#[test]
fn a_node_has_one_open_run_whoever_created_it() {
    let policy = policy("weekly", &["a"]);
    for owner in [None, Some("weekly"), Some("other")] {
        let open = DueRun {
            policy: owner.map(str::to_owned),
            level: None,
            ..open("open", "a")
        };
        let plan = plan_one(&policy, &[node("a")], &[open], NOW);
        assert_eq!((plan.create, plan.delete), (vec![], vec![]));
        assert_eq!((plan.policies["weekly"].due, plan.next), (0, None));
    }
}

#[test]
fn a_policy_has_at_most_so_many_open_runs() {
    let names = ["a", "b", "c", "d", "e"];
    let nodes = names.map(node);
    let mut policy = policy("weekly", &names);
    policy.max_idle_nodes = 3;
    let other = DueRun {
        policy: None,
        ..open("other", "b")
    };
    let runs = [open("one", "a"), other];
    let plan_now = plan_one(&policy, &nodes, &runs, NOW);
    assert_eq!(
        created(&plan_now),
        [("c", DueReason::New), ("d", DueReason::New)]
    );
    let summary = &plan_now.policies["weekly"];
    assert_eq!((summary.running, summary.due), (3, 1));
    policy.max_idle_nodes = 0;
    assert_eq!(
        created(&plan(&[policy], &nodes, &runs, &mut Waits::default(), NOW)),
        []
    );
}

#[test]
fn a_suspended_policy_creates_nothing_but_has_its_nodes() {
    let mut old = policy("old", &["a"]);
    old.suspend = true;
    let young = DuePolicy {
        created: 1,
        ..policy("young", &["a"])
    };
    let runs = [1, 2].map(|end| run(&end.to_string(), "a", end));
    let plan = plan(
        &[young, old],
        &[node("a")],
        &runs,
        &mut Waits::default(),
        NOW,
    );
    assert_eq!((created(&plan), plan.next), (vec![], None));
    assert_eq!(plan.delete, ["1"], "and deletes what has been superseded");
    assert_eq!(plan.policies["old"].due, 1);
}

#[test]
fn the_older_of_two_policies_has_the_node_and_the_other_says_so() {
    let old = policy("old", &["a", "b"]);
    let twin = policy("twin", &["b", "c"]);
    let young = DuePolicy {
        created: 1,
        ..policy("young", &["c", "b", "gone"])
    };
    let nodes = ["a", "b", "c"].map(node);
    let plan = plan(&[young, twin, old], &nodes, &[], &mut Waits::default(), NOW);
    let runs: Vec<_> = plan
        .create
        .iter()
        .map(|run| (run.policy.as_str(), run.node.as_str()))
        .collect();
    assert_eq!(runs, [("old", "a"), ("old", "b"), ("twin", "c")]);
    let by = |name: &str| plan.policies[name].overlapped_by.as_deref();
    assert_eq!(
        (by("old"), by("twin"), by("young")),
        (None, Some("old"), Some("old"))
    );
    assert_eq!(
        (plan.policies["young"].nodes, plan.policies["young"].due),
        (2, 0)
    );
}

#[test]
fn a_node_has_failed_until_a_run_of_the_level_says_otherwise() {
    let policy = policy("weekly", &["a"]);
    let mut runs = vec![ended(Verdict::Fail, "1", "a", NOW - DAY)];
    let mut check = |more: DueRun, failed: &[&str]| {
        runs.push(more);
        let plan = plan_one(&policy, &[node("a")], &runs, NOW);
        assert_eq!(plan.policies["weekly"].failed, failed);
    };
    check(ended(Verdict::Error, "2", "a", NOW - 50), &["a"]);
    let quick = DueRun {
        level: Some(Level::Quick),
        ..run("3", "a", NOW - 40)
    };
    check(quick, &["a"]);
    check(run("4", "a", NOW - 30), &[]);
    check(ended(Verdict::Fail, "5", "a", NOW - 20), &["a"]);
    check(ended(Verdict::Warn, "6", "a", NOW - 10), &[]);
}

#[test]
fn a_summary_tells_the_last_run_and_the_next_one() {
    let policy = policy("weekly", &["a", "b"]);
    let runs = [run("1", "a", NOW - HOUR), run("2", "b", NOW - 2 * HOUR)];
    let plan = plan_one(&policy, &[node("a"), node("b")], &runs, NOW);
    let summary = &plan.policies["weekly"];
    assert_eq!(summary.last, Some(NOW - HOUR - 600));
    let next = NOW - 2 * HOUR + WEEK / 8;
    assert_eq!((summary.next, plan.next), (Some(next), Some(next)));
}

fn used(name: &str, job: &str) -> DueNode {
    DueNode {
        idle: false,
        job: Some(NodeUse {
            job: job.to_owned(),
            since: NOW - 20 * DAY,
        }),
        ..node(name)
    }
}

/// A run that waits for the job on its node.
fn next(name: &str, node: &str) -> DueRun {
    DueRun {
        is_next: true,
        ..open(name, node)
    }
}

#[test]
fn idle_nodes_and_those_of_jobs_have_a_turn_from_an_eighth_of_the_interval_on() {
    let policy = DuePolicy {
        max_idle_nodes: 1,
        ..policy("weekly", &["a", "b", "c", "d"])
    };
    let nodes = [node("a"), node("b"), used("c", "job"), used("d", "job")];
    let runs = ["a", "b", "c", "d"].map(|name| run(name, name, NOW - WEEK / 8));
    assert_eq!(plan_one(&policy, &nodes, &runs, NOW - 1).create, []);
    let planned = plan_one(&policy, &nodes, &runs, NOW);
    let turns: Vec<_> = planned
        .create
        .iter()
        .map(|run| (run.node.as_str(), run.is_next))
        .collect();
    // Of idle ones as many as may run at once; those of a job wait side by side for its end.
    assert_eq!(turns, [("a", false), ("c", true), ("d", true)]);
    let summary = &planned.policies["weekly"];
    assert_eq!((summary.due, summary.running, summary.waiting), (0, 1, 2));
    // Those that wait take no room; once their job has left them they do.
    let open = [next("1", "c"), next("2", "d")];
    let room = |nodes: &[DueNode]| {
        let runs: Vec<_> = runs[..2].iter().chain(&open).cloned().collect();
        plan_one(&policy, nodes, &runs, NOW).create.len()
    };
    assert_eq!(room(&nodes), 1);
    let [a, b, ..] = nodes;
    assert_eq!(room(&[a, b, node("c"), node("d")]), 0);
}

#[test]
fn a_due_node_goes_before_one_that_may_have_an_early_turn() {
    let policy = DuePolicy {
        max_idle_nodes: 1,
        ..policy("weekly", &["a", "b"])
    };
    let runs = [run("1", "a", NOW - DAY), run("2", "b", NOW - WEEK)];
    let planned = plan_one(&policy, &[node("a"), node("b")], &runs, NOW);
    assert_eq!(created(&planned), [("b", DueReason::Interval)]);
}

#[test]
fn a_job_is_asked_for_its_node_that_waits_longest_once_it_has_had_a_week() {
    let mut policy = DuePolicy {
        interrupt_after: Some(9 * DAY),
        ..policy("weekly", &["a", "b", "c"])
    };
    let nodes = [used("a", "job"), used("b", "job"), used("c", "other")];
    let ran = [
        run("1", "a", NOW - 9 * DAY),
        run("2", "b", NOW - 10 * DAY),
        run("3", "c", NOW - 8 * DAY),
    ];
    let mut waiting = [next("4", "a"), next("5", "b"), next("6", "c")];
    let asked = |policy: &DuePolicy, nodes: &[DueNode], waiting: &[DueRun]| {
        let runs: Vec<_> = ran.iter().chain(waiting).cloned().collect();
        plan_one(policy, nodes, &runs, NOW).interrupt
    };
    assert_eq!(asked(&policy, &nodes, &waiting), ["5"]);
    let since = |since: i64| {
        nodes.clone().map(|node| DueNode {
            job: node.job.map(|used| NodeUse { since, ..used }),
            ..node
        })
    };
    assert_eq!(asked(&policy, &since(NOW - WEEK + 1), &waiting), [""; 0]);
    assert_eq!(asked(&policy, &since(NOW - WEEK), &waiting), ["5"]);
    waiting[0].interrupts = true;
    assert_eq!(
        asked(&policy, &nodes, &waiting),
        [""; 0],
        "it is being asked"
    );
    waiting[0].interrupts = false;
    policy.interrupt_after = None;
    assert_eq!(asked(&policy, &nodes, &waiting), [""; 0]);
}

#[test]
fn an_overdue_node_on_which_no_run_can_start_interrupts_nobody() {
    let policy = DuePolicy {
        interrupt_after: Some(8 * DAY),
        ..policy("weekly", &["a", "b"])
    };
    let asked = |can_start: [bool; 2]| {
        let mut nodes = [used("a", "job"), used("b", "job")];
        for (node, can_start) in nodes.iter_mut().zip(can_start) {
            node.can_start = can_start;
        }
        let ran = [run("1", "a", NOW - 9 * DAY), run("2", "b", NOW - 10 * DAY)];
        let runs: Vec<_> = ran
            .into_iter()
            .chain([next("3", "a"), next("4", "b")])
            .collect();
        plan_one(&policy, &nodes, &runs, NOW).interrupt
    };
    assert_eq!(asked([true, true]), ["4"]);
    assert_eq!(asked([true, false]), ["3"]);
    assert_eq!(asked([false, false]), [""; 0]);
}

#[test]
fn an_idle_node_on_which_no_run_can_start_gets_none_and_one_that_a_job_uses_gets_its_own() {
    let policy = policy("weekly", &["a", "b"]);
    let cannot = |node: DueNode| DueNode {
        can_start: false,
        ..node
    };
    let nodes = [cannot(node("a")), cannot(used("b", "job"))];
    let plan = plan_one(&policy, &nodes, &[], NOW);
    assert_eq!(
        created(&plan),
        [("b", DueReason::New)],
        "it waits for the job"
    );
    assert_eq!(plan.policies["weekly"].due, 1);
}

#[test]
fn an_old_view_names_the_same_run_and_a_new_one_another() {
    let mut policy = policy("weekly", &["a"]);
    let mut node = node("a");
    let name = |policy: &DuePolicy, node: &DueNode, runs: &[DueRun], now| {
        let plan = plan_one(policy, from_ref(node), runs, now);
        plan.create[0].name.clone()
    };
    let mut runs = vec![run("1", "a", WEEK)];
    let first = name(&policy, &node, &runs, 2 * WEEK);
    assert_eq!(name(&policy, &node, &runs, 2 * WEEK + 60), first);
    node.suspect = true;
    policy.interval = DAY;
    assert_eq!(name(&policy, &node, &runs, 2 * WEEK), first);
    runs.push(run(&first, "a", 2 * WEEK));
    assert_ne!(name(&policy, &node, &runs, 3 * WEEK), first);
}

#[test]
fn names_are_those_of_node_validations_whatever_the_node_is_called() {
    let long = "gpu-0001.rack-7.hall-3.cluster.example.com";
    let other = "gpu-0001.rack-7.hall-3.cluster.example.org";
    for (name, starts) in [
        ("weekly", "weekly-gpu-0001-rack-7-hall-3-cluster-"),
        (
            "a.very.long.name-of-a-policy",
            "a-very-long-name-of--gpu-0001-",
        ),
        ("7-days", "p-days-gpu-0001-"),
        ("", "p-gpu-0001-"),
    ] {
        let policy = policy(name, &[long, other]);
        let plan = plan(
            &[policy],
            &[node(long), node(other)],
            &[],
            &mut Waits::default(),
            NOW,
        );
        let names: BTreeSet<&str> = plan.create.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names.len(), 2);
        for name in names {
            assert!(name.starts_with(starts) && name.len() == 50, "{name}");
            let (_, hash) = name.rsplit_once('-').unwrap();
            assert!(
                hash.len() == 8 && u32::from_str_radix(hash, 16).is_ok(),
                "{name}"
            );
        }
    }
}

#[test]
fn no_number_is_too_big_or_too_small() {
    let edges = [i64::MIN, -1, 0, 1, i64::MAX];
    for interval in edges {
        for time in edges {
            let policy = DuePolicy {
                interval,
                created: time,
                ..policy("weekly", &["a"])
            };
            let node = DueNode {
                created: time,
                suspect: true,
                ..node("a")
            };
            let run = DueRun {
                created: time,
                finished: Some(time),
                ..run("1", "a", 0)
            };
            let gone = DueRun {
                node: "gone".to_owned(),
                ..run.clone()
            };
            for now in edges {
                let runs = [run.clone(), gone.clone()];
                drop(plan_one(&policy, from_ref(&node), &runs, now));
            }
        }
    }
}

#[test]
fn a_node_in_quarantine_that_was_started_anew_is_due_once() {
    let with_boot = |boot: &str, run: DueRun| DueRun {
        findings: Findings {
            boot: boot.to_owned(),
            ..Findings::default()
        },
        ..run
    };
    let policy = policy("weekly", &["a"]);
    let bad = with_boot("one", ended(Verdict::Fail, "bad", "a", NOW));
    let node = |boot: &str| DueNode {
        quarantine: Some("bad".to_owned()),
        boot: boot.to_owned(),
        ..node("a")
    };
    let runs = [bad];
    let interval = NOW + WEEK - jitter(&policy, "a");
    assert_eq!(
        due_at(&policy, &node("one"), &runs),
        (interval, DueReason::Interval)
    );
    assert_eq!(
        due_at(&policy, &node(""), &runs),
        (interval, DueReason::Interval)
    );
    let soon = (NOW + HOUR, DueReason::Restarted);
    assert_eq!(due_at(&policy, &node("two"), &runs), soon);
    let out = DueNode {
        quarantine: None,
        ..node("two")
    };
    assert_eq!(
        due_at(&policy, &out, &runs),
        (interval, DueReason::Interval)
    );
    // What leaves no report is repeated an hour later; what says something is the last.
    let [bad] = runs;
    let runs = [bad, ended(Verdict::Error, "lost", "a", NOW + DAY)];
    let again = (NOW + DAY + HOUR, DueReason::Restarted);
    assert_eq!(due_at(&policy, &node("two"), &runs), again);
    let [bad, _] = runs;
    let second = with_boot("two", ended(Verdict::Fail, "second", "a", NOW + DAY));
    let due = due_at(&policy, &node("two"), &[bad, second]);
    assert_eq!(due.1, DueReason::Interval);
}
