//! `bench`: all-reduce measured. Alone it runs nodes and processes inside one process over loopback, which validates
//! a machine; with `rank` it is one process of a gang that `cargo xtask bench hfreduce` conducts, next to its
//! rivals. What is called, and whether the result is right, is `load`'s.

mod load;
mod loopback;
mod rank;

use std::time::Duration;

use crate::args::{Bench, BenchPart};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs the command.
pub fn run(args: &Bench) -> anyhow::Result<()> {
    match &args.part {
        None => loopback::run(args),
        Some(BenchPart::Rank(args)) => rank::run(args),
    }
}
