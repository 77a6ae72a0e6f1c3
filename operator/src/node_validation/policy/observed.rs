//! What the mirrors hold, as `health` plans with it: policies, nodes and runs of one moment.

use std::collections::BTreeMap;

use crds::fabric::FabricSpec;
use crds::names;
use crds::node_validation_policy::{NodeValidationPolicy, QuarantineMode};
use health::{DueNode, DuePolicy, DueRun, QuarantineLimits};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use scheduler::{Ready, Wish};

use super::seconds;
use crate::cluster::Mirrors;
use crate::fabric::NodesSeen;
use crate::node_validation::{finished::Run, level, offers_itself, partner};
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate::MirroredNode;
use crate::workload::Workload;

/// Policies, nodes and runs.
pub(super) struct Observed {
    pub(super) policies: Vec<DuePolicy>,
    pub(super) nodes: Vec<DueNode>,
    pub(super) runs: Vec<Run>,
    /// The runs that have not ended, by name.
    pub(super) open: BTreeMap<String, OpenRun>,
}

/// The data to delete a run with, only if it has not started.
#[derive(Clone)]
pub(super) struct OpenRun {
    pub(super) uid: String,
    pub(super) version: String,
    /// The reason why it waits, in words.
    pub(super) why: String,
}

impl Observed {
    /// None before everything was listed once.
    pub(super) fn new(mirrors: &Mirrors, seen: &NodesSeen) -> Option<Self> {
        if !mirrors.is_synced() || !mirrors.policies.is_synced() {
            return None;
        }
        let fabric = &mirrors.fabric()?.spec;
        let policies = mirrors.policies.values();
        let nodes = mirrors.nodes.values().map(|node| DueNode {
            name: node.name.to_string(),
            created: seconds(node.created.as_millis()),
            idle: node.ready == Ready::True && !seen.held.contains(node.name.as_str()),
            can_start: can_start(node),
            job: seen.uses.get(node.name.as_str()).cloned(),
            suspect: seen.suspects.contains(node.name.as_str()),
            leaf: leaf(node, fabric),
            group: partner::group(node, fabric).unwrap_or_default(),
            boot: node.boot.to_string(),
            quarantine: node.quarantine.as_deref().map(str::to_owned),
        });
        let validations = &mirrors.validations;
        let runs = validations.values().chain(validations.resting());
        let runs = runs.filter_map(|mirrored| match mirrored {
            MirroredJob::Whole(Workload::Validation(one)) => Some(Run::of(one)),
            MirroredJob::Over(over) => over.run.as_deref().cloned(),
            MirroredJob::Whole(Workload::Training(_)) | MirroredJob::Unreadable(_) => None,
        });
        let open = validations.values().filter_map(|mirrored| match mirrored {
            MirroredJob::Whole(Workload::Validation(one)) => {
                let metadata = &one.metadata;
                let why = one
                    .status
                    .as_ref()
                    .and_then(|status| status.message.clone());
                let open = OpenRun {
                    uid: metadata.uid.clone()?,
                    version: metadata.resource_version.clone()?,
                    why: why.unwrap_or_default(),
                };
                Some((metadata.name.clone()?, open))
            }
            MirroredJob::Whole(Workload::Training(_))
            | MirroredJob::Over(_)
            | MirroredJob::Unreadable(_) => None,
        });
        Some(Self {
            open: open.collect(),
            policies: policies
                .map(|policy| view(policy, mirrors, fabric))
                .collect(),
            nodes: nodes.collect(),
            runs: runs.collect(),
        })
    }

    /// The runs, for `health`.
    pub(super) fn views(&self) -> Vec<DueRun> {
        self.runs.iter().map(Run::view).collect()
    }
}

/// Returns true if a run that gets the node can start there.
fn can_start(node: &MirroredNode) -> bool {
    let is_deleted = node.wishes.contains(&Wish::Deleted);
    let obstacle = scheduler::validation_obstacle(node.ready, node.taint.as_ref(), is_deleted);
    obstacle.is_none() && offers_itself(node)
}

fn view(policy: &NodeValidationPolicy, mirrors: &Mirrors, fabric: &FabricSpec) -> DuePolicy {
    let ObjectMeta {
        name,
        uid,
        creation_timestamp,
        deletion_timestamp,
        ..
    } = &policy.metadata;
    let spec = &policy.spec;
    let selects = |node: &&MirroredNode| match spec.node_selector.is_empty() {
        true => node
            .label(&fabric.class_label)
            .is_some_and(|class| !class.is_empty()),
        false => {
            let mut wanted = spec.node_selector.iter();
            wanted.all(|(key, value)| node.label(key) == Some(value.as_str()))
        }
    };
    let nodes = mirrors.nodes.values().filter(selects);
    // No job leaves for runs that cannot start.
    let claim_is_there = spec.claim_name.as_deref().is_none_or(|claim| {
        let claims = &mirrors.claims;
        claims.get(names::VALIDATION_NAMESPACE, claim).is_some()
    });
    let is_going = deletion_timestamp.is_some();
    let enforces = spec.quarantine == QuarantineMode::Enforce && !is_going;
    let count = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    DuePolicy {
        name: name.clone().unwrap_or_default(),
        created: creation_timestamp.as_ref().map_or(0, |at| at.0.as_second()),
        uid: uid.clone().unwrap_or_default(),
        interval: i64::from(spec.interval_hours) * 3600,
        level: level(spec.level),
        new_nodes: spec.new_nodes,
        suspect_nodes: spec.suspect_nodes,
        max_idle_nodes: count(spec.max_idle_nodes),
        interrupt_after: spec
            .interrupt_after_days
            .filter(|_| claim_is_there)
            .map(|days| i64::from(days) * 24 * 3600),
        suspend: spec.suspend || is_going,
        quarantine: enforces.then_some(QuarantineLimits {
            percent: spec.max_quarantined_percent,
            per_leaf: count(spec.max_quarantined_per_leaf),
        }),
        nodes: nodes.map(|node| node.name.to_string()).collect(),
    }
}

/// A leaf is one of its zone: another zone may have one of the same name.
fn leaf(node: &MirroredNode, fabric: &FabricSpec) -> String {
    match node.label(&fabric.leaf_label) {
        None | Some("") => String::new(),
        Some(leaf) => {
            let zone = node.label(&fabric.zone_label).unwrap_or_default();
            format!("{zone}/{leaf}")
        }
    }
}
