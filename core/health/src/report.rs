//! What a validator says about a node, in its pod's termination message. The validator writes it,
//! the operator reads it; both trust only what parses here. Leaves what it means to `verdict`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::check::Check;
use crate::limits::{MAX_RESULTS, REPORT_LIMIT_BYTES, TEXT_BYTES};

/// Largest value. Whatever has no limit is written as this.
pub const LARGEST: f64 = 1e15;
/// Longest text where even one wrong answer and one error for each check would not fit otherwise.
/// Escapes make a byte up to six long: 6 texts at the top and 2 for each of 9 wrong answers are
/// 24 x 8 x 6 = 1,152 bytes. What is around them, and the errors, are 1,600 bytes.
const SHORT_BYTES: usize = 8;
/// The error in the place of results that did not fit. No longer than `SHORT_BYTES`.
const CUT: &str = "cut off";

/// Why a report could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No validator of ours writes so much.
    #[error("failed to parse the report: {0} bytes, at most {REPORT_LIMIT_BYTES} are written")]
    TooLong(usize),
    /// Not written by a validator of ours, or cut off.
    #[error("failed to parse the report")]
    Parse(#[source] serde_json::Error),
    /// No validator of ours reports so many.
    #[error("failed to read the report: {0} results, at most {MAX_RESULTS} are written")]
    TooMany(usize),
    /// Two answers to one question.
    #[error("failed to read the report: {check} of device {device:?} is there twice")]
    Twice { check: Check, device: String },
    /// Nothing that can be measured.
    #[error(
        "failed to read the report: {check} of device {device:?} measured {value} in {runs} runs"
    )]
    NotMeasured {
        check: Check,
        device: String,
        value: f64,
        runs: u32,
    },
}

/// What a validator found on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Uid of the NodeValidation.
    pub validation: String,
    /// Identifies the boot of the node. Empty: the kernel does not say.
    #[serde(default)]
    pub boot: String,
    /// What the node consists of.
    pub fingerprint: Fingerprint,
    /// What was found.
    pub results: Vec<CheckResult>,
}

/// What a node must have in common with another one for their values to be comparable, beside the
/// class.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Fingerprint {
    /// The kernel's release.
    pub kernel: String,
    /// Model of the CPUs.
    pub cpu: String,
    /// Version of the GPUs' driver. Empty: none.
    pub driver: String,
    /// Version of the firmware.
    pub firmware: String,
    /// Version of the validator.
    pub validator: String,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// What was checked.
    pub check: Check,
    /// Where: `core 3`, `numa 1`, `nvidia.com/gpu`. Empty: on the node as a whole.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Outcome {
    /// The median of so many runs, in the check's unit.
    Measured { value: f64, runs: u32 },
    /// The device computed or returned something wrong.
    Wrong { detail: String },
    /// The check itself failed, crashed or hung. Says nothing about the node.
    Error { detail: String },
    /// It cannot run on this node.
    Skipped { detail: String },
}

impl Outcome {
    /// Whether it is a measurement of something, if it is one.
    fn is_sound(&self) -> bool {
        match self {
            Self::Measured { value, runs } => (0.0..=LARGEST).contains(value) && *runs > 0,
            Self::Wrong { .. } | Self::Error { .. } | Self::Skipped { .. } => true,
        }
    }

    /// How much would be lost without it. An error says what `CUT` says, but for its text.
    fn weight(&self) -> u8 {
        match self {
            Self::Skipped { .. } => 0,
            Self::Error { .. } => 1,
            Self::Measured { .. } => 2,
            Self::Wrong { .. } => 3,
        }
    }

    fn cut() -> Self {
        Self::Error {
            detail: CUT.to_owned(),
        }
    }
}

impl CheckResult {
    /// Whether it stands for results that did not fit.
    fn is_cut(&self) -> bool {
        self.device.is_empty() && self.outcome == Outcome::cut()
    }
}

impl Report {
    /// The report as bytes, at most `REPORT_LIMIT_BYTES`. Long texts are cut. What does not fit then gives
    /// way to an error of its check, and of several wrong answers of a check one stays.
    pub fn encode(&self) -> Vec<u8> {
        let mut report = self.clone();
        report.cut_texts(TEXT_BYTES);
        for result in &mut report.results {
            if let Outcome::Measured { value, runs } = result.outcome
                && !result.outcome.is_sound()
            {
                let detail = format!("measured {value:e} in {runs} runs");
                result.outcome = Outcome::Error { detail };
            }
        }
        loop {
            if report.results.len() <= MAX_RESULTS {
                // Finite numbers and texts always serialise.
                let bytes = serde_json::to_vec(&report).unwrap_or_default();
                if bytes.len() <= REPORT_LIMIT_BYTES {
                    return bytes;
                }
            }
            if !report.drop_one() {
                report.cut_texts(SHORT_BYTES);
            }
        }
    }

    /// Drops the last of what weighs least. False if nothing is left that may go.
    fn drop_one(&mut self) -> bool {
        let is_wrong = |one: &CheckResult| matches!(one.outcome, Outcome::Wrong { .. });
        let may_go = |result: &CheckResult| {
            let others = self
                .results
                .iter()
                .filter(|other| !std::ptr::eq(*other, result));
            let mut of_check = others.filter(|other| other.check == result.check);
            match is_wrong(result) {
                true => of_check.any(is_wrong),
                false => !result.is_cut() || of_check.any(|other| other.device.is_empty()),
            }
        };
        let last_first = self.results.iter().enumerate().rev();
        let least = last_first
            .filter(|(_, result)| may_go(result))
            .min_by_key(|(_, result)| result.outcome.weight());
        let Some((at, _)) = least else {
            return false;
        };
        let CheckResult { check, outcome, .. } = self.results.remove(at);
        if matches!(outcome, Outcome::Wrong { .. }) {
            return true;
        }
        let whole = |result: &&mut CheckResult| result.check == check && result.device.is_empty();
        match self.results.iter_mut().find(whole) {
            Some(result) if matches!(result.outcome, Outcome::Wrong { .. }) => {}
            Some(result) => result.outcome = Outcome::cut(),
            None => self.results.push(CheckResult {
                check,
                device: String::new(),
                outcome: Outcome::cut(),
            }),
        }
        true
    }

    fn cut_texts(&mut self, limit: usize) {
        let Fingerprint {
            kernel,
            cpu,
            driver,
            firmware,
            validator,
        } = &mut self.fingerprint;
        for text in [
            &mut self.validation,
            &mut self.boot,
            kernel,
            cpu,
            driver,
            firmware,
            validator,
        ] {
            cut(text, limit);
        }
        for result in &mut self.results {
            cut(&mut result.device, limit);
            match &mut result.outcome {
                Outcome::Measured { .. } => {}
                Outcome::Wrong { detail }
                | Outcome::Error { detail }
                | Outcome::Skipped { detail } => cut(detail, limit),
            }
        }
    }

    /// Reads a report.
    pub fn parse(bytes: &[u8]) -> Result<Self, ReportError> {
        if bytes.len() > REPORT_LIMIT_BYTES {
            return Err(ReportError::TooLong(bytes.len()));
        }
        let report: Self = serde_json::from_slice(bytes).map_err(ReportError::Parse)?;
        if report.results.len() > MAX_RESULTS {
            return Err(ReportError::TooMany(report.results.len()));
        }
        let mut seen = BTreeSet::new();
        for result in &report.results {
            let (check, device) = (result.check, result.device.clone());
            if let Outcome::Measured { value, runs } = result.outcome
                && !result.outcome.is_sound()
            {
                return Err(ReportError::NotMeasured {
                    check,
                    device,
                    value,
                    runs,
                });
            }
            if !seen.insert((check, &result.device)) {
                return Err(ReportError::Twice { check, device });
            }
        }
        Ok(report)
    }
}

/// Cuts a text between characters.
pub(crate) fn cut(text: &mut String, limit: usize) {
    text.truncate(text.floor_char_boundary(limit));
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
