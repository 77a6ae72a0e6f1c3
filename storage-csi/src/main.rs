//! Entry of every process of the file system: parse, run, report why it ended.

use clap::Parser;
use storage_csi::args::Cli;

fn main() -> anyhow::Result<()> {
    storage_csi::run::run(Cli::parse())
}
