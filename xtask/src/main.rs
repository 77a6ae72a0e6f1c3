//! `cargo xtask`: the repository's own tasks. Finds the verb, answers `--help`, turns the result into an exit status.
//! Each verb is a file of its own that ends in a [`Verb`]; what the verbs share is in `args` and
//! `report`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool speaks to a terminal"
)]

mod alerts;
mod args;
mod bench;
mod cargo;
mod chart;
mod child;
mod cluster;
mod counts;
mod demo;
mod faults;
mod fuzz;
mod r#gen;
mod gpu;
mod images;
mod inherited;
mod limits;
mod lint;
mod mutants;
mod packages;
mod posix;
mod python;
mod rdma;
mod recording;
mod report;
mod scenario;
mod sim;
mod test;
mod tidy;
mod try_out;

use std::env;
use std::process::ExitCode;

use args::{Args, Usage};

/// One verb of `cargo xtask`. To add one: a file with `pub(crate) const VERB`, a `mod` line above,
/// a line in [`VERBS`].
pub(crate) struct Verb {
    /// The word on the command line.
    pub(crate) name: &'static str,
    /// One line for the list of verbs.
    pub(crate) about: &'static str,
    /// What `cargo xtask VERB --help` prints.
    pub(crate) usage: &'static str,
    pub(crate) run: fn(Args) -> anyhow::Result<ExitCode>,
}

const VERBS: &[Verb] = &[
    try_out::VERB,
    demo::VERB,
    test::VERB,
    scenario::VERB,
    bench::VERB,
    sim::VERB,
    fuzz::VERB,
    cluster::VERB,
    images::VERB,
    python::VERB,
    posix::VERB,
    gpu::VERB,
    r#gen::VERB,
    lint::VERB,
    tidy::VERB,
];

/// The exit status for a command line that makes no sense, or that needs root.
pub(crate) const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let mut args = Args::new(env::args().skip(1));
    let Some(name) = args.positional() else {
        let asked = args.help();
        println!("{}", overview());
        return if asked {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(EXIT_USAGE)
        };
    };
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        eprintln!("xtask: there is no verb {name:?}\n\n{}", overview());
        return ExitCode::from(EXIT_USAGE);
    };
    if args.help() {
        println!("{}", usage(verb));
        return ExitCode::SUCCESS;
    }
    let ended = match inherited::run(&name, &mut args) {
        Ok(None) => (verb.run)(args),
        Ok(Some(status)) => Ok(status),
        Err(error) => Err(error),
    };
    match ended {
        Ok(status) => status,
        Err(error) => {
            eprintln!("xtask {name}: {error:#}");
            if error.is::<Usage>() {
                eprintln!("\n{}", usage(verb));
                ExitCode::from(EXIT_USAGE)
            } else if error.is::<packages::NeedsRoot>() {
                ExitCode::from(EXIT_USAGE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

fn usage(verb: &Verb) -> String {
    format!("{}{}", verb.usage.trim(), inherited::usage(verb.name))
}

fn overview() -> String {
    let mut text = String::from("Usage: cargo xtask VERB [ARGUMENTS]\n\nVerbs:\n");
    for verb in VERBS {
        text.push_str(&format!("  {:<10} {}\n", verb.name, verb.about));
    }
    text.push_str("\nUse `cargo xtask VERB --help` for more about a verb.");
    text
}

#[cfg(test)]
mod tests {
    use super::VERBS;

    #[test]
    fn every_verb_is_listed_once_and_explains_itself() {
        for (index, verb) in VERBS.iter().enumerate() {
            assert!(
                verb.usage.contains(&format!("cargo xtask {}", verb.name)),
                "{}",
                verb.name
            );
            assert!(!verb.about.is_empty() && !verb.about.ends_with('.'));
            assert!(
                VERBS
                    .iter()
                    .skip(index + 1)
                    .all(|other| other.name != verb.name)
            );
        }
    }
}
