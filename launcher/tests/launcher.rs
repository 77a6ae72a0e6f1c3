//! Runs the real launcher around real processes. What the rules are is tested in `gang`; this
//! shows that signals, exit codes, output and reports arrive.
#![expect(clippy::unwrap_used, reason = "test harness")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use wire::run_dir::{CheckpointRef, Roster, RosterNode};
use wire::termination::{LIMIT_BYTES, Outcome, TerminationMessage};

const DEADLINE: Duration = Duration::from_secs(20);

/// A folder that stands for `/run/fireflyer`, and the launcher that uses it.
struct Node {
    dir: TempDir,
    procs: u32,
}

impl Node {
    fn new(procs: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = |rank: u32| RosterNode {
            rank,
            name: format!("n{rank}"),
            zone: "a".to_owned(),
            address: "127.0.0.1".parse().unwrap(),
            port: 9404,
        };
        let roster = Roster {
            attempt: 1,
            epoch: 1,
            nodes: vec![node(0), node(1)],
            master_port: 29_500,
        };
        roster.write(dir.path()).unwrap();
        Self { dir, procs }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the launcher as the second node of two, with a shell script as the program.
    fn start(&self, script: &str) -> Running {
        self.start_program(&["sh", "-c", script])
    }

    fn start_program(&self, program: &[&str]) -> Running {
        let child = Command::new(env!("CARGO_BIN_EXE_launcher"))
            .arg("--run-dir")
            .arg(self.dir.path())
            .arg("--termination-log")
            .arg(self.path("termination-log"))
            .arg("--")
            .args(program)
            .env("FIREFLYER_ATTEMPT", "1")
            .env("FIREFLYER_NODES", "2")
            .env("FIREFLYER_NODE_RANK", "1")
            .env("FIREFLYER_PROCS_PER_NODE", self.procs.to_string())
            .env("DIR", self.dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Running {
            child,
            started: Instant::now(),
        }
    }

    fn message(&self) -> TerminationMessage {
        let bytes = fs::read(self.path("termination-log")).unwrap();
        assert!(bytes.len() <= LIMIT_BYTES, "{} bytes", bytes.len());
        TerminationMessage::parse(&bytes).unwrap()
    }

    fn wait_for(&self, name: &str) {
        wait_until(name, || self.path(name).exists());
    }
}

struct Running {
    child: Child,
    started: Instant,
}

impl Running {
    fn terminate(&self) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
    }

    fn end(self) -> (i32, Output, Duration) {
        let output = self.child.wait_with_output().unwrap();
        (
            output.status.code().unwrap(),
            output,
            self.started.elapsed(),
        )
    }
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(
            Instant::now() < deadline,
            "{what} did not happen within {DEADLINE:?}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Process ids and states of the children of a process.
fn children(parent: u32) -> Vec<(u32, char)> {
    let status = |path: &Path| {
        let text = fs::read_to_string(path.join("stat")).ok()?;
        let (head, tail) = text.rsplit_once(") ")?;
        let mut fields = tail.split(' ');
        let state = fields.next()?.chars().next()?;
        let found: u32 = fields.next()?.parse().ok()?;
        let pid = head.split(' ').next()?.parse().ok()?;
        (found == parent).then_some((pid, state))
    };
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| status(&entry.unwrap().path()))
        .collect()
}

#[test]
fn ranks_get_their_environment_and_all_done_is_success() {
    let node = Node::new(2);
    let (code, output, _) = node
        .start("echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT $OMP_NUM_THREADS >&2")
        .end();
    assert_eq!(code, 0);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("2/4 0 127.0.0.1:29500 1\n"), "{printed}");
    assert!(printed.contains("3/4 1 127.0.0.1:29500 1\n"), "{printed}");
    assert_eq!(node.message(), TerminationMessage::new(Outcome::Succeeded));
}

#[test]
fn a_failing_rank_ends_one_that_will_not_go_after_three_seconds() {
    let node = Node::new(2);
    let script = r#"
        if [ "$LOCAL_RANK" = 0 ]; then trap '' TERM; touch $DIR/deaf; while :; do sleep 0.1; done; fi
        while [ ! -e $DIR/deaf ]; do sleep 0.01; done
        echo out of cheese; exit 7"#;
    let (code, _, elapsed) = node.start(script).end();
    assert_eq!(code, 7);
    assert!(
        elapsed >= Duration::from_secs(3) && elapsed < Duration::from_secs(5),
        "{elapsed:?}"
    );
    let message = node.message();
    assert_eq!(
        (message.outcome, message.rank, message.exit_code),
        (Outcome::Failed, Some(3), Some(7))
    );
    assert_eq!(message.log.as_deref(), Some("out of cheese\n"));
}

#[test]
fn a_rank_that_dies_of_a_signal_is_reported_as_such() {
    let node = Node::new(1);
    let (code, ..) = node.start("kill -SEGV $$").end();
    assert_eq!(code, 139);
    assert_eq!(
        (node.message().exit_code, node.message().signal),
        (None, Some(11))
    );
}

#[test]
fn a_program_that_does_not_exist_is_named() {
    let node = Node::new(2);
    let (code, ..) = node.start_program(&["trane.py"]).end();
    assert_eq!(code, 127);
    assert!(
        node.message()
            .log
            .unwrap()
            .contains("failed to start `trane.py`")
    );
}

// SAVE-2: the launcher never kills a rank that was asked to save.
#[test]
fn a_save_that_takes_longer_than_any_mercy_is_waited_for_and_acknowledged() {
    let node = Node::new(2);
    let script = r#"
        trap 'told=1' TERM
        touch $DIR/ready-$LOCAL_RANK
        while [ -z "$told" ]; do sleep 0.05; done
        [ -e $DIR/stop ] || exit 9
        if [ "$LOCAL_RANK" = 1 ]; then exit 0; fi
        sleep 4
        echo '{"attempt":1,"step":120,"digest":"abc"}' > $DIR/ack.json"#;
    let running = node.start(script);
    node.wait_for("ready-0");
    node.wait_for("ready-1");
    running.terminate();
    let (code, _, elapsed) = running.end();
    assert_eq!(code, 143);
    assert!(elapsed >= Duration::from_secs(4), "{elapsed:?}");
    let message = node.message();
    assert_eq!(
        (message.outcome, message.rank),
        (Outcome::Interrupted, None)
    );
    let saved = CheckpointRef {
        attempt: 1,
        step: 120,
        digest: "abc".to_owned(),
    };
    assert_eq!(message.ack, Some(saved));
}

#[test]
fn an_acknowledgement_is_reported_before_the_rank_is_gone() {
    let node = Node::new(1);
    let script = r#"
        trap 'told=1' TERM
        touch $DIR/ready
        while [ -z "$told" ]; do sleep 0.05; done
        echo '{"attempt":1,"step":7,"digest":"abc"}' > $DIR/ack.json
        while [ ! -e $DIR/leave ]; do sleep 0.05; done"#;
    let running = node.start(script);
    node.wait_for("ready");
    running.terminate();
    node.wait_for("termination-log");
    assert_eq!(node.message().ack.map(|ack| ack.step), Some(7));
    fs::write(node.path("leave"), "").unwrap();
    assert_eq!(running.end().0, 143);
}

#[test]
fn a_program_whose_shell_dies_of_the_stop_can_still_save() {
    let node = Node::new(1);
    let script = r#"
        sh -c 'trap : TERM; touch $DIR/ready; while [ ! -e $DIR/stop ]; do sleep 0.05; done
               sleep 1; touch $DIR/saved' &
        trap - TERM; wait; sleep 100"#;
    let running = node.start(script);
    node.wait_for("ready");
    running.terminate();
    assert_eq!(running.end().0, 143);
    assert!(node.path("saved").exists());
    assert_eq!(node.message().outcome, Outcome::Interrupted);
}

#[test]
fn orphans_are_reaped() {
    let node = Node::new(1);
    let script = r#"
        (sh -c 'echo $$ > $DIR/orphan; sleep 0.2' &)
        trap 'exit 0' TERM; touch $DIR/ready; while :; do sleep 0.05; done"#;
    let running = node.start(script);
    node.wait_for("ready");
    node.wait_for("orphan");
    let launcher = running.child.id();
    let orphan = || {
        fs::read_to_string(node.path("orphan"))
            .unwrap()
            .trim()
            .parse::<u32>()
            .ok()
    };
    wait_until("the orphan is written down", || orphan().is_some());
    let gone = || !Path::new(&format!("/proc/{}", orphan().unwrap())).exists();
    wait_until("the orphan is reaped", gone);
    assert!(
        children(launcher).iter().all(|&(_, state)| state != 'Z'),
        "{:?}",
        children(launcher)
    );
    running.terminate();
    assert_eq!(running.end().0, 143);
}

#[test]
fn output_passes_through_whole_and_the_report_keeps_its_end() {
    let node = Node::new(2);
    let script = r#"
        i=0; while [ $i -lt 2000 ]; do echo "rank $RANK says line $i \"quoted\""; i=$((i+1)); done
        printf 'no newline'; exit 5"#;
    let (code, output, _) = node.start(script).end();
    assert_eq!(code, 5);
    let printed = String::from_utf8(output.stdout).unwrap();
    let torn = printed
        .lines()
        .find(|line| !line.starts_with("rank ") && !line.starts_with("no newline"));
    assert_eq!(torn, None);
    let log = node.message().log.unwrap();
    assert!(
        log.starts_with("rank ") && log.ends_with("no newline"),
        "{log}"
    );
}

#[test]
fn a_roster_of_another_attempt_starts_nothing() {
    let node = Node::new(1);
    let mut roster = Roster::read(node.dir.path()).unwrap().unwrap();
    roster.attempt = 9;
    roster.write(node.dir.path()).unwrap();
    let (code, ..) = node.start("touch $DIR/started").end();
    assert_eq!(code, 1);
    assert!(!node.path("started").exists());
    assert!(node.message().log.unwrap().contains("attempt 9"));
}

#[test]
fn a_stop_while_waiting_for_the_roster_is_an_interruption() {
    let node = Node::new(1);
    fs::remove_file(node.path("roster.json")).unwrap();
    let running = node.start("touch $DIR/started");
    // The handler is in place once the signal is caught; before, SIGTERM would kill the launcher.
    let status = format!("/proc/{}/status", running.child.id());
    wait_until("the launcher catches SIGTERM", || {
        let text = fs::read_to_string(&status).unwrap();
        let caught = text
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:\t"))
            .unwrap();
        u64::from_str_radix(caught, 16).unwrap() & (1 << 14) != 0
    });
    running.terminate();
    assert_eq!(running.end().0, 143);
    assert!(!node.path("started").exists());
    assert_eq!(node.message().outcome, Outcome::Interrupted);
}

#[test]
fn pause_leaves_when_told() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_launcher"))
        .arg("pause")
        .spawn()
        .unwrap();
    let status = format!("/proc/{}/status", child.id());
    wait_until("pause catches SIGTERM", || {
        let text = fs::read_to_string(&status).unwrap();
        let caught = text
            .lines()
            .find_map(|line| line.strip_prefix("SigCgt:\t"))
            .unwrap();
        u64::from_str_radix(caught, 16).unwrap() & (1 << 14) != 0
    });
    kill_process(
        Pid::from_raw(child.id().try_into().unwrap()).unwrap(),
        Signal::TERM,
    )
    .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
