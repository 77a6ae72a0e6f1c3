//! `cargo xtask python`: the wheel's tests, inside the very root that the trainer's image is made of, against the real
//! sidecar. The machine's own Python is not touched.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;
use std::{env, fs, io};

use ::cluster::{Outcome, command, paths, prerequisites};
use anyhow::{Context as _, Result};

use crate::args::Args;
use crate::images::{self, trainer};
use crate::{Verb, child, cluster, packages, report};

pub(crate) const VERB: Verb = Verb {
    name: "python",
    about: "runs the wheel's tests in the trainer image's root, against real sidecars",
    usage: "
Usage: cargo xtask python [TEST]

Builds the trainer's root, the wheel and the sidecar where they are missing, and runs python/tests with unittest in
namespaces of their own.

  TEST  a module, class or method, for example test_checkpoint (default: all)",
    run,
};

/// Mounts what a root needs, then runs Python in it. Arguments: root, repository, wheel, programs, folder of the stand-in
/// for a GPU's driver, then Python's.
const ENTER: &str = r#"
set -e
root=$1 repository=$2 site=$3 programs=$4 drivers=$5; shift 5
ip link set lo up
for folder in dev proc tmp run src opt/site opt/programs opt/drivers; do mkdir -p "$root/$folder"; done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
mount --bind "$repository" "$root/src"; mount -o remount,bind,ro "$root/src"
mount --bind "$site" "$root/opt/site"
mount --bind "$programs" "$root/opt/programs"
mount --bind "$drivers" "$root/opt/drivers"
exec chroot "$root" /usr/bin/env -i PATH=/opt/programs:/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 \
  PYTHONPATH=/opt/site PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 \
  USE_LIBUV=0 FIREFLYER_SIDECAR=/opt/programs/hfreduce-sidecar \
  FIREFLYER_FAKE_CUDA=/opt/drivers/libfake_cuda.so \
  sh -c 'cd /src/python/tests && exec python3 "$@" 2>&1' python "$@"
"#;

fn run(mut args: Args) -> Result<ExitCode> {
    let test = args.positional();
    args.finish()?;
    if !prerequisites::is_root() {
        return Ok(cluster::ask_for_root(
            "The tests run in the trainer's root, which only root may enter.",
        ));
    }
    let mut tests = python()?;
    tests.args(["-m", "unittest"]);
    match &test {
        Some(test) => tests.args(["--verbose", test]),
        None => tests.args(["discover", "--verbose", "--durations", "0"]),
    };
    let mut child = tests
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("failed to start the tests")?;
    let mut counts = Counts::default();
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line.context("failed to read what the tests printed")?;
            counts.read(&line);
            println!("{line}");
        }
    }
    let status = child.wait().context("failed to wait for the tests")?;
    // unittest's closing lines in the form that `cargo xtask test` adds up.
    let failed = counts.failed.max(u64::from(!status.success()));
    let passed = counts.ran.saturating_sub(failed + counts.skipped);
    println!(
        "{passed} passed, {failed} failed, {} skipped",
        counts.skipped
    );
    Ok(if status.success() && counts.ran > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Prints what a call costs the trainer: `cargo xtask bench calls`.
pub(crate) fn measure_calls() -> Result<ExitStatus> {
    let mut bench = python()?;
    bench.arg("../benches/overhead.py").stdin(Stdio::null());
    bench.status().context("failed to start Python")
}

/// Python in the trainer's root and in namespaces of its own, with all that the tests need, in their folder.
fn python() -> Result<Command> {
    packages::install(&prerequisites::missing_for_images())?;
    packages::install(&prerequisites::missing_for_trainer())?;
    let programs = images::programs()?;
    let root = unpacked(&trainer::base()?)?;
    let site = trainer::wheel()?;
    let drivers = drivers()?;
    let mut python = Command::new("unshare");
    python
        .args([
            "--mount",
            "--pid",
            "--fork",
            "--net",
            "--kill-child",
            "bash",
            "-c",
            ENTER,
            "python",
        ])
        .args([&root, &paths::repository(), &site, &programs, &drivers]);
    Ok(python)
}

/// Builds the stand-in for a GPU's driver; the folder that it is in.
fn drivers() -> Result<PathBuf> {
    let started = Instant::now();
    report::begin("stand-in driver");
    let mut build = child::command(env!("CARGO"));
    build
        .args([
            "build",
            "--quiet",
            "--package",
            "wire",
            "--example",
            "fake_cuda",
        ])
        .current_dir(paths::repository());
    command::run(&mut build)?;
    report::line("stand-in driver", Outcome::Built, started.elapsed());
    // target/debug/xtask and target/debug/examples.
    let own = env::current_exe().context("failed to find this program's own path")?;
    Ok(own.with_file_name("examples"))
}

/// What unittest says at its end: `Ran 12 tests in 3.4s`, then `OK (skipped=1)` or `FAILED (failures=1, errors=2)`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    ran: u64,
    failed: u64,
    skipped: u64,
}

impl Counts {
    fn read(&mut self, line: &str) {
        if let Some(rest) = line.strip_prefix("Ran ") {
            let number = rest.split(' ').next().unwrap_or_default();
            self.ran += number.parse::<u64>().unwrap_or(0);
        }
        if !(line.starts_with("OK") || line.starts_with("FAILED (")) {
            return;
        }
        let inside = line
            .split_once('(')
            .map_or("", |(_, rest)| rest.trim_end_matches(')'));
        for part in inside.split(", ") {
            let Some((word, number)) = part.split_once('=') else {
                continue;
            };
            let number = number.parse::<u64>().unwrap_or(0);
            match word {
                "failures" | "errors" | "unexpected successes" => self.failed += number,
                "skipped" => self.skipped += number,
                _ => {}
            }
        }
    }
}

/// The trainer's base as a folder; unpacked once per base.
pub(crate) fn unpacked(base: &Path) -> Result<PathBuf> {
    let started = Instant::now();
    report::begin("trainer root");
    let root = base.with_extension("root");
    let partial = base.with_extension("partial");
    if root.exists() {
        report::line("trainer root", Outcome::Cached, started.elapsed());
        return Ok(root);
    }
    match fs::remove_dir_all(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("failed to remove {}", partial.display()));
        }
        Ok(()) | Err(_) => {}
    }
    fs::create_dir_all(&partial).context("failed to make a folder for the trainer's root")?;
    command::run(
        Command::new("tar")
            .args(["--extract", "--numeric-owner", "--file"])
            .arg(base)
            .arg("--directory")
            .arg(&partial),
    )?;
    fs::rename(&partial, &root).context("failed to keep the trainer's root")?;
    report::line("trainer root", Outcome::Built, started.elapsed());
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::Counts;

    fn counts(lines: &[&str]) -> Counts {
        let mut counts = Counts::default();
        lines.iter().for_each(|line| counts.read(line));
        counts
    }

    #[test]
    fn the_closing_lines_of_unittest_are_understood() {
        let ok = counts(&[
            "test_x ... ok",
            "Ran 12 tests in 3.4s",
            "",
            "OK (skipped=1)",
        ]);
        assert_eq!(
            ok,
            Counts {
                ran: 12,
                failed: 0,
                skipped: 1
            }
        );
        let bad = counts(&[
            "Ran 5 tests in 1s",
            "FAILED (failures=1, errors=2, skipped=1)",
        ]);
        assert_eq!(
            bad,
            Counts {
                ran: 5,
                failed: 3,
                skipped: 1
            }
        );
        assert_eq!(
            counts(&["Ran 1 test in 0.1s", "OK"]),
            Counts {
                ran: 1,
                failed: 0,
                skipped: 0
            }
        );
    }
}
