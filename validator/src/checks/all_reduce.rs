//! Whether the cores of each NUMA node add up the inputs of eight ranks as HFReduce does inside a
//! node, by the same kernels, and how fast. What is added up, and whose fault a wrong sum is, is
//! `collective::known_sums`'s.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use collective::known_sums::{BUFFERS, KnownSums, LINE_BYTES, RANKS, WrongSum};
use health::{Check, CheckResult};

use super::{BitFlip, CheckContext, measured, wrong};
use crate::log;
use crate::machine::{self, NumaNode, Rounds, SYSTEM, best_round};

/// An input is so many times larger than the caches, so that all comes from memory.
const CACHES: u64 = 2;
/// The first round also gets memory for the sums, so it is not the only one.
const LEAST_ROUNDS: usize = 2;
const MAX_ROUNDS: usize = 1000;

pub(super) fn run(context: &CheckContext<'_>) -> anyhow::Result<Vec<CheckResult>> {
    let system = Path::new(SYSTEM);
    let nodes = machine::numa(system, &machine::cores()?);
    let each = context.budget / u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let mut results = Vec::with_capacity(nodes.len());
    for node in &nodes {
        let wanted = CACHES * machine::cache_bytes(system, &node.cores);
        let bytes = wanted.min(context.memory_bytes / BUFFERS as u64);
        if bytes < wanted {
            let (mib, wanted) = (bytes >> 20, wanted >> 20);
            log(&format!(
                "inputs of {mib} MiB instead of {wanted}: memory is short"
            ));
        }
        let device = format!("numa {}", node.index);
        results.push(match all_reduce(node, bytes, each, context.fault)? {
            Ok(rate) => measured(Check::AllReduce, device, rate),
            Err(sum) => wrong(Check::AllReduce, device, sum.to_string()),
        });
    }
    Ok(results)
}

/// GB/s of input in the best round, or the first wrong sum. A round takes as long as its slowest
/// core.
fn all_reduce(
    node: &NumaNode,
    bytes: u64,
    budget: Duration,
    fault: Option<BitFlip>,
) -> anyhow::Result<Result<f64, WrongSum>> {
    let started = Instant::now();
    let cores = node.cores.len();
    let bytes = usize::try_from(bytes)?;
    let length = bytes / cores / LINE_BYTES * LINE_BYTES;
    if length == 0 {
        bail!("failed to have memory for the sums: {bytes} bytes for each of {RANKS} inputs");
    }
    let rounds = Rounds::new(cores);
    let is_wrong = AtomicBool::new(false);
    let times = machine::on_each(&node.cores, |core| {
        let place = node.cores.iter().position(|&other| other == core);
        // Whoever touches memory first gets it from its own node.
        let mut share = KnownSums::new(place.unwrap_or_default() * length, length);
        let (mut times, mut wrong) = (Vec::new(), None);
        while rounds.have_another(|| {
            let is_late = times.len() >= LEAST_ROUNDS && started.elapsed() >= budget;
            is_late || times.len() == MAX_ROUNDS || is_wrong.load(Ordering::Relaxed)
        }) {
            let since = Instant::now();
            share.sum();
            times.push(since.elapsed());
            if let Some(fault) = fault.filter(|_| times.len() == 1) {
                // All inputs and the result lie one behind the other there.
                let byte = fault.at as usize + fault.bit as usize / 8;
                share.flip_bit(byte / bytes, byte % bytes, fault.bit);
            }
            wrong = share.compare(core).err();
            is_wrong.fetch_or(wrong.is_some(), Ordering::Relaxed);
        }
        wrong.map_or(Ok(times), Err)
    })?;
    let times: Result<Vec<_>, _> = times.into_iter().collect();
    Ok(times.map(|times| {
        let nanos = best_round(&times).as_nanos();
        (RANKS * length * cores) as f64 / nanos as f64
    }))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{small, values, wrongs};
    use super::*;

    /// Of an input and of the result, in the contexts below.
    const BYTES: u64 = 256 << 10;

    /// What a flipped bit of a buffer is reported as, without the numbers behind the colon.
    fn found(buffer: u64, offset: u64, bit: u32) -> (String, String) {
        let context = CheckContext {
            memory_bytes: BYTES * BUFFERS as u64,
            fault: Some(BitFlip {
                at: buffer * BYTES + offset,
                bit,
            }),
            ..small(Path::new("/"))
        };
        let (device, detail) = wrongs(Check::AllReduce, &context).swap_remove(0);
        (device, detail.split(':').next().unwrap().to_owned())
    }

    #[test]
    fn a_flipped_bit_of_an_input_is_found_and_its_rank_named() {
        let (device, detail) = found(5, 0x44, 0);
        assert!(device.starts_with("numa "), "{device}");
        assert_eq!(detail, "input of rank 5 at offset 0x44");
    }

    #[test]
    fn a_flipped_bit_of_the_result_is_found_and_its_core_named() {
        let nodes = machine::numa(Path::new(SYSTEM), &machine::cores().unwrap());
        let core = nodes[0].cores[0];
        let (_, detail) = found(RANKS as u64, 0x40, 33);
        assert_eq!(detail, format!("sum of core {core} at offset 0x44"));
    }

    #[test]
    fn good_nodes_have_a_rate() {
        let values = values(Check::AllReduce, &small(Path::new("/")));
        assert!(values[0].0.starts_with("numa "), "{values:?}");
        assert!(values.iter().all(|(_, rate)| *rate > 0.01), "{values:?}");
    }

    #[test]
    fn too_little_memory_is_an_error_and_no_number() {
        let context = CheckContext {
            memory_bytes: 1000,
            ..small(Path::new("/"))
        };
        let error = run(&context).unwrap_err().to_string();
        assert!(error.contains("to have memory"), "{error}");
    }
}
