//! The verdict on a node: its report against the floors of its class, then against the nodes alike.
//! Leaves the arithmetic of the comparison to `fleet`, and quarantine to the operator.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::check::Check;
use crate::fleet::{Baseline, Floors, Peers, RUNS};
use crate::limits::{MAX_RESULTS, TEXT_BYTES};
use crate::links::Pair;
use crate::report::{CheckResult, Fingerprint, Outcome, Report, cut};

/// What a check or a run says about a node, from the least to what counts most: a run's verdict is
/// the last of its checks'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It could not run there. Says nothing.
    Skipped,
    /// As good as promised, and as the nodes alike.
    Pass,
    /// Somebody should look, but not because of this node alone or not for certain.
    Warn,
    /// The check failed, not the node. Says nothing, and is no Pass.
    Error,
    /// The node is worse than promised, worse than the nodes alike, or wrong.
    Fail,
}

impl Verdict {
    /// Whether it says something about the node.
    #[must_use]
    pub const fn says_something(self) -> bool {
        match self {
            Self::Pass | Self::Warn | Self::Fail => true,
            Self::Error | Self::Skipped => false,
        }
    }

    /// The word in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Skipped => "Skipped",
            Self::Pass => "Pass",
            Self::Warn => "Warn",
            Self::Error => "Error",
            Self::Fail => "Fail",
        }
    }
}

/// A result and what it means.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// What was checked.
    pub check: Check,
    /// Where. Empty: on the node as a whole.
    pub device: String,
    /// What it means.
    pub verdict: Verdict,
    /// What was measured, in the check's unit.
    pub value: Option<f64>,
    /// The class's floor.
    pub floor: Option<f64>,
    /// The median of the nodes alike, if they are enough.
    pub median: Option<f64>,
    /// Why, and what to do about it. Empty for a Pass.
    pub message: String,
}

/// What a report means.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// The worst of the results; Skipped if there are none.
    pub verdict: Verdict,
    /// Each result of the report, then what is missing.
    pub results: Vec<Judged>,
}

/// Judges a report. `pair` are the node and its partner, if it has one.
#[must_use]
pub fn judge<'a>(
    report: &Report,
    asked: &[Check],
    floors: &Floors,
    peers: impl Into<Peers<'a>>,
    pair: Option<&Pair<'_>>,
) -> Judgement {
    let measure = Measure {
        fingerprint: &report.fingerprint,
        floors,
        peers: peers.into(),
        pair,
    };
    let judged = report.results.iter().map(|result| measure.judge(result));
    let missing = missing(report, asked, floors).map(|(check, device)| {
        let of = of_device(device);
        let message = format!("the validator did not report {check}{of}: validate again");
        Judged::new(check, device, Verdict::Error, message)
    });
    let results: Vec<_> = judged.chain(missing).collect();
    let worst = results.iter().map(|judged| judged.verdict).max();
    Judgement {
        verdict: worst.unwrap_or(Verdict::Skipped),
        results,
    }
}

/// The values below which the validator measures three times more, for the checks that are noisy.
/// The empty device stands for all that have none of their own. `fingerprint` is what the node was
/// last; without one it is taken for as new as the newest of its class.
#[must_use]
pub fn screens<'a>(
    asked: &[Check],
    floors: &Floors,
    peers: impl Into<Peers<'a>>,
    fingerprint: Option<&Fingerprint>,
) -> BTreeMap<(Check, String), f64> {
    let peers = peers.into();
    let mut screens = BTreeMap::new();
    for &check in asked.iter().filter(|check| check.is_compared()) {
        let places = peers.places(check).take(MAX_RESULTS);
        let devices: BTreeSet<&str> = floors.devices(check).chain(places).collect();
        for device in devices {
            let expected = fingerprint.or_else(|| peers.newest_fingerprint(check, device));
            let baseline = expected.and_then(|one| peers.baseline(check, device, one));
            let screen = baseline.map(|baseline| baseline.screen);
            let floor = floors.of(check, device);
            if let Some(value) = screen.into_iter().chain(floor).reduce(f64::max) {
                screens.insert((check, device.to_owned()), value);
            }
        }
    }
    screens
}

/// What was asked for and is not there: a check, or one of its devices that have a floor of their
/// own. A result for the node as a whole stands for all devices.
fn missing<'a>(
    report: &Report,
    asked: &[Check],
    floors: &'a Floors,
) -> impl Iterator<Item = (Check, &'a str)> {
    let mut missing = BTreeSet::new();
    for &check in asked {
        let of_check = report.results.iter().filter(|one| one.check == check);
        let devices: BTreeSet<&str> = of_check.map(|one| one.device.as_str()).collect();
        if devices.is_empty() {
            missing.insert((check, ""));
        } else if !devices.contains("") {
            let own = floors.devices(check).filter(|device| !device.is_empty());
            let own = own.filter(|device| !devices.contains(device));
            missing.extend(own.map(|device| (check, device)));
        }
    }
    missing.into_iter()
}

/// What a node is judged by.
struct Measure<'a> {
    fingerprint: &'a Fingerprint,
    floors: &'a Floors,
    peers: Peers<'a>,
    pair: Option<&'a Pair<'a>>,
}

impl Measure<'_> {
    fn judge(&self, result: &CheckResult) -> Judged {
        let (check, device) = (result.check, result.device.as_str());
        let (verdict, why) = match &result.outcome {
            Outcome::Measured { value, runs } => return self.judge_value(result, *value, *runs),
            Outcome::Wrong { detail } => {
                let of = of_device(device);
                let why = format!("wrong answer{of}: {}", short(detail));
                self.unless_shared(check, Verdict::Fail, why)
            }
            Outcome::Error { detail } => {
                let why = format!("the check failed, not the node: {}", short(detail));
                (Verdict::Error, why)
            }
            Outcome::Skipped { detail } => (Verdict::Skipped, short(detail)),
        };
        Judged::new(check, device, verdict, why)
    }

    /// The floor first: what the class promises holds whatever its other nodes do.
    fn judge_value(&self, result: &CheckResult, value: f64, runs: u32) -> Judged {
        let (check, device) = (result.check, result.device.as_str());
        let floor = self.floors.of(check, device);
        let baseline = self.peers.baseline(check, device, self.fingerprint);
        let (verdict, why) = match (floor, baseline) {
            (Some(floor), _) if value < floor => {
                let why = format!(
                    "{} is below the class's floor of {}",
                    Figure(value, check),
                    Figure(floor, check)
                );
                self.unless_many(result, why, floor, None)
            }
            (_, Some(baseline)) if value < baseline.line => {
                let why = slower(check, value, &baseline);
                if runs < RUNS {
                    let why = format!("{why}, but measured {runs} of {RUNS} times: validate again");
                    (Verdict::Warn, why)
                } else {
                    self.unless_many(result, why, baseline.line, Some(self.fingerprint))
                }
            }
            _ => (Verdict::Pass, String::new()),
        };
        let (verdict, why) = self.unless_shared(check, verdict, why);
        Judged {
            value: Some(value),
            floor,
            median: baseline.map(|baseline| baseline.median),
            ..Judged::new(check, device, verdict, why)
        }
    }

    /// A node does not fail for what it shares with a partner, unless others show who is the cause.
    fn unless_shared(&self, check: Check, verdict: Verdict, why: String) -> (Verdict, String) {
        let (Verdict::Fail, true, Some(pair)) = (verdict, check.is_shared(), self.pair) else {
            return (verdict, why);
        };
        match pair.witnesses() {
            Some(witnesses) => {
                let witnesses = witnesses.join(" and ");
                let why = format!("{why}, with {witnesses}, which are as good as others elsewhere");
                (Verdict::Fail, why)
            }
            None => {
                let partner = pair.partner;
                let why = format!(
                    "{why}, with {partner}, and either node may be the cause: each has to be \
                     validated with another partner"
                );
                (Verdict::Warn, why)
            }
        }
    }

    /// A node does not fail for what it shares with many.
    fn unless_many(
        &self,
        result: &CheckResult,
        why: String,
        line: f64,
        alike: Option<&Fingerprint>,
    ) -> (Verdict, String) {
        let many = self
            .peers
            .many_below(result.check, &result.device, line, alike);
        match many {
            Some((below, of)) => {
                let why = format!(
                    "{why}, as are {below} of the class's last {of} results: look for what they \
                     share, such as a driver, a setting or a floor that is too high"
                );
                (Verdict::Warn, why)
            }
            None => (Verdict::Fail, why),
        }
    }
}

impl Judged {
    /// A result without values. What somebody should look at ends with the remedy.
    fn new(check: Check, device: &str, verdict: Verdict, why: String) -> Self {
        let message = match verdict {
            Verdict::Warn | Verdict::Fail => format!("{why}; {}", check.remedy()),
            Verdict::Skipped | Verdict::Pass | Verdict::Error => why,
        };
        Self {
            check,
            device: device.to_owned(),
            verdict,
            value: None,
            floor: None,
            median: None,
            message,
        }
    }
}

fn slower(check: Check, value: f64, baseline: &Baseline) -> String {
    let Baseline {
        median,
        count,
        line,
        ..
    } = *baseline;
    let percent = 100.0 * (1.0 - value / median);
    format!(
        "{} is {percent:.1} % below the median of {count} nodes alike, {} (fails below {})",
        Figure(value, check),
        Figure(median, check),
        Figure(line, check),
    )
}

fn of_device(device: &str) -> String {
    match device {
        "" => String::new(),
        device => format!(" of {device}"),
    }
}

fn short(detail: &str) -> String {
    let mut detail = detail.to_owned();
    cut(&mut detail, TEXT_BYTES);
    detail
}

/// A value as people read it, with its unit.
struct Figure(f64, Check);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(value, check) = *self;
        let decimals = match value {
            _ if value.fract() == 0.0 => 0,
            _ if value >= 100.0 => 1,
            _ => 2,
        };
        write!(f, "{value:.decimals$}")?;
        match check.unit() {
            "" => Ok(()),
            unit => write!(f, " {unit}"),
        }
    }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
