//! How fast the memory of each NUMA node is read and written by its own cores: the triad of
//! STREAM, best window of a few as STREAM reports its best round. A lost memory channel shows here.

use std::hint::black_box;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::bail;
use health::{Check, CheckResult};

use super::{CheckContext, measured};
use crate::log;
use crate::machine::{self, NumaNode, SYSTEM};

/// An array is so many times larger than the caches, as STREAM asks for.
const CACHES: u64 = 4;
/// Two arrays are read, one is written. That its lines are read first is not counted, as in STREAM.
const ARRAYS: u64 = 3;
const WORD_BYTES: u64 = 8;
/// Windows of which the best counts.
const WINDOWS: u32 = 5;
/// Less for each core is all loop and no memory.
const LEAST_WORDS: u64 = 1 << 12;

pub(super) fn run(context: &CheckContext<'_>) -> anyhow::Result<Vec<CheckResult>> {
    let system = Path::new(SYSTEM);
    let nodes = machine::numa(system, &machine::cores()?);
    let each = context.budget / u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let mut results = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let wanted = CACHES * machine::cache_bytes(system, &node.cores);
        let array_bytes = wanted.min(context.memory_bytes / ARRAYS);
        if array_bytes < wanted {
            let (mib, wanted) = (array_bytes >> 20, wanted >> 20);
            log(&format!(
                "arrays of {mib} MiB instead of {wanted}: memory is short"
            ));
        }
        let value = triad(node, array_bytes / WORD_BYTES, each)?;
        results.push(measured(
            Check::MemoryBandwidth,
            format!("numa {}", node.index),
            value,
        ));
    }
    Ok(results)
}

/// GB/s in the best window.
fn triad(node: &NumaNode, words: u64, budget: Duration) -> anyhow::Result<f64> {
    let of_core = words / node.cores.len() as u64;
    if of_core < LEAST_WORDS {
        bail!("failed to have memory for the triad: {words} words for all cores");
    }
    let length = usize::try_from(of_core)?;
    let bytes = (of_core * ARRAYS * WORD_BYTES) as f64;
    let together = Barrier::new(node.cores.len());
    let rates = machine::on_each(&node.cores, |_| {
        // Whoever touches memory first gets it from its own node.
        let (one, two) = (vec![1.0; length], vec![2.0; length]);
        let mut sum = vec![0.5; length];
        let window = |_| {
            together.wait();
            let started = Instant::now();
            let mut rounds = 0.0;
            loop {
                add(&mut sum, &one, &two, black_box(3.0));
                rounds += 1.0;
                let elapsed = started.elapsed();
                if elapsed >= budget / WINDOWS {
                    return rounds * bytes / elapsed.as_nanos() as f64;
                }
            }
        };
        (0..WINDOWS).map(window).collect::<Vec<f64>>()
    })?;
    let windows = (0..WINDOWS as usize).map(|window| rates.iter().map(|rate| rate[window]).sum());
    Ok(windows.fold(0.0, f64::max))
}

#[inline(never)]
fn add(sum: &mut [f64], one: &[f64], two: &[f64], factor: f64) {
    for ((sum, one), two) in sum.iter_mut().zip(one).zip(two) {
        *sum = one + factor * two;
    }
    black_box(sum);
}

#[cfg(test)]
mod tests {
    use super::super::tests::{small, values};
    use super::*;

    #[test]
    fn each_node_has_a_bandwidth() {
        let values = values(Check::MemoryBandwidth, &small(Path::new("/")));
        assert!(values[0].0.starts_with("numa "), "{values:?}");
        assert!(values.iter().all(|(_, rate)| *rate > 0.01), "{values:?}");
    }

    #[test]
    fn too_little_memory_is_an_error_and_no_number() {
        let context = CheckContext {
            memory_bytes: 1000,
            ..small(Path::new("/"))
        };
        assert!(
            run(&context)
                .unwrap_err()
                .to_string()
                .contains("to have memory")
        );
    }
}
