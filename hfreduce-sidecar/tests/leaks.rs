//! What restarts leave behind: counted in a process of its own, where nothing else comes and goes.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::thread;
use std::time::Duration;

use gang::restarted::Restarted;

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
    let mut gang = Restarted::start("auto", (2, 1));
    let mut seed = 0x5eed_u64;
    let (mut trainer, mut neighbour) = (Vec::new(), Vec::new());
    for _ in 0..100 {
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
        // What a moment holds differs: the least of many moments does not, unless something stays.
        let least = |counts: &[(usize, usize)]| {
            let (files, maps): (Vec<_>, Vec<_>) = counts.iter().copied().unzip();
            (
                files.into_iter().min().unwrap(),
                maps.into_iter().min().unwrap(),
            )
        };
        let (early, late) = (least(&counts[10..30]), least(&counts[80..]));
        assert!(
            late.0 <= early.0 + 1 && late.1 <= early.1 + 1,
            "{early:?} {late:?}"
        );
    }
}
