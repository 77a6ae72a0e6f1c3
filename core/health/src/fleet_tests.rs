//! Tests of `fleet`: whose values count, and where the lines lie.

use super::*;

fn print(kernel: &str) -> Fingerprint {
    Fingerprint {
        kernel: kernel.to_owned(),
        ..Fingerprint::default()
    }
}

/// Node `n` has `values[n]`, measured at time `n`.
fn fleet(check: Check, device: &str, values: &[f64]) -> Fleet {
    let mut fleet = Fleet::default();
    for (at, &value) in values.iter().enumerate() {
        let node = format!("node-{at}");
        fleet.push(&node, at as i64, &print("6.1"), [(check, device, value)]);
    }
    fleet
}

#[test]
fn a_device_has_its_own_floor_or_that_of_its_check() {
    let mut floors = Floors::default();
    floors.set(Check::Offer, "nvidia.com/gpu", 8.0);
    assert_eq!(floors.of(Check::Offer, "nvidia.com/gpu"), Some(8.0));
    assert_eq!(floors.of(Check::Offer, "rdma/hca"), None);
    floors.set(Check::Offer, "", 1.0);
    assert_eq!(floors.of(Check::Offer, "nvidia.com/gpu"), Some(8.0));
    assert_eq!(floors.of(Check::Offer, "rdma/hca"), Some(1.0));
    assert_eq!(floors.of(Check::Disk, ""), None);
}

#[test]
fn seven_values_are_no_baseline_and_eight_are() {
    let values = [10.0, 10.2, 9.9, 10.1, 9.8, 10.0, 10.3, 10.0];
    let of = |values: &[f64]| {
        Peers::from(&fleet(Check::Disk, "", values)).baseline(Check::Disk, "", &print("6.1"))
    };
    assert_eq!(of(&values[..7]), None);
    let baseline = of(&values).unwrap();
    assert_eq!((baseline.median, baseline.count), (10.0, 8));
    assert!(baseline.line < baseline.screen && baseline.screen < 10.0);
    assert_eq!(of(&[0.0; 8]), None);
}

#[test]
fn only_the_newest_value_of_a_node_alike_at_the_same_place_counts() {
    let gpu = Check::Gpu;
    let mut fleet = fleet(gpu, "gpu 5", &[8.0; 10]);
    let median = |fleet: &Fleet, device: &str, kernel: &str| {
        let baseline = Peers::from(fleet).baseline(gpu, device, &print(kernel));
        baseline.map(|one| (one.median, one.count))
    };
    assert_eq!(median(&fleet, "gpu 5", "6.1"), Some((8.0, 10)));
    assert_eq!(median(&fleet, "gpu 0", "6.1"), None);
    assert_eq!(median(&fleet, "gpu 5", "6.2"), None);
    // An older value does not count, a newer one does; an upgraded node is not alike.
    fleet.push("node-3", 1, &print("6.1"), [(gpu, "gpu 5", 1.0)]);
    assert_eq!(median(&fleet, "gpu 5", "6.1"), Some((8.0, 10)));
    for node in 0..6 {
        let name = format!("node-{node}");
        fleet.push(&name, 20, &print("6.1"), [(gpu, "gpu 5", 9.0)]);
    }
    assert_eq!(median(&fleet, "gpu 5", "6.1"), Some((9.0, 10)));
    fleet.push("node-0", 30, &print("6.2"), [(gpu, "gpu 5", 9.0)]);
    assert_eq!(median(&fleet, "gpu 5", "6.1"), Some((9.0, 9)));
    let all = Peers::from(&fleet);
    assert_eq!(all.newest_fingerprint(gpu, "gpu 5"), Some(&print("6.2")));
}

#[test]
fn the_slowest_core_of_a_node_stands_for_it_whichever_it_is() {
    let mut fleet = Fleet::default();
    for node in 0..8 {
        let (first, second) = (format!("core {node}"), format!("core {}", node + 1));
        let cores = [(first.as_str(), 97.0), (second.as_str(), 96.0)];
        let cores = cores.map(|(core, value)| (Check::CpuStress, core, value));
        fleet.push(&node.to_string(), 1, &print("6.1"), cores);
    }
    let baseline = Peers::from(&fleet).baseline(Check::CpuStress, "core 99", &print("6.1"));
    assert_eq!(baseline.map(|one| one.median), Some(96.0));
}

#[test]
fn what_is_counted_is_not_compared() {
    for check in [Check::Offer, Check::MemoryPattern, Check::LockedMemory] {
        let fleet = fleet(check, "", &[8.0; 20]);
        assert_eq!(Peers::from(&fleet).baseline(check, "", &print("6.1")), None);
    }
}

#[test]
fn many_are_more_than_a_quarter_of_the_last_twenty() {
    let of = |below: usize, count: usize| {
        let values: Vec<_> = (0..count)
            .map(|at| if at < below { 1.0 } else { 9.0 })
            .collect();
        Peers::from(&fleet(Check::Disk, "", &values)).many_below(Check::Disk, "", 5.0, None)
    };
    // The one that is judged counts, too.
    assert_eq!(of(4, 19), None);
    assert_eq!(of(5, 19), Some((6, 20)));
    assert_eq!(of(6, 6), None);
    assert_eq!(of(2, 7), Some((3, 8)));
    // Those of long ago do not.
    assert_eq!(of(20, 39), None);
}

#[test]
fn the_margin_grows_with_what_repetition_does_not_cure() {
    assert_eq!(margin(0.0), LEAST_MARGIN);
    assert_eq!(margin(0.015), LEAST_MARGIN);
    assert!((margin(0.0244) - 0.073).abs() < 0.001);
    assert_eq!(margin(f64::INFINITY), 1.0);
}

#[test]
fn the_spread_of_normal_values_is_found_though_a_third_is_anything() {
    // Quantiles of the normal distribution with a deviation of 2, and 12 that are far away.
    let quantiles = [0.126, 0.385, 0.674, 1.036, 1.645];
    let normal = quantiles
        .into_iter()
        .flat_map(|one| [-2.0 * one, 2.0 * one]);
    let normal: Vec<f64> = normal.cycle().take(30).map(|one| 100.0 + one).collect();
    let clean = spread(&normal);
    assert!((1.5..2.5).contains(&clean), "{clean}");
    let mut dirty = normal;
    dirty.extend((0..12).map(|at| f64::from(at) * 1000.0));
    assert!((1.5..4.5).contains(&spread(&dirty)), "{}", spread(&dirty));
    assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
}

/// A run as a fleet is told of it.
#[derive(Clone)]
struct Ran {
    node: String,
    at: i64,
    print: Fingerprint,
    values: Vec<(Check, &'static str, f64)>,
}

fn ran(rng: &mut sim::Rng) -> Ran {
    let devices = [
        (Check::CpuStress, "core 1"),
        (Check::CpuStress, "core 2"),
        (Check::Gpu, "gpu 0"),
        (Check::Gpu, "gpu 1"),
        (Check::Disk, ""),
    ];
    let values = (0..rng.below(6)).map(|_| {
        let (check, device) = *rng.pick(&devices);
        (check, device, rng.below(3) as f64)
    });
    let values = values.collect();
    Ran {
        node: format!("node-{}", rng.below(4)),
        // Runs that end in the same second are drawn, too.
        at: rng.below(6) as i64,
        print: print(["6.1", "6.2"][rng.below(2)]),
        values,
    }
}

fn gathered(runs: &[Ran], except: &str) -> Fleet {
    let mut fleet = Fleet::default();
    for run in runs.iter().filter(|run| run.node != except) {
        fleet.push(&run.node, run.at, &run.print, run.values.iter().copied());
    }
    fleet
}

#[test]
fn a_fleet_that_follows_its_runs_is_the_one_that_is_gathered_anew() {
    sim::for_each_seed(500, |rng| {
        let (mut runs, mut kept): (Vec<Ran>, _) = (Vec::new(), Fleet::default());
        for _ in 0..40 {
            if runs.is_empty() || rng.chance(3, 5) {
                let run = ran(rng);
                kept.push(&run.node, run.at, &run.print, run.values.iter().copied());
                runs.push(run);
            } else {
                let gone = runs.swap_remove(rng.below(runs.len()));
                if kept.pull(&gone.node, gone.at, gone.values.iter().copied()) {
                    for run in runs.iter().filter(|run| run.node == gone.node) {
                        kept.push(&run.node, run.at, &run.print, run.values.iter().copied());
                    }
                }
            }
            assert_eq!(kept, gathered(&runs, ""));
            // What a node is judged by knows nothing of its own runs.
            let (all, others) = (kept.without("node-1"), gathered(&runs, "node-1"));
            let others = Peers::from(&others);
            for check in [Check::CpuStress, Check::Gpu, Check::Disk] {
                let places: Vec<_> = others.places(check).collect();
                assert_eq!(all.places(check).collect::<Vec<_>>(), places);
                for place in places {
                    let newest = |of: Peers<'_>| of.newest(check, place, None).collect::<Vec<_>>();
                    assert_eq!(newest(all), newest(others));
                    let print = others.newest_fingerprint(check, place);
                    assert_eq!(all.newest_fingerprint(check, place), print);
                }
            }
        }
        for run in &runs {
            let _again = kept.pull(&run.node, run.at, run.values.iter().copied());
        }
        assert_eq!(kept, Fleet::default(), "nothing stays of what is gone");
    });
}
