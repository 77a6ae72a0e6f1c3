//! `cargo xtask try`: real sidecars reduce on this machine, without root, cluster or GPU, and say how fast next to what
//! its memory allows. What is measured is the sidecar's own `bench`.

use std::env;
use std::process::{ExitCode, Stdio};
use std::thread;

use anyhow::{Context as _, Result};

use crate::args::Args;
use crate::{Verb, cargo, child};

pub(crate) const VERB: Verb = Verb {
    name: "try",
    about: "Measure all-reduce over real sidecars on this machine, without root or cluster",
    usage: "
Usage: cargo xtask try [--nodes N] [--procs N]

Builds the sidecar and measures all-reduce between nodes over TCP on the loopback. In the same run it measures memcpy, to
compare with. It checks each sum. The first run compiles for some minutes.

  --nodes N  number of nodes, with one sidecar each (default: 2)
  --procs N  number of processes on each node (default: 2)",
    run,
};

fn run(mut args: Args) -> Result<ExitCode> {
    let nodes = args.parsed("--nodes")?.unwrap_or(2_u32);
    let procs = args.parsed("--procs")?.unwrap_or(2_u32);
    args.finish()?;
    // Both are built into the same folder, wherever that is.
    let program = env::current_exe()?.with_file_name("hfreduce-sidecar");
    println!("Build");
    cargo::build("hfreduce-sidecar", &["--package", "hfreduce-sidecar"])?;

    println!("\nAll-reduce over {nodes} sidecars");
    let status = child::command(&program)
        .args(["bench", "--transport", "tcp"])
        .args(["--nodes", &nodes.to_string(), "--procs", &procs.to_string()])
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("failed to start {}", program.display()))?;
    if !status.success() {
        return Ok(ExitCode::FAILURE);
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    println!("\n{}", next(nodes, cores));
    Ok(ExitCode::SUCCESS)
}

/// How to read the table, and what to do next.
fn next(nodes: u32, cores: usize) -> String {
    format!(
        "alg is bytes of the tensor over time, bus what each link carries for it. The {nodes} nodes shared {cores} \
         cores here:\non machines of their own each has all of its cores.\n\nWith PyTorch, train over the same sidecars:\n  \
         python3 -m venv .venv && . .venv/bin/activate\n  pip install torch scikit-learn ./python\n  \
         FIREFLYER_SIDECAR=target/debug/hfreduce-sidecar fireflyer run -n 4 examples/digits.py --steps 400\n\
         A job on a real cluster of this machine: cargo xtask demo"
    )
}
