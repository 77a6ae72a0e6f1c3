//! What a node is compared with: the floors of its class, and the newest values of the nodes like
//! it. Owns the arithmetic of the two lines, the screen and the one below which a node fails.
//! Leaves what follows from them to `verdict`.

use std::cmp::Reverse;
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

/// The newest value of each node of a class, at each place of each check. Follows the runs that
/// exist: it is the same as one that is gathered anew from them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet(BTreeMap<Check, BTreeMap<String, Place>>);

/// The values of a place, in the orders in which they are looked for: a judgement reads some
/// hundred of them, however many nodes there are.
#[derive(Clone, Debug, Default, PartialEq)]
struct Place {
    nodes: BTreeMap<Arc<str>, Sample>,
    newest: Newest,
    /// The same by fingerprint.
    alike: BTreeMap<Arc<Fingerprint>, Newest>,
}

/// Values by when they were measured, the newest first, and by node.
type Newest = BTreeMap<(Reverse<i64>, Arc<str>), f64>;

#[derive(Clone, Debug, PartialEq)]
struct Sample {
    at: i64,
    fingerprint: Arc<Fingerprint>,
    value: f64,
}

/// A fleet, but for the node that is to be judged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peers<'a> {
    /// None: there are no others.
    fleet: Option<&'a Fleet>,
    except: Option<&'a str>,
}

impl<'a> From<&'a Fleet> for Peers<'a> {
    /// All of it: it holds no run of the node that is to be judged.
    fn from(fleet: &'a Fleet) -> Self {
        Self {
            fleet: Some(fleet),
            except: None,
        }
    }
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
    /// Adds what a run measured on a node of the class. `at` is when it ended, on any scale. The
    /// order does not matter: of each node the newest value of a check and place stays.
    pub fn push<'a>(
        &mut self,
        node: &str,
        at: i64,
        fingerprint: &Fingerprint,
        values: impl IntoIterator<Item = (Check, &'a str, f64)>,
    ) {
        let node: Arc<str> = node.into();
        for (check, device, value) in values {
            if value.is_finite() {
                let places = self.0.entry(check).or_default();
                let place = places.entry(check.place(device).to_owned()).or_default();
                place.push(&node, at, fingerprint, value);
            }
        }
    }

    /// Takes out what a run has added. Returns whether that leaves a place without a value of the
    /// node: then all other runs of the node that exist are to be pushed again, in any order.
    pub fn pull<'a>(
        &mut self,
        node: &str,
        at: i64,
        values: impl IntoIterator<Item = (Check, &'a str, f64)>,
    ) -> bool {
        let mut was_newest = false;
        for (check, device, _) in values {
            let Some(places) = self.0.get_mut(&check) else {
                continue;
            };
            let name = check.place(device);
            if let Some(place) = places.get_mut(name) {
                let is_its = place.nodes.get(node).is_some_and(|sample| sample.at == at);
                was_newest |= is_its && place.take(node);
                if place.nodes.is_empty() {
                    places.remove(name);
                }
            }
            if places.is_empty() {
                self.0.remove(&check);
            }
        }
        was_newest
    }

    /// Returns true if it has no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The other nodes.
    #[must_use]
    pub fn without<'a>(&'a self, node: &'a str) -> Peers<'a> {
        Peers {
            fleet: Some(self),
            except: Some(node),
        }
    }
}

impl Place {
    fn push(&mut self, node: &Arc<str>, at: i64, fingerprint: &Fingerprint, value: f64) {
        // Of devices that share a place the slowest counts.
        let order = |sample: &Sample| (sample.at, -sample.value);
        let known = self.nodes.get(node);
        let is_older = known.is_some_and(|known| {
            let fingerprints = || *known.fingerprint >= *fingerprint;
            order(known) > (at, -value) || order(known) == (at, -value) && fingerprints()
        });
        if is_older {
            return;
        }
        self.take(node);
        let known = self.alike.get_key_value(fingerprint);
        let fingerprint = known.map_or_else(
            || Arc::new(fingerprint.clone()),
            |(known, _)| Arc::clone(known),
        );
        let key = (Reverse(at), Arc::clone(node));
        let alike = self.alike.entry(Arc::clone(&fingerprint)).or_default();
        alike.insert(key.clone(), value);
        self.newest.insert(key, value);
        let sample = Sample {
            at,
            fingerprint,
            value,
        };
        self.nodes.insert(Arc::clone(node), sample);
    }

    /// Removes the value of the node. Returns true if there was one.
    fn take(&mut self, node: &str) -> bool {
        let Some((node, sample)) = self.nodes.remove_entry(node) else {
            return false;
        };
        let key = (Reverse(sample.at), node);
        self.newest.remove(&key);
        if let Some(alike) = self.alike.get_mut(&sample.fingerprint) {
            alike.remove(&key);
            if alike.is_empty() {
                self.alike.remove(&sample.fingerprint);
            }
        }
        true
    }
}

impl<'a> Peers<'a> {
    fn place(&self, check: Check, device: &str) -> Option<&'a Place> {
        self.fleet?.0.get(&check)?.get(check.place(device))
    }

    /// The places of a check that have values.
    pub(crate) fn places(self, check: Check) -> impl Iterator<Item = &'a str> {
        let of_check = self.fleet.and_then(|fleet| fleet.0.get(&check));
        let places = of_check.into_iter().flatten();
        let others = move |(_, place): &(&String, &Place)| {
            let mut nodes = place.nodes.keys();
            nodes.any(|node| self.except != Some(&**node))
        };
        places.filter(others).map(|(name, _)| name.as_str())
    }

    /// The fingerprint of the newest value.
    pub(crate) fn newest_fingerprint(&self, check: Check, device: &str) -> Option<&'a Fingerprint> {
        let place = self.place(check, device)?;
        let mut nodes = place.newest.keys().map(|(_, node)| node);
        let newest = nodes.find(|node| self.except != Some(&***node))?;
        place.nodes.get(newest).map(|sample| &*sample.fingerprint)
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
        let alike = self.newest(check, device, Some(fingerprint));
        let values: Vec<f64> = alike.take(MOST_VALUES).collect();
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
        let newest = self.newest(check, device, alike);
        let last: Vec<f64> = newest.take(LAST_RESULTS - 1).collect();
        let mut below = 1 + last.iter().filter(|value| **value < line).count();
        if check.is_shared() {
            // What is slow between two shows at both.
            below = below.div_ceil(2);
        }
        let of = 1 + last.len();
        (of >= LEAST_VALUES && below * MANY_ONE_IN > of).then_some((below, of))
    }

    /// The values of the nodes with a fingerprint, or of all, the newest first.
    fn newest(
        self,
        check: Check,
        device: &str,
        alike: Option<&Fingerprint>,
    ) -> impl Iterator<Item = f64> {
        let place = self.place(check, device);
        let newest = place.and_then(|place| match alike {
            Some(fingerprint) => place.alike.get(fingerprint),
            None => Some(&place.newest),
        });
        let values = newest.into_iter().flatten();
        let others = values.filter(move |((_, node), _)| self.except != Some(&**node));
        others.map(|(_, value)| *value)
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
