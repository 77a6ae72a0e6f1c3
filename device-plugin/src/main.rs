//! Entry of the agent's process: parse, run, report why it ended.

use clap::Parser;
use device_plugin::args::Args;

fn main() -> anyhow::Result<()> {
    daemon::panics::end_process();
    device_plugin::run::run(Args::parse())
}
