//! Entry of the sidecar's process: parse, run, print why it ended.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use hfreduce_sidecar::args::{Cli, Command};
use hfreduce_sidecar::{bench, node, private, serve};

fn main() -> anyhow::Result<ExitCode> {
    daemon::panics::end_process();
    // Before it knows anything, and again in whatever it executes of its own.
    private::close().context("failed to keep the process from others of its user")?;
    let cli = Cli::parse();
    match cli.command {
        None => serve::run(&cli.serve)?,
        Some(Command::Serve(args)) => serve::run(&args)?,
        Some(Command::Bench(args)) => bench::run(&args)?,
        Some(Command::Validate(args)) => return bench::validate(&args),
        Some(Command::Ready(args)) => {
            if let Some(reason) = node::not_ready(&args.run_dir) {
                // The kubelet shows it in the pod's events.
                writeln!(std::io::stdout(), "{reason}")?;
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
