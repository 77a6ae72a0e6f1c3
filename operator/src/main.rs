//! Entry of the operator's process: parse, run, report why it ended.

use clap::Parser;
use operator::args::Cli;

fn main() -> anyhow::Result<()> {
    daemon::panics::end_process();
    operator::run::run(Cli::parse())
}
