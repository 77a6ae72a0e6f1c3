//! Ranks that are asked where they are, because their job makes no progress.

use std::fs;
use std::io::{BufRead, BufReader};

use contract::run_dir;

use crate::node::{Node, wait_until};

#[test]
fn ranks_that_catch_the_signal_print_their_stacks_each_time_and_the_others_live_on() {
    let node = Node::new(2);
    // A program that a shell started is asked, the shell that has no handler is not.
    let script = r#"
        if [ "$LOCAL_RANK" = 0 ]; then
            sh -c 'trap "echo stack of a loop; echo . >> $DIR/asked" USR1
                touch $DIR/ready-0
                while [ ! -e $DIR/leave ]; do sleep 0.05; done'
        else
            touch $DIR/ready-1
            while [ ! -e $DIR/leave ]; do sleep 0.05; done
        fi"#;
    let running = node.start(script);
    node.wait_for("ready-0");
    node.wait_for("ready-1");
    for times in 1..=2 {
        let file = node.path(run_dir::STACKS);
        run_dir::put(&file, b"no progress for 600 s", run_dir::READABLE).unwrap();
        wait_until("the rank is asked", || {
            fs::read_to_string(node.path("asked")).is_ok_and(|asked| asked.lines().count() == times)
        });
    }
    fs::write(node.path("leave"), "").unwrap();
    let (code, output, _) = running.end();
    assert_eq!(code, 0);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.matches("stack of a loop").count(), 2, "{printed}");
    let said = String::from_utf8(output.stderr).unwrap();
    let asking = "launcher: no progress for 600 s; asking 1 processes for their stacks";
    assert!(said.contains(asking), "{said}");
}

#[test]
fn where_no_process_catches_the_signal_the_log_says_so() {
    let node = Node::new(1);
    let script = "touch $DIR/ready; while [ ! -e $DIR/leave ]; do sleep 0.05; done";
    let mut running = node.start(script);
    node.wait_for("ready");
    fs::write(node.path(run_dir::STACKS), "no progress for 600 s").unwrap();
    let said = BufReader::new(running.child.stderr.take().unwrap());
    let said = said.lines().next().unwrap().unwrap();
    assert!(said.contains("no process catches SIGUSR1"), "{said}");
    fs::write(node.path("leave"), "").unwrap();
    assert_eq!(running.end().0, 0);
}
