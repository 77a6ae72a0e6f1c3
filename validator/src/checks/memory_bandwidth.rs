//! How fast the memory of each NUMA node is read and written by its own cores: the triad of
//! STREAM, of which the best round counts, as in STREAM. A lost memory channel shows here.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use collective::kernels::{self, Store};
use collective::{DType, Factor, ReduceOp, Scale};
use health::{Check, CheckResult};

use super::{CheckContext, measured};
use crate::log;
use crate::machine::{self, NumaNode, Rounds, SYSTEM, best_round};

/// An array is so many times larger than the caches, as STREAM asks for.
const CACHES: u64 = 4;
/// Two arrays are read, one is written. Where stores cannot go past the caches, lines are read before
/// they are written, which is not counted, as in STREAM.
const ARRAYS: u64 = 3;
const ELEMENT_BYTES: usize = 4;
/// Less for each core is all loop and no memory.
const LEAST_BYTES: usize = 32 << 10;
/// The first round is not the only one, nor are there more than anybody needs.
const LEAST_ROUNDS: usize = 2;
const MAX_ROUNDS: usize = 10_000;

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
        let value = triad(node, array_bytes, each)?;
        results.push(measured(
            Check::MemoryBandwidth,
            format!("numa {}", node.index),
            value,
        ));
    }
    Ok(results)
}

/// GB/s of all cores in the best round. A round takes as long as its slowest core.
fn triad(node: &NumaNode, bytes: u64, budget: Duration) -> anyhow::Result<f64> {
    let cores = node.cores.len();
    let length = usize::try_from(bytes)? / cores / ELEMENT_BYTES * ELEMENT_BYTES;
    if length < LEAST_BYTES {
        bail!("failed to have memory for the triad: {bytes} bytes for all cores");
    }
    let rounds = Rounds::new(cores);
    let started = Instant::now();
    let times = machine::on_each(&node.cores, |_| {
        // Whoever touches memory first gets it from its own node.
        let (one, two) = (array(length, 1.0), array(length, 2.0));
        let mut sum = array(length, 0.5);
        let mut times = Vec::new();
        while rounds.have_another(|| {
            times.len() == MAX_ROUNDS || times.len() >= LEAST_ROUNDS && started.elapsed() >= budget
        }) {
            let since = Instant::now();
            add(&mut sum, &two, &one);
            times.push(since.elapsed());
        }
        times
    })?;
    Ok((ARRAYS as usize * length * cores) as f64 / best_round(&times).as_nanos() as f64)
}

/// Memory that holds a number over and over.
fn array(length: usize, number: f32) -> Vec<u8> {
    let mut bytes = vec![0; length];
    bytes.as_chunks_mut().0.fill(number.to_ne_bytes());
    bytes
}

/// `sum = 3 * two + one`, by the kernels of the sidecar: they write past the caches where the processor can.
fn add(sum: &mut [u8], two: &[u8], one: &[u8]) {
    let (first, by) = (1, Factor::new(3.0));
    let scale = Scale::Multiply { first, by };
    let (dtype, op) = (DType::F32, ReduceOp::Sum);
    kernels::reduce(dtype, op, sum, &[two, one], scale, Store::Streaming);
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
