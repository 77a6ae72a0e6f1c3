//! `cargo xtask bench hfreduce`: gets what the chosen rivals need of this machine, then starts the bench.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use ::cluster::prerequisites::{self, Requirement, found, is_root};
use anyhow::{Context as _, Result, bail};

use crate::args::Args;
use crate::images::{self, trainer};
use crate::{cargo, child, cluster, packages, python};

const OPEN_MPI: [Requirement; 2] = [
    Requirement {
        program: "mpirun.openmpi",
        package: "openmpi-bin",
    },
    Requirement {
        program: "mpicc.openmpi",
        package: "libopenmpi-dev",
    },
];

pub(super) fn run(args: Args) -> Result<ExitCode> {
    if !is_root() {
        return Ok(cluster::ask_for_root(
            "The nodes are network namespaces, which only root may make.",
        ));
    }
    let mut bench = child::command(build()?);
    bench
        .args(["hfreduce", "--sidecar"])
        .arg(images::program("hfreduce-sidecar")?);
    bench.args(args.rest());
    // Who cannot be prepared is left out, with the reason.
    let Some(needs) = needs(&bench)? else {
        return Ok(ExitCode::from(2));
    };
    for need in needs.lines() {
        let value = match prepare(need) {
            Ok(path) => path.display().to_string(),
            Err(why) => format!("!{why:#}"),
        };
        bench.arg(format!("--need={need}={value}"));
    }
    let status = bench.status().context("failed to start the bench")?;
    Ok(child::exit_code(status))
}

fn build() -> Result<PathBuf> {
    cargo::build("bench", &["--package", "bench"])?;
    // Both are built into the same folder, wherever that is.
    Ok(std::env::current_exe()?.with_file_name("bench"))
}

/// What those need who take part; nothing where the options make no sense, which the bench has then said.
fn needs(bench: &Command) -> Result<Option<String>> {
    let mut ask = child::command(bench.get_program());
    ask.args(bench.get_args()).arg("--needs");
    let output = ask.stderr(Stdio::inherit()).output();
    let output = output.context("failed to start the bench")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(output.status.success().then_some(text))
}

fn prepare(need: &str) -> Result<PathBuf> {
    match need {
        "trainer" => {
            packages::install(&prerequisites::missing_for_images())?;
            packages::install(&prerequisites::missing_for_trainer())?;
            python::unpacked(&trainer::base()?)
        }
        "wheel" => trainer::wheel(),
        "open-mpi" => {
            let missing = OPEN_MPI.into_iter().filter(|need| !found(need.program));
            packages::install(&missing.collect::<Vec<_>>())?;
            Ok("mpicc.openmpi".into())
        }
        other => bail!("nothing here knows how to get {other}"),
    }
}
