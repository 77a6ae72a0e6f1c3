//! The verdict of a run: from what its validator reported, or from why it did not.

use crds::node_validation::{
    NodeValidationStatus, ValidationFingerprint, ValidationResult, ValidationVerdict,
};
use health::{Check, Floors, Judged, Links, Outcome, Pair, Peers, Report, Verdict};
use scheduler::{JobKey, JobStatus};

use super::check_to_api;
use crate::condition::cut;

/// Results that the schema takes.
const RESULTS: usize = 32;
/// Longest message of a result, in bytes: the schema counts characters, which are no more.
const RESULT_BYTES: usize = 512;
/// The messages of all results together, so that an object stays below 8 KiB: a row without one
/// has some 100 bytes.
const MESSAGES_BYTES: usize = 3 << 10;
/// Longest identity of a boot that the schema takes.
const BOOT_BYTES: usize = 64;
/// Failed results that the message of a run names.
const NAMED: usize = 3;

/// What a report is judged by.
pub(super) struct Measure<'a> {
    /// The checks that were to run.
    pub(super) asked: Vec<Check>,
    /// What the node's class promises.
    pub(super) floors: Floors,
    /// What its other nodes measured.
    pub(super) peers: Peers<'a>,
    /// The node.
    pub(super) node: &'a str,
    /// The node with which it measured the network, if there is one.
    pub(super) partner: Option<&'a str>,
    /// What runs found of the network between nodes.
    pub(super) links: Links,
}

/// The pod ended well: judges what its validator reported.
pub(super) fn of_report(
    shown: &mut NodeValidationStatus,
    key: &JobKey,
    report: Option<&str>,
    by: &Measure<'_>,
) {
    let report = match read(key, report) {
        Ok(report) => report,
        Err(why) => {
            error(shown, "ReportUnusable", &why);
            return;
        }
    };
    let pair = by.partner.map(|partner| Pair {
        node: by.node,
        partner,
        links: &by.links,
    });
    let judgement = health::judge(&report, &by.asked, &by.floors, by.peers, pair.as_ref());
    shown.verdict = Some(verdict(judgement.verdict));
    shown.reason = Some(judgement.verdict.as_str().to_owned());
    shown.message = Some(summary(judgement.verdict, &judgement.results));
    let mut left = MESSAGES_BYTES;
    let results = judgement.results.iter().take(RESULTS);
    shown.results = results
        .map(|judged| result(judged, &report, &mut left))
        .collect();
    shown.boot_id = Some(report.boot).filter(|boot| !boot.is_empty() && boot.len() <= BOOT_BYTES);
    let fingerprint = report.fingerprint;
    shown.fingerprint = Some(ValidationFingerprint {
        kernel: fingerprint.kernel,
        cpu: fingerprint.cpu,
        driver: fingerprint.driver,
        firmware: fingerprint.firmware,
        validator: fingerprint.validator,
    });
}

/// The pod did not end well: nothing is known of the node.
pub(super) fn of_failure(shown: &mut NodeValidationStatus, status: &JobStatus) {
    let why = status
        .failure
        .as_ref()
        .map(|failure| failure.message.as_str());
    let why = why.unwrap_or("the run did not end").to_owned();
    let reason = shown.reason.clone().unwrap_or_default();
    error(shown, &reason, &why);
}

fn error(shown: &mut NodeValidationStatus, reason: &str, why: &str) {
    shown.verdict = Some(ValidationVerdict::Error);
    shown.reason = Some(reason.to_owned());
    let text = format!("Nothing is known of the node: {why}; create another NodeValidation");
    shown.message = Some(cut(&text));
}

/// The report, if it is one of this very run.
fn read(key: &JobKey, report: Option<&str>) -> Result<Report, String> {
    let report = report.ok_or("the validator's pod left no report")?;
    let report = Report::parse(report.as_bytes()).map_err(|error| daemon::chain(&error))?;
    match report.validation == *key.uid {
        true => Ok(report),
        false => Err(format!(
            "the report is of another run, {:?}",
            report.validation
        )),
    }
}

/// What was found, in a sentence for people: the worst first.
fn summary(verdict: Verdict, results: &[Judged]) -> String {
    let of = |verdict| {
        results
            .iter()
            .filter(move |judged| judged.verdict == verdict)
    };
    let passed = of(Verdict::Pass).count();
    let bad: Vec<&Judged> = of(verdict).collect();
    let text = match verdict {
        Verdict::Pass | Verdict::Skipped => match of(Verdict::Skipped).count() {
            0 => format!("all {passed} results pass"),
            skipped => format!("{passed} results pass, {skipped} were skipped"),
        },
        Verdict::Warn | Verdict::Fail | Verdict::Error => {
            let named = bad.iter().take(NAMED).map(|judged| {
                let device = match judged.device.is_empty() {
                    true => String::new(),
                    false => format!(" of {}", judged.device),
                };
                format!("{}{device}: {}", judged.check, judged.message)
            });
            let named: Vec<String> = named.collect();
            match bad.len().saturating_sub(NAMED) {
                0 => named.join(". "),
                more => format!("{}. And {more} more", named.join(". ")),
            }
        }
    };
    cut(&text)
}

/// A row of the table. Its message takes of what all messages have `left`.
fn result(judged: &Judged, report: &Report, left: &mut usize) -> ValidationResult {
    let mut reported = report.results.iter();
    let reported = reported.find(|one| one.check == judged.check && one.device == judged.device);
    let runs = reported.and_then(|one| match one.outcome {
        Outcome::Measured { runs, .. } => Some(runs),
        Outcome::Wrong { .. } | Outcome::Error { .. } | Outcome::Skipped { .. } => None,
    });
    let message = judged.message.as_str();
    let message = &message[..message.floor_char_boundary(RESULT_BYTES.min(*left))];
    *left -= message.len();
    ValidationResult {
        check: check_to_api(judged.check),
        device: (!judged.device.is_empty()).then(|| judged.device.clone()),
        verdict: verdict(judged.verdict),
        value: judged.value,
        unit: judged
            .value
            .map(|_| judged.check.unit().to_owned())
            .filter(|unit| !unit.is_empty()),
        floor: judged.floor,
        median: judged.median,
        runs,
        message: (!message.is_empty()).then(|| message.to_owned()),
    }
}

fn verdict(verdict: Verdict) -> ValidationVerdict {
    match verdict {
        Verdict::Pass => ValidationVerdict::Pass,
        Verdict::Warn => ValidationVerdict::Warn,
        Verdict::Fail => ValidationVerdict::Fail,
        Verdict::Error => ValidationVerdict::Error,
        Verdict::Skipped => ValidationVerdict::Skipped,
    }
}
