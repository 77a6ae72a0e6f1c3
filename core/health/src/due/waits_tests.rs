//! Tests of `waits`, with the plans that follow.

use super::*;
use crate::check::Level;
use crate::due::{DuePlan, DuePolicy, NewRun, NodeUse, plan};
use crate::quarantine::Findings;
use crate::verdict::Verdict;

const NOW: i64 = 1_000_000_000;
const HOUR: i64 = 3600;
/// Between two plans.
const LOOK: i64 = 10;
/// The seconds that a run takes.
const RUN: i64 = 180;

fn policy(nodes: usize, max_idle_nodes: usize) -> DuePolicy {
    DuePolicy {
        name: "weekly".to_owned(),
        created: 0,
        uid: "uid".to_owned(),
        interval: 7 * 24 * HOUR,
        level: Level::Standard,
        new_nodes: true,
        suspect_nodes: true,
        max_idle_nodes,
        interrupt_after: None,
        suspend: false,
        quarantine: None,
        nodes: (0..nodes).map(name).collect(),
    }
}

fn name(at: usize) -> String {
    format!("gpu-{at:03}")
}

fn node(at: usize) -> DueNode {
    DueNode {
        name: name(at),
        created: NOW,
        idle: true,
        can_start: true,
        job: None,
        suspect: false,
        leaf: String::new(),
        group: String::new(),
        boot: "boot".to_owned(),
        quarantine: None,
    }
}

fn open(name: &str, at: usize, policy: Option<&str>) -> DueRun {
    DueRun {
        name: name.to_owned(),
        node: self::name(at),
        level: Some(Level::Standard),
        policy: policy.map(str::to_owned),
        is_next: false,
        interrupts: false,
        created: NOW,
        finished: None,
        verdict: None,
        findings: Findings::default(),
        link: None,
    }
}

/// Names of the runs that are withdrawn.
fn withdrawn(waits: &mut Waits, nodes: &[DueNode], runs: &[DueRun], now: i64) -> Vec<String> {
    let by_name = nodes.iter().map(|node| (node.name.as_str(), node));
    let withdrawn = waits.withdraw(&by_name.collect(), runs, now).into_iter();
    withdrawn.map(|one| one.run).collect()
}

#[test]
fn what_a_policy_created_is_withdrawn_when_it_could_have_started_and_nothing_of_people() {
    let nodes = [0, 1, 2, 3].map(node);
    let mut runs = vec![
        open("stuck", 0, Some("weekly")),
        open("by-hand", 1, None),
        open("started", 2, Some("weekly")),
        open("gone", 9, Some("weekly")),
    ];
    runs[2].findings.started = Some(NOW);
    let mut waits = Waits::default();
    let mut at = |runs: &[DueRun], seconds| withdrawn(&mut waits, &nodes, runs, NOW + seconds);
    assert_eq!(at(&runs, 0), [""; 0]);
    assert_eq!(at(&runs, START_SECONDS - 1), [""; 0]);
    assert_eq!(at(&runs, START_SECONDS), ["stuck"]);
    assert_eq!(
        at(&runs, START_SECONDS + 5),
        ["stuck"],
        "until it is seen to be gone"
    );
    // Another of its name begins to wait anew.
    let others = runs.split_off(1);
    assert_eq!(at(&others, START_SECONDS + 10), [""; 0]);
    assert_eq!(at(&runs, START_SECONDS + 20), [""; 0]);
}

#[test]
fn a_run_waits_for_weeks_for_a_job_and_only_two_minutes_after_it() {
    let used = DueNode {
        idle: false,
        job: Some(NodeUse {
            job: "job".to_owned(),
            since: NOW,
        }),
        ..node(0)
    };
    let next = DueRun {
        is_next: true,
        ..open("next", 0, Some("weekly"))
    };
    let mut waits = Waits::default();
    for time in [0, 1000 * HOUR] {
        assert_eq!(
            withdrawn(
                &mut waits,
                std::slice::from_ref(&used),
                std::slice::from_ref(&next),
                NOW + time
            ),
            [""; 0]
        );
    }
    let ended = NOW + 1001 * HOUR;
    let free = [node(0)];
    assert_eq!(
        withdrawn(&mut waits, &free, std::slice::from_ref(&next), ended),
        [""; 0]
    );
    // The job was only away for a moment.
    assert_eq!(
        withdrawn(
            &mut waits,
            std::slice::from_ref(&used),
            std::slice::from_ref(&next),
            ended + START_SECONDS
        ),
        [""; 0]
    );
    assert_eq!(
        withdrawn(
            &mut waits,
            &free,
            std::slice::from_ref(&next),
            ended + START_SECONDS
        ),
        [""; 0]
    );
    assert_eq!(
        withdrawn(&mut waits, &free, &[next], ended + 2 * START_SECONDS),
        ["next"]
    );
    // One that would not go before the next job gives way to one that does.
    let late = [open("late", 0, Some("weekly"))];
    assert_eq!(
        withdrawn(&mut waits, std::slice::from_ref(&used), &late, ended),
        [""; 0]
    );
    assert_eq!(
        withdrawn(
            &mut waits,
            std::slice::from_ref(&used),
            &late,
            ended + START_SECONDS
        ),
        ["late"]
    );
    let plan = plan(
        &[policy(1, 1)],
        &[used],
        &[],
        &mut waits,
        ended + START_SECONDS + LOOK,
    );
    let next: Vec<bool> = plan.create.iter().map(|run| run.is_next).collect();
    assert_eq!(next, [true], "at once, as it costs the policy no room");
}

#[test]
fn a_node_is_tried_again_ever_later_until_a_run_starts() {
    let mut waits = Waits::default();
    let nodes = [node(0)];
    let stuck = [open("stuck", 0, Some("weekly"))];
    let mut now = NOW;
    let mut lengths = Vec::new();
    for _ in 0..7 {
        withdrawn(&mut waits, &nodes, &stuck, now);
        now += START_SECONDS;
        assert_eq!(withdrawn(&mut waits, &nodes, &stuck, now), ["stuck"]);
        let again = waits.again("gpu-000").unwrap();
        lengths.push((again - now) / 60);
        withdrawn(&mut waits, &nodes, &[], now);
        now = again;
    }
    assert_eq!(lengths, [10, 20, 40, 80, 160, 240, 240]);
    let mut started = open("starts", 0, None);
    started.findings.started = Some(now);
    withdrawn(&mut waits, &nodes, &[started], now);
    assert_eq!(waits, Waits::default());
    // What is known of a node ends with it.
    withdrawn(&mut waits, &nodes, &stuck, now);
    withdrawn(&mut waits, &nodes, &stuck, now + START_SECONDS);
    withdrawn(&mut waits, &[], &stuck, now + START_SECONDS);
    assert_eq!(waits, Waits::default());
}

/// Idle nodes, on some of which nothing starts, and the policy's runs.
struct Cluster {
    now: i64,
    nodes: Vec<DueNode>,
    runs: Vec<DueRun>,
    waits: Waits,
    /// Names of nodes that had a run, and number of runs created.
    tried: BTreeSet<String>,
    created: usize,
    most_open: usize,
}

impl Cluster {
    fn new(nodes: usize) -> Self {
        Self {
            now: NOW,
            nodes: (0..nodes).map(node).collect(),
            runs: Vec::new(),
            waits: Waits::default(),
            tried: BTreeSet::new(),
            created: 0,
            most_open: 0,
        }
    }

    /// Plans every ten seconds; runs start on nodes of which `starts` says so.
    fn pass(&mut self, policy: &DuePolicy, time: i64, starts: impl Fn(&str) -> bool) {
        let end = self.now + time;
        while self.now < end {
            let DuePlan {
                create, withdraw, ..
            } = plan(
                std::slice::from_ref(policy),
                &self.nodes,
                &self.runs,
                &mut self.waits,
                self.now,
            );
            for one in &withdraw {
                self.runs.retain(|run| run.name != one.run);
            }
            for NewRun { name, node, .. } in create {
                let mut run = open(&name, 0, Some(&policy.name));
                (run.node, run.created) = (node.clone(), self.now);
                self.runs.push(run);
                self.tried.insert(node);
                self.created += 1;
            }
            let open = self.runs.iter().filter(|run| run.finished.is_none());
            self.most_open = self.most_open.max(open.count());
            self.now += LOOK;
            for run in &mut self.runs {
                match run.findings.started {
                    None if starts(&run.node) => run.findings.started = Some(self.now),
                    Some(began) if run.finished.is_none() && began + RUN <= self.now => {
                        run.finished = Some(self.now);
                        run.verdict = Some(Verdict::Pass);
                    }
                    Some(_) | None => {}
                }
            }
        }
    }

    fn validated(&self) -> usize {
        let ended = self.runs.iter().filter(|run| run.finished.is_some());
        ended.map(|run| &run.node).collect::<BTreeSet<_>>().len()
    }
}

#[test]
fn five_hundred_nodes_on_which_nothing_starts_have_four_runs_at_a_time() {
    let policy = policy(500, 4);
    let mut cluster = Cluster::new(500);
    cluster.pass(&policy, HOUR, |_| false);
    assert_eq!(cluster.most_open, 4);
    assert!(cluster.created <= 4 * 30, "{} in an hour", cluster.created);
    assert!(cluster.tried.len() >= 60, "others have their turn");
    // When they can start, they do as fast as the policy allows, and not faster.
    cluster.pass(&policy, HOUR, |_| true);
    assert_eq!(cluster.most_open, 4);
    assert!(cluster.validated() > 4 * 15, "{}", cluster.validated());
}

#[test]
fn five_hundred_nodes_without_an_agent_have_no_run_and_start_four_at_a_time_when_it_is_back() {
    let policy = policy(500, 4);
    let mut cluster = Cluster::new(500);
    for node in &mut cluster.nodes {
        node.can_start = false;
    }
    cluster.pass(&policy, HOUR, |_| false);
    assert_eq!((cluster.most_open, cluster.created), (0, 0));
    for node in &mut cluster.nodes {
        node.can_start = true;
    }
    cluster.pass(&policy, HOUR, |_| true);
    assert_eq!(cluster.most_open, 4);
    assert!(cluster.validated() > 4 * 15, "{}", cluster.validated());
}

#[test]
fn nodes_on_which_nothing_starts_keep_no_other_from_its_turn() {
    let policy = policy(40, 2);
    let mut cluster = Cluster::new(40);
    // The first by name would always be the first otherwise.
    let starts = |node: &str| node >= "gpu-020";
    cluster.pass(&policy, 3 * HOUR, starts);
    assert_eq!((cluster.most_open, cluster.validated()), (2, 20));
}
