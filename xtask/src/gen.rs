//! `cargo xtask gen`: rewrites the committed files that are made from code, or with `--check` only
//! compares them. What a file is made of is its owner's business; this is the list of owners.

use crate::Verb;
use crate::args::Args;
use crate::chart::{self, Ran};
use crate::{alerts, faults, images, limits};
use anyhow::{Context, bail};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};

pub(crate) const VERB: Verb = Verb {
    name: "gen",
    about: "Rewrite generated files (CRDs, protocols, Containerfiles, renders); --check compares",
    usage: "
Usage: cargo xtask gen [--check]

Rewrites the committed files that are made from code:
  crds/yaml/*.yaml                       from the types in crds/src
  helm/fireflyer/templates/crds/*.yaml   the same, kept by an uninstall
  */src/pb/*.rs                          from the proto folder beside it
  */Containerfile                        from the table of images in xtask/src/images
  docs/reference.md                      flags and metrics, from clap and the registry
  docs/protocol/faults.md                the faults of the simulation, and how often each was survived
  docs/limits.md                         bounds that users can reach, from each package's limits.rs
  docs/operations.md                     its table of alerts, from helm/fireflyer/alerts.yaml
  helm/tests/golden/*.yaml               renders of the chart (not run without helm)

  --check   write nothing; fail when a file is stale (protocols and the page of flags and
            metrics are compared by tests of their packages), or when a rule, bound or pattern of a CRD has no refusal case
            under crds/cases",
    run,
};

/// Programs that own generated files: package and binary. Each takes `--check`.
const GENERATORS: [(&str, &str); 1] = [("crds", "crdgen")];

/// Packages with code that is made from .proto files.
const PROTOCOLS: [&str; 4] = ["csi", "device-plugin", "kv", "storage-rpc"];

/// Packages with a section in the page of flags and metrics.
const DESCRIBED: [&str; 5] = [
    "daemon",
    "operator",
    "device-plugin",
    "hfreduce-sidecar",
    "storage-csi",
];

fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    let check = args.switch("--check");
    args.finish()?;
    generate(check)?;
    Ok(ExitCode::SUCCESS)
}

fn generate(check: bool) -> anyhow::Result<()> {
    for (package, binary) in GENERATORS {
        let mut command = crate::child::command(env!("CARGO"));
        command.args(["run", "--package", package, "--bin", binary]);
        if check {
            command.args(["--", "--check"]);
        }
        let status = command
            .current_dir(root())
            .status()
            .with_context(|| format!("failed to start {binary} of {package}"))?;
        if !status.success() {
            bail!("{binary} of {package} found what is listed above");
        }
    }
    // Comparing is a test of the packages, so only writing is left to do.
    if !check {
        by_test(&PROTOCOLS, &["--test", "fresh"])?;
        by_test(&DESCRIBED, &["--lib", "--", "the_page_"])?;
    }
    images::containerfiles(check)?;
    faults::page(check)?;
    alerts::page(check)?;
    limits::page(check)?;
    if let Ran::No(why) = chart::golden(!check)? {
        println!("renders of the chart not run: {why}");
    }
    Ok(())
}

/// Has tests write what they otherwise compare.
fn by_test(packages: &[&str], which: &[&str]) -> anyhow::Result<()> {
    let packages: Vec<_> = packages
        .iter()
        .flat_map(|name| ["--package", name])
        .collect();
    let status = crate::child::command(env!("CARGO"))
        .args(["test", "--quiet"])
        .args(&packages)
        .args(which)
        .env("FIREFLYER_REGENERATE", "1")
        .stdout(Stdio::null())
        .current_dir(root())
        .status()
        .context("failed to start the tests that write generated files")?;
    if !status.success() {
        bail!("failed to write what {} describe", packages.join(" "));
    }
    Ok(())
}

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .map_or_else(PathBuf::new, Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    #[test]
    fn generated_files_are_fresh() {
        super::generate(true).expect("`cargo xtask gen` has something to do");
    }
}
