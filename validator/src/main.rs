//! Entry of the validator's process: parse, then run the task or one check of it.

use std::process::ExitCode;

use clap::Parser;
use validator::args::{Args, Command};

fn main() -> ExitCode {
    link::panics::end_process();
    let args = Args::parse();
    match &args.command {
        None => validator::run::run(&args),
        Some(Command::Check(check)) => validator::child::check(&args, check),
    }
}
