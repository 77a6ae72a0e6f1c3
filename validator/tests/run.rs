//! Runs the real validator: with its own checks, and with a script in their place that crashes,
//! hangs or lies. What each check measures is tested beside it.
#![expect(clippy::unwrap_used, reason = "test harness")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use contract::validation::{AskedCheck, OfferedResource, Screen, VERSION, ValidationTask};
use health::{Check, CheckResult, Level, Outcome, Report};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);

struct Node {
    folder: TempDir,
    task: ValidationTask,
}

impl Node {
    fn new(checks: impl IntoIterator<Item = Check>, deadline_seconds: u32) -> Self {
        let asked = |check: Check| AskedCheck {
            name: check.as_str().to_owned(),
            screens: Vec::new(),
        };
        Self {
            folder: tempfile::tempdir().unwrap(),
            task: ValidationTask {
                version: VERSION,
                validation: "node-7".to_owned(),
                uid: "the-uid".to_owned(),
                node: "node-7".to_owned(),
                node_class: "a100".to_owned(),
                deadline_seconds,
                checks: checks.into_iter().map(asked).collect(),
                offers: vec![OfferedResource {
                    resource: "nvidia.com/gpu".to_owned(),
                    offered: 7.0,
                    expected: 8.0,
                }],
            },
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The validator, with a shell script in the place of each check: `$2` is its name.
    fn start(&self, script: Option<&str>) -> Child {
        fs::write(self.path("task"), self.task.to_json()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_validator"));
        command.arg("--task").arg(self.path("task"));
        command.arg("--report").arg(self.path("report"));
        command.arg("--scratch").arg(self.folder.path());
        if let Some(script) = script {
            let program = self.path("program");
            fs::write(
                &program,
                format!("#!/bin/sh\ncd {}\n{script}", self.folder.path().display()),
            )
            .unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            command.arg("--program").arg(program);
        }
        command.stderr(Stdio::piped()).spawn().unwrap()
    }

    fn report(&self, validator: Child) -> Vec<CheckResult> {
        let output = validator.wait_with_output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{log}");
        let report = Report::parse(&fs::read(self.path("report")).unwrap()).unwrap();
        assert_eq!(report.validation, "the-uid");
        assert!(!report.fingerprint.kernel.is_empty());
        report.results
    }
}

fn result(check: Check, device: &str, outcome: Outcome) -> CheckResult {
    CheckResult {
        check,
        device: device.to_owned(),
        outcome,
    }
}

fn error(check: Check, detail: &str) -> CheckResult {
    let detail = detail.to_owned();
    result(check, "", Outcome::Error { detail })
}

fn line(check: Check, value: f64) -> String {
    let outcome = Outcome::Measured { value, runs: 1 };
    serde_json::to_string(&result(check, "", outcome)).unwrap()
}

#[test]
fn quick_reports_all_of_its_checks_within_its_deadline() {
    let node = Node::new(Level::Quick.checks(), 10);
    let started = Instant::now();
    let results = node.report(node.start(None));
    assert!(started.elapsed() < Duration::from_secs(10));
    for check in Level::Quick.checks() {
        let of_check: Vec<_> = results.iter().filter(|one| one.check == check).collect();
        assert!(!of_check.is_empty(), "{check}");
        for one in of_check {
            assert!(matches!(one.outcome, Outcome::Measured { .. }), "{one:?}");
        }
    }
    let offer = Outcome::Measured {
        value: 7.0,
        runs: 1,
    };
    assert!(results.contains(&result(Check::Offer, "nvidia.com/gpu", offer)));
}

#[test]
fn a_check_that_crashes_hangs_or_lies_is_an_error_and_the_others_go_on() {
    use Check::{CpuFrequency, CpuStress, LockedMemory, Offer};
    let node = Node::new([CpuFrequency, Offer, CpuStress, LockedMemory], 15);
    let script = format!(
        "case $2 in
        CpuFrequency) kill -SEGV $$ ;;
        Offer) sleep 1000 & sleep 1000 ;;
        CpuStress) yes ;;
        *) echo '{}' ;;
        esac",
        line(LockedMemory, 8.0)
    );
    let mut results = node.report(node.start(Some(&script)));
    assert_eq!(results.len(), 4, "{results:?}");
    let Outcome::Error { detail } = results.remove(1).outcome else {
        panic!("the hung check is no error");
    };
    assert!(detail.starts_with("did not end within "), "{detail}");
    let value = Outcome::Measured {
        value: 8.0,
        runs: 1,
    };
    assert_eq!(
        results,
        [
            error(CpuFrequency, "crashed: ended by signal 11"),
            error(CpuStress, "said more than 32768 bytes"),
            result(LockedMemory, "", value),
        ]
    );
}

#[test]
fn a_value_below_its_screen_is_measured_four_times() {
    let mut node = Node::new([Check::CpuFrequency, Check::Offer], 600);
    node.task.checks[0].screens.push(Screen {
        device: String::new(),
        value: 2.0,
    });
    // 1, 2, 3, 4: how often it was called.
    let script = r#"echo >>calls.$2; count=$(wc -l <calls.$2)
        echo "{\"check\":\"$2\",\"outcome\":{\"measured\":{\"value\":$count,\"runs\":1}}}""#;
    let results = node.report(node.start(Some(script)));
    let of = |check, value, runs| result(check, "", Outcome::Measured { value, runs });
    assert_eq!(
        results,
        [of(Check::CpuFrequency, 2.5, 4), of(Check::Offer, 1.0, 1)]
    );
}

#[test]
fn a_stop_is_reported_with_what_is_done() {
    let node = Node::new([Check::Offer, Check::CpuStress, Check::LockedMemory], 600);
    let script = format!(
        "case $2 in Offer) echo '{}' ;; *) touch started; sleep 1000 ;; esac",
        line(Check::Offer, 8.0)
    );
    let validator = node.start(Some(&script));
    let started = Instant::now();
    while !node.path("started").exists() {
        assert!(
            started.elapsed() < DEADLINE,
            "the second check does not start"
        );
        std::thread::yield_now();
    }
    let pid = Pid::from_raw(i32::try_from(validator.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let value = Outcome::Measured {
        value: 8.0,
        runs: 1,
    };
    assert_eq!(
        node.report(validator),
        [
            result(Check::Offer, "", value),
            error(Check::CpuStress, "interrupted"),
            error(Check::LockedMemory, "interrupted"),
        ]
    );
}

#[test]
fn a_task_that_cannot_be_read_is_refused_with_a_sentence() {
    let mut node = Node::new([Check::Offer], 600);
    let refused = |node: &Node| {
        let output = node.start(Some("exit 1")).wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(!node.path("report").exists());
        String::from_utf8(output.stderr).unwrap()
    };
    node.task.version = 2;
    assert!(refused(&node).contains("it has version 2, this release reads 1"));
    node.task.version = VERSION;
    node.task.deadline_seconds = 0;
    assert!(refused(&node).contains("deadlineSeconds 0, not 1 to"));
    node.task.deadline_seconds = 600;
    node.task.node_class = "x".repeat(1 << 20);
    assert!(refused(&node).contains("larger than 65536 bytes"));
}

#[test]
fn a_check_of_a_newer_release_is_left_out() {
    let mut node = Node::new([Check::Offer], 600);
    node.task.checks[0].name = "Telepathy".to_owned();
    assert_eq!(node.report(node.start(Some("exit 1"))), []);
}
