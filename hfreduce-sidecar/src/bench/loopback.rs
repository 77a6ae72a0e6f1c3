//! `bench` alone: all-reduce between nodes of one machine, each a sidecar with clients of its own on threads, over real
//! sockets. Prints latency and rates for sizes from 4 KiB to the paper's 186 MiB, next to what memcpy
//! reaches in the same run. "Nodes" share one machine here: compare within a run, never across machines.

use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use hfreduce_client::Numerics;

use super::LAYERS;
use super::gang::{Calls, Gang, memcpy_rate, processor};
use crate::args::Bench;
use crate::member::MemberOptions;
use crate::workers::processors_of_each;

/// Sizes, and how many rounds each is measured.
const SIZES: [(usize, usize); 5] = [
    (4 << 10, 300),
    (64 << 10, 200),
    (1 << 20, 60),
    (16 << 20, 15),
    (186 << 20, 7),
];
/// What a sum that does not depend on how tensors are cut may cost, of the time of a fast one.
const BITWISE_BAR: f64 = 2.2;

/// Runs the command.
pub(super) fn run(args: &Bench) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let transport = args.transport.to_possible_value();
    let mut workers = args.workers.options();
    workers
        .threads
        .get_or_insert_with(|| processors_of_each(args.nodes));
    let options = MemberOptions {
        chunk_bytes: args.chunk_bytes,
        window: args.window,
        transport: args.transport,
        checksum: args.checksum,
        workers,
        ..MemberOptions::new(PathBuf::new())
    };
    writeln!(out, "cpu      {} ({cores} threads)", processor())?;
    writeln!(
        out,
        "load     allreduce(sum, {}, {}), {} nodes x {} processes on loopback, transport {}, chunks of {} KiB, {} slots of an edge filled",
        args.dtype,
        args.numerics,
        args.nodes,
        args.procs,
        transport.as_ref().map_or("", PossibleValue::get_name),
        args.chunk_bytes >> 10,
        options.window()
    )?;
    let before = memcpy_rate(2) / 1e9;
    let gang = Gang::start(args.nodes, args.procs, &options)?;
    let world = args.nodes * args.procs as usize;
    let bus = 2.0 * (world as f64 - 1.0) / world as f64;
    writeln!(
        out,
        "{:>12} {:>7} {:>12} {:>12} {:>12} {:>8}",
        "bytes", "rounds", "median us", "alg GB/s", "bus GB/s", "of fast"
    )?;
    let mut row = |name: String, bytes: usize, rounds: usize, [median, fast]: [Duration; 2]| {
        let rate = bytes as f64 / median.as_secs_f64() / 1e9;
        let of_fast = median.as_secs_f64() / fast.as_secs_f64();
        let median = median.as_secs_f64() * 1e6;
        writeln!(
            out,
            "{name:>12} {rounds:>7} {median:>12.1} {rate:>12.3} {:>12.3} {of_fast:>6.2} x",
            rate * bus
        )
    };
    for (bytes, rounds) in SIZES {
        let medians = measure(&gang, args, (1, bytes), rounds)?;
        row(bytes.to_string(), bytes, rounds, medians)?;
    }
    let (layers, bytes) = LAYERS;
    let [median, fast] = measure(&gang, args, LAYERS, 7)?;
    let name = format!("{layers} x {bytes}");
    row(name, layers * bytes, 7, [median, fast])?;
    if args.numerics == Numerics::Bitwise {
        let of_fast = median.as_secs_f64() / fast.as_secs_f64();
        let held = if of_fast <= BITWISE_BAR {
            "held"
        } else {
            "missed"
        };
        writeln!(
            out,
            "bar      bitwise against fast, {layers} x {bytes}: {of_fast:.2} x, <= {BITWISE_BAR} x: {held}"
        )?;
    }
    gang.stop();
    // The two figures that the paper's validation prints, for its load.
    let rate = (layers * bytes) as f64 / median.as_secs_f64() / 1e9;
    writeln!(
        out,
        "paper    algorithm bandwidth {rate:.3} GB/s, algorithm * 2(ws-1)/ws {:.3} GB/s",
        rate * bus
    )?;
    let after = memcpy_rate(2) / 1e9;
    writeln!(
        out,
        "memcpy   {before:.1} GB/s before, {after:.1} after (2 threads, read and write counted)"
    )?;
    Ok(())
}

/// Median time of these all-reduces in the mode that is asked for and in the fast one.
fn measure(
    gang: &Gang,
    args: &Bench,
    size: (usize, usize),
    rounds: usize,
) -> anyhow::Result<[Duration; 2]> {
    let calls = |numerics| Calls {
        size,
        dtype: args.dtype,
        numerics,
        rounds,
    };
    let fast = gang.measure(calls(Numerics::Fast)).median()?;
    let own = match args.numerics {
        Numerics::Fast => fast,
        other @ (Numerics::Precise | Numerics::Bitwise) => gang.measure(calls(other)).median()?,
    };
    Ok([own, fast])
}
