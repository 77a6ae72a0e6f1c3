//! Generated fleets: how many degraded nodes are found, and how many healthy ones fail. In the flow of the product: a
//! first value below the screen is measured three times more, and the median of the four is judged.

use std::f64::consts::TAU;

use health::{
    Check, CheckResult, Fingerprint, Fleet, Floors, Judgement, Outcome, Report, Verdict, judge,
    screens,
};
use sim::{Rng, for_each_seed};

const NODES: usize = 50;
const CORES: usize = 32;
/// What is measured on a node: 12 values.
const VALUES: [(Check, &str, f64); 12] = [
    (Check::CpuFrequency, "", 3.3),
    (Check::CpuStress, "core 3", 100.0),
    (Check::MemoryBandwidth, "numa 0", 160.0),
    (Check::MemoryBandwidth, "numa 1", 155.0),
    (Check::AllReduce, "", 9.0),
    (Check::Disk, "", 2.0),
    (Check::Gpu, "gpu 0", 27.0),
    (Check::Gpu, "gpu 1", 27.0),
    (Check::Gpu, "gpu 2", 27.0),
    (Check::Gpu, "gpu 3", 27.0),
    (Check::Gpu, "gpu 4", 27.0),
    (Check::Gpu, "gpu 5", 18.5),
];
const ASKED: [Check; 6] = [
    Check::CpuFrequency,
    Check::CpuStress,
    Check::MemoryBandwidth,
    Check::AllReduce,
    Check::Disk,
    Check::Gpu,
];
/// Floors as an admin sets them: a fifth below what is usual.
const FLOOR: f64 = 0.8;

/// What is wrong with a node, and whose value shows it.
const DEFECTS: [(&str, usize); 3] = [("lost channels", 2), ("slow cores", 1), ("half links", 9)];

struct Node {
    /// Among `DEFECTS`.
    defect: Option<usize>,
    /// What it would measure without noise.
    values: [f64; 12],
    cores: [f64; CORES],
}

/// A normal number with this deviation, by Box and Muller.
fn normal(rng: &mut Rng, deviation: f64) -> f64 {
    let mut even = || (rng.range(0..1 << 32) as f64 + 0.5) / (1_u64 << 32) as f64;
    let (radius, angle) = ((-2.0 * even().ln()).sqrt(), TAU * even());
    radius * angle.cos() * deviation
}

impl Node {
    fn new(rng: &mut Rng, defect: Option<usize>, spread: f64) -> Self {
        let mut node = Self {
            defect,
            values: VALUES.map(|(_, _, value)| value * (1.0 + normal(rng, spread))),
            cores: [(); CORES].map(|()| 1.0 + normal(rng, spread)),
        };
        match defect.map(|defect| DEFECTS[defect].0) {
            Some("lost channels") => node.values[2] *= 0.94,
            Some("slow cores") => node.cores[3] *= 0.9,
            Some("half links") => node.values[9] *= 0.5,
            _ => {}
        }
        node
    }

    fn measure(&self, rng: &mut Rng, at: usize, noise: f64) -> f64 {
        if VALUES[at].0 != Check::CpuStress {
            return self.values[at] * (1.0 + normal(rng, noise));
        }
        let mut cores = self.cores.map(|core| core * (1.0 + normal(rng, noise)));
        cores.sort_by(f64::total_cmp);
        100.0 * cores[0] / f64::midpoint(cores[CORES / 2 - 1], cores[CORES / 2])
    }
}

/// One validation, and how many values were measured again.
fn validate(
    rng: &mut Rng,
    node: &Node,
    noise: f64,
    floors: &Floors,
    fleet: &Fleet,
) -> (Report, u64) {
    let fingerprint = Fingerprint::default();
    let screens = screens(&ASKED, floors, fleet, Some(&fingerprint));
    let mut again = 0;
    let results = VALUES.iter().enumerate().map(|(at, &(check, device, _))| {
        let of = |device: &str| screens.get(&(check, device.to_owned()));
        let screen = of(device).or_else(|| of(""));
        let mut values = vec![node.measure(rng, at, noise)];
        if screen.is_some_and(|screen| values[0] < *screen) {
            values.extend([(); 3].map(|()| node.measure(rng, at, noise)));
            again += 1;
        }
        values.sort_by(f64::total_cmp);
        let half = values.len() / 2;
        let outcome = Outcome::Measured {
            value: f64::midpoint(values[half], values[values.len() - 1 - half]),
            runs: values.len() as u32,
        };
        CheckResult {
            check,
            device: device.to_owned(),
            outcome,
        }
    });
    let results = results.collect();
    let report = Report {
        validation: "uid".to_owned(),
        boot: "boot".to_owned(),
        fingerprint,
        results,
    };
    (report, again)
}

/// Of a number of fleets.
#[derive(Default)]
struct Counts {
    /// Nodes of each defect that failed for it.
    found: [u64; 3],
    /// Lost channels that the floors alone found.
    found_by_floors: u64,
    /// Healthy nodes.
    failed: u64,
    /// Values that were measured again.
    again: u64,
}

impl Counts {
    /// A fleet with one node of each defect. Each node is validated by the floors alone, then with the fleet, which
    /// counts.
    fn add_fleet(&mut self, rng: &mut Rng, spread: f64, noise: f64) {
        let mut floors = Floors::default();
        for (check, device, value) in VALUES {
            floors.set(check, device, FLOOR * value);
        }
        let of = |at| (at < DEFECTS.len()).then_some(at);
        let nodes = (0..NODES).map(|at| Node::new(rng, of(at), spread));
        let mut nodes: Vec<Node> = nodes.collect();
        rng.shuffle(&mut nodes);
        let alone = Fleet::default();
        let mut first = |node| validate(rng, node, noise, &floors, &alone).0;
        let mut last: Vec<Report> = nodes.iter().map(&mut first).collect();
        for (at, node) in nodes.iter().enumerate() {
            let fleet = fleet_without(at, &last);
            let (report, again) = validate(rng, node, noise, &floors, &fleet);
            let judgement = judge(&report, &ASKED, &floors, &fleet, None);
            let by_floors = judge(&report, &ASKED, &floors, &alone, None);
            let fails = |judgement: &Judgement, at: usize| {
                u64::from(judgement.results[at].verdict == Verdict::Fail)
            };
            match node.defect {
                Some(defect) => self.found[defect] += fails(&judgement, DEFECTS[defect].1),
                None => self.failed += u64::from(judgement.verdict == Verdict::Fail),
            }
            if node.defect == Some(0) {
                self.found_by_floors += fails(&by_floors, DEFECTS[0].1);
            }
            self.again += again;
            last[at] = report;
        }
    }
}

/// The newest results of the others.
fn fleet_without(node: usize, last: &[Report]) -> Fleet {
    let mut fleet = Fleet::default();
    for (at, report) in last.iter().enumerate().filter(|(at, _)| *at != node) {
        let values = report
            .results
            .iter()
            .filter_map(|result| match result.outcome {
                Outcome::Measured { value, .. } => {
                    Some((result.check, result.device.as_str(), value))
                }
                Outcome::Wrong { .. } | Outcome::Error { .. } | Outcome::Skipped { .. } => None,
            });
        fleet.push(
            &format!("node-{at}"),
            at as i64,
            &report.fingerprint,
            values,
        );
    }
    fleet
}

#[expect(clippy::print_stdout, reason = "the rates are the result")]
fn print(lines: &str) {
    println!("{lines}");
}

/// Percentages: found of each defect, healthy nodes that fail, lost channels found by floors alone.
fn rates(fleets: u64, spread: f64, noise: f64) -> ([f64; 3], f64, f64) {
    let mut counts = Counts::default();
    for_each_seed(fleets, |rng| counts.add_fleet(rng, spread, noise));
    let nodes = fleets * NODES as u64;
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole as f64;
    let found = counts.found.map(|found| percent(found, fleets));
    let failed = percent(counts.failed, nodes - fleets * DEFECTS.len() as u64);
    let again = percent(counts.again, nodes * VALUES.len() as u64);
    let (spread, noise) = (100.0 * spread, 100.0 * noise);
    let [channels, cores, links] = found;
    print(&format!(
        "{spread:.1} % between nodes, {noise:.1} % noise: found {channels:.1} % of lost channels, {cores:.1} % of slow \
         cores, {links:.1} % of half links; {failed:.2} % of healthy nodes fail; {again:.1} % of values measured again"
    ));
    (found, failed, percent(counts.found_by_floors, fleets))
}

#[test]
fn degraded_nodes_are_found_and_healthy_ones_pass() {
    let (found, failed, by_floors) = rates(200, 0.005, 0.014);
    assert!(found.into_iter().all(|found| found >= 95.0));
    assert!(failed <= 1.0);
    assert_eq!(by_floors, 0.0, "a floor alone finds no lost channel");
}

#[test]
fn in_fleets_with_other_spreads_few_healthy_nodes_fail() {
    for (spread, noise) in [(0.01, 0.014), (0.02, 0.014), (0.005, 0.03), (0.02, 0.03)] {
        let (found, failed, _) = rates(30, spread, noise);
        assert!(failed <= 3.0);
        assert!(found[2] >= 99.0, "a half link is below the floor anyway");
    }
}
