//! What a child does: one check, whose results go to standard output as lines of JSON.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use health::CheckResult;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::args::{Args, CheckArgs};
use crate::checks::{CheckContext, results};
use crate::{log, machine, run};

/// Part of the available memory that a check may use: others on the node keep the rest.
const MEMORY_SHARE: u64 = 4;

/// Runs one check.
pub fn check(args: &Args, check: &CheckArgs) -> ExitCode {
    match tell(args, check) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log(&format!("{}: {error:#}", check.name));
            ExitCode::FAILURE
        }
    }
}

fn tell(args: &Args, check: &CheckArgs) -> anyhow::Result<()> {
    // Nobody would end this one, nor read what it says.
    set_parent_process_death_signal(Some(Signal::KILL)).context("failed to follow the parent")?;
    let task = run::task(&args.task)?;
    let context = CheckContext {
        budget: Duration::from_millis(check.budget_ms),
        memory_bytes: machine::available_bytes() / MEMORY_SHARE,
        offers: &task.offers,
        scratch: &args.scratch,
        claim: args.claim.as_deref(),
        fault: None,
    };
    let mut lines = String::new();
    for result in results(check.name, &context) {
        lines += &line(&result)?;
        lines.push('\n');
    }
    io::stdout()
        .write_all(lines.as_bytes())
        .context("failed to write the results")
}

fn line(result: &CheckResult) -> anyhow::Result<String> {
    serde_json::to_string(result).context("failed to encode a result")
}
