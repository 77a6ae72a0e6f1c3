//! What a node is compared with: the floors of its class, and the newest values of the nodes like
//! it. Owns the arithmetic of the two lines, the screen and the one below which a node fails.
//! Leaves what follows from them to `verdict`.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::check::Check;
use crate::report::Fingerprint;

/// Fewer values than these show no median worth failing a node for, nor what is common.
const LEAST_VALUES: usize = 8;
/// Most values that are compared with, the newest: 19,900 pairs for their spread.
const MOST_VALUES: usize = 200;
/// How often a value below the screen is measured in all. The median of these is judged.
pub(crate) const RUNS: u32 = 4;
/// What of a spread is taken for noise of the measurement, as a part of the value: nodes that
/// differ by 0.5 % and measurements that differ by 1.4 % have a spread of 1.5 %. What goes beyond
/// is taken for nodes that differ, which no repetition makes smaller.
const NOISE: f64 = 0.015;
/// Spread of the median of four normal values, in spreads of one: 0.546.
const MEDIAN_OF_RUNS: f64 = 0.55;
/// A node fails when it is so many spreads of what is judged below the median. Of normal values
/// 1 in 4,300 is, so that of 100 nodes with 12 values each 0.3 are.
const FAIL_SPREADS: f64 = 3.5;
/// Nobody fails for less than this below the median. A lost memory channel is 6 %, and four spreads
/// of the median of four are 3.3 %.
const LEAST_MARGIN: f64 = 0.035;
/// The screen's part of that margin: the first value of a node that is 6 % slow is below it in
/// 98 of 100 cases, that of a healthy one in 3.
const SCREEN_PART: f64 = 0.8;
/// How many of a class's results say whether a line is missed by many.
const LAST_RESULTS: usize = 20;
/// Many are more than one in so many.
const MANY_ONE_IN: usize = 4;

/// The values of a class that a node must reach: of a device, or of all of a check.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Floors(BTreeMap<Check, BTreeMap<String, f64>>);

impl Floors {
    /// Sets a floor. The empty device stands for all that have no floor of their own.
    pub fn set(&mut self, check: Check, device: &str, floor: f64) {
        let of_check = self.0.entry(check).or_default();
        of_check.insert(device.to_owned(), floor);
    }

    /// The floor of a device.
    #[must_use]
    pub fn of(&self, check: Check, device: &str) -> Option<f64> {
        let of_check = self.0.get(&check)?;
        of_check.get(device).or_else(|| of_check.get("")).copied()
    }

    /// The devices with a floor of their own, and the empty one if there is a floor for all.
    pub(crate) fn devices(&self, check: Check) -> impl Iterator<Item = &str> {
        let devices = self.0.get(&check).into_iter().flatten();
        devices.map(|(device, _)| device.as_str())
    }
}

/// The newest value of each other node of a class.
#[derive(Clone, Debug, Default)]
pub struct Fleet(BTreeMap<Check, Places>);

/// By place, then by node.
type Places = BTreeMap<String, BTreeMap<String, Sample>>;

#[derive(Clone, Debug)]
struct Sample {
    at: i64,
    fingerprint: Arc<Fingerprint>,
    value: f64,
}

/// Where the nodes alike are, and the lines that follow from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Baseline {
    pub(crate) median: f64,
    /// How many values it is the median of.
    pub(crate) count: usize,
    /// A value below this is measured again.
    pub(crate) screen: f64,
    /// A node whose value stays below this is slower than its peers.
    pub(crate) line: f64,
}

impl Fleet {
    /// Adds what a run measured on a node of the class, but not on the node that is to be judged.
    /// `at` is when it ended, on any scale. The order does not matter: of each node the newest
    /// value of a check and place stays.
    pub fn push<'a>(
        &mut self,
        node: &str,
        at: i64,
        fingerprint: &Fingerprint,
        values: impl IntoIterator<Item = (Check, &'a str, f64)>,
    ) {
        let fingerprint = Arc::new(fingerprint.clone());
        for (check, device, value) in values {
            let places = self.0.entry(check).or_default();
            let nodes = places.entry(check.place(device).to_owned()).or_default();
            // Of devices that share a place the slowest counts.
            let is_newer = |old: &Sample| (old.at, -old.value) < (at, -value);
            if value.is_finite() && nodes.get(node).is_none_or(is_newer) {
                let fingerprint = Arc::clone(&fingerprint);
                let sample = Sample {
                    at,
                    fingerprint,
                    value,
                };
                nodes.insert(node.to_owned(), sample);
            }
        }
    }

    /// The places of a check that have values.
    pub(crate) fn places(&self, check: Check) -> impl Iterator<Item = &str> {
        let places = self.0.get(&check).into_iter().flatten();
        places.map(|(place, _)| place.as_str())
    }

    /// The fingerprint of the newest value.
    pub(crate) fn newest_fingerprint(&self, check: Check, device: &str) -> Option<&Fingerprint> {
        let newest = self.newest(check, device);
        newest.first().map(|sample| &*sample.fingerprint)
    }

    /// The median of the nodes alike, unless they are too few or the check compares nothing.
    pub(crate) fn baseline(
        &self,
        check: Check,
        device: &str,
        fingerprint: &Fingerprint,
    ) -> Option<Baseline> {
        if !check.is_compared() {
            return None;
        }
        let newest = self.newest(check, device).into_iter();
        let alike = newest.filter(|sample| *sample.fingerprint == *fingerprint);
        let values: Vec<f64> = alike.map(|one| one.value).take(MOST_VALUES).collect();
        if values.len() < LEAST_VALUES {
            return None;
        }
        let median = median(&values);
        let margin = margin(spread(&values) / median);
        // A median of 0 has no spread in parts of it, and nothing is below it.
        (median > 0.0).then_some(Baseline {
            median,
            count: values.len(),
            screen: median * (1.0 - SCREEN_PART * margin),
            line: median * (1.0 - margin),
        })
    }

    /// How many of how many of the class's last results are below a line, with the one that is
    /// judged: if these are many, the line or something that the nodes share is to blame, not each
    /// node.
    pub(crate) fn many_below(
        &self,
        check: Check,
        device: &str,
        line: f64,
        alike: Option<&Fingerprint>,
    ) -> Option<(usize, usize)> {
        let newest = self.newest(check, device).into_iter();
        let counts = |sample: &&Sample| alike.is_none_or(|one| *sample.fingerprint == *one);
        let last: Vec<_> = newest.filter(counts).take(LAST_RESULTS - 1).collect();
        let mut below = 1 + last.iter().filter(|sample| sample.value < line).count();
        if check.is_shared() {
            // What is slow between two shows at both.
            below = below.div_ceil(2);
        }
        let of = 1 + last.len();
        (of >= LEAST_VALUES && below * MANY_ONE_IN > of).then_some((below, of))
    }

    /// The newest first.
    fn newest(&self, check: Check, device: &str) -> Vec<&Sample> {
        let places = self.0.get(&check);
        let nodes = places.and_then(|places| places.get(check.place(device)));
        let mut samples: Vec<_> = nodes.into_iter().flat_map(BTreeMap::values).collect();
        samples.sort_by_key(|sample| std::cmp::Reverse(sample.at));
        samples
    }
}

/// How far below the median a node fails, in parts of the median, for a spread in parts of it.
fn margin(spread: f64) -> f64 {
    let noise = spread.min(NOISE);
    let nodes = (spread * spread - noise * noise).sqrt();
    let judged = nodes.hypot(noise * MEDIAN_OF_RUNS);
    (FAIL_SPREADS * judged).clamp(LEAST_MARGIN, 1.0)
}

/// The median; of an even number the mean of the two in the middle, of none 0.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match (sorted.get(half), sorted.iter().rev().nth(half)) {
        (Some(one), Some(other)) => f64::midpoint(*one, *other),
        _ => 0.0,
    }
}

/// The spread of two or more values as a standard deviation: Qn of Rousseeuw and Croux, about the
/// first quartile of the distances of all pairs. Up to half of the values may be anything. For 50
/// normal values its own error is 11 %; that of the median absolute deviation is 17 %.
fn spread(values: &[f64]) -> f64 {
    /// Makes it the standard deviation of normal values.
    const NORMAL: f64 = 2.2219;
    let mut distances = Vec::with_capacity(values.len() * values.len() / 2);
    for (at, one) in values.iter().enumerate() {
        distances.extend(values[..at].iter().map(|other| (one - other).abs()));
    }
    let half = values.len() / 2 + 1;
    let rank = half * (half - 1) / 2;
    let (_, quartile, _) = distances.select_nth_unstable_by(rank - 1, f64::total_cmp);
    let count = values.len() as f64;
    let few = count
        / (count
            + if values.len().is_multiple_of(2) {
                3.8
            } else {
                1.4
            });
    NORMAL * few * *quartile
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
