//! The check Network between real processes: one that listens, one that dials, and what may be
//! between them or in the other's place. One test throttles an interface; where that cannot be, it
//! counts as ignored, with the reason.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use contract::validation::{AskedCheck, PORT, VERSION, ValidationTask};
use health::{Check, CheckResult, Outcome, Report};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_validator");
/// Budgets in milliseconds. Who listens waits a quarter of its own for another session.
const DIALS: &str = "2000";
const LISTENS: &str = "8000";
/// Uid of the run that listens.
const UID: &str = "the-uid";

type Test = (&'static str, fn());

const TESTS: [Test; 5] = [
    (
        "both_sides_measure_whoever_else_connects_and_end",
        both_sides_measure_whoever_else_connects_and_end,
    ),
    (
        "bytes_that_change_on_the_way_are_found_in_both_directions",
        bytes_that_change_on_the_way_are_found_in_both_directions,
    ),
    (
        "a_partner_that_stalls_is_an_error_and_the_other_checks_go_on",
        a_partner_that_stalls_is_an_error_and_the_other_checks_go_on,
    ),
    (
        "who_dies_is_given_up_and_the_next_is_served",
        who_dies_is_given_up_and_the_next_is_served,
    ),
    (
        "a_partner_that_does_not_come_is_skipped_with_the_reason",
        a_partner_that_does_not_come_is_skipped_with_the_reason,
    ),
];

const THROTTLED: Test = (
    "a_throttled_interface_is_measured_as_slow_as_it_is",
    a_throttled_interface_is_measured_as_slow_as_it_is,
);

fn main() -> ExitCode {
    let runs = |(name, test): Test| (name.to_owned(), Ok(test));
    let throttled = match missing() {
        Some(missing) => (THROTTLED.0.to_owned(), Err(missing)),
        None => runs(THROTTLED),
    };
    sim::run_tests(TESTS.map(runs).into_iter().chain([throttled]))
}

/// A loopback address that no other listener of this test has.
fn address() -> Ipv4Addr {
    static LAST: AtomicU8 = AtomicU8::new(0);
    Ipv4Addr::new(127, 94, 10, 1 + LAST.fetch_add(1, Ordering::Relaxed))
}

/// What makes a validator dial this one.
fn dials(partner: SocketAddr) -> [String; 6] {
    let (ip, port) = (partner.ip().to_string(), partner.port().to_string());
    ["--partner", &ip, "--partner-run", UID, "--port", &port].map(str::to_owned)
}

/// A run of checks, and the processes that have its task.
struct Validation {
    folder: TempDir,
}

impl Validation {
    fn new(uid: &str) -> Self {
        let asked = |check: Check| AskedCheck {
            name: check.as_str().to_owned(),
            screens: Vec::new(),
        };
        let task = ValidationTask {
            version: VERSION,
            validation: "node-7".to_owned(),
            uid: uid.to_owned(),
            node: "node-7".to_owned(),
            node_class: String::new(),
            deadline_seconds: 60,
            checks: [Check::Network, Check::LockedMemory].map(asked).into(),
            offers: Vec::new(),
        };
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("task"), task.to_json()).unwrap();
        Self { folder }
    }

    fn command(&self, words: &[impl AsRef<OsStr>]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("--task").arg(self.folder.path().join("task"));
        command
            .arg("--report")
            .arg(self.folder.path().join("report"));
        command.args(words).stderr(Stdio::piped());
        command
    }

    /// The check alone, as a run starts it.
    fn check(&self, budget_ms: &str, wait: Duration, words: &[impl AsRef<OsStr>]) -> Command {
        let wait = wait.as_millis().to_string();
        let mut command = self.command(&[
            "check",
            "Network",
            "--budget-ms",
            budget_ms,
            "--wait-ms",
            &wait,
        ]);
        command.args(words).stdout(Stdio::piped());
        command
    }

    fn dial(&self, partner: SocketAddr) -> Child {
        let words = dials(partner);
        self.check(DIALS, Duration::from_secs(1), &words)
            .spawn()
            .unwrap()
    }

    /// A whole run.
    fn run(&self, partner: SocketAddr) -> Vec<CheckResult> {
        let words = dials(partner);
        let output = self.command(&words).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{log}");
        let report = fs::read(self.folder.path().join("report")).unwrap();
        Report::parse(&report).unwrap().results
    }
}

/// A side that listens.
struct Listener {
    process: Child,
    log: BufReader<ChildStderr>,
    address: SocketAddr,
    _validation: Validation,
}

impl Listener {
    fn start(wait: Duration) -> Self {
        let validation = Validation::new(UID);
        let ip = address();
        let words = ["--listen", &ip.to_string()];
        let mut process = validation.check(LISTENS, wait, &words).spawn().unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        let address = SocketAddr::from((IpAddr::from(ip), PORT));
        let expected = format!("validator: waits for its partner at {address}\n");
        assert_eq!(line, expected);
        Self {
            process,
            log,
            address,
            _validation: validation,
        }
    }

    /// What it reports.
    fn end(self) -> Vec<(String, Outcome)> {
        results(self.process)
    }
}

fn results(check: Child) -> Vec<(String, Outcome)> {
    let output = check.wait_with_output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{log}");
    let text = String::from_utf8(output.stdout).unwrap();
    let read = |line| serde_json::from_str::<CheckResult>(line).unwrap();
    let results = text.lines().map(read);
    results.map(|one| (one.device, one.outcome)).collect()
}

/// The rates of both directions.
fn rates(check: Child) -> [f64; 2] {
    let results = results(check);
    let [
        (send, Outcome::Measured { value: sent, .. }),
        (
            receive,
            Outcome::Measured {
                value: received, ..
            },
        ),
    ] = &results[..]
    else {
        panic!("{results:?}");
    };
    assert_eq!([send, receive], ["send", "receive"]);
    [*sent, *received]
}

fn both_sides_measure_whoever_else_connects_and_end() {
    let listener = Listener::start(Duration::from_secs(60));
    // Some say nothing, some the wrong thing, more than may be unproved at a time.
    let connect = |number: usize| {
        let mut stream = TcpStream::connect(listener.address).unwrap();
        let nonsense = [0xff; 200];
        let _refused = stream.write_all(&nonsense[..number % 3 * 100]);
        stream
    };
    let others: Vec<_> = (0..300).map(connect).collect();
    let ip = listener.address.ip().to_string();
    let words = ["--partner", &ip, "--partner-run", "another-uid"];
    let validation = Validation::new("the-dialler's-uid");
    let another = validation
        .check(DIALS, Duration::from_secs(1), &words)
        .spawn();
    let refused = results(another.unwrap());
    assert!(
        matches!(&refused[..], [(_, Outcome::Error { detail })] if detail.contains("somebody answers")),
        "{refused:?}"
    );
    let dialled = rates(validation.dial(listener.address));
    assert!(dialled.iter().all(|rate| *rate > 0.001), "{dialled:?}");
    let listened = listener.end();
    let [sent, received] = dialled;
    let expected = [("receive", sent), ("send", received)]
        .map(|(device, value)| (device.to_owned(), Outcome::Measured { value, runs: 1 }));
    assert_eq!(listened, expected);
    drop(others);
}

/// What happens to a byte of a connection's way in one direction.
#[derive(Clone, Copy)]
enum Harm {
    Flips,
    Stalls,
}

/// Bytes on the way before the one that is harmed: it lies in the first frame of data, far behind
/// all that is said before.
const PLACE: usize = 100_000;

/// Stands between the two. The first connection is harmed in both directions.
fn proxy(partner: SocketAddr, harm: Harm) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (number, near) in listener.incoming().enumerate() {
            let near = near.unwrap();
            let far = TcpStream::connect(partner).unwrap();
            let harm = (number == 0).then_some(harm);
            let ends = [(&near, &far), (&far, &near)];
            for (from, to) in ends.map(|(from, to)| (from.try_clone(), to.try_clone())) {
                let (from, to) = (from.unwrap(), to.unwrap());
                thread::spawn(move || pass(from, to, harm));
            }
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, harm: Option<Harm>) {
    let mut buffer = vec![0; 64 << 10];
    let mut passed = 0;
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if (passed..passed + count).contains(&PLACE) {
            match harm {
                Some(Harm::Flips) => buffer[PLACE - passed] ^= 4,
                Some(Harm::Stalls) => loop {
                    thread::park();
                },
                None => {}
            }
        }
        passed += count;
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _gone = to.shutdown(std::net::Shutdown::Both);
    let _gone = from.shutdown(std::net::Shutdown::Both);
}

fn bytes_that_change_on_the_way_are_found_in_both_directions() {
    let listener = Listener::start(Duration::from_secs(60));
    let through = proxy(listener.address, Harm::Flips);
    let validation = Validation::new("the-dialler's-uid");
    let dialled = results(validation.dial(through));
    for results in [dialled, listener.end()] {
        assert_eq!(results.len(), 2, "{results:?}");
        for (_, outcome) in results {
            // 100,000 is 0x186a0; what was said before takes some hundred bytes.
            assert!(
                matches!(&outcome, Outcome::Wrong { detail }
                    if detail.starts_with("connection 0, offset 0x18")),
                "{outcome:?}"
            );
        }
    }
}

fn a_partner_that_stalls_is_an_error_and_the_other_checks_go_on() {
    let listener = Listener::start(Duration::from_secs(15));
    let through = proxy(listener.address, Harm::Stalls);
    let validation = Validation::new("the-dialler's-uid");
    let results = validation.run(through);
    let [network, memory] = &results[..] else {
        panic!("{results:?}");
    };
    // Whoever notices first closes the connection.
    let expected = format!("failed to measure with {through}: ");
    assert!(
        matches!(&network.outcome, Outcome::Error { detail } if detail.starts_with(&expected)),
        "{network:?}"
    );
    assert_eq!(memory.check, Check::LockedMemory);
    assert!(matches!(memory.outcome, Outcome::Measured { .. }));
    let listened = listener.end();
    assert!(
        matches!(&listened[..], [(_, Outcome::Error { .. })]),
        "{listened:?}"
    );
}

fn who_dies_is_given_up_and_the_next_is_served() {
    let mut listener = Listener::start(Duration::from_secs(60));
    let validation = Validation::new("the-dialler's-uid");
    // Stalled on the way, so that it is killed in the middle.
    let mut first = validation.dial(proxy(listener.address, Harm::Stalls));
    let started = Instant::now();
    let threads = format!("/proc/{}/task", first.id());
    // It has a thread for each connection from when all are established.
    while fs::read_dir(&threads).unwrap().count() < 5 {
        assert!(started.elapsed() < Duration::from_secs(30));
        thread::yield_now();
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let mut line = String::new();
    listener.log.read_line(&mut line).unwrap();
    assert!(line.contains("did not come to its end"), "{line}");
    let dialled = rates(validation.dial(listener.address));
    assert!(dialled.iter().all(|rate| *rate > 0.001), "{dialled:?}");
    assert!(matches!(
        &listener.end()[..],
        [
            (_, Outcome::Measured { runs: 1, .. }),
            (_, Outcome::Measured { .. })
        ]
    ));
}

fn a_partner_that_does_not_come_is_skipped_with_the_reason() {
    let listener = Listener::start(Duration::from_secs(1));
    let listened = listener.end();
    let detail = "the run on the partner node did not come within 1 s (0 connections of others were \
                  refused): is that node free?";
    let skipped = Outcome::Skipped {
        detail: detail.to_owned(),
    };
    assert_eq!(listened, [(String::new(), skipped)]);
    let held = TcpListener::bind((address(), PORT)).unwrap();
    let taken = held.local_addr().unwrap();
    let words = ["--listen", &taken.ip().to_string()];
    let validation = Validation::new(UID);
    let check = validation
        .check(LISTENS, Duration::from_secs(1), &words)
        .spawn();
    let failed = results(check.unwrap());
    drop(held);
    assert!(
        matches!(&failed[..], [(_, Outcome::Error { detail })]
            if detail.starts_with(&format!("failed to listen at {taken}: "))),
        "{failed:?}"
    );
}

/// 400 Mbit/s, in GB/s.
const RATE: f64 = 0.05;

/// A shell in a network namespace whose loopback is throttled.
fn throttled(script: &str) -> Command {
    let mut command = Command::new("unshare");
    let throttle = "ip link set lo up && tc qdisc add dev lo root tbf rate 400mbit burst 256kb \
                    latency 50ms";
    command.args(["--net", "sh", "-c", &format!("{throttle} && {script}")]);
    command
}

/// What is missing for that on this machine; none if nothing is.
fn missing() -> Option<String> {
    match throttled("true").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "no interface can be throttled: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

fn a_throttled_interface_is_measured_as_slow_as_it_is() {
    let validation = Validation::new(UID);
    let task = validation.folder.path().join("task");
    let check = format!(
        "{BINARY} check Network --task {} --budget-ms 4000 --wait-ms 30000",
        task.display()
    );
    let script = format!(
        "{check} --listen 127.0.0.1 >/dev/null & \
         {check} --partner 127.0.0.1 --partner-run {UID} && wait $!"
    );
    let mut command = throttled(&script);
    let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let rates = rates(command.spawn().unwrap());
    // Headers take a little of it, and whoever else uses the machine; a full bucket gives a little.
    let near = |rate: &f64| (0.75 * RATE..1.05 * RATE).contains(rate);
    assert!(rates.iter().all(near), "{rates:?}");
}
