//! How ranks are asked to stop: signals, time to save, the acknowledgement.

use std::fs;
use std::process::Command;
use std::time::Duration;

use contract::CheckpointRef;
use contract::termination::RunOutcome;
use rustix::process::Signal;

use crate::node::{Node, send, wait_until_it_listens};

// SAVE-2: the launcher never kills a rank that was asked to save.
#[test]
fn a_save_that_takes_longer_than_ranks_have_after_a_failure_is_waited_for_and_acknowledged() {
    let node = Node::new(2);
    let script = r#"
        trap 'asked=1' TERM
        touch $DIR/ready-$LOCAL_RANK
        while [ -z "$asked" ]; do sleep 0.05; done
        [ -e $DIR/stop ] || exit 9
        if [ "$LOCAL_RANK" = 1 ]; then exit 0; fi
        sleep 4
        echo '{"attempt":1,"step":120,"digest":"abc"}' > $DIR/ack.json"#;
    let running = node.start(script);
    node.wait_for("ready-0");
    node.wait_for("ready-1");
    running.signal(Signal::TERM);
    let (code, _, elapsed) = running.end();
    assert_eq!(code, 143);
    assert!(elapsed >= Duration::from_secs(4), "{elapsed:?}");
    let message = node.message();
    assert_eq!(
        (message.outcome, message.rank),
        (RunOutcome::Interrupted, None)
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
        trap 'asked=1' TERM
        touch $DIR/ready
        while [ -z "$asked" ]; do sleep 0.05; done
        echo '{"attempt":1,"step":7,"digest":"abc"}' > $DIR/ack.json
        while [ ! -e $DIR/leave ]; do sleep 0.05; done"#;
    let running = node.start(script);
    node.wait_for("ready");
    running.signal(Signal::TERM);
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
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, 143);
    assert!(node.path("saved").exists());
    assert_eq!(node.message().outcome, RunOutcome::Interrupted);
}

#[test]
fn a_shell_that_ends_well_at_the_stop_does_not_cost_its_program_the_save() {
    let node = Node::new(1);
    let script = r#"
        sh -c 'trap : TERM; touch $DIR/ready; while [ ! -e $DIR/stop ]; do sleep 0.05; done
               sleep 2; touch $DIR/saved' &
        trap 'exit 0' TERM; wait; sleep 100"#;
    let running = node.start(script);
    node.wait_for("ready");
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, 143);
    assert!(node.path("saved").exists());
}

#[test]
fn signals_that_are_not_ours_reach_the_ranks() {
    let node = Node::new(2);
    let script = r#"
        trap 'usr=1' USR1; trap 'hup=1' HUP
        touch $DIR/ready-$LOCAL_RANK
        while [ -z "$usr" ] || [ -z "$hup" ]; do sleep 0.05; done"#;
    let running = node.start(script);
    node.wait_for("ready-0");
    node.wait_for("ready-1");
    running.signal(Signal::USR1);
    running.signal(Signal::HUP);
    assert_eq!(running.end().0, 0);
}

#[test]
fn a_stop_while_waiting_for_the_roster_is_an_interruption() {
    let node = Node::new(1);
    fs::remove_file(node.path("roster.json")).unwrap();
    let running = node.start("touch $DIR/started");
    wait_until_it_listens(&running.child);
    running.signal(Signal::TERM);
    assert_eq!(running.end().0, 143);
    assert!(!node.path("started").exists());
    assert_eq!(node.message().outcome, RunOutcome::Interrupted);
}

#[test]
fn pause_leaves_on_a_signal() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_launcher"))
        .arg("pause")
        .spawn()
        .unwrap();
    wait_until_it_listens(&child);
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
