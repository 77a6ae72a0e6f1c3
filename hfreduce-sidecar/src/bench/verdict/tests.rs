//! Which figures lead to which verdict, and what is said of it.

use super::*;

const WORK: Work = Work {
    processes: 4,
    tensors: 46,
    bytes_per_tensor: 4 << 20,
    rounds: 3,
};
const FLOORS: Floors = Floors {
    at_least: Some(1.0),
    of_memcpy: Some(0.5),
};

/// A part that took so many seconds next to a memcpy of 10 GB/s with four threads.
fn part(numa_node: u32, median: f64) -> Part {
    Part {
        place: Place {
            numa_node: Some(numa_node),
            processors: "0-31".to_owned(),
        },
        figures: Figures::new(WORK, &[median / 2.0, median, median * 2.0], (4, 10e9)),
        wrong: Vec::new(),
        wrong_cores: Vec::new(),
        error: None,
    }
}

fn wrong(rank: u32) -> Wrong {
    Wrong {
        rank,
        tensor: 7,
        elements: 1 << 20,
        wrong: 1,
        first: 4711,
        expected: "00000040".to_owned(),
        got: "00000044".to_owned(),
    }
}

fn check(parts: Vec<Part>, code: u8, verdict: Verdict, said: &[&str]) {
    let report = Report::new("a processor".to_owned(), (WORK, FLOORS), parts, None);
    assert_eq!((report.code(), report.verdict), (code, verdict));
    for said in said {
        assert!(report.message.contains(said), "{said}: {}", report.message);
    }
}

#[test]
fn the_two_figures_are_the_papers() {
    let figures = part(0, 0.1).figures.unwrap();
    let algorithm = 46.0 * f64::from(4 << 20) / 0.1 / 1e9;
    assert!((figures.algorithm - algorithm).abs() < 1e-9);
    assert!((figures.bus - algorithm * 1.5).abs() < 1e-9);
    assert!((figures.of_memcpy - algorithm * 5.0 / 10.0).abs() < 1e-9);
}

#[test]
fn what_is_right_and_fast_passes() {
    check(
        vec![part(0, 0.1), part(1, 0.1)],
        0,
        Verdict::Pass,
        &["every element"],
    );
}

#[test]
fn each_floor_is_held_on_every_numa_node() {
    let said = [
        "NUMA node 1",
        "0.965 GB/s",
        "1 GB/s (--at-least)",
        "throttled",
    ];
    check(vec![part(0, 0.1), part(1, 0.2)], 4, Verdict::Fail, &said);
    // 1.02 GB/s makes 5.1 of traffic; next to a faster memcpy that is out of proportion.
    let mut slow = part(0, 0.19);
    slow.figures = Figures::new(WORK, &[0.19], (4, 20e9));
    check(
        vec![slow],
        4,
        Verdict::Fail,
        &[
            "0.254 of memcpy's 20.0 GB/s with 4 threads",
            "(--of-memcpy)",
        ],
    );
}

#[test]
fn a_wrong_sum_is_worse_than_everything_else() {
    let mut spoiled = part(1, 0.2);
    spoiled.wrong = vec![wrong(0), wrong(3)];
    spoiled.figures = None;
    spoiled.error = Some("the sum is wrong".to_owned());
    let said = [
        "NUMA node 1",
        "2 ranks",
        "tensor 7",
        "4711",
        "00000044 instead of",
        "edac",
    ];
    check(vec![part(0, 0.2), spoiled], 3, Verdict::Fail, &said);
}

#[test]
fn a_core_that_adds_wrongly_is_named_whatever_the_sidecar_did() {
    let mut spoiled = part(0, 0.1);
    let wrong = "sum of core 5 at offset 0x44: expected 1, got 2";
    spoiled.wrong_cores = vec![wrong.to_owned()];
    check(
        vec![spoiled],
        3,
        Verdict::Fail,
        &["NUMA node 0", wrong, "edac"],
    );
}

#[test]
fn what_could_not_run_says_nothing_of_the_machine() {
    let mut broken = part(0, 0.1);
    broken.error = Some("no memory".to_owned());
    check(
        vec![broken],
        1,
        Verdict::Error,
        &["no memory", "nothing is known"],
    );
    check(Vec::new(), 1, Verdict::Error, &["nothing was measured"]);
}

#[test]
fn the_json_has_the_fields_that_its_readers_know() {
    let report = Report::new(String::new(), (WORK, FLOORS), vec![part(0, 0.2)], None);
    let json = serde_json::to_value(report).unwrap();
    assert_eq!(json["version"], 2);
    assert_eq!(
        (&json["verdict"], &json["cause"]),
        (&"Fail".into(), &"Slow".into())
    );
    assert_eq!(json["work"]["bytesPerTensor"], 4 << 20);
    assert_eq!(json["floors"]["atLeast"], 1.0);
    let part = &json["parts"][0];
    assert_eq!(
        (&part["numaNode"], &part["processors"]),
        (&0.into(), &"0-31".into())
    );
    assert_eq!(part["wrongCores"], serde_json::json!([]));
    assert_eq!(part["figures"]["memcpyThreads"], 4);
    for figure in ["medianSeconds", "algorithm", "bus", "memcpy", "ofMemcpy"] {
        assert!(part["figures"][figure].is_f64(), "{figure}");
    }
}
