//! `cargo xtask cluster`: brings the test cluster up and down. How it is done is the crate `cluster`; this file is its command line.

use std::process::ExitCode;

use crate::Verb;
use crate::args::{Args, Usage};

pub(crate) const VERB: Verb = Verb {
    name: "cluster",
    about: "brings a real Kubernetes cluster up or down on this machine",
    usage: USAGE,
    run,
};

const USAGE: &str = "
Usage: cargo xtask cluster up|down|status
";

fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    let action = args.positional();
    args.finish()?;
    Err(Usage(format!("{action:?} is not written yet")).into())
}
