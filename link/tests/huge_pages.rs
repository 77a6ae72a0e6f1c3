//! Trap T1: huge pages of shared memory. Needs a kernel that gives shared memory any: where it gives none, the test counts
//! as ignored, with the reason.
#![expect(clippy::unwrap_used, reason = "test harness")]

use std::process::ExitCode;

use link::segment::{Segment, Writers};
use sim::run_tests;

/// Who gets huge pages of shared memory that asks for them.
const SETTING: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
/// Several, of which the kernel has at least one left.
const BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    let name = "a_large_segment_has_huge_pages".to_owned();
    let run = match missing() {
        None => Ok(a_large_segment_has_huge_pages as fn()),
        Some(why) => Err(why),
    };
    run_tests([(name, run)])
}

fn missing() -> Option<String> {
    let Ok(setting) = std::fs::read_to_string(SETTING) else {
        return Some(format!("there is no {SETTING}"));
    };
    let given = ["[always]", "[within_size]", "[advise]", "[force]"];
    let gives = given.iter().any(|given| setting.contains(given));
    (!gives).then(|| format!("{SETTING} is {}", setting.trim()))
}

fn a_large_segment_has_huge_pages() {
    let segment = Segment::create("huge", BYTES, Writers::Creator).unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (_, mapping) = maps.split_once("/memfd:huge").unwrap();
    let mut lines = mapping.lines();
    let huge = lines.find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    let kib = huge.unwrap().trim().trim_end_matches(" kB");
    assert!(kib.parse::<u64>().unwrap() > 0, "{kib} KiB are huge");
    drop(segment);
}
