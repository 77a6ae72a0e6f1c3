//! `cargo xtask bench`: what the hot parts cost here, as ratios to a limit measured in the same run.

mod hfreduce;
mod storage;
mod validation;

use std::process::ExitCode;

use ::cluster::prerequisites;
use anyhow::{Context as _, Result};

use crate::args::{Args, Usage};
use crate::{Verb, child, cluster, python};

pub(crate) const VERB: Verb = Verb {
    name: "bench",
    about: "Measure speed, as a ratio to a limit that is measured in the same run",
    usage: USAGE,
    run,
};

const USAGE: &str = "
Usage: cargo xtask bench [SUITE]

Suites (default: all but the last four):
  kernels    reduce kernels of each instruction set, against memcpy
  loopback   all-reduce between sidecars in one process, against memcpy
  protocol   what the engine's own thread uses at 20,000 chunks a second, against its limit of 0.6 s of processor a second
  scheduler  one planner cycle at 1,250 nodes and 1,000 queued jobs, against its limit of 10 ms
  fleet      one ended validation at 10,000 nodes, and quarantine's limits with 2,500 failed, against their limits
  rendezvous what a gang of 1,250 and of 4,096 nodes costs the operator, in memory and time, against the limits
  losses     how soon a gang goes on when a process, a sidecar or a node is killed or frozen, and what crosses the border
             of two zones, against the limits
  validation the validator's figures against those of plain C programs, in pairs that take turns
  calls      what a call of a collective costs the trainer's thread, in microseconds (root, for the trainer's root)
  hfreduce   all-reduce between sidecars in namespaces, against Gloo, Open MPI, Intel MPI and the machine's limits
  storage    the file system on three nodes in namespaces, against this machine's disk, relays behind FUSE, and journals

`hfreduce` needs root for namespaces. It installs Gloo in the trainer's root, Open MPI from Debian and Intel MPI from Intel's
wheels. One that cannot be installed is reported as `not run`. Options of `hfreduce`:
  --quick          one round of the bars' cases only
  --rounds N       interleaved rounds (3; with --quick 1)
  --case FILTER    what has all parts of FILTER, as in `2 x 4, 186 MiB, f32, gloo` or `16 MiB`; or `ddp`
                   for training steps, `waiting` for what waiting costs
  --cores N        processors for each node, and as many workers for its sidecar
  --gate SECONDS   longest wait for a quiet machine before each measurement (20)
  --json FILE      everything, each round by itself

`storage` needs root, /dev/fuse and etcd's program (`cargo xtask cluster tools`), else it says `not run`. Its options:
  --quick          one round, with files of 64 MiB
  --rounds N       interleaved rounds (3; with --quick 1)
  --only WORDS     what has one of these words: write,read,cp,torch.save,cat,fsync,create,idle
  --gate SECONDS   longest wait for a quiet machine in a round (20)
  --scratch FOLDER folder on the disk that is measured (the bench's cache)
  --json FILE      everything, each round by itself

`validation` needs a C compiler, else it says `not run`. It leaves out pairs during which others used the machine, if it gets
enough others. Where there are several NUMA nodes, start it on the cores of the first, with `taskset`. Its options:
  --rounds N       quiet pairs of each check (5); at most twice as many are tried
  --check NAME     one check alone, as `MemoryBandwidth`
  --gate SECONDS   longest wait for a quiet machine before each measurement (20)
  --scratch FOLDER folder whose disk is measured (the bench's cache)";

struct Suite {
    name: &'static str,
    cargo: &'static [&'static str],
}

const SUITES: &[Suite] = &[
    Suite {
        name: "kernels",
        cargo: &[
            "run",
            "--release",
            "--package",
            "collective",
            "--example",
            "kernels",
        ],
    },
    Suite {
        name: "loopback",
        cargo: &[
            "run",
            "--release",
            "--package",
            "hfreduce-sidecar",
            "--",
            "bench",
        ],
    },
    Suite {
        name: "protocol",
        cargo: &[
            "run",
            "--release",
            "--package",
            "hfreduce-sidecar",
            "--",
            "bench",
            "protocol",
        ],
    },
    Suite {
        name: "scheduler",
        cargo: &[
            "test",
            "--release",
            "--package",
            "scheduler",
            "--test",
            "planner",
            "--",
            "speed",
            "--nocapture",
        ],
    },
    Suite {
        name: "fleet",
        cargo: &[
            "test",
            "--release",
            "--package",
            "operator",
            "--package",
            "health",
            "--lib",
            "--",
            "among_ten_thousand_nodes",
            "limits_are_computed_once",
            "--nocapture",
        ],
    },
    Suite {
        name: "rendezvous",
        cargo: &[
            "test",
            "--release",
            "--package",
            "operator",
            "--test",
            "rendezvous_scale",
            "--",
            "--ignored",
            "--nocapture",
        ],
    },
    Suite {
        name: "losses",
        cargo: &[
            "test",
            "--release",
            "--package",
            "hfreduce-sidecar",
            "--test",
            "shrink",
            "--test",
            "restart",
            "--test",
            "faults",
            "--test",
            "namespaces",
            "--",
            "--nocapture",
            "--test-threads",
            "1",
        ],
    },
];

fn run(mut args: Args) -> Result<ExitCode> {
    let wanted = args.positional();
    if wanted.as_deref() == Some("hfreduce") {
        return hfreduce::run(args);
    }
    if wanted.as_deref() == Some("storage") {
        return storage::run(args);
    }
    if wanted.as_deref() == Some("validation") {
        return validation::run(args);
    }
    args.finish()?;
    if wanted.as_deref() == Some("calls") {
        return calls();
    }
    let known = |name: &String| SUITES.iter().any(|suite| suite.name == name);
    if let Some(name) = wanted.as_ref().filter(|name| !known(name)) {
        return Err(Usage(format!("there is no suite {name:?}")).into());
    }
    println!("cpu: {}", processor()?);
    for suite in SUITES {
        if wanted.as_deref().is_some_and(|wanted| wanted != suite.name) {
            continue;
        }
        println!("== {}", suite.name);
        let status = child::command("cargo")
            .args(suite.cargo)
            .status()
            .context("failed to start cargo")?;
        if !status.success() {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn calls() -> Result<ExitCode> {
    if !prerequisites::is_root() {
        return Ok(cluster::ask_for_root(
            "It runs in the trainer's root, which only root may enter.",
        ));
    }
    let status = python::measure_calls()?;
    Ok(child::exit_code(status))
}

/// Model of the processor: figures of different ones cannot be compared.
pub(crate) fn processor() -> Result<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").context("failed to read /proc/cpuinfo")?;
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    Ok(model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned()))
}
