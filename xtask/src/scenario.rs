//! `cargo xtask scenario`: one scenario on a real cluster, with everything that it needs. What scenarios there are is in
//! the crate `scenarios`.

use std::process::ExitCode;

use ::cluster::tools::{self, Tools};
use ::cluster::{NodeEngine, prerequisites};
use anyhow::Result;

use crate::args::{Args, Usage};
use crate::test::scenarios;
use crate::{Verb, cluster, images, packages, report};

pub(crate) const VERB: Verb = Verb {
    name: "scenario",
    about: "Run one scenario on a Kubernetes cluster on this machine",
    usage: "
Usage: cargo xtask scenario NAME [--keep]
       cargo xtask scenario --list

Builds missing programs and images, creates a cluster, runs the scenarios whose name contains NAME and deletes the cluster.
When a scenario fails, the cluster and the logs stay.

  NAME    part of a scenario's name
  --keep  keep the cluster and use it in the next run: a changed scenario then starts within seconds. A change of the
          product needs a new cluster: cargo xtask cluster down --name e2e
  --list  print the names",
    run,
};

fn run(mut args: Args) -> Result<ExitCode> {
    let keep = args.switch("--keep");
    let list = args.switch("--list");
    let name = args.positional();
    args.finish()?;
    if list {
        for name in scenarios::matching("")? {
            println!("{}", scenarios::short(&name));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let Some(name) = name else {
        return Err(Usage("say which scenario: --list prints the names".to_owned()).into());
    };
    scenarios::matching(&name)?;
    if let Some(status) = cluster::refuse_without_root() {
        return Ok(status);
    }
    let mut missing = prerequisites::missing_for_cluster();
    missing.extend(prerequisites::missing_for_images());
    missing.extend(prerequisites::missing_for_trainer());
    packages::install(&missing)?;
    Tools::build(&tools::of_tests(NodeEngine::here()), &report::step)?;
    images::build(&images::all())?;
    let mut words = vec!["run", "--filter", &name];
    words.extend(keep.then_some("--keep"));
    scenarios::start(&words)
}
