//! The check of a machine, as an administrator or a validator runs it: its exit codes, its JSON and its words.
#![expect(clippy::unwrap_used, reason = "test harness")]

use std::process::{Command, Output};

use serde_json::Value;

/// A load that takes a moment.
const SMALL: [&str; 8] = [
    "--procs",
    "2",
    "--tensors",
    "3",
    "--tensor-bytes",
    "262148",
    "--rounds",
    "3",
];

fn validate(more: &[&str], temporary: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hfreduce-sidecar"));
    command.arg("validate").args(SMALL).args(more);
    if let Some(folder) = temporary {
        command.env("TMPDIR", folder);
    }
    command.output().unwrap()
}

fn json(more: &[&str], temporary: Option<&str>) -> (i32, Value) {
    let output = validate(&[more, &["--format", "json"]].concat(), temporary);
    let text = String::from_utf8(output.stdout).unwrap();
    let parsed = serde_json::from_str(&text).unwrap();
    (output.status.code().unwrap(), parsed)
}

#[test]
fn a_machine_that_adds_right_passes_and_tells_its_two_figures() {
    let (code, report) = json(&["--of-memcpy", "0"], None);
    assert_eq!(code, 0, "{report}");
    assert_eq!(
        (&report["verdict"], &report["cause"]),
        (&"Pass".into(), &Value::Null)
    );
    let parts = report["parts"].as_array().unwrap();
    // The whole machine comes last, after its NUMA nodes if it has several.
    let whole = parts.last().unwrap();
    assert!(whole["numaNode"].is_null() && whole["processors"].is_string());
    let figure = |name: &str| whole["figures"][name].as_f64().unwrap();
    assert!(figure("algorithm") > 0.0 && figure("memcpy") > 0.0);
    // Two ranks: 2 * (2 - 1) / 2 is one.
    assert!((figure("bus") - figure("algorithm")).abs() < 1e-9);
    let rate = 3.0 * 262_148.0 / figure("medianSeconds") / 1e9;
    assert!((rate - figure("algorithm")).abs() < 1e-6 * rate);
}

#[test]
fn memcpy_has_a_thread_for_each_processor_whatever_the_sidecar_may_use() {
    let processors = std::thread::available_parallelism().unwrap().get();
    let (code, report) = json(&["--of-memcpy", "0", "--workers", "1"], None);
    assert_eq!(code, 0, "{report}");
    let parts = report["parts"].as_array().unwrap();
    let threads = &parts.last().unwrap()["figures"]["memcpyThreads"];
    assert_eq!(threads, &processors.min(12));
}

#[test]
fn a_floor_that_no_machine_reaches_is_missed_with_its_own_code() {
    let (code, report) = json(&["--at-least", "1000000"], None);
    assert_eq!(code, 4, "{report}");
    assert_eq!(
        (&report["verdict"], &report["cause"]),
        (&"Fail".into(), &"Slow".into())
    );
    let message = report["message"].as_str().unwrap();
    assert!(message.contains("1000000 GB/s (--at-least)"), "{message}");
    assert!(message.contains("What to do"), "{message}");
    let (code, report) = json(&["--of-memcpy", "1000000"], None);
    assert_eq!((code, &report["cause"]), (4, &"Slow".into()));
}

#[test]
fn what_cannot_run_is_no_verdict_on_the_machine() {
    let (code, report) = json(&[], Some("/dev/null"));
    assert_eq!(code, 1, "{report}");
    assert_eq!(
        (&report["verdict"], &report["cause"]),
        (&"Error".into(), &"NotRun".into())
    );
    let message = report["message"].as_str().unwrap();
    assert!(message.contains("/dev/null"), "{message}");
    // 64 processes with tensors of a GiB: no machine of these tests has that.
    let large = [
        "--procs",
        "64",
        "--tensors",
        "1000",
        "--tensor-bytes",
        "1073741824",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_hfreduce-sidecar"));
    let output = command.arg("validate").args(large).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("MiB of memory") && said.contains("--tensors"),
        "{said}"
    );
}

#[test]
fn flags_that_make_no_sense_are_refused_before_anything_runs() {
    for wrong in [
        ["--procs", "0"],
        ["--at-least", "-1"],
        ["--tensor-bytes", "6"],
        ["--rounds", "0"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hfreduce-sidecar"));
        let output = command.arg("validate").args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn people_read_the_same() {
    let output = validate(&["--of-memcpy", "0"], None);
    let said = String::from_utf8(output.stdout).unwrap();
    for line in [
        "3 tensors of 262148 bytes",
        "algorithm * 2(ws-1)/ws",
        "verdict  Pass",
    ] {
        assert!(said.contains(line), "{said}");
    }
}
