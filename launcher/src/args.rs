//! Reads the command line. By hand: the launcher is copied into every trainer container, and two
//! options do not pay for a parser.

use std::ffi::OsString;
use std::path::PathBuf;

/// Shown for `--help` and after a wrong command line.
pub(crate) const USAGE: &str = "\
Usage: launcher [--run-dir DIR] [--termination-log FILE] -- COMMAND [ARGUMENT...]
       launcher pause

Starts FIREFLYER_PROCS_PER_NODE copies of COMMAND as the ranks of this node.
  --run-dir DIR           where roster, stop, progress and acknowledgement lie [/run/fireflyer]
  --termination-log FILE  where the outcome is written [/dev/termination-log]
  pause                   do nothing, reap orphans, leave on SIGTERM";

/// What to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Start the ranks.
    Run(Args),
    /// Hold a pod's namespaces.
    Pause,
    /// Print this and leave.
    Print(String),
}

/// How to start the ranks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) run_dir: PathBuf,
    pub(crate) termination_log: PathBuf,
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
}

/// What is wrong with the command line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "failed to read the command line: nothing after `--`, expected the command of the ranks"
    )]
    NoCommand,
    #[error(
        "failed to read the command line: `{0}` is not an option; the ranks' command goes after `--`"
    )]
    Unknown(String),
    #[error("failed to read the command line: {0} needs a value")]
    NoValue(&'static str),
}

/// Parses everything after the program's own name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Action, Error> {
    let mut arguments = arguments.into_iter();
    let mut run_dir = PathBuf::from("/run/fireflyer");
    let mut termination_log = PathBuf::from("/dev/termination-log");
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--") => {
                let program = arguments.next().ok_or(Error::NoCommand)?;
                let arguments = arguments.collect();
                return Ok(Action::Run(Args {
                    run_dir,
                    termination_log,
                    program,
                    arguments,
                }));
            }
            Some("--run-dir") => {
                run_dir = arguments.next().ok_or(Error::NoValue("--run-dir"))?.into();
            }
            Some("--termination-log") => {
                termination_log = arguments
                    .next()
                    .ok_or(Error::NoValue("--termination-log"))?
                    .into();
            }
            Some("pause") => return Ok(Action::Pause),
            Some("--version") => {
                return Ok(Action::Print(
                    concat!("launcher ", env!("CARGO_PKG_VERSION")).to_owned(),
                ));
            }
            Some("--help") => return Ok(Action::Print(USAGE.to_owned())),
            Some(_) | None => return Err(Error::Unknown(argument.to_string_lossy().into_owned())),
        }
    }
    Err(Error::NoCommand)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &[&str]) -> Result<Action, Error> {
        parse(line.iter().map(OsString::from))
    }

    #[test]
    fn everything_after_the_dashes_belongs_to_the_ranks() {
        let Ok(Action::Run(args)) = parsed(&["--run-dir", "/r", "--", "python3", "--", "pause"])
        else {
            panic!("not parsed");
        };
        assert_eq!(args.run_dir, PathBuf::from("/r"));
        assert_eq!(args.termination_log, PathBuf::from("/dev/termination-log"));
        assert_eq!(
            (args.program, args.arguments),
            ("python3".into(), vec!["--".into(), "pause".into()])
        );
    }

    #[test]
    fn a_command_without_dashes_is_refused_with_the_reason() {
        assert_eq!(
            parsed(&["python3"]),
            Err(Error::Unknown("python3".to_owned()))
        );
        assert_eq!(parsed(&["--"]), Err(Error::NoCommand));
        assert_eq!(parsed(&["--run-dir"]), Err(Error::NoValue("--run-dir")));
    }
}
