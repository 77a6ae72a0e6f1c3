//! `validate`: the all-reduce within one node that a check of a machine runs. First every core has to add up what is
//! known, as in the validator's check AllReduce. Then a sidecar reduces for processes: every element has to be right on
//! every rank, and it has to be fast enough. On a machine with several NUMA nodes all this is done on each of them, then
//! over all. `verdict` judges and prints it.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, anyhow, ensure};
use collective::known_sums::{KnownSums, WrongSum};
use hfreduce_client::{DType, Numerics};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use topology::numa::Numbers;

use super::gang::{Calls, Gang, MEMCPY_BYTES, Measured, memcpy_rate, processor};
use super::load::Wrong;
use super::verdict::{Figures, Floors, Part, Place, Report, Work};
use crate::args::{Format, Validate, WorkerFlags};
use crate::member::MemberOptions;
use crate::numa;
use crate::workers::processors;

/// What is needed besides the tensors and memcpy's memory: the program itself.
const EXTRA_BYTES: u64 = 256 << 20;

/// Bytes of an input that a core adds up: the caches of a core hold eight of them and the sum.
const CORE_BYTES: usize = 64 << 10;
/// How often it does, which takes some milliseconds.
const CORE_ROUNDS: usize = 200;

/// Runs the command.
pub fn run(args: &Validate) -> anyhow::Result<ExitCode> {
    let work = Work {
        processes: args.procs,
        tensors: args.tensors,
        bytes_per_tensor: args.tensor_bytes,
        rounds: args.rounds,
    };
    let floors = Floors {
        at_least: args.at_least,
        // A floor of nothing is none.
        of_memcpy: Some(args.of_memcpy).filter(|floor| *floor > 0.0),
    };
    let (parts, refused) = match measure(work, args.workers) {
        Ok(parts) => (parts, None),
        Err(error) => (Vec::new(), Some(format!("{error:#}"))),
    };
    let report = Report::new(processor(), (work, floors), parts, refused);
    let mut out = io::stdout().lock();
    match args.format {
        Format::Text => write!(out, "{report}")?,
        Format::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?,
    }
    Ok(report.exit())
}

/// Every NUMA node by itself where there are several, then all that the process may use.
fn measure(work: Work, workers: WorkerFlags) -> anyhow::Result<Vec<Part>> {
    let tensors = work.tensors as u64 * work.bytes_per_tensor as u64;
    let memcpy = 2 * (processors() * MEMCPY_BYTES) as u64;
    let needed = tensors * (u64::from(work.processes) + 1) + memcpy + EXTRA_BYTES;
    let free = numa::free_bytes();
    ensure!(
        free.is_none_or(|free| free >= needed),
        "it needs {} MiB of memory, and {} are free: take fewer --procs or --tensors",
        needed >> 20,
        free.unwrap_or(0) >> 20
    );
    let machine = numa::machine();
    let whole = sched_getaffinity(None).context("failed to ask which processors may be used")?;
    let mut places: Vec<(Place, CpuSet)> = Vec::new();
    if machine.nodes.len() > 1 {
        for node in &machine.nodes {
            let cpus = machine.runs_on(node.number);
            if !cpus.is_empty() && machine.memory.contains(node.number) {
                places.push((place(Some(node.number), &cpus), numa::cpu_set(&cpus)));
            }
        }
    }
    let all = (0..CpuSet::MAX_CPU).filter(|cpu| whole.is_set(*cpu));
    let all: Numbers = all.map(|cpu| cpu as u32).collect();
    places.push((place(None, &all), whole));
    let parts = places.into_iter().map(|(place, cpus)| {
        // Threads begin where those run that start them, and touch their memory there.
        let measured = sched_setaffinity(None, &cpus)
            .context("failed to move to these processors")
            .and_then(|()| measure_here(work, workers));
        part(place, measured)
    });
    let parts = parts.collect();
    sched_setaffinity(None, &whole).ok();
    Ok(parts)
}

fn place(numa_node: Option<u32>, cpus: &Numbers) -> Place {
    Place {
        numa_node,
        processors: cpus.to_string(),
    }
}

/// Where this thread may run.
fn measure_here(
    work: Work,
    workers: WorkerFlags,
) -> anyhow::Result<(Option<Figures>, Vec<anyhow::Error>)> {
    let wrong_cores = wrong_cores()?;
    // As many as a sidecar computes with unless it is kept from it, so that one which is does not go unnoticed.
    let threads = processors();
    let before = memcpy_rate(threads);
    let options = MemberOptions {
        workers: workers.options(),
        ..MemberOptions::new(PathBuf::new())
    };
    let gang = Gang::start(1, work.processes, &options)?;
    let Measured {
        times,
        mut failures,
    } = gang.measure(Calls {
        size: (work.tensors, work.bytes_per_tensor),
        dtype: DType::F32,
        numerics: Numerics::Fast,
        rounds: work.rounds,
    });
    gang.stop();
    failures.extend(wrong_cores.into_iter().map(Into::into));
    // The slower one: others may have used the memory during one of the two, and a verdict counts more than a figure.
    let memcpy = before.min(memcpy_rate(threads));
    let seconds: Vec<f64> = times.iter().map(std::time::Duration::as_secs_f64).collect();
    Ok((Figures::new(work, &seconds, (threads, memcpy)), failures))
}

/// What was wrong first on each core that this thread may use.
fn wrong_cores() -> anyhow::Result<Vec<WrongSum>> {
    let cores = sched_getaffinity(None).context("failed to ask which processors may be used")?;
    let add_up = |core: usize| -> anyhow::Result<Option<WrongSum>> {
        let mut only = CpuSet::new();
        only.set(core);
        sched_setaffinity(None, &only).with_context(|| format!("failed to use core {core}"))?;
        let mut sums = KnownSums::new(0, CORE_BYTES);
        let mut round = || {
            sums.sum();
            sums.compare(core).err()
        };
        Ok((0..CORE_ROUNDS).find_map(|_| round()))
    };
    thread::scope(|scope| {
        let cores = (0..CpuSet::MAX_CPU).filter(|core| cores.is_set(*core));
        let threads: Vec<_> = cores
            .map(|core| scope.spawn(move || add_up(core)))
            .collect();
        let wrong = threads.into_iter().map(|thread| {
            let wrong = thread.join();
            wrong.unwrap_or_else(|_| Err(anyhow!("a core's thread panicked")))
        });
        wrong.filter_map(Result::transpose).collect()
    })
}

fn part(place: Place, measured: anyhow::Result<(Option<Figures>, Vec<anyhow::Error>)>) -> Part {
    let (figures, failures) = match measured {
        Ok(measured) => measured,
        Err(error) => (None, vec![error]),
    };
    let (mut wrong, mut wrong_cores, mut error) = (Vec::new(), Vec::new(), None);
    for failure in failures {
        if let Some(one) = failure.downcast_ref::<Wrong>() {
            wrong.push(one.clone());
        } else if let Some(one) = failure.downcast_ref::<WrongSum>() {
            wrong_cores.push(one.to_string());
        } else if error.is_none() {
            error = Some(format!("{failure:#}"));
        }
    }
    Part {
        place,
        figures,
        wrong,
        wrong_cores,
        error,
    }
}
