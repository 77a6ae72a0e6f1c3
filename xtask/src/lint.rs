//! `cargo xtask lint`: formatting, spelling, clippy and documentation with warnings denied, `helm lint`, and
//! the licences of dependencies where cargo-deny is installed.

mod python;

use crate::args::Args;
use crate::chart::{self, Ran};
use crate::r#gen::root;
use crate::{Verb, report};
use anyhow::{Context, bail};
use cluster::prerequisites::found;
use std::process::{Command, ExitCode};
use std::time::Instant;

pub(crate) const VERB: Verb = Verb {
    name: "lint",
    about: "Check formatting, spelling, clippy, documentation and the chart",
    usage: "
Usage: cargo xtask lint [--only-chart]

Runs, and fails at the first that is not clean:
  cargo fmt --check
  codespell on texts and sources                (not run without codespell)
  ruff and mypy on the Python code              (installed the first time)
  cargo clippy --workspace --all-targets -- -D warnings
  cargo doc --workspace --no-deps, with warnings denied
  helm lint on the chart                        (not run without helm)
  cargo deny check licenses bans sources        (not run without cargo-deny)

  --only-chart  helm lint and the chart's renders alone; without helm that fails",
    run,
};

fn run(mut args: Args) -> anyhow::Result<ExitCode> {
    let only_chart = args.switch("--only-chart");
    args.finish()?;
    if only_chart {
        return chart_for_certain();
    }
    cargo("format", &["fmt", "--all", "--check"], None)?;
    spelling()?;
    python::check()?;
    cargo(
        "clippy",
        &[
            "clippy",
            "--workspace",
            "--all-targets",
            "--",
            "-D",
            "warnings",
        ],
        None,
    )?;
    let warnings = Some(("RUSTDOCFLAGS", "-D warnings"));
    cargo("doc", &["doc", "--workspace", "--no-deps"], warnings)?;
    let start = Instant::now();
    match chart::lint()? {
        Ran::Yes => report::line("chart", "clean", start.elapsed()),
        Ran::No(why) => println!("  chart not run: {why}"),
    }
    if found("cargo-deny") {
        cargo(
            "deny",
            &["deny", "check", "licenses", "bans", "sources"],
            None,
        )?;
    } else {
        println!("  deny not run: no cargo-deny here");
    }
    Ok(ExitCode::SUCCESS)
}

/// Words that codespell takes for mistakes: words of the field, names in code, and *to and fro*.
const WORDS: &str = "atleast,atmost,crate,fro,iif,inflight,notin,ot,ser,untils";
/// What it reads, as git's pathspecs: what people write.
const WRITTEN: [&str; 12] = [
    "*.md",
    "*.rs",
    "*.py",
    "*.yaml",
    "*.toml",
    "*.txt",
    "*.tpl",
    "*.sh",
    ".ci/run",
    ":!helm/tests/golden",
    ":!helm/fireflyer/templates/crds",
    ":!docs/measurements/*.txt",
];

/// Misspelt words in texts, comments and names.
fn spelling() -> anyhow::Result<()> {
    if !found("codespell") {
        println!("  spelling not run: no codespell here");
        return Ok(());
    }
    let start = Instant::now();
    let list = Command::new("git")
        .args(["ls-files", "-z", "--"])
        .args(WRITTEN)
        .current_dir(root())
        .output()
        .context("failed to start git ls-files")?;
    let list = String::from_utf8(list.stdout).context("failed to read the names of files")?;
    let files = list.split_terminator('\0');
    let status = Command::new("codespell")
        .args(["--ignore-words-list", WORDS])
        .args(files.filter(|file| root().join(file).is_file()))
        .current_dir(root())
        .status()
        .context("failed to start codespell")?;
    if !status.success() {
        bail!(
            "the spelling is not clean: correct it, or add the word to WORDS in xtask/src/lint.rs"
        );
    }
    report::line("spelling", "clean", start.elapsed());
    Ok(())
}

/// The chart's checks where they must not be left out.
fn chart_for_certain() -> anyhow::Result<ExitCode> {
    for (name, check) in [
        ("chart", chart::lint()?),
        ("renders", chart::golden(false)?),
    ] {
        match check {
            Ran::Yes => println!("  {name} clean"),
            Ran::No(why) => bail!("{name} not run: {why}"),
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn cargo(name: &str, arguments: &[&str], variable: Option<(&str, &str)>) -> anyhow::Result<()> {
    let start = Instant::now();
    let status = crate::child::command(env!("CARGO"))
        .args(arguments)
        .envs(variable)
        .current_dir(root())
        .status()
        .with_context(|| format!("failed to start cargo {}", arguments.join(" ")))?;
    if !status.success() {
        bail!("cargo {} is not clean", arguments.join(" "));
    }
    report::line(name, "clean", start.elapsed());
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::r#gen::root;
    use std::fs;
    use std::process::Command;

    /// Lints one file as if it were below core/, or elsewhere, and returns what clippy says.
    fn clippy(name: &str, source: &str, rules: &str) -> String {
        let folder =
            std::env::temp_dir().join(format!("fireflyer-lint-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch folder");
        let file = folder.join("fixture.rs");
        fs::write(&file, source).expect("the fixture is written");
        let output = Command::new("clippy-driver")
            .args([
                "--edition",
                "2024",
                "--crate-type",
                "lib",
                "--emit",
                "metadata",
            ])
            .args([
                "-D",
                "clippy::disallowed_types",
                "-D",
                "clippy::disallowed_methods",
            ])
            .arg("--out-dir")
            .arg(&folder)
            .arg(&file)
            .env("CLIPPY_CONF_DIR", root().join(rules))
            .current_dir(root())
            .output()
            .expect("clippy-driver runs; rust-toolchain.toml asks for it");
        fs::remove_dir_all(&folder).expect("the scratch folder goes");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Something of everything that the ban list of core names.
    const IMPURE: &str = r#"
        pub type Types = (
            std::collections::HashMap<u8, u8>,
            std::collections::HashSet<u8>,
            std::fs::File,
            std::fs::OpenOptions,
            std::net::TcpStream,
            std::net::TcpListener,
            std::net::UdpSocket,
            std::os::unix::net::UnixStream,
            std::os::unix::net::UnixListener,
            std::os::unix::net::UnixDatagram,
            std::process::Command,
            std::sync::Mutex<u8>,
            std::sync::RwLock<u8>,
            std::sync::Condvar,
            std::thread::Builder,
        );
        pub fn now() { let _ = (std::time::Instant::now(), std::time::SystemTime::now()); }
        pub fn wait() { std::thread::sleep(std::time::Duration::ZERO); }
        pub fn run() { std::thread::spawn(|| ()); std::thread::scope(|_| ()); }
        pub fn join() { let _ = (std::sync::mpsc::channel::<u8>(), std::sync::mpsc::sync_channel::<u8>(1)); }
        pub fn ask() {
            let _ = (std::env::var("x"), std::env::var_os("x"), std::env::vars(), std::env::vars_os());
            let _ = (std::env::args(), std::env::args_os());
        }
        pub fn look() { let _ = (std::fs::read("x"), std::fs::read_to_string("x"), std::fs::read_dir("x")); }
        pub fn change() {
            let _ = (std::fs::write("x", ""), std::fs::copy("x", "y"), std::fs::rename("x", "y"));
            let _ = (std::fs::create_dir("x"), std::fs::create_dir_all("x"), std::fs::remove_file("x"));
            let _ = (std::fs::remove_dir("x"), std::fs::remove_dir_all("x"));
        }
        pub fn talk() { let _ = (std::io::stdin(), std::io::stdout(), std::io::stderr()); }
    "#;

    #[test]
    fn everything_on_the_ban_list_of_core_is_refused() {
        let list = fs::read_to_string(root().join("core/clippy.toml")).expect("a ban list");
        let banned: Vec<&str> = list
            .lines()
            .filter_map(|line| line.trim().strip_prefix("{ path = \"")?.split('"').next())
            .collect();
        assert!(!banned.is_empty());
        let said = clippy("core", IMPURE, "core");
        for path in banned {
            assert!(
                said.contains(&format!("`{path}`")),
                "clippy does not refuse {path}: is it in IMPURE?\n{said}"
            );
        }
    }

    #[test]
    fn the_ban_list_ends_at_core() {
        assert_eq!(clippy("shell", IMPURE, "."), "");
    }
}
