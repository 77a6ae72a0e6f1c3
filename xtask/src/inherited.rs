//! Options that programs which a verb starts have to know, too: the verb runs once more with them in its environment.

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use cluster::{ENGINE, NODE_IMAGE, NodeEngine};

use crate::args::{Args, Usage};
use crate::cargo::VERBOSE;

/// The verbs that bring a cluster up.
const OF_CLUSTER: [&str; 4] = ["cluster", "demo", "scenario", "test"];
const CLUSTER_USAGE: &str = "

Options of the cluster:
  --engine NAME     run nodes in containers of kind (kind) or as processes of this machine (native). Default: kind where it
                    is installed and Docker answers
  --node-image REF  image of kind's nodes, by tag or digest (default: the one of this version of kind)";
const USAGE: &str = "

Options of every verb:
  --verbose  print all output of compilers; without it, only progress, and all output when one fails";

/// What the help of a verb says of them.
pub(crate) fn usage(verb: &str) -> String {
    let cluster = if OF_CLUSTER.contains(&verb) {
        CLUSTER_USAGE
    } else {
        ""
    };
    format!("{cluster}{USAGE}")
}

/// Runs the verb with what its arguments say; nothing if they have none of these options.
pub(crate) fn run(verb: &str, args: &mut Args) -> Result<Option<ExitCode>> {
    let verbose = args.switch("--verbose").then(|| "1".to_owned());
    let (mut engine, mut image) = (None, None);
    if OF_CLUSTER.contains(&verb) {
        (engine, image) = (args.option("--engine")?, args.option("--node-image")?);
        check(engine.as_deref(), image.as_deref())?;
    }
    let values = [(VERBOSE, verbose), (ENGINE, engine), (NODE_IMAGE, image)];
    if values.iter().all(|(_, value)| value.is_none()) {
        return Ok(None);
    }
    let mut again = Command::new(env::current_exe().context("failed to find this program")?);
    again.arg(verb).args(args.clone().rest());
    again.envs(
        values
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let status = again.status().context("failed to start this program")?;
    // What a signal ended failed.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Some(ExitCode::from(code.unwrap_or(1))))
}

fn check(engine: Option<&str>, image: Option<&str>) -> Result<(), Usage> {
    let named = engine.map(|name| (name, NodeEngine::named(name)));
    match (named, image) {
        (Some((name, None)), _) => Err(Usage(format!("--engine {name}: take kind or native"))),
        (Some((_, Some(NodeEngine::Native))), Some(_)) => Err(Usage(
            "--node-image is of kind's nodes: without --engine native".to_owned(),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn an_engine_is_one_of_two_and_only_kind_has_images() {
        check(None, None).unwrap();
        check(Some("kind"), Some("kindest/node:v1.36.1")).unwrap();
        check(None, Some("kindest/node:v1.36.1")).unwrap();
        check(Some("native"), Some("kindest/node:v1.36.1")).unwrap_err();
        check(Some("minikube"), None).unwrap_err();
    }
}
