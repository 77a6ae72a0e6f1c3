//! `cargo xtask python`: the wheel's tests, inside the very root that the trainer's image is made of, against the real
//! sidecar, in several processes side by side. The machine's own Python is not touched.

mod newest;

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write as _};
use std::ops::AddAssign;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{env, fs, io, thread};

use ::cluster::{StepOutcome, command, paths, prerequisites};
use anyhow::{Context as _, Result, bail};

use crate::args::Args;
use crate::images::{self, trainer};
use crate::{Verb, cargo, cluster, packages, report};

pub(crate) const VERB: Verb = Verb {
    name: "python",
    about: "Run the wheel's tests in the trainer image's root, with real sidecars",
    usage: "
Usage: cargo xtask python [--processes N] [--newest] [TEST]

Builds the trainer's root, the wheel and the sidecar where they are missing, and runs python/tests with unittest.
Processes in namespaces of their own share the modules. The results of tests are shown as they come, whatever else a
module prints at its end.

  --processes N  so many side by side (default: 3)
  --newest       over the newest PyTorch instead of the trainer's, installed the first time (1.4 GB)
  TEST           a module, class or method, for example test_checkpoint (default: all)",
    run,
};

/// On two cores that others used too, 2 processes took 0.72 and 3 took 0.65 of the time of one.
const PROCESSES: usize = 3;

/// As in `python/tests/run.py`.
const END: &str = "== end of module";

/// Mounts what every root needs, the first argument.
const MOUNT: &str = r#"
set -e
root=$1; shift
ip link set lo up
for folder in dev proc tmp run; do mkdir -p "$root/$folder"; done
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs tmpfs "$root/run"
"#;

/// Mounts what the tests need, then runs Python. Arguments: repository, wheel, programs, folder of the stand-in for a GPU's
/// driver, a PyTorch other than the root's or nothing, where its libraries are in there, then Python's.
const ENTER: &str = r#"
repository=$1 site=$2 programs=$3 drivers=$4 torch=$5 libraries=$6; shift 6
for folder in src opt/site opt/programs opt/drivers opt/torch; do mkdir -p "$root/$folder"; done
mount --bind "$repository" "$root/src"; mount -o remount,bind,ro "$root/src"
mount --bind "$site" "$root/opt/site"
mount --bind "$programs" "$root/opt/programs"
mount --bind "$drivers" "$root/opt/drivers"
[ -z "$torch" ] || mount --bind "$torch" "$root/opt/torch"
exec chroot "$root" /usr/bin/env -i PATH=/opt/programs:/usr/local/bin:/usr/bin:/bin HOME=/tmp LANG=C.UTF-8 \
  PYTHONPATH=/opt/site:/opt/torch LD_LIBRARY_PATH="/opt/torch/$libraries" PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 \
  USE_LIBUV=0 FIREFLYER_SIDECAR=/opt/programs/hfreduce-sidecar \
  FIREFLYER_FAKE_CUDA=/opt/drivers/libfake_cuda.so \
  sh -c 'cd /src/python/tests && exec python3 "$@" 2>&1' python "$@"
"#;

fn run(mut args: Args) -> Result<ExitCode> {
    let processes = args.parsed("--processes")?.unwrap_or(PROCESSES);
    let newest = args.switch("--newest");
    let test = args.positional();
    args.finish()?;
    if !prerequisites::is_root() {
        return Ok(cluster::ask_for_root(
            "The tests run in the trainer's root, which only root may enter.",
        ));
    }
    let modules = match test {
        Some(test) => VecDeque::from([test]),
        None => modules()?,
    };
    let processes = processes.clamp(1, modules.len().max(1));
    let mut root = Root::ready()?;
    if newest {
        root.torch = newest::installed()?;
    }
    let modules = Mutex::new(modules);
    let workers: Vec<Result<Counts>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..processes)
            .map(|_| scope.spawn(|| work(&root, &modules)))
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    });
    let mut counts = Counts::default();
    for worker in workers {
        counts += worker?;
    }
    // unittest's closing lines in the form that `cargo xtask test` adds up.
    let passed = counts.ran.saturating_sub(counts.failed + counts.skipped);
    println!(
        "{passed} passed, {} failed, {} skipped",
        counts.failed, counts.skipped
    );
    Ok(if counts.failed == 0 && counts.ran > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The names of the test modules.
fn modules() -> Result<VecDeque<String>> {
    let folder = paths::repository().join("python/tests");
    let mut modules = Vec::new();
    for entry in fs::read_dir(&folder).context("failed to look for tests")? {
        let name = entry.context("failed to look for tests")?.file_name();
        let name = name.to_string_lossy();
        let module = name.strip_suffix(".py");
        modules.extend(
            module
                .filter(|name| name.starts_with("test_"))
                .map(str::to_owned),
        );
    }
    modules.sort();
    Ok(modules.into())
}

/// Runs the next module as long as there is one.
fn work(root: &Root, modules: &Mutex<VecDeque<String>>) -> Result<Counts> {
    let next = || {
        modules
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    };
    let mut counts = Counts::default();
    let mut runner = None;
    while let Some(module) = next() {
        let mut under_way = match runner.take() {
            Some(runner) => runner,
            None => Runner::start(root)?,
        };
        let started = Instant::now();
        report::begin(&module);
        let report = under_way.run(&module)?;
        // At once, so that those of two modules are not mixed up.
        print!("{}", report.rest);
        let how = if report.counts.failed == 0 {
            "ok"
        } else {
            "FAILED"
        };
        report::line(&module, how, started.elapsed());
        counts += report.counts;
        if report.is_whole {
            runner = Some(under_way);
        } else {
            println!("{module}: {}", under_way.end()?);
        }
    }
    if let Some(runner) = runner {
        let status = runner.end()?;
        if !status.success() {
            bail!("Python ended with {status} after the tests");
        }
    }
    Ok(counts)
}

/// A process that runs modules one after another.
struct Runner {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Runner {
    fn start(root: &Root) -> Result<Self> {
        let mut command = root.python();
        command
            .arg("run.py")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().context("failed to start the tests")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            bail!("failed to start the tests: no pipes");
        };
        let output = BufReader::new(output);
        Ok(Self {
            child,
            input,
            output,
        })
    }

    fn run(&mut self, module: &str) -> Result<Report> {
        writeln!(self.input, "{module}").context("failed to name a module to the tests")?;
        let report = Report::read(&mut self.output, |line| println!("{line}"));
        report.context("failed to read what the tests printed")
    }

    /// Waits for its end, which comes when there is nothing more to run.
    fn end(mut self) -> Result<ExitStatus> {
        drop(self.input);
        self.child.wait().context("failed to wait for the tests")
    }
}

/// What a module printed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    counts: Counts,
    /// All but the results of its tests.
    rest: String,
    /// Nothing is missing: the process goes on.
    is_whole: bool,
}

impl Report {
    /// Reads to the end of the module, or of the process; shows results of tests when they come.
    fn read(output: &mut impl BufRead, mut show: impl FnMut(&str)) -> io::Result<Self> {
        let mut report = Self::default();
        for line in output.split(b'\n') {
            let line = line?;
            let line = String::from_utf8_lossy(&line);
            if line == END {
                report.is_whole = true;
                return Ok(report);
            }
            report.counts.read(&line);
            if line.contains(") ... ") {
                show(&line);
            } else {
                report.rest.push_str(&line);
                report.rest.push('\n');
            }
        }
        report.counts.failed += 1;
        Ok(report)
    }
}

/// Prints what a call costs the trainer: `cargo xtask bench calls`.
pub(crate) fn measure_calls() -> Result<ExitStatus> {
    let mut bench = Root::ready()?.python();
    bench.arg("../benches/overhead.py").stdin(Stdio::null());
    bench.status().context("failed to start Python")
}

/// The trainer's root, and what the tests need besides.
struct Root {
    root: PathBuf,
    site: PathBuf,
    programs: PathBuf,
    drivers: PathBuf,
    /// Another PyTorch than the root's; empty for the root's.
    torch: PathBuf,
}

impl Root {
    /// Builds what is missing.
    fn ready() -> Result<Self> {
        packages::install(&prerequisites::missing_for_images())?;
        packages::install(&prerequisites::missing_for_trainer())?;
        Ok(Self {
            programs: images::programs()?,
            root: unpacked(&trainer::base()?)?,
            site: trainer::wheel()?,
            drivers: drivers()?,
            torch: PathBuf::new(),
        })
    }

    /// Python in it, in namespaces of its own and in the folder of the tests.
    fn python(&self) -> Command {
        let mut python = inside(&self.root, ENTER);
        python
            .args([&paths::repository(), &self.site])
            .args([&self.programs, &self.drivers, &self.torch])
            .arg(newest::LIBRARIES);
        python
    }
}

/// A script that runs in namespaces of its own, with `$root` mounted. Its arguments follow.
pub(crate) fn inside(root: &Path, script: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--net", "--kill-child"])
        .args(["bash", "-c", &format!("{MOUNT}{script}"), "inside"])
        .arg(root);
    command
}

/// Builds the stand-in for a GPU's driver; the folder that it is in.
pub(crate) fn drivers() -> Result<PathBuf> {
    let example = ["--package", "hfreduce-client", "--example", "fake_cuda"];
    cargo::build("stand-in driver", &example)?;
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

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.ran += other.ran;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Removes what a run that was interrupted has left, if there is anything.
pub(crate) fn remove_partial(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("failed to remove {}", folder.display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The trainer's base as a folder; unpacked once per base.
pub(crate) fn unpacked(base: &Path) -> Result<PathBuf> {
    let root = base.with_extension("root");
    made_once("trainer root", &root, |partial| {
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--numeric-owner", "--file"]);
        command::run(unpack.arg(base).arg("--directory").arg(partial))?;
        Ok(())
    })?;
    Ok(root)
}

/// Makes a folder that is kept, unless it is there: whole or not at all.
pub(crate) fn made_once(
    step: &str,
    folder: &Path,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let started = Instant::now();
    report::begin(step);
    let outcome = if folder.exists() {
        StepOutcome::Cached
    } else {
        let partial = folder.with_extension("partial");
        remove_partial(&partial)?;
        fs::create_dir_all(&partial)
            .with_context(|| format!("failed to make {}", partial.display()))?;
        make(&partial)?;
        fs::rename(&partial, folder)
            .with_context(|| format!("failed to keep {}", folder.display()))?;
        StepOutcome::Built
    };
    report::line(step, outcome, started.elapsed());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Counts, END, Report};

    fn read(printed: &str) -> (Report, Vec<String>) {
        let mut shown = Vec::new();
        let report = Report::read(&mut printed.as_bytes(), |line| shown.push(line.to_owned()));
        (report.unwrap(), shown)
    }

    #[test]
    fn results_are_shown_when_they_come_and_the_rest_of_a_module_together() {
        let result = "test_a (test_x.X.test_a) ... ok";
        let printed = format!("{result}\nRan 1 test in 1s\nOK\n{END}\nof the next\n");
        let (report, shown) = read(&printed);
        assert_eq!(shown, [result]);
        assert_eq!(report.rest, "Ran 1 test in 1s\nOK\n");
        assert!(report.is_whole);
        assert_eq!(report.counts, counts(&["Ran 1 test in 1s", "OK"]));
    }

    #[test]
    fn a_process_that_ends_within_a_module_has_failed_and_says_where() {
        let hangs = "test_b (test_x.X.test_b) ... ";
        let (report, shown) = read(&format!("{hangs}Timeout (0:10:00)!\nFile \"x.py\""));
        assert_eq!(shown, [format!("{hangs}Timeout (0:10:00)!")]);
        assert_eq!(report.rest, "File \"x.py\"\n");
        assert_eq!((report.counts.failed, report.is_whole), (1, false));
    }

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
