//! What was measured, round by round.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::quantity::Quantity;
use crate::sample::{Sample, middle, quiet};

/// A value of all rounds, and whether others may have changed it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) value: f64,
    pub(super) noisy: bool,
}

/// Why there is no figure.
#[derive(Clone, Debug)]
enum Missing {
    /// This machine lacks something.
    NotRun(String),
    Failed(String),
}

/// Everything.
#[derive(Debug, Default)]
pub(super) struct Results {
    rounds: Vec<BTreeMap<Quantity, Sample>>,
    missing: BTreeMap<Quantity, Missing>,
}

impl Results {
    pub(super) fn begin_round(&mut self) {
        self.rounds.push(BTreeMap::new());
    }

    /// Adds a figure of the round that has begun.
    pub(super) fn add(&mut self, quantity: Quantity, sample: Sample) {
        if let Some(round) = self.rounds.last_mut() {
            round.insert(quantity, sample);
        }
    }

    /// Says that this machine cannot do it.
    pub(super) fn leave_out(&mut self, quantity: Quantity, why: String) {
        self.missing.insert(quantity, Missing::NotRun(why));
    }

    pub(super) fn fail(&mut self, quantity: Quantity, why: String) {
        self.missing.insert(quantity, Missing::Failed(why));
    }

    /// What could be measured here and was not.
    pub(super) fn failed(&self) -> Vec<String> {
        let missing = self.missing.iter();
        let failed = missing.filter(|(_, missing)| matches!(missing, Missing::Failed(_)));
        failed.map(|(quantity, _)| quantity.to_string()).collect()
    }

    fn why_not(&self, quantity: Quantity) -> String {
        match self.missing.get(&quantity) {
            Some(Missing::NotRun(why) | Missing::Failed(why)) => format!("{quantity}: {why}"),
            None => format!("{quantity}: not in this run"),
        }
    }

    /// A function of some figures: its value in each round that has them all, then the median, of the quiet rounds if there
    /// are any.
    pub(super) fn median<const N: usize>(
        &self,
        of: [Quantity; N],
        function: impl Fn([f64; N]) -> f64,
    ) -> Result<Figure, String> {
        let in_round = |round: &BTreeMap<Quantity, Sample>| {
            let samples = of.map(|quantity| round.get(&quantity));
            let noisy = samples.iter().flatten().any(|sample| sample.is_noisy());
            let values = samples.map(|sample| sample.map(|sample| sample.value));
            let value = function(values.map(Option::unwrap_or_default));
            values
                .iter()
                .all(Option::is_some)
                .then_some(Figure { value, noisy })
        };
        let figures: Vec<Figure> = self.rounds.iter().filter_map(in_round).collect();
        let figures = quiet(&figures, |figure| figure.noisy);
        let figure = middle(&figures, |figure| figure.value).copied();
        figure.ok_or_else(|| {
            let has = |quantity| self.rounds.iter().any(|round| round.contains_key(quantity));
            let lacking = of.iter().find(|quantity| !has(quantity));
            lacking.map_or_else(
                || "no round has both sides".to_owned(),
                |quantity| self.why_not(*quantity),
            )
        })
    }

    /// Prints the medians.
    pub(super) fn print(&self) {
        println!("\nresults (medians of rounds)");
        let mut measured: Vec<Quantity> = self
            .rounds
            .iter()
            .flat_map(BTreeMap::keys)
            .copied()
            .collect();
        measured.sort_unstable();
        measured.dedup();
        for quantity in measured {
            if let Ok(Figure { value, noisy }) = self.median([quantity], |[value]| value) {
                let mark = if noisy { "!" } else { "" };
                println!("  {}", line(quantity, value, mark));
            }
        }
        for (quantity, missing) in &self.missing {
            match missing {
                Missing::NotRun(why) => println!("  not run: {quantity}: {why}"),
                Missing::Failed(why) => println!("  failed: {quantity}: {why}"),
            }
        }
    }

    /// Everything, each round by itself.
    pub(super) fn json(&self) -> Value {
        let of = |round: &BTreeMap<Quantity, Sample>| {
            let all = round.iter().map(|(quantity, sample)| {
                json!({
                    "quantity": quantity.to_string(),
                    "unit": quantity.unit(),
                    "value": sample.value,
                    "others": sample.others,
                    "quiet": sample.quiet,
                })
            });
            all.collect::<Vec<_>>()
        };
        let missing = self.missing.keys().map(|quantity| self.why_not(*quantity));
        json!({
            "rounds": self.rounds.iter().map(of).collect::<Vec<_>>(),
            "missing": missing.collect::<Vec<_>>(),
        })
    }
}

/// A figure as people read it.
pub(super) fn line(quantity: Quantity, value: f64, mark: &str) -> String {
    let name = quantity.to_string();
    format!("{name:<34} {value:>9.1} {:<4} {mark}", quantity.unit())
}

#[cfg(test)]
mod tests {
    use super::super::quantity::{Access, Quantity, Way};
    use super::Results;
    use crate::sample::Sample;

    const OURS: Quantity = Quantity::Sequential(Access::Write, 1, Way::Ours);
    const DISK: Quantity = Quantity::Sequential(Access::Write, 1, Way::Disk);

    fn round(results: &mut Results, ours: f64, disk: f64, others: f64) {
        results.begin_round();
        for (quantity, value) in [(OURS, ours), (DISK, disk)] {
            let sample = Sample {
                value,
                others,
                quiet: true,
            };
            results.add(quantity, sample);
        }
    }

    #[test]
    fn a_ratio_is_the_median_of_the_ratios_within_quiet_rounds() {
        let mut results = Results::default();
        let ratio = |results: &Results| results.median([OURS, DISK], |[ours, disk]| ours / disk);
        assert!(ratio(&results).unwrap_err().contains("not in this run"));
        for (ours, disk) in [(1.0, 2.0), (9.0, 10.0), (1.0, 10.0)] {
            round(&mut results, ours, disk, 0.0);
        }
        round(&mut results, 7.0, 1.0, 0.5);
        let figure = ratio(&results).unwrap();
        assert_eq!((figure.value, figure.noisy), (0.5, false));
        results.begin_round();
        assert_eq!(ratio(&results).unwrap(), figure);
    }

    #[test]
    fn what_this_machine_lacks_is_no_failure() {
        let mut results = Results::default();
        results.leave_out(Quantity::TorchSave, "no trainer".to_owned());
        assert!(results.failed().is_empty());
        results.fail(Quantity::Copy, "it broke".to_owned());
        assert_eq!(results.failed(), ["cp, ours"]);
    }
}
