//! What restarts and groups leave behind: counted in a process of its own, where nothing else comes and goes.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use gang::grouped::{across, close, sum_in};
use gang::restarted::Restarted;
use gang::{Gang, f32s, run, sum};

/// What is counted is the process's: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Open files and shared memory of a process.
fn holdings(pid: u32) -> (usize, usize) {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    (files, maps.matches("memfd:").count())
}

#[test]
fn a_hundred_restarts_leave_no_descriptor_and_no_segment_behind() {
    restarts_leave_nothing_behind(100);
}

#[test]
#[ignore = "some minutes of processor time: a soak, see docs/testing.md"]
fn two_thousand_restarts_leave_no_descriptor_and_no_segment_behind() {
    restarts_leave_nothing_behind(2000);
}

fn restarts_leave_nothing_behind(restarts: u32) {
    let _alone = ALONE.lock();
    let mut gang = Restarted::start("auto", (2, 1));
    let mut seed = 0x5eed_u64;
    let (mut trainer, mut neighbour) = (Vec::new(), Vec::new());
    for _ in 0..restarts {
        let tickets = gang.call_all(50_000);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        thread::sleep(Duration::from_micros(seed >> 50));
        gang.pods.kill(1);
        gang.pods.start_again(1);
        gang.check(tickets, 50_000);
        trainer.push(holdings(std::process::id()));
        neighbour.push(holdings(gang.pods.children[0].id()));
    }
    for counts in [trainer, neighbour] {
        nothing_stays(&counts, 1);
    }
}

// Their pages cannot be given back while somebody has them: results are sealed.
#[test]
fn results_that_a_sidecar_has_given_up_do_not_add_up_in_its_processes() {
    let _alone = ALONE.lock();
    let gang = Gang::start(1, 1);
    let client = gang.client(0);
    // Of the sidecar and of the client, which are both in this process.
    let maps = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.matches("memfd:fireflyer-result").count()
    };
    for round in 0..4 {
        // More at once than a sidecar keeps when nobody reads them any more.
        let results: Vec<_> = (0..100)
            .map(|_| run(&client, sum(10), &f32s(&[1.0; 10])).unwrap())
            .collect();
        assert_eq!(maps(), 2 * results.len(), "round {round}");
    }
}

// T24 of groups.
#[test]
fn many_groups_are_opened_and_closed_and_leave_nothing() {
    groups_leave_nothing_behind(200);
}

#[test]
#[ignore = "some minutes of processor time: a soak, see docs/testing.md"]
fn ten_thousand_groups_are_opened_and_closed_and_leave_nothing() {
    groups_leave_nothing_behind(10_000);
}

fn groups_leave_nothing_behind(groups: u64) {
    let _alone = ALONE.lock();
    let gang = Gang::start(4, 1);
    let counts = gang.each(|client| {
        let mut counts = Vec::new();
        for number in 1..=groups {
            let (group, expected) = across(&client, number);
            assert_eq!(sum_in(&client, group, 2), [expected; 2]);
            close(&client, group);
            counts.push(holdings(std::process::id()));
        }
        counts
    });
    for counts in counts {
        nothing_stays(&counts, 20);
    }
}

/// What a moment holds differs: the least of many moments does not, unless something stays, up to a `little` that is kept
/// for the next operation.
fn nothing_stays(counts: &[(usize, usize)], little: usize) {
    let least = |counts: &[(usize, usize)]| {
        let (files, maps): (Vec<_>, Vec<_>) = counts.iter().copied().unzip();
        (
            files.into_iter().min().unwrap(),
            maps.into_iter().min().unwrap(),
        )
    };
    let (early, late) = (least(&counts[10..30]), least(&counts[counts.len() - 20..]));
    assert!(
        late.0 <= early.0 + little && late.1 <= early.1 + little,
        "{early:?} {late:?}"
    );
}
