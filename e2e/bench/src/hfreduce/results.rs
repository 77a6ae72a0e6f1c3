//! What was measured, over all rounds: kept whole for the file, medians for the table and the bars.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::hfreduce::case::{Case, Contender};
use crate::hfreduce::gang::Figures;
use crate::hfreduce::limits::Limit;
use crate::sample::{Sample, middle, quiet};
use cluster::processors::NOISY;

/// What waiting costs, in one round: shares of a core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    /// Of a client that waits for another rank.
    pub(crate) client: f64,
    /// Of a sidecar to which nobody speaks.
    pub(crate) sidecar: f64,
}

/// Everything.
#[derive(Debug, Default)]
pub(crate) struct Results {
    limits: BTreeMap<Limit, Vec<Sample>>,
    cases: BTreeMap<(Case, Contender), Vec<Figures>>,
    waiting: Vec<Waiting>,
    /// Why somebody has no figures.
    missing: BTreeMap<(Case, Contender), String>,
}

impl Results {
    pub(crate) fn add_limit(&mut self, limit: Limit, sample: Sample) {
        self.limits.entry(limit).or_default().push(sample);
    }

    pub(crate) fn add(&mut self, case: Case, contender: Contender, figures: Figures) {
        self.cases
            .entry((case, contender))
            .or_default()
            .push(figures);
    }

    pub(crate) fn add_waiting(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
    }

    pub(crate) fn miss(&mut self, case: Case, contender: Contender, why: String) {
        self.missing.insert((case, contender), why);
    }

    /// The limit of the round in the middle, of the quiet ones if there are any.
    pub(crate) fn limit(&self, limit: Limit) -> Option<Sample> {
        let rounds = quiet(self.limits.get(&limit)?, Sample::is_noisy);
        middle(&rounds, |sample| sample.value).copied()
    }

    /// The figures of the round in the middle, of the quiet ones if there are any.
    pub(crate) fn figures(&self, case: Case, contender: Contender) -> Option<Figures> {
        let rounds = quiet(self.cases.get(&(case, contender))?, is_noisy);
        middle(&rounds, |figures| figures.median.as_secs_f64()).cloned()
    }

    pub(crate) fn waiting(&self) -> Option<Waiting> {
        middle(&self.waiting, |waiting| waiting.client).copied()
    }

    /// Why there are no figures.
    pub(crate) fn why_not(&self, case: Case, contender: Contender) -> &str {
        let why = self.missing.get(&(case, contender));
        why.map_or("not in this run", String::as_str)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (Case, Contender, Figures)> {
        self.cases.keys().filter_map(|&(case, contender)| {
            Some((case, contender, self.figures(case, contender)?))
        })
    }

    pub(crate) fn missing(&self) -> impl Iterator<Item = (Case, Contender, &str)> {
        let without = |key: &(Case, Contender)| !self.cases.contains_key(key);
        self.missing
            .iter()
            .filter(move |(key, _)| without(key))
            .map(|(&(case, contender), why)| (case, contender, why.as_str()))
    }

    /// Everything, each round by itself.
    pub(crate) fn json(&self) -> Value {
        let limits = self.limits.iter().map(|(limit, samples)| {
            let rounds = samples.iter().map(|sample| {
                json!({"value": sample.value, "others": sample.others, "quiet": sample.quiet})
            });
            json!({"limit": limit.to_string(), "unit": limit.unit(), "rounds": rounds.collect::<Vec<_>>()})
        });
        let cases = self.cases.iter().map(|((case, contender), samples)| {
            json!({
                "nodes": case.shape.nodes,
                "procs": case.shape.procs,
                "dtype": case.dtype.name(),
                "tensors": case.load.tensors,
                "bytes": case.load.bytes,
                "contender": contender.to_string(),
                "rounds": samples.iter().map(round).collect::<Vec<_>>(),
            })
        });
        let missing = self.missing().map(|(case, contender, why)| {
            json!({"case": case.to_string(), "contender": contender.to_string(), "why": why})
        });
        let waiting = self
            .waiting
            .iter()
            .map(|waiting| json!({"client": waiting.client, "sidecar": waiting.sidecar}));
        json!({
            "limits": limits.collect::<Vec<_>>(),
            "cases": cases.collect::<Vec<_>>(),
            "waiting": waiting.collect::<Vec<_>>(),
            "notRun": missing.collect::<Vec<_>>(),
        })
    }
}

fn round(figures: &Figures) -> Value {
    json!({
        "medianSeconds": figures.median.as_secs_f64(),
        "bestSeconds": figures.best.as_secs_f64(),
        "p99Seconds": figures.p99.as_secs_f64(),
        "barriers": figures.rounds,
        "ranksUserSeconds": figures.ranks.user,
        "ranksSystemSeconds": figures.ranks.system,
        "sidecarsUserSeconds": figures.sidecars.user,
        "sidecarsSystemSeconds": figures.sidecars.system,
        "others": figures.others,
        "quiet": figures.quiet,
        "noisy": is_noisy(figures),
    })
}

/// Whether others may have changed a figure.
pub(crate) fn is_noisy(figures: &Figures) -> bool {
    !figures.quiet || figures.others > NOISY
}
