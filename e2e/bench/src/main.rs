//! Benches beside rivals and the machine's limits, in interleaved rounds: a command line for each, which
//! `cargo xtask bench` starts. Here is what they share: nodes as namespaces and their processors, processes, the trainer's root, facts of the machine.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a bench talks to a person"
)]

mod bar;
mod cores;
mod hfreduce;
mod machine;
mod network;
mod process;
mod sample;
mod storage;
mod trainer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Measures what the repository ships. `cargo xtask bench` prepares the machine and starts it, as root.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, Subcommand)]
enum Bench {
    /// HFReduce next to its rivals.
    Hfreduce(hfreduce::Args),
    /// The file system on three nodes next to what its disks and links can do.
    Storage(storage::Args),
    /// Programs of I/O, in processes of their own.
    #[command(subcommand, hide = true)]
    StoragePart(storage::Part),
}

fn main() -> ExitCode {
    let done = match Cli::parse().bench {
        Bench::Hfreduce(args) => hfreduce::start(args),
        Bench::Storage(args) => storage::start(&args),
        Bench::StoragePart(part) => part.run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
