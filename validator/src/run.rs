//! A whole run: reads the task, starts a child for each check, and writes the report, also when it
//! is interrupted. It measures nothing itself.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use contract::validation::{AskedCheck, TASK_LIMIT_BYTES, ValidationTask};
use health::{Check, CheckResult, Outcome, Report};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::Args;
use crate::log;
use crate::machine::{fingerprint, text};
use crate::process;
use crate::results::{failed, screened, settle};
use crate::schedule::{TimeSlot, share, slots};

/// Where the kernel identifies its boot, as the kubelet shows it on the Node.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Exit code for a task that cannot be read. 0: there is a report, whatever it says. 1: there is
/// none.
const REFUSED: u8 = 2;

/// Runs the task.
pub fn run(args: &Args) -> ExitCode {
    match task(&args.task) {
        Err(error) => {
            log(&format!("{error:#}"));
            ExitCode::from(REFUSED)
        }
        Ok(task) => match report(args, &task) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                log(&format!("{error:#}"));
                ExitCode::FAILURE
            }
        },
    }
}

/// Reads a task.
pub(crate) fn task(path: &Path) -> anyhow::Result<ValidationTask> {
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let most = TASK_LIMIT_BYTES as u64 + 1;
        File::open(path)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().with_context(|| format!("failed to read {}", path.display()))?;
    Ok(ValidationTask::from_json(&bytes)?)
}

fn report(args: &Args, task: &ValidationTask) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .context("failed to listen for signals")?;
    }
    let report = Report {
        validation: task.uid.clone(),
        boot: text(BOOT_ID),
        fingerprint: fingerprint(),
        results: results(args, task, &stop)?,
    };
    fs::write(&args.report, report.encode())
        .with_context(|| format!("failed to write {}", args.report.display()))
}

fn results(
    args: &Args,
    task: &ValidationTask,
    stop: &AtomicBool,
) -> anyhow::Result<Vec<CheckResult>> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("failed to find the validator's own program")?,
    };
    let deadline = Duration::from_secs(task.deadline_seconds.into());
    let asked: Vec<_> = task.checks.iter().filter_map(known).collect();
    let checks: Vec<_> = asked.iter().map(|(check, _)| *check).collect();
    let slots = slots(&checks, deadline);
    let started = Instant::now();
    // What later checks need is kept for them; the rest may go into repeats.
    let mut later: Duration = slots.iter().map(|slot| slot.limit).sum();
    let mut results = Vec::new();
    for ((check, asked), slot) in asked.into_iter().zip(slots) {
        later -= slot.limit;
        // Who dials measures again for both. Who listens stays as long as that may take.
        let serves = check.is_shared() && args.listen.is_some();
        let left = share(deadline).saturating_sub(started.elapsed() + later);
        let first = match serves {
            true => slot.with_repeats().up_to(left),
            false => slot,
        };
        let once = |slot: TimeSlot| match stop.load(Ordering::Relaxed) {
            true => vec![failed(check, "interrupted")],
            false => one(args, &program, check, slot, stop),
        };
        let again = || {
            let repeat = slot.repeat();
            let needed = started.elapsed() + repeat.limit + later;
            let possible = needed < share(deadline) && !stop.load(Ordering::Relaxed);
            (possible && !serves).then(|| once(repeat))
        };
        let of_check = screened(once(first), &asked.screens, again);
        of_check.iter().for_each(say);
        results.extend(of_check);
    }
    Ok(results)
}

/// The check of a name. One of a newer release is not in the report, and counts as an error there.
fn known(asked: &AskedCheck) -> Option<(Check, &AskedCheck)> {
    let check = asked.name.parse().ok();
    if check.is_none() {
        log(&format!(
            "check {} is not known to this release",
            asked.name
        ));
    }
    Some((check?, asked))
}

fn one(
    args: &Args,
    program: &Path,
    check: Check,
    slot: TimeSlot,
    stop: &AtomicBool,
) -> Vec<CheckResult> {
    let mut command = Command::new(program);
    command
        .args(["check", check.as_str()])
        .arg("--task")
        .arg(&args.task)
        .arg("--scratch")
        .arg(&args.scratch)
        .args(["--budget-ms", &slot.budget.as_millis().to_string()]);
    if let Some(claim) = &args.claim {
        command.arg("--claim").arg(claim);
    }
    command.args(["--wait-ms", &slot.wait.as_millis().to_string()]);
    command.args(["--limit-ms", &slot.inside().as_millis().to_string()]);
    command.args(["--port", &args.port.to_string()]);
    if let Some(listen) = args.listen {
        command.args(["--listen", &listen.to_string()]);
    }
    if let Some(partner) = args.partner {
        command.args(["--partner", &partner.to_string()]);
    }
    if let Some(run) = &args.partner_run {
        command.args(["--partner-run", run]);
    }
    match process::run(&mut command, slot.limit, stop) {
        Ok(said) => settle(check, &said),
        Err(error) => {
            let program = program.display();
            vec![failed(check, format!("failed to run {program}: {error}"))]
        }
    }
}

/// A result in the pod's log.
fn say(result: &CheckResult) {
    let what = match &result.outcome {
        Outcome::Measured { value, runs } => {
            format!("{value:.3} {} (runs: {runs})", result.check.unit())
        }
        Outcome::Wrong { detail } => format!("wrong: {detail}"),
        Outcome::Error { detail } => format!("error: {detail}"),
        Outcome::Skipped { detail } => format!("skipped: {detail}"),
    };
    let check = result.check.as_str();
    match result.device.as_str() {
        "" => log(&format!("{check}: {what}")),
        device => log(&format!("{check} of {device}: {what}")),
    }
}
