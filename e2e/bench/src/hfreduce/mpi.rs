//! The rivals that speak MPI. Over TCP every node is a host of its own to the library: its launcher reaches it with an
//! agent that enters the node's namespace, where others would use ssh. In shared memory all ranks are on one host.
//!
//! Intel MPI comes from Intel's wheels, under Intel's licence, into a folder of the cache: it is run here and is part
//! of nothing that we build or ship.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use cluster::{command, paths};

use crate::hfreduce::case::{self, Shape};
use crate::hfreduce::conductor::Conductor;
use crate::hfreduce::gang::Gang;
use crate::hfreduce::programs;
use crate::hfreduce::tuning::Tuning;
use crate::network::{BRIDGE, INTERFACE, Network, on_cores};

/// A library and our loop, built against it.
#[derive(Debug)]
pub(crate) enum Library {
    Open { program: PathBuf },
    Intel { program: PathBuf, home: PathBuf },
}

const INTEL_MPI: &str = "impi-devel==2021.18.1";

/// What the launchers call for each host: options of ssh, the host, a command. Names of hosts have no dots: what is
/// behind one would be cut off, and two nodes be one.
const AGENT: &str = r#"#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
node=$(dirname "$0")/$host
# shellcheck disable=SC2046
exec nsenter --net="$(cat "$node")" $(cat "$node.cores") unshare --uts sh -c "hostname node-$(echo $host | tr . -); $*"
"#;

pub(crate) fn open(compiler: &str) -> Result<Library> {
    let program = programs::compile(compiler, "mpi.c", "mpi-open", &[])?;
    Ok(Library::Open { program })
}

pub(crate) fn intel() -> Result<Library> {
    let home = paths::cache()?.join("bench/intel-mpi");
    if !home.join("bin/mpiexec.hydra").exists() {
        println!("installing {INTEL_MPI}");
        command::run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        let mut install = Command::new(home.join("bin/pip"));
        command::run(install.args(["install", "--quiet", "--no-input", INTEL_MPI]))?;
    }
    let lib = home.join("lib");
    let flags = [
        format!("-I{}", home.join("include").display()),
        format!("-I{}", home.join("include/mpi").display()),
        lib.join("libmpi.so").display().to_string(),
        format!("-Wl,-rpath,{}", lib.display()),
    ];
    let program = programs::compile("cc", "mpi.c", "mpi-intel", &flags)?;
    Ok(Library::Intel { program, home })
}

pub(crate) fn start(
    library: &Library,
    network: &Network,
    shape: Shape,
    path: case::Path,
    tuning: &Tuning,
) -> Result<Gang> {
    let mut conductor = Conductor::new()?;
    let nodes = network.nodes.get(..shape.nodes).context("too few nodes")?;
    let agent = conductor.folder.write("agent", AGENT)?;
    command::run(Command::new("chmod").arg("+x").arg(&agent))?;
    for node in nodes {
        let file = node.file().display().to_string();
        conductor.folder.write(&node.address, &file)?;
        let words = on_cores(node.cores.as_deref()).join(" ");
        conductor
            .folder
            .write(&format!("{}.cores", node.address), &words)?;
    }
    let addresses: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
    let oversubscribed = shape.world() > network.processors(shape.nodes);
    // The launcher, and in shared memory all that it starts.
    let cores = network.cores.as_ref();
    let cores = cores.map(|cores| cores.of_nodes(shape.nodes).to_string());
    let launcher = |program: &Path| network.hub.command_on(cores.as_deref(), program);
    let mut launch = match library {
        Library::Open { program } => {
            let mut launch = launcher(Path::new("mpirun.openmpi"));
            launch.args([
                "--allow-run-as-root",
                "--oversubscribe",
                "--bind-to",
                "none",
            ]);
            launch.args(["-x", "BENCH_CONDUCTOR", "-n", &shape.world().to_string()]);
            if oversubscribed {
                launch.args(["--mca", "mpi_yield_when_idle", "1"]);
            }
            launch.args(&tuning.words);
            if path == case::Path::Tcp {
                let procs = shape.procs;
                let hosts = addresses.iter().map(|host| format!("{host}:{procs}"));
                launch
                    .arg("--host")
                    .arg(hosts.collect::<Vec<_>>().join(","));
                launch.arg("--mca").arg("plm_rsh_agent").arg(&agent);
                launch.args(["--mca", "btl_tcp_if_include", INTERFACE]);
                launch.args(["-x", &format!("UCX_NET_DEVICES={INTERFACE}")]);
                launch.args(["--mca", "oob_tcp_if_include", "192.0.2.0/24"]);
            }
            launch.arg(program);
            launch
        }
        Library::Intel { program, home } => {
            let mut launch = launcher(&home.join("bin/mpiexec.hydra"));
            let lib = home.join("lib");
            launch.env("I_MPI_ROOT", home).env("LD_LIBRARY_PATH", &lib);
            launch.env("FI_PROVIDER_PATH", &lib).env("I_MPI_PIN", "0");
            launch.env("FI_TCP_IFACE", INTERFACE);
            launch.args(["-genvall", "-n", &shape.world().to_string()]);
            let words = tuning.environment.iter();
            launch.envs(words.map(|(name, value)| (name, value)));
            match path {
                case::Path::Shm => {
                    launch.env("I_MPI_FABRICS", "shm");
                    launch.env("I_MPI_HYDRA_BOOTSTRAP", "fork");
                }
                case::Path::Tcp => {
                    let fabrics = if shape.procs > 1 { "shm:ofi" } else { "ofi" };
                    launch
                        .env("I_MPI_FABRICS", fabrics)
                        .env("FI_PROVIDER", "tcp");
                    launch.env("I_MPI_HYDRA_BOOTSTRAP", "ssh");
                    launch.env("I_MPI_HYDRA_BOOTSTRAP_EXEC", &agent);
                    launch.env("I_MPI_HYDRA_IFACE", BRIDGE);
                    launch.arg("-ppn").arg(shape.procs.to_string());
                    launch.arg("-hosts").arg(addresses.join(","));
                }
            }
            launch.arg(program);
            launch
        }
    };
    launch.env("BENCH_CONDUCTOR", conductor.folder.socket());
    conductor.start(&launch)?;
    conductor.gather(shape.world(), BTreeSet::new())
}

/// What a library is, for the record.
pub(crate) fn version(library: &Library) -> String {
    let (program, argument): (&Path, _) = match library {
        Library::Open { .. } => (Path::new("mpirun.openmpi"), "--version"),
        Library::Intel { home, .. } => (&home.join("bin/mpiexec.hydra"), "--version"),
    };
    let output = Command::new(program).arg(argument).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.lines().next().unwrap_or("unknown").trim().to_owned()
}
