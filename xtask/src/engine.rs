//! `--engine` and `--node-image`, of every verb that brings a cluster up. What they say has to reach programs that the verb
//! starts, so the verb runs once more with it in its environment.

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use cluster::{ENGINE, Engine, NODE_IMAGE};

use crate::args::{Args, Usage};

/// The verbs that take them.
pub(crate) const VERBS: [&str; 4] = ["cluster", "demo", "scenario", "test"];
/// What the help of those verbs says of it.
pub(crate) const USAGE: &str = "

Of the cluster:
  --engine NAME     who runs its nodes: kind, or native for processes of this machine (kind where it is installed and
                    Docker answers)
  --node-image REF  the image of kind's nodes, by tag or digest (the one that this version of kind is made for)";

/// Runs the verb with the engine that its arguments name; nothing if they name none.
pub(crate) fn chosen(verb: &str, args: &mut Args) -> Result<Option<ExitCode>> {
    if !VERBS.contains(&verb) {
        return Ok(None);
    }
    let (engine, image) = (args.option("--engine")?, args.option("--node-image")?);
    check(engine.as_deref(), image.as_deref())?;
    if engine.is_none() && image.is_none() {
        return Ok(None);
    }
    let mut again = Command::new(env::current_exe().context("failed to find this program")?);
    again.arg(verb).args(args.clone().rest());
    again.envs(engine.map(|engine| (ENGINE, engine)));
    again.envs(image.map(|image| (NODE_IMAGE, image)));
    let status = again.status().context("failed to start this program")?;
    // Of what a signal ended, the shell's number for a failure.
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(Some(ExitCode::from(code.unwrap_or(1))))
}

fn check(engine: Option<&str>, image: Option<&str>) -> Result<(), Usage> {
    let named = engine.map(|name| (name, Engine::named(name)));
    match (named, image) {
        (Some((name, None)), _) => Err(Usage(format!("--engine {name}: take kind or native"))),
        (Some((_, Some(Engine::Native))), Some(_)) => Err(Usage(
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
