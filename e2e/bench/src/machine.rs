//! The machine under a bench: what it is. Who else uses it is for `cluster::processors` to say; figures taken while
//! others work are kept and marked, never dropped.

use std::fs;
use std::thread;

use serde_json::{Value, json};

use crate::network::CONGESTION_CONTROL;

/// What a reader has to know to compare anything.
pub(crate) fn facts() -> Value {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    json!({
        "cpu": cpu_field("model name"),
        "vendor": cpu_field("vendor_id"),
        "cores": cores,
        "kernel": one_line("/proc/sys/kernel/osrelease"),
        "memoryGiB": meminfo("MemTotal:") >> 30,
        "congestionControl": CONGESTION_CONTROL,
        "hostCongestionControl": one_line("/proc/sys/net/ipv4/tcp_congestion_control"),
        "transparentHugePages": one_line("/sys/kernel/mm/transparent_hugepage/enabled"),
        "shmemHugePages": one_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
    })
}

/// What makes figures from here smaller than they could be.
pub(crate) fn warnings() -> Vec<String> {
    let shmem = one_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let mut warnings = Vec::new();
    if ["[never]", "[deny]"].iter().any(|off| shmem.contains(off)) {
        warnings.push(format!(
            "shared memory gets no huge pages here (shmem_enabled: {shmem}): segments cost more page faults and TLB misses"
        ));
    }
    warnings
}

/// Whether the processor is one that Intel MPI's bars are about.
pub(crate) fn is_intel() -> bool {
    cpu_field("vendor_id") == "GenuineIntel"
}

/// Bytes that new processes can have.
pub(crate) fn available_bytes() -> u64 {
    meminfo("MemAvailable:")
}

fn cpu_field(name: &str) -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.split_once(':'));
    value.map_or_else(
        || "unknown".to_owned(),
        |(_, value)| value.trim().to_owned(),
    )
}

fn meminfo(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn one_line(path: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|_| "unknown".to_owned());
    text.trim().to_owned()
}
