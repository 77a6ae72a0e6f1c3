//! `bench` and `validate`: all-reduce measured. Alone `bench` runs nodes and processes inside one process over loopback;
//! with `rank` it is one process of a gang that `cargo xtask bench hfreduce` conducts, next to its
//! rivals. `protocol` measures the engine's own thread. `validate` judges a machine. What is called, and whether the result is right, is `load`'s.

mod gang;
mod load;
mod loopback;
pub(crate) mod protocol;
mod rank;
mod validate;
mod verdict;

use std::time::Duration;

use crate::args::{Bench, BenchPart};
pub use validate::run as validate;

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// The paper's load: 46 layers of 1024 x 1024 in single precision, each an operation of its own.
pub(crate) const LAYERS: (usize, usize) = (46, 4 << 20);

/// Runs the command.
pub fn run(args: &Bench) -> anyhow::Result<()> {
    match &args.part {
        None => loopback::run(args),
        Some(BenchPart::Rank(args)) => rank::run(args),
        Some(BenchPart::Protocol(args)) => protocol::run(args),
    }
}
