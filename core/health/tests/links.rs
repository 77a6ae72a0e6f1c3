//! Fleets in which a node's link has half its speed: the node fails within four hours, though whoever measures with it is
//! as slow, and no other node does. In the flow of the product: `plan` chooses partners and deletes runs, `judge` judges.

use std::collections::BTreeMap;

use health::{
    Check, CheckResult, DueNode, DuePolicy, DueRun, Findings, Fingerprint, Fleet, Floors, Level,
    LinkResult, Links, NewRun, Outcome, Pair, Report, Verdict, Waits, judge, plan, screens,
};
use sim::{Rng, for_each_seed};

const NODES: usize = 50;
const ZONES: usize = 2;
const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const RUN: i64 = 3 * MINUTE;
/// What a whole link moves, in GB/s, and the floor that an admin sets.
const SPEED: f64 = 12.0;
const FLOOR: f64 = 0.8 * SPEED;
/// Of a measurement, as a part of it: 1.4 %.
const NOISE: f64 = 0.014;

struct World {
    now: i64,
    policy: DuePolicy,
    nodes: Vec<DueNode>,
    runs: BTreeMap<String, DueRun>,
    /// Open runs: when they end.
    open: BTreeMap<String, (i64, NewRun)>,
    fleet: BTreeMap<String, (i64, [f64; 2])>,
    /// Names of the nodes that failed, and when they did first.
    failed: BTreeMap<String, i64>,
    /// Nodes with half a link.
    slow: Vec<String>,
    waits: Waits,
}

/// The sum of twelve even numbers is nearly normal.
fn noise(rng: &mut Rng) -> f64 {
    let even = |rng: &mut Rng| rng.range(0..1 << 20) as f64 / f64::from(1 << 20);
    1.0 + NOISE * ((0..12).map(|_| even(rng)).sum::<f64>() - 6.0)
}

/// A run of the policy that was created then.
fn open(run: &NewRun, created: i64) -> DueRun {
    DueRun {
        name: run.name.clone(),
        node: run.node.clone(),
        level: Some(run.level),
        policy: Some(run.policy.clone()),
        is_next: false,
        interrupts: false,
        created,
        finished: None,
        verdict: None,
        findings: Findings {
            started: Some(created),
            ..Findings::default()
        },
        link: None,
    }
}

impl World {
    fn new(slow: usize) -> Self {
        let now = 20_000 * DAY;
        let name = |at: usize| format!("gpu-{at:02}");
        let node = |at: usize| DueNode {
            name: name(at),
            created: now,
            idle: true,
            can_start: true,
            job: None,
            suspect: false,
            leaf: String::new(),
            group: format!("a100/{}", at % ZONES),
            boot: "boot".to_owned(),
            quarantine: None,
        };
        Self {
            now,
            policy: DuePolicy {
                name: "weekly".to_owned(),
                created: 0,
                uid: "uid".to_owned(),
                interval: 7 * DAY,
                level: Level::Full,
                new_nodes: true,
                suspect_nodes: true,
                max_idle_nodes: 8,
                interrupt_after: None,
                suspend: false,
                quarantine: None,
                nodes: (0..NODES).map(name).collect(),
            },
            nodes: (0..NODES).map(node).collect(),
            runs: BTreeMap::new(),
            open: BTreeMap::new(),
            fleet: BTreeMap::new(),
            failed: BTreeMap::new(),
            slow: (0..slow).map(|at| name(at * 3)).collect(),
            waits: Waits::default(),
        }
    }

    fn tick(&mut self, rng: &mut Rng) {
        self.now += MINUTE;
        let over = self.open.extract_if(.., |_, (end, _)| *end <= self.now);
        for (_, run) in over.map(|(_, open)| open).collect::<Vec<_>>() {
            self.end(&run, rng);
        }
        for node in &mut self.nodes {
            node.idle = self.open.values().all(|(_, run)| run.node != node.name);
        }
        let open = self.open.values().map(|(end, run)| open(run, end - RUN));
        let runs: Vec<_> = self.runs.values().cloned().chain(open).collect();
        let plan = plan(
            std::slice::from_ref(&self.policy),
            &self.nodes,
            &runs,
            &mut self.waits,
            self.now,
        );
        for name in &plan.delete {
            self.runs.remove(name);
        }
        for run in plan.create {
            self.open.insert(run.name.clone(), (self.now + RUN, run));
        }
    }

    fn speed(&self, run: &NewRun) -> f64 {
        let partner = run.partner.as_ref();
        let ends = [Some(&run.node), partner];
        let is_slow = ends
            .into_iter()
            .flatten()
            .any(|end| self.slow.contains(end));
        if is_slow { SPEED / 2.0 } else { SPEED }
    }

    fn end(&mut self, run: &NewRun, rng: &mut Rng) {
        let partner = run.partner.clone().expect("all nodes are idle");
        let mut floors = Floors::default();
        floors.set(Check::Network, "", FLOOR);
        let fingerprint = Fingerprint::default();
        let mut fleet = Fleet::default();
        for (node, (at, values)) in self.fleet.iter().filter(|(node, _)| **node != run.node) {
            let values = ["send", "receive"].into_iter().zip(*values);
            let values = values.map(|(device, value)| (Check::Network, device, value));
            fleet.push(node, *at, &fingerprint, values);
        }
        let screens = screens(&[Check::Network], &floors, &fleet, Some(&fingerprint));
        let mut values = [0.0; 2];
        let results = ["send", "receive"].map(|device| {
            let mut measure = || self.speed(run) * noise(rng);
            let mut value = measure();
            let of = |device: &str| screens.get(&(Check::Network, device.to_owned()));
            let again = of(device)
                .or_else(|| of(""))
                .is_some_and(|screen| value < *screen);
            if again {
                value = health::median(&[value, measure(), measure(), measure()]);
            }
            values[usize::from(device == "receive")] = value;
            CheckResult {
                check: Check::Network,
                device: device.to_owned(),
                outcome: Outcome::Measured {
                    value,
                    runs: if again { 4 } else { 1 },
                },
            }
        });
        let report = Report {
            validation: "uid".to_owned(),
            boot: "boot".to_owned(),
            fingerprint,
            results: results.into(),
        };
        let mut links = Links::default();
        for other in self.runs.values() {
            if let (Some(at), Some(link)) = (other.finished, &other.link) {
                links.push(&other.node, at, link);
            }
        }
        let pair = Pair {
            node: &run.node,
            partner: &partner,
            links: &links,
        };
        let judgement = judge(&report, &[Check::Network], &floors, &fleet, Some(&pair));
        if judgement.verdict == Verdict::Fail {
            self.failed.entry(run.node.clone()).or_insert(self.now);
        }
        self.fleet.insert(run.node.clone(), (self.now, values));
        let is_good = judgement.verdict == Verdict::Pass;
        let ended = DueRun {
            finished: Some(self.now),
            verdict: Some(judgement.verdict),
            link: Some(LinkResult { partner, is_good }),
            ..open(run, self.now - RUN)
        };
        self.runs.insert(run.name.clone(), ended);
    }
}

#[test]
fn a_half_link_fails_its_own_node_within_four_hours_and_no_other() {
    for slow in [1, 3] {
        let fleets = 20;
        let (mut found, mut healthy, mut latest) = (0, 0, 0);
        for_each_seed(fleets, |rng| {
            let mut world = World::new(slow);
            let began = world.now;
            while world.now < began + DAY {
                world.tick(rng);
            }
            for (node, at) in &world.failed {
                match world.slow.contains(node) {
                    true => (found, latest) = (found + 1, latest.max(at - began)),
                    false => healthy += 1,
                }
            }
        });
        let of = slow as u64 * fleets;
        let hours = latest as f64 / HOUR as f64;
        assert_eq!((found, healthy), (of, 0), "found, and blamed");
        assert!(hours < 4.0, "the last after {hours:.1} hours");
    }
}
