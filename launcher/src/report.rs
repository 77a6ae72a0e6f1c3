//! The launcher's last word: the termination message that the kubelet puts into the pod's status,
//! and one line for people on standard error.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use contract::CheckpointRef;
use contract::run_dir::StatedCause;
use contract::termination::{RunOutcome, TerminationMessage};

use crate::environment::GangPlace;
use crate::gang::{Ending, Failure, GangOutcome};
use crate::output::Tail;

/// The message for how the ranks ended. `cause`: what a rank has written about it; it explains a
/// failure only.
pub(crate) fn message(
    verdict: GangOutcome,
    place: &GangPlace,
    tails: &[Tail],
    ack: Option<CheckpointRef>,
    cause: Option<StatedCause>,
) -> TerminationMessage {
    let (outcome, failure) = match verdict {
        GangOutcome::Succeeded => (RunOutcome::Succeeded, None),
        GangOutcome::Interrupted(failure) => (RunOutcome::Interrupted, failure),
        GangOutcome::Failed(failure) => (RunOutcome::Failed, Some(failure)),
    };
    let mut message = TerminationMessage {
        ack,
        cause: cause.filter(|_| outcome == RunOutcome::Failed),
        ..TerminationMessage::new(outcome)
    };
    if let Some(Failure { rank, ending }) = failure {
        message.rank = Some(place.rank(rank));
        match ending {
            Ending::Code(code) => message.exit_code = Some(code),
            Ending::Signal(signal) => message.signal = Some(signal),
        }
        message.log = tails
            .get(rank)
            .map(Tail::text)
            .filter(|text| !text.is_empty());
    }
    message
}

/// The message for a launcher that could not start its ranks.
pub(crate) fn unable(error: &dyn std::error::Error) -> TerminationMessage {
    let mut log = format!("launcher: {error}");
    let mut source = error.source();
    while let Some(cause) = source {
        log.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    TerminationMessage {
        log: Some(log),
        ..TerminationMessage::new(RunOutcome::Failed)
    }
}

/// Writes the message where the kubelet looks for it. Without a kubelet there is no such file, and
/// the exit code has to do.
pub(crate) fn write(message: &TerminationMessage, to: &Path) {
    if let Err(error) = fs::write(to, message.encode()) {
        say(&format!(
            "launcher: failed to write {}: {error}",
            to.display()
        ));
    }
}

/// One line for whoever reads the container's log.
pub(crate) fn say(line: &str) {
    let _nobody_reads = writeln!(std::io::stderr(), "{line}");
}

/// Prints a text and passes the exit code on: to standard output when all is well.
pub(crate) fn print(text: &str, code: ExitCode) -> ExitCode {
    if code == ExitCode::SUCCESS {
        let _nobody_reads = writeln!(std::io::stdout(), "{text}");
    } else {
        say(text);
    }
    code
}
