//! How ranks start and end by themselves: environment, exit codes, output, what is left behind.

use std::fs;
use std::path::Path;
use std::time::Duration;

use contract::run_dir::{CauseKind, Roster};
use contract::termination::{RunOutcome, TerminationMessage};
use rustix::process::Signal;

use crate::node::{Node, Process, processes, wait_until};

#[test]
fn ranks_get_their_environment_and_all_done_is_success() {
    let node = Node::new(2);
    let (code, output, _) = node
        .start("echo $RANK/$WORLD_SIZE $LOCAL_RANK $MASTER_ADDR:$MASTER_PORT $OMP_NUM_THREADS >&2")
        .end();
    assert_eq!(code, 0);
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(
        printed.contains("[rank2]: 2/4 0 127.0.0.1:29500 1\n"),
        "{printed}"
    );
    assert!(
        printed.contains("[rank3]: 3/4 1 127.0.0.1:29500 1\n"),
        "{printed}"
    );
    assert_eq!(
        node.message(),
        TerminationMessage::new(RunOutcome::Succeeded)
    );
}

#[test]
fn a_failing_rank_ends_one_that_will_not_go_after_a_second() {
    let node = Node::new(2);
    let script = r#"
        if [ "$LOCAL_RANK" = 0 ]; then trap '' TERM; touch $DIR/deaf; while :; do sleep 0.1; done; fi
        while [ ! -e $DIR/deaf ]; do sleep 0.01; done
        echo out of cheese; exit 7"#;
    let (code, _, elapsed) = node.start(script).end();
    assert_eq!(code, 7);
    assert!(
        elapsed >= Duration::from_secs(1) && elapsed < Duration::from_secs(3),
        "{elapsed:?}"
    );
    let message = node.message();
    assert_eq!(
        (message.outcome, message.rank, message.exit_code),
        (RunOutcome::Failed, Some(3), Some(7))
    );
    assert_eq!(message.log.as_deref(), Some("out of cheese\n"));
}

#[test]
fn the_others_may_have_longer_to_say_where_they_were() {
    let node = Node::new(2).with("FIREFLYER_EXIT_SECONDS", "15");
    let script = r#"
        if [ "$LOCAL_RANK" = 1 ]; then
            while [ ! -e $DIR/ready ]; do sleep 0.01; done
            exit 7
        fi
        trap 'sleep 2; echo "all stacks"; exit 1' TERM
        touch $DIR/ready; while :; do sleep 0.05; done"#;
    let (code, output, elapsed) = node.start(script).end();
    assert_eq!(code, 7);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed, "[rank2]: all stacks\n");
    assert!(
        elapsed < Duration::from_secs(10),
        "{elapsed:?}: once it has said so"
    );
}

#[test]
fn a_rank_that_dies_of_a_signal_is_reported_as_such() {
    let node = Node::new(1);
    let (code, output, _) = node.start("kill -SEGV $$").end();
    assert_eq!(code, 139);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("rank 1 failed: signal 11"), "{said}");
    assert_eq!(
        (node.message().exit_code, node.message().signal),
        (None, Some(11))
    );
}

#[test]
fn why_a_rank_could_not_go_on_is_reported_for_a_failure_only() {
    let write = r#"echo '{"kind":"NoUsableCheckpoint","message":"none loads"}' > $DIR/cause.json"#;
    let reported = |script: &str| {
        let node = Node::new(1);
        node.start(&format!("{write}; {script}")).end();
        node.message().cause
    };
    let cause = reported("exit 1").unwrap();
    assert_eq!(
        (cause.kind, &*cause.message),
        (CauseKind::NoUsableCheckpoint, "none loads")
    );
    assert_eq!(reported("exit 0"), None);
    assert_eq!(reported("echo nonsense > $DIR/cause.json; exit 1"), None);
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

#[test]
fn a_program_that_may_not_be_executed_is_named() {
    let node = Node::new(1);
    fs::write(node.path("train.sh"), "#!/bin/sh\n").unwrap();
    let program = node.path("train.sh");
    let (code, ..) = node.start_program(&[program.to_str().unwrap()]).end();
    assert_eq!(code, 126);
    let log = node.message().log.unwrap();
    assert!(log.contains("train.sh") && log.contains("denied"), "{log}");
}

#[test]
fn a_single_rank_may_use_every_core() {
    let node = Node::new(1);
    let (_, output, _) = node.start("echo threads=${OMP_NUM_THREADS-all}").end();
    assert_eq!(output.stdout, b"threads=all\n");
}

#[test]
fn what_a_rank_leaves_behind_does_not_outlive_it_nor_hold_it_back() {
    let node = Node::new(1);
    // It holds the rank's output, and has a process group of the rank's.
    let (code, _, elapsed) = node.start("sleep 1000 & echo $! > $DIR/left").end();
    assert_eq!(code, 0);
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    let left: u32 = fs::read_to_string(node.path("left"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // Whoever adopts it here may leave it a zombie.
    let runs = || {
        let of = |process: &Process| process.pid == left && process.state != 'Z';
        processes().iter().any(of)
    };
    wait_until("what was left is ended", || !runs());
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
    let mut children = processes();
    children.retain(|process| process.parent == launcher);
    assert!(
        !children.is_empty() && children.iter().all(|child| child.state != 'Z'),
        "no zombie is left"
    );
    running.signal(Signal::TERM);
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
    let line_of = |rank: u32| format!("[rank{rank}]: rank {rank} says line ");
    let whole = |line: &&str| {
        (2..4).any(|rank| line.starts_with(&line_of(rank)) && line.ends_with(" \"quoted\""))
            || line.ends_with("]: no newline")
    };
    let torn: Vec<&str> = printed.lines().filter(|line| !whole(line)).collect();
    assert_eq!(torn, [""; 0]);
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
