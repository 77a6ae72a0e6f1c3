//! What a child does: one check, whose results go to standard output as lines of JSON.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use contract::validation::ValidationTask;
use health::CheckResult;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::args::{Args, CheckArgs};
use crate::checks::network::{Pair, Role};
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
        pair: pair(args, check, &task),
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

/// Who dials whom; none if there is no partner.
fn pair<'a>(args: &'a Args, check: &CheckArgs, task: &'a ValidationTask) -> Option<Pair<'a>> {
    let (role, ip, uid) = match (args.listen, args.partner, &args.partner_run) {
        (None, Some(ip), Some(uid)) => (Role::Dial as fn(_) -> _, ip, uid),
        (Some(ip), _, _) => (Role::Listen as fn(_) -> _, ip, &task.uid),
        (None, _, _) => return None,
    };
    Some(Pair {
        uid,
        role: role(SocketAddr::new(ip, args.port)),
        patience: Duration::from_millis(check.wait_ms),
        limit: Duration::from_millis(check.limit_ms),
    })
}

fn line(result: &CheckResult) -> anyhow::Result<String> {
    serde_json::to_string(result).context("failed to encode a result")
}
