//! `cargo xtask fuzz`: a hostile side's bytes for what reads them, for longer than the tests do, or one seed again.

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::args::{Args, Usage};
use crate::{Verb, child, counts};

pub(crate) const VERB: Verb = Verb {
    name: "fuzz",
    about: "Fuzz a decoder or a sidecar with new seeds, or with one seed again",
    usage: "
Usage: cargo xtask fuzz TARGET [--minutes M] [--seed SEED]

Targets:
  frames      headers of the frames between sidecars
  chains      frames between the members of a chain and their clients
  handshakes  their three messages, changed or repeated
  attach      messages of a process to its sidecar, with descriptors, and back
  rendezvous  the stream between sidecar and operator, both ways
  rings       the rings between a process and its sidecar
  documents   assignments, termination messages and tasks of validations
  files       what a trainer leaves in the run directory for its sidecar and launcher
  objects     pods, nodes, claims, ConfigMaps, jobs, validations and the Fabric, as the API server has them
  reports     what a validator found on a node
  requests    what the kernel asks a file system
  sockets     real sidecars with unknown programs at their sockets; the gang computes on
  neighbours  a real sidecar with a hostile process; its neighbour gets answers

  --minutes M  keep drawing new seeds for M minutes (default 1), and add what was counted to
               docs/measurements/runs.csv
  --seed SEED  run this seed alone, as a failing run printed it",
    run,
};

/// Each target's package, by its folder. The target is a test of that name in its program `fuzz`.
const TARGETS: [(&str, &str); 13] = [
    ("frames", "core/collective"),
    ("chains", "core/craq"),
    ("handshakes", "link"),
    ("attach", "hfreduce-client"),
    ("rendezvous", "core/collective"),
    ("rings", "hfreduce-client"),
    ("documents", "contract"),
    ("files", "contract"),
    ("objects", "operator"),
    ("reports", "core/health"),
    ("requests", "storage-csi/fuse"),
    ("sockets", "hfreduce-sidecar"),
    ("neighbours", "hfreduce-sidecar"),
];

fn run(mut args: Args) -> Result<ExitCode> {
    let minutes: u64 = args.parsed("--minutes")?.unwrap_or(1);
    let seed: Option<u64> = args.parsed("--seed")?;
    let target = args.positional();
    args.finish()?;
    let known = TARGETS
        .iter()
        .find(|(name, _)| target.as_deref() == Some(name));
    let Some((name, folder)) = known else {
        let names: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
        return Err(Usage(format!("TARGET is one of {}", names.join(", "))).into());
    };
    let package = folder.rsplit('/').next().unwrap_or(folder);
    let mut command = child::command("cargo");
    command.args(["test", "--package", package, "--test", "fuzz", "--"]);
    command.args([name, "--nocapture"]);
    let succeeded = match seed {
        Some(seed) => {
            command.env("SEED", seed.to_string());
            let status = command.status().context("failed to start cargo")?;
            status.success()
        }
        None => {
            command.env("SIM_SECONDS", (minutes * 60).to_string());
            counts::run_and_add(&mut command, &format!("fuzz {name}"), &[folder])?
        }
    };
    Ok(if succeeded {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use super::TARGETS;
    use crate::r#gen::root;
    use std::fs;

    #[test]
    fn every_target_is_a_test_of_its_package() {
        for (target, package) in TARGETS {
            let folder = root().join(package).join("tests");
            let one_file = folder.join("fuzz.rs");
            let file = if one_file.is_file() {
                one_file
            } else {
                let files = fs::read_dir(folder.join("fuzz")).unwrap();
                let paths = files.map(|file| file.unwrap().path());
                let test = format!("#[test]\nfn {target}()");
                let mut having =
                    paths.filter(|path| fs::read_to_string(path).unwrap().contains(&test));
                having
                    .next()
                    .unwrap_or_else(|| panic!("{target} is no test of {package}"))
            };
            let text = fs::read_to_string(file).unwrap();
            assert!(
                text.contains(&format!("#[test]\nfn {target}()")),
                "{target}"
            );
        }
    }
}
