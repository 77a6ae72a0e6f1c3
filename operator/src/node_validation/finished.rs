//! What is kept of a validation when it has ended, and gathered when a node is to be compared or
//! its next run to be planned. Leaves both to `health`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crds::fabric::NodeClass;
use crds::node_validation::{
    NodeValidationStatus, ValidationFingerprint, ValidationVerdict, WhenBusy,
};
use crds::{NodeValidation, names};
use health::{
    Check, DueRun, Findings, Fingerprint, Fleet, Level, LinkResult, Links, Peers, Verdict,
};

use super::{asked, check};
use crate::cluster::Mirrors;
use crate::mirror::Derived;
use crate::training_job::mirrored_job::{MirroredJob, Over};

/// A run, finished or not. Times are in seconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Name of the NodeValidation.
    pub name: String,
    /// Its uid.
    pub uid: String,
    node: String,
    level: Option<Level>,
    policy: Option<String>,
    when_busy: WhenBusy,
    created: i64,
    finished: Option<i64>,
    verdict: Option<Verdict>,
    class: Option<String>,
    fingerprint: Option<Fingerprint>,
    values: Vec<(Check, String, f64)>,
    findings: Findings,
    link: Option<LinkResult>,
}

impl Run {
    /// What is kept.
    pub fn of(validation: &NodeValidation) -> Self {
        let metadata = &validation.metadata;
        let status = validation.status.clone().unwrap_or_default();
        let checks = asked(validation);
        let levels = [Level::Full, Level::Standard, Level::Quick];
        let runs_all = |level: &Level| level.checks().all(|check| checks.contains(&check));
        let labels = metadata.labels.as_ref();
        let values = status.results.iter().filter_map(|result| {
            let device = result.device.clone().unwrap_or_default();
            Some((check(result.check), device, result.value?))
        });
        let mut findings = Findings {
            started: status.start_time.as_ref().map(|at| at.0.as_second()),
            boot: status.boot_id.clone().unwrap_or_default(),
            answered: status.quarantine_time.is_some(),
            ..Findings::default()
        };
        findings.sort(status.results.iter().map(|result| {
            let device = result.device.as_deref().unwrap_or_default();
            (check(result.check), device, verdict(result.verdict))
        }));
        let link = link(validation.spec.partner_node_name.as_deref(), &status);
        Self {
            link,
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            node: validation.spec.node_name.clone(),
            level: levels.into_iter().find(runs_all),
            policy: labels.and_then(|labels| labels.get(names::LABEL_VALIDATION_POLICY).cloned()),
            when_busy: validation.spec.when_busy,
            created: metadata
                .creation_timestamp
                .as_ref()
                .map_or(0, |at| at.0.as_second()),
            finished: status.completion_time.map(|at| at.0.as_second()),
            verdict: status.verdict.map(verdict),
            class: status.node_class,
            fingerprint: status.fingerprint.map(fingerprint),
            values: values.collect(),
            findings,
        }
    }

    /// Whether its node is in quarantine for what it found: then it is not deleted.
    pub fn keeps_quarantine(&self, mirrors: &Mirrors) -> bool {
        let node = mirrors.nodes.get("", &self.node);
        let by = node.and_then(|node| node.quarantine.as_deref());
        by.is_some_and(|by| self.findings.answered || by == self.name)
    }

    fn values(&self) -> impl Iterator<Item = (Check, &str, f64)> {
        let values = self.values.iter();
        values.map(|(check, device, value)| (*check, device.as_str(), *value))
    }

    /// Its node, and that to which it measured the network.
    fn ends(&self) -> impl Iterator<Item = &str> {
        let partner = self.link.as_ref().map(|link| &link.partner);
        let partner = partner.filter(|partner| **partner != self.node);
        std::iter::once(&self.node)
            .chain(partner)
            .map(String::as_str)
    }

    /// What decides when the node is due again.
    pub fn view(&self) -> DueRun {
        DueRun {
            name: self.name.clone(),
            node: self.node.clone(),
            level: self.level,
            policy: self.policy.clone(),
            is_next: self.when_busy != WhenBusy::Wait,
            interrupts: self.when_busy == WhenBusy::Interrupt,
            created: self.created,
            finished: self.finished,
            verdict: self.verdict,
            findings: self.findings.clone(),
            link: self.link.clone(),
        }
    }
}

/// What a run found of the network to its partner; none if it did not measure it.
fn link(partner: Option<&str>, status: &NodeValidationStatus) -> Option<LinkResult> {
    let results = status.results.iter();
    let shared = results.filter(|result| check(result.check).is_shared());
    let verdicts = shared.map(|result| verdict(result.verdict));
    let mut verdicts = verdicts.filter(|one| one.says_something()).peekable();
    verdicts.peek()?;
    Some(LinkResult {
        partner: partner?.to_owned(),
        is_good: verdicts.all(|one| one == Verdict::Pass),
    })
}

/// How many nodes have which verdict in their newest finished run.
pub fn verdicts(mirrors: &Mirrors) -> BTreeMap<Verdict, i64> {
    let mut newest: BTreeMap<&str, (i64, Verdict)> = BTreeMap::new();
    for mirrored in mirrors.validations.resting() {
        if let MirroredJob::Over(Over { run: Some(run), .. }) = mirrored
            && let (Some(at), Some(verdict)) = (run.finished, run.verdict)
        {
            let known = newest.entry(&run.node).or_insert((at, verdict));
            if known.0 < at {
                *known = (at, verdict);
            }
        }
    }
    let mut counts = BTreeMap::new();
    for (_, verdict) in newest.into_values() {
        *counts.entry(verdict).or_default() += 1;
    }
    counts
}

/// The finished runs that are kept, in the order in which they are looked for when another ends:
/// what a class measured, and who touched a node. So one that ends costs the same in any fleet.
#[derive(Debug, Default, PartialEq)]
pub struct FinishedRuns {
    /// By class.
    fleets: BTreeMap<String, Fleet>,
    /// By node or partner, then by uid.
    touching: BTreeMap<String, BTreeMap<String, Arc<Run>>>,
}

impl Derived<MirroredJob> for FinishedRuns {
    fn added(&mut self, job: &MirroredJob) {
        let Some(run) = finished(job) else { return };
        for end in run.ends() {
            let touching = self.touching.entry(end.to_owned()).or_default();
            touching.insert(run.uid.clone(), Arc::clone(run));
        }
        let Some(class) = &run.class else { return };
        let fleet = self.fleets.entry(class.clone()).or_default();
        push(fleet, run);
        if fleet.is_empty() {
            self.fleets.remove(class);
        }
    }

    fn removed(&mut self, job: &MirroredJob) {
        let Some(run) = finished(job) else { return };
        for end in run.ends() {
            if let Some(touching) = self.touching.get_mut(end) {
                touching.remove(&run.uid);
                if touching.is_empty() {
                    self.touching.remove(end);
                }
            }
        }
        let Some(class) = &run.class else { return };
        let Some(fleet) = self.fleets.get_mut(class) else {
            return;
        };
        if let Some(at) = run.finished
            && fleet.pull(&run.node, at, run.values())
        {
            let others = self.touching.get(&run.node).into_iter().flatten();
            let others = others.map(|(_, other)| other);
            let alike = |other: &&Arc<Run>| other.node == run.node && other.class == run.class;
            others.filter(alike).for_each(|other| push(fleet, other));
        }
        if fleet.is_empty() {
            self.fleets.remove(class);
        }
    }
}

fn finished(job: &MirroredJob) -> Option<&Arc<Run>> {
    match job {
        MirroredJob::Over(over) => over.run.as_ref(),
        MirroredJob::Whole(_) | MirroredJob::Unreadable(_) => None,
    }
}

fn push(fleet: &mut Fleet, run: &Run) {
    if let (Some(at), Some(fingerprint)) = (run.finished, &run.fingerprint) {
        fleet.push(&run.node, at, fingerprint, run.values());
    }
}

/// Returns what is known of the network from these two nodes to others, and from those to others,
/// since these nodes exist. The two are judged by it. The runs that are kept found it.
pub(super) fn links(mirrors: &Mirrors, node: &str, partner: &str) -> Links {
    let runs = &mirrors.validations.derived().touching;
    let touching = |node: &str| runs.get(node).into_iter().flatten().map(|(_, run)| run);
    let near = touching(node).flat_map(|run| run.ends());
    let near: BTreeSet<&str> = near.chain([node, partner]).collect();
    let was_there = |node: &str, at: i64| {
        let node = mirrors.nodes.get("", node);
        let at = u64::try_from(at).unwrap_or(0);
        node.is_some_and(|node| node.created.as_millis() / 1000 <= at)
    };
    let mut links = Links::default();
    for run in near.into_iter().flat_map(touching) {
        if let (Some(at), Some(link)) = (run.finished, &run.link)
            && run.ends().all(|node| was_there(node, at))
        {
            links.push(&run.node, at, link);
        }
    }
    links
}

/// What the other nodes of the class measured last.
pub(super) fn peers<'a>(
    mirrors: &'a Mirrors,
    class: Option<&NodeClass>,
    node: &'a str,
) -> Peers<'a> {
    let fleets = &mirrors.validations.derived().fleets;
    let fleet = class.and_then(|class| fleets.get(&class.name));
    fleet.map_or_else(Peers::default, |fleet| fleet.without(node))
}

fn verdict(verdict: ValidationVerdict) -> Verdict {
    match verdict {
        ValidationVerdict::Pass => Verdict::Pass,
        ValidationVerdict::Warn => Verdict::Warn,
        ValidationVerdict::Fail => Verdict::Fail,
        ValidationVerdict::Error => Verdict::Error,
        ValidationVerdict::Skipped => Verdict::Skipped,
    }
}

fn fingerprint(shown: ValidationFingerprint) -> Fingerprint {
    let ValidationFingerprint {
        kernel,
        cpu,
        driver,
        firmware,
        validator,
    } = shown;
    Fingerprint {
        kernel,
        cpu,
        driver,
        firmware,
        validator,
    }
}

#[cfg(test)]
#[path = "finished_tests.rs"]
mod tests;
