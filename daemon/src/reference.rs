//! A program's section of the page of flags and metrics, from what clap and the registry know of
//! them. A test of each program compares its section with the page; `cargo xtask gen` has the tests
//! write it.

use std::env;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use crate::{Args, Registry};

/// The page, from a package's folder.
const PAGE: &str = "../docs/reference.md";
/// Set by `cargo xtask gen`: write instead of comparing.
const REGENERATE: &str = "FIREFLYER_REGENERATE";

/// Compares the section of a program with the page, or writes it. The package, whose folder this
/// is, has the program's name. The error says what to do.
pub fn check<P: CommandFactory>(package: &str, registry: &Registry) -> Result<(), String> {
    let section = program(&P::command(), registry).map_err(|error| error.to_string())?;
    compare(package, &section)
}

/// The section of a program: its flags by command, without those of every process, and its metrics.
fn program(command: &Command, registry: &Registry) -> Result<String, crate::metrics::Error> {
    let shared = process();
    let is_own = |arg: &&Arg| {
        shared
            .get_arguments()
            .all(|other| other.get_id() != arg.get_id())
    };
    let mut text = String::new();
    flags(&mut text, None, command.get_arguments().filter(is_own));
    let root: Vec<_> = command.get_arguments().map(Arg::get_id).collect();
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        // A command that is meant without its name has its flags above.
        if !sub.get_arguments().all(|arg| root.contains(&arg.get_id())) {
            flags(&mut text, Some(sub), sub.get_arguments().filter(is_own));
        }
    }
    let process = Registry::new("")?;
    let of_all = process.declared();
    let own = registry.declared().into_iter();
    metrics(&mut text, own.filter(|metric| !of_all.contains(metric)));
    Ok(text)
}

fn compare(package: &str, section: &str) -> Result<(), String> {
    let folder = Path::new(package);
    let path = folder.join(PAGE);
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let failed = |what, error| format!("failed to {what} {}: {error}", path.display());
    let page = fs::read_to_string(&path).map_err(|error| failed("read", error))?;
    let heading = format!("\n## {name}\n");
    let (before, rest) = page
        .split_once(&heading)
        .ok_or_else(|| format!("{} has no heading `## {name}`: add one", path.display()))?;
    let end = rest.find("\n## ").unwrap_or(rest.len());
    let (old, after) = rest.split_at(end);
    // The line below the heading is written by hand.
    let about = old.find("\n\n|").unwrap_or(old.len());
    let about = &old[..old[..about].find("\n\n").unwrap_or(about).min(about)];
    let fresh = format!("{about}\n{section}");
    if old == fresh {
        return Ok(());
    }
    if env::var_os(REGENERATE).is_none() {
        return Err(format!(
            "{} is stale: run `cargo xtask gen`",
            path.display()
        ));
    }
    fs::write(&path, format!("{before}{heading}{fresh}{after}"))
        .map_err(|error| failed("write", error))
}

fn process() -> Command {
    <Args as clap::Args>::augment_args(Command::new("process"))
}

fn flags<'a>(text: &mut String, of: Option<&Command>, flags: impl Iterator<Item = &'a Arg>) {
    let mut flags = flags
        .filter(|arg| arg.get_long().is_some() && !arg.is_hide_set())
        .peekable();
    if flags.peek().is_none() {
        return;
    }
    if let Some(command) = of {
        let about = command.get_about().map(ToString::to_string);
        let about = about.unwrap_or_default();
        row(text, format_args!("\n`{}`: {about}.\n", command.get_name()));
    }
    text.push_str("\n| Flag | Variable | Default | Meaning |\n| --- | --- | --- | --- |\n");
    for arg in flags {
        let quoted = |word: &str| format!("`{word}`");
        let long = arg.get_long().unwrap_or_default();
        let variable = arg.get_env().and_then(|name| name.to_str()).map(quoted);
        let takes_value = arg.get_action().takes_values();
        let defaults = arg.get_default_values().iter();
        let defaults: Vec<_> = defaults.filter_map(|value| value.to_str()).collect();
        let default = (takes_value && !defaults.is_empty()).then(|| quoted(&defaults.join(",")));
        // clap drops the period of a doc comment.
        let help = arg.get_help().map(|help| format!("{help}."));
        row(
            text,
            format_args!(
                "| `--{long}` | {} | {} | {} |\n",
                variable.unwrap_or_default(),
                default.unwrap_or_default(),
                help.unwrap_or_default().replace('|', "\\|")
            ),
        );
    }
}

fn metrics(text: &mut String, metrics: impl Iterator<Item = crate::metrics::Declared>) {
    let mut metrics = metrics.peekable();
    if metrics.peek().is_none() {
        return;
    }
    text.push_str("\n| Metric | Kind | Labels | Meaning |\n| --- | --- | --- | --- |\n");
    for metric in metrics {
        row(
            text,
            format_args!(
                "| `{}` | {} | {} | {} |\n",
                metric.name,
                metric.kind,
                metric.labels.join(", "),
                metric.help
            ),
        );
    }
}

fn row(text: &mut String, row: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = text.write_fmt(row);
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Parser, Subcommand};

    use super::*;

    /// What it does.
    #[derive(Parser)]
    struct Program {
        #[command(subcommand)]
        command: Option<Sub>,
        #[command(flatten)]
        daemon: Args,
        /// How much: a|b.
        #[arg(long, env = "MUCH", default_value_t = 7)]
        much: u32,
        /// Not shown.
        #[arg(long, hide = true)]
        hidden: bool,
    }

    #[derive(Subcommand)]
    enum Sub {
        /// Does more.
        More {
            /// Really.
            #[arg(long)]
            really: bool,
        },
    }

    #[test]
    fn flags_and_metrics_are_shown_once_with_what_is_known_of_them() {
        let registry = Registry::new("1").unwrap();
        registry
            .counters("fireflyer_a_total", "A's.", &["b", "c"])
            .unwrap();
        let text = program(&<Program as clap::CommandFactory>::command(), &registry).unwrap();
        for line in [
            "| `--much` | `MUCH` | `7` | How much: a\\|b. |\n",
            "\n`more`: Does more.\n",
            "| `--really` |  |  | Really. |\n",
            "| `fireflyer_a_total` | counter | b, c | A's. |\n",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        for other in ["hidden", "log-level", "build_info", "help"] {
            assert!(!text.contains(other), "{other} in {text}");
        }
        let _ = Args::augment_args(Command::new("x"));
    }

    #[test]
    fn the_page_has_what_every_program_has() {
        let mut section = String::new();
        flags(&mut section, None, process().get_arguments());
        let declared = Registry::new("").unwrap().declared().into_iter();
        metrics(&mut section, declared);
        compare(env!("CARGO_MANIFEST_DIR"), &section).unwrap();
    }
}
