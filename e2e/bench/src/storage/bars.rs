//! The bars: what has to hold against what the machine can do, as ratios within the rounds of one run.

use super::idle::Idle;
use super::quantity::{Access, DEPTHS, Quantity, Way};
use super::results::{Figure, Results};
use crate::bar::{Bar, Unit, Want};

/// Replicas of a byte, which all go to one disk here.
const REPLICAS: f64 = 3.0;
const OF_DISK: f64 = 0.5;
const OF_LOOP: f64 = 0.4;
/// What the loop has to reach of a third of the disk, for that third to be a measure.
const LOOP_OF_DISK: f64 = 0.75;
const OF_SEQUENTIAL: f64 = 0.5;
const OF_COMMIT: f64 = 0.25;
/// Of a core, for all processes of three nodes together.
const IDLE: f64 = 0.03;

/// Every bar.
pub(super) fn all(results: &Results, idle: Option<&Idle>) -> Vec<Bar> {
    let mut bars = Vec::new();
    for access in [Access::Write, Access::Read] {
        for depth in DEPTHS {
            let of = |way| Quantity::Sequential(access, depth, way);
            bars.push(of_disk(results, [Way::Ours, Way::Disk, Way::Loop].map(of)));
            let sides = [of(Way::Ours), of(Way::Loop)];
            bars.push(ratio(results, sides, (OF_LOOP, ""), |[ours, other]| {
                ours / other
            }));
        }
    }
    let sequential = Quantity::Sequential(Access::Write, 1, Way::Ours);
    for program in [Quantity::Copy, Quantity::TorchSave] {
        let sides = [program, sequential];
        bars.push(ratio(
            results,
            sides,
            (OF_SEQUENTIAL, ""),
            |[program, write]| program / write,
        ));
    }
    bars.push(sync(results));
    bars.push(Bar {
        about: "ours on three nodes, idle, of a core".to_owned(),
        want: Want::AtMost(IDLE),
        unit: Unit::Percent,
        value: idle.map_or_else(|| Err("not in this run".to_owned()), |idle| Ok(idle.ours())),
        unjudged: None,
        sides: idle.map(Idle::to_string).unwrap_or_default(),
        noisy: false,
    });
    bars
}

/// A rate against what three replicas leave of the disk's. Where the loop itself is far from that, the processor limits, and only
/// the loop's bar says something.
fn of_disk(results: &Results, [ours, disk, other]: [Quantity; 3]) -> Bar {
    let bar = ratio(results, [ours, disk], (OF_DISK, "/ 3"), |[ours, disk]| {
        ours / (disk / REPLICAS)
    });
    let reached = results.median([other, disk], |[other, disk]| other / (disk / REPLICAS));
    match reached {
        Ok(reached) if reached.value < LOOP_OF_DISK => Bar {
            value: Err(format!(
                "the loop reaches {:.0} % of a third of the disk itself: too fast a disk for this processor",
                reached.value * 100.0
            )),
            ..bar
        },
        Ok(_) | Err(_) => bar,
    }
}

/// One rate against another.
fn ratio(
    results: &Results,
    sides: [Quantity; 2],
    (least, divided): (f64, &str),
    function: impl Fn([f64; 2]) -> f64,
) -> Bar {
    let [one, other] = sides;
    let about = format!("{one}, against {other} {divided}");
    let text = || {
        let [one, other] = sides.map(|side| results.median([side], |[value]| value));
        Ok(format!("{:.0} : {:.0} MB/s", one?.value, other?.value))
    };
    let about = about.trim_end().to_owned();
    bar(about, least, results.median(sides, function), text())
}

fn sync(results: &Results) -> Bar {
    let sides = [Quantity::Sync, Quantity::Hops, Quantity::Commit];
    let figure = results.median(sides, |[ours, hops, commit]| (hops + commit) / ours);
    let text = || {
        let [ours, hops, commit] = sides.map(|side| results.median([side], |[value]| value));
        let (hops, commit) = (hops?.value, commit?.value);
        Ok(format!("{:.0} : {hops:.0} + {commit:.0} us", ours?.value))
    };
    let about = "4 KiB + fsync, against six hops and the slowest of three commits";
    bar(about.to_owned(), OF_COMMIT, figure, text())
}

fn bar(
    about: String,
    least: f64,
    figure: Result<Figure, String>,
    sides: Result<String, String>,
) -> Bar {
    Bar {
        about,
        want: Want::AtLeast(least),
        unit: Unit::Percent,
        noisy: figure.as_ref().is_ok_and(|figure| figure.noisy),
        value: figure.map(|figure| figure.value),
        unjudged: None,
        sides: sides.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::quantity::{Access, Group, Quantity, Way, of_round};
    use super::{Results, all};
    use crate::sample::Sample;

    #[test]
    fn a_disk_that_is_faster_than_the_loop_is_no_measure() {
        let mut results = Results::default();
        results.begin_round();
        for quantity in of_round(&Group::ALL.into()) {
            let of = |way| Quantity::Sequential(Access::Write, 4, way);
            let value = if quantity == of(Way::Disk) {
                6000.0
            } else if quantity == of(Way::Loop) {
                1000.0
            } else {
                700.0
            };
            let (others, quiet) = (0.0, true);
            results.add(
                quantity,
                Sample {
                    value,
                    others,
                    quiet,
                },
            );
        }
        let bars = all(&results, None);
        let why: Vec<_> = bars
            .iter()
            .filter_map(|bar| bar.value.as_ref().err())
            .collect();
        assert_eq!(why.len(), 2, "{why:?}");
        assert!(why[0].starts_with("the loop reaches 50 %"), "{why:?}");
    }

    #[test]
    fn every_bar_has_its_sides_in_a_full_run() {
        let mut results = Results::default();
        assert!(all(&results, None).iter().all(|bar| bar.holds().is_none()));
        results.begin_round();
        for quantity in of_round(&Group::ALL.into()) {
            let sample = Sample {
                value: 100.0,
                others: 0.0,
                quiet: true,
            };
            results.add(quantity, sample);
        }
        let bars = all(&results, None);
        assert_eq!(bars.len(), 12);
        let held: Vec<_> = bars.iter().filter_map(super::Bar::holds).collect();
        // All but the idle one, which no round measures.
        assert_eq!(held, [true; 11]);
        assert_eq!(bars[0].seen(), "300.0 %");
        assert_eq!(bars[10].seen(), "200.0 %");
    }
}
