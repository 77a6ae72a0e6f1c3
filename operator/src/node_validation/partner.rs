//! Two runs that measure the network between their nodes: each names the other's node. The node
//! whose name comes first listens, and the pod of the other is created when that one's address is
//! known, or when it has not been for too long.

use std::net::IpAddr;
use std::time::Duration;

use contract::validation::PARTNER_SECONDS;
use crds::fabric::FabricSpec;
use crds::node_validation::ValidationPhase;
use crds::{NodeValidation, names};
use health::Check;

use super::asked;
use crate::cluster::Mirrors;
use crate::training_job::mirrored_job::MirroredJob;
use crate::training_job::translate::MirroredNode;
use crate::workload::Workload;

/// What a run's validator does for the check Network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// The other dials it.
    Listen,
    /// It dials the other.
    Dial {
        /// Address of the other's pod.
        ip: IpAddr,
        /// Uid of the other's run.
        run: String,
    },
}

/// What a run does now; none if it has no partner, or if its partner is not there.
pub fn role(validation: &NodeValidation, fabric: &FabricSpec, mirrors: &Mirrors) -> Option<Role> {
    let partner = partner(validation, fabric, mirrors)?;
    match listens(validation, partner) {
        true => Some(Role::Listen),
        false => {
            let (ip, run) = answering(validation, partner, mirrors)?;
            Some(Role::Dial { ip, run })
        }
    }
}

/// How long the run's pod is not created, because its partner's address is not known yet. Which of
/// all runs that is matters, and is looked for, only once the run has its node.
pub(super) fn hold(
    validation: &NodeValidation,
    fabric: &FabricSpec,
    mirrors: &Mirrors,
) -> Option<Duration> {
    let partner = partner(validation, fabric, mirrors)?;
    let status = validation.status.as_ref();
    let has_node = status.is_some_and(|status| status.phase == ValidationPhase::Assigned);
    let knows = listens(validation, partner)
        || has_node && answering(validation, partner, mirrors).is_some();
    (!knows).then_some(Duration::from_secs(PARTNER_SECONDS.into()))
}

fn listens(validation: &NodeValidation, partner: &str) -> bool {
    *validation.spec.node_name < *partner
}

/// The other node, if the network between the two can be compared with that between others.
fn partner<'a>(
    validation: &'a NodeValidation,
    fabric: &FabricSpec,
    mirrors: &Mirrors,
) -> Option<&'a str> {
    let spec = &validation.spec;
    let partner = spec.partner_node_name.as_deref()?;
    let group = |name| group(mirrors.nodes.get("", name)?, fabric);
    let alike = group(partner).is_some_and(|of_partner| group(&spec.node_name) == Some(of_partner));
    let needs_partner = asked(validation).into_iter().any(Check::is_shared);
    (needs_partner && alike).then_some(partner)
}

/// The class and zone of a node, which all nodes share with which it can be compared. None: it has
/// no class.
pub(super) fn group(node: &MirroredNode, fabric: &FabricSpec) -> Option<String> {
    let class = node.label(&fabric.class_label);
    let class = class.filter(|class| !class.is_empty())?;
    let zone = node.label(&fabric.zone_label).unwrap_or_default();
    Some(format!("{class}/{zone}"))
}

/// The partner's run that names this run's node, and the address of its pod, while that runs.
fn answering(
    validation: &NodeValidation,
    partner: &str,
    mirrors: &Mirrors,
) -> Option<(IpAddr, String)> {
    let mut runs = mirrors.validations.values();
    runs.find_map(|mirrored| {
        let MirroredJob::Whole(workload @ Workload::Validation(other)) = mirrored else {
            return None;
        };
        let names = other.spec.partner_node_name.as_ref() == Some(&validation.spec.node_name);
        let key = workload
            .key()
            .filter(|_| names && other.spec.node_name == *partner)?;
        let attempt = other.status.as_ref()?.attempt;
        let pod = names::pod_name(&key.name, attempt, 0);
        let pod = mirrors.pods.get(&key.namespace, &pod)?;
        let is_its = pod.pod.job == key && !pod.pod.terminal;
        Some((pod.ip.filter(|_| is_its)?, key.uid.to_string()))
    })
}
