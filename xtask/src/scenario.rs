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
    about: "runs one scenario on a real cluster of this machine",
    usage: "
Usage: cargo xtask scenario NAME [--keep]
       cargo xtask scenario --list

Builds what is missing (packages, the cluster's programs, images), brings a cluster up, runs the scenarios whose name
contains NAME and takes the cluster down. The cluster of a scenario that failed is left up, with its logs.

  NAME    part of a scenario's name
  --keep  leave the cluster up, and use it as it is the next time: a changed scenario then runs within seconds. What
          changed in the product needs a new cluster: cargo xtask cluster down --name e2e
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
