//! Tests of `quarantine`: one rule each. That all hold together is tested by lives.

use std::time::{Duration, Instant};

use super::*;
use crate::check::Level;

const CLOCK: (Check, &str) = (Check::CpuFrequency, "");
const MEMORY: (Check, &str) = (Check::MemoryBandwidth, "numa 1");

fn policy(nodes: usize) -> DuePolicy {
    DuePolicy {
        name: "weekly".to_owned(),
        created: 0,
        uid: "uid".to_owned(),
        interval: 1000,
        level: Level::Standard,
        new_nodes: true,
        suspect_nodes: true,
        max_idle_nodes: 1,
        interrupt_after: None,
        suspend: false,
        quarantine: Some(QuarantineLimits {
            percent: 2,
            per_leaf: 1,
        }),
        nodes: (0..nodes).map(|at| format!("n{at:03}")).collect(),
    }
}

fn node(at: usize) -> DueNode {
    DueNode {
        name: format!("n{at:03}"),
        created: 0,
        idle: true,
        can_start: true,
        suspect: false,
        job: None,
        leaf: format!("leaf {at}"),
        group: String::new(),
        boot: "boot".to_owned(),
        quarantine: None,
    }
}

fn in_quarantine(by: &str) -> DueNode {
    DueNode {
        quarantine: Some(by.to_owned()),
        ..node(0)
    }
}

/// A run of node 0 that got it at a time and had it for ten seconds.
fn run(name: &str, started: i64, results: &[((Check, &str), Verdict)]) -> DueRun {
    let mut findings = Findings {
        started: Some(started),
        boot: "boot".to_owned(),
        ..Findings::default()
    };
    let each = results.iter().copied();
    findings.sort(each.map(|((check, device), verdict)| (check, device, verdict)));
    DueRun {
        name: name.to_owned(),
        node: "n000".to_owned(),
        level: Some(Level::Standard),
        policy: None,
        is_next: false,
        interrupts: false,
        created: started,
        finished: Some(started + 10),
        verdict: results.iter().map(|(_, verdict)| *verdict).max(),
        findings,
        link: None,
    }
}

fn fail(name: &str, started: i64) -> DueRun {
    run(
        name,
        started,
        &[(CLOCK, Verdict::Pass), (MEMORY, Verdict::Fail)],
    )
}

fn begun(policy: &DuePolicy, nodes: &[DueNode], runs: &[DueRun]) -> Vec<(String, String)> {
    let plan = quarantine(std::slice::from_ref(policy), nodes, runs);
    assert!(plan.end.is_empty());
    let begin = plan.begin.into_iter();
    begin.map(|begin| (begin.node, begin.run)).collect()
}

fn ends(node: &DueNode, runs: &[DueRun]) -> bool {
    let plan = quarantine(&[], std::slice::from_ref(node), runs);
    assert!(plan.begin.is_empty());
    !plan.end.is_empty()
}

#[test]
fn a_failed_node_comes_into_quarantine_where_the_policy_enforces_it() {
    let mut policy = policy(1);
    let runs = [fail("bad", 100)];
    let of_run = |name: &str| [("n000".to_owned(), name.to_owned())];
    assert_eq!(begun(&policy, &[node(0)], &runs), of_run("bad"));
    policy.quarantine = None;
    assert_eq!(begun(&policy, &[node(0)], &runs), []);
}

#[test]
fn what_says_nothing_certain_brings_nobody_there() {
    for verdict in [
        Verdict::Pass,
        Verdict::Warn,
        Verdict::Error,
        Verdict::Skipped,
    ] {
        let runs = [run("run", 100, &[(MEMORY, verdict)])];
        assert_eq!(begun(&policy(1), &[node(0)], &runs), [], "{verdict:?}");
    }
    let unfinished = DueRun {
        finished: None,
        ..fail("open", 100)
    };
    assert_eq!(begun(&policy(1), &[node(0)], &[unfinished]), []);
}

#[test]
fn a_fail_that_a_later_run_passes_or_of_an_earlier_machine_is_history() {
    let passed = run("good", 200, &[(MEMORY, Verdict::Pass)]);
    let runs = [fail("bad", 100), passed];
    assert_eq!(begun(&policy(1), &[node(0)], &runs), []);
    let replaced = DueNode {
        created: 150,
        ..node(0)
    };
    assert_eq!(begun(&policy(1), &[replaced], &runs[..1]), []);
}

#[test]
fn a_person_who_lets_a_node_out_is_not_overruled_by_the_same_run() {
    let plan = quarantine(&[policy(1)], &[in_quarantine("bad")], &[fail("bad", 100)]);
    assert_eq!(plan.answered, ["bad"]);
    let mut answered = fail("bad", 100);
    answered.findings.answered = true;
    let runs = [answered, fail("again", 200)];
    assert_eq!(begun(&policy(1), &[node(0)], &runs[..1]), []);
    assert_eq!(begun(&policy(1), &[node(0)], &runs).len(), 1);
}

#[test]
fn a_node_comes_out_by_a_later_run_on_the_present_boot_that_passes_what_failed() {
    let bad = fail("bad", 100);
    let good = run("good", 200, &[(MEMORY, Verdict::Pass)]);
    let node = in_quarantine("bad");
    assert!(ends(&node, &[bad.clone(), good.clone()]));
    let no_proof = [
        run("overlaps", 105, &[(MEMORY, Verdict::Pass)]),
        run("other check", 200, &[(CLOCK, Verdict::Pass)]),
        run("other place", 200, &[((MEMORY.0, "numa 0"), Verdict::Pass)]),
        run("warned", 200, &[(MEMORY, Verdict::Warn)]),
        run("skipped", 200, &[(MEMORY, Verdict::Skipped)]),
        run("broken", 200, &[(MEMORY, Verdict::Error)]),
        DueRun {
            finished: None,
            ..good.clone()
        },
    ];
    for run in no_proof {
        assert!(!ends(&node, &[bad.clone(), run.clone()]), "{}", run.name);
    }
    let restarted = DueNode {
        boot: "another".to_owned(),
        ..node.clone()
    };
    let unknown = DueNode {
        boot: String::new(),
        ..node
    };
    for node in [restarted, unknown] {
        assert!(!ends(&node, &[bad.clone(), good.clone()]));
    }
}

#[test]
fn all_that_failed_since_has_to_pass() {
    let node = in_quarantine("bad");
    let bad = fail("bad", 100);
    let worse = run("worse", 200, &[(CLOCK, Verdict::Fail)]);
    let one = run("one", 300, &[(MEMORY, Verdict::Pass)]);
    let other = run("other", 400, &[(CLOCK, Verdict::Pass)]);
    let mut runs = vec![bad, worse, one];
    assert!(!ends(&node, &runs));
    runs.push(other);
    assert!(ends(&node, &runs));
}

#[test]
fn a_quarantine_that_names_no_run_that_failed_is_a_persons() {
    let runs = [
        fail("bad", 100),
        run("good", 200, &[(MEMORY, Verdict::Pass)]),
    ];
    for by in ["", "good", "deleted"] {
        assert!(!ends(&in_quarantine(by), &runs), "{by:?}");
    }
}

#[test]
fn a_fail_whose_table_is_lost_is_for_a_person_to_settle() {
    let mut bad = fail("bad", 100);
    bad.findings.failed.clear();
    let good = run("good", 200, &[(MEMORY, Verdict::Pass)]);
    assert!(!ends(&in_quarantine("bad"), &[bad, good]));
}

#[test]
fn the_limits_hold_the_rest_back_and_the_first_to_fail_comes_first() {
    let nodes: Vec<_> = (0..100).map(node).collect();
    let runs: Vec<_> = (0..4)
        .map(|at| DueRun {
            node: format!("n{at:03}"),
            ..fail(&format!("bad {at}"), 1000 - at)
        })
        .collect();
    let plan = quarantine(&[policy(100)], &nodes, &runs);
    let begin: Vec<_> = plan.begin.iter().map(|one| one.node.as_str()).collect();
    assert_eq!(begin, ["n003", "n002"], "2 % of 100");
    assert_eq!(plan.policies["weekly"].held, ["n001", "n000"]);
    // One node is always allowed, and one of a leaf; without leaves only the percentage counts.
    assert_eq!(begun(&policy(4), &nodes[..4], &runs).len(), 1);
    let in_leaf = |leaf: &str| -> Vec<DueNode> {
        let leaf = leaf.to_owned();
        let nodes = nodes.iter().cloned();
        nodes
            .map(|node| DueNode {
                leaf: leaf.clone(),
                group: String::new(),
                ..node
            })
            .collect()
    };
    assert_eq!(begun(&policy(100), &in_leaf("same"), &runs).len(), 1);
    assert_eq!(begun(&policy(100), &in_leaf(""), &runs).len(), 2);
}

#[test]
fn those_in_quarantine_count_whoever_brought_them_there() {
    let mut nodes = vec![in_quarantine("by hand"), node(1)];
    let runs = [DueRun {
        node: "n001".to_owned(),
        ..fail("bad", 100)
    }];
    let plan = quarantine(&[policy(2)], &nodes, &runs);
    assert!(plan.begin.is_empty() && plan.end.is_empty());
    let summary = &plan.policies["weekly"];
    assert_eq!((summary.quarantined.len(), summary.held.len()), (1, 1));
    nodes[0].quarantine = None;
    assert_eq!(begun(&policy(2), &nodes, &runs).len(), 1);
}

#[test]
fn a_core_that_passes_stands_for_all_since_the_slowest_is_chance() {
    let core = |name, verdict| ((Check::CpuStress, name), verdict);
    let bad = run("bad", 100, &[core("core 3", Verdict::Fail)]);
    let good = run("good", 200, &[core("core 1", Verdict::Pass)]);
    assert!(ends(&in_quarantine("bad"), &[bad, good]));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "it measures time")]
fn limits_are_computed_once_and_not_for_each_failed_node() {
    const NODES: usize = 10_000;
    let nodes: Vec<DueNode> = (0..NODES).map(node).collect();
    let runs = (0..NODES / 4).map(|at| DueRun {
        node: nodes[at].name.clone(),
        ..run(&format!("run-{at}"), 100, &[(CLOCK, Verdict::Fail)])
    });
    let runs: Vec<DueRun> = runs.collect();
    let policy = policy(NODES);
    let policies = [policy];
    let taken = (0..5).map(|_| {
        let began = Instant::now();
        let plan = quarantine(&policies, &nodes, &runs);
        let taken = began.elapsed();
        assert_eq!(plan.begin.len(), NODES * 2 / 100);
        taken
    });
    // The fastest: others run on the machine.
    let what = "limits of quarantine with 2,500 failed of 10,000 nodes";
    sim::keep_limit(what, Duration::from_millis(50), taken.min().unwrap());
}
