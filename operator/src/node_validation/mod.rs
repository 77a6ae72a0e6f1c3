//! NodeValidations: what the planner sees of one, the task of its pod, and what is recorded. When
//! it gets its node is decided by `scheduler`, what its figures mean by `health`.

mod finished;
pub mod partner;
pub mod pod;
pub mod policy;
pub mod status;
mod verdict;

use std::time::Duration;

pub use finished::{FinishedRuns, Run, verdicts};

use contract::assignment::{ALGORITHM, AssignedNode, Assignment, JobRef, VERSION};
use contract::validation::{AskedCheck, OfferedResource, Screen, ValidationTask};
use crds::NodeValidation;
use crds::fabric::{FabricSpec, NodeClass};
use crds::node_validation::{NodeValidationStatus, ValidationCheck, ValidationLevel, WhenBusy};
use health::{Check, Floors, Level};
use scheduler::{DryRun, Job, JobKey, JobPhase, JobStatus, NewAttempt, Problem, Timestamp};
use topology::OnPeerLoss;

use crate::cluster::Mirrors;
use crate::quantity;
use crate::training_job::apply::MASTER_PORT;
use crate::training_job::translate::{self, MirroredNode};
use crate::workload::Workload;

/// From SIGTERM to SIGKILL: the validator reports what it has found so far.
const GRACE_SECONDS: u32 = 5;
/// The same after a failure, with the scheduler's margin on top: nothing of it is wanted any more.
const EXIT: Duration = Duration::from_secs(1);
/// What an assignment says of neighbours, of which a validation has none.
const PEER_LOSS_SECONDS: u32 = 10;

/// What the planner sees; none if the API server has not named it in full.
pub fn job(
    workload: &Workload,
    validation: &NodeValidation,
    fabric: &FabricSpec,
    mirrors: &Mirrors,
) -> Option<Job> {
    let metadata = &validation.metadata;
    let finalizers = metadata.finalizers.as_deref().unwrap_or_default();
    Some(Job {
        key: workload.key()?,
        created: translate::created(metadata),
        nodes: 1,
        pin: Some(validation.spec.node_name.as_str().into()),
        when_busy: match validation.spec.when_busy {
            WhenBusy::Wait => scheduler::WhenBusy::Wait,
            WhenBusy::Next => scheduler::WhenBusy::Next,
            WhenBusy::Interrupt => scheduler::WhenBusy::Interrupt,
        },
        class: "".into(),
        procs_per_node: None,
        zone_policy: scheduler::ZonePolicy::default(),
        suspend: false,
        grace: Duration::from_secs(GRACE_SECONDS.into()),
        exit: EXIT,
        stall: None,
        max_restarts: 0,
        shrinks: false,
        ttl: workload.ttl(),
        deleting: metadata.deletion_timestamp.is_some(),
        finalizer: finalizers.iter().any(|one| one == crds::names::FINALIZER),
        observed: workload.is_observed(),
        problem: no_agent(validation, mirrors).or_else(|| no_claim(validation, mirrors)),
        hold: partner::hold(validation, fabric, mirrors),
        dry_run: DryRun::Unknown,
        status: workload.status().unwrap_or_default(),
        seen: Timestamp::default(),
    })
}

/// Without our agent a node does not offer itself, and no pod can ask for it. Where the kubelet has
/// just started it offers none of it, nor of anything else: what it lacks then says nothing.
fn no_agent(validation: &NodeValidation, mirrors: &Mirrors) -> Option<Problem> {
    let node = mirrors.nodes.get("", &validation.spec.node_name)?;
    (!offers_itself(node)).then(|| Problem {
        reason: "NoAgent",
        message: format!(
            "node {} does not offer {}: the node agent (DaemonSet fireflyer-device-plugin) is not \
             running there; see its pod, or the nodeSelector of the chart's devicePlugin",
            node.name,
            crds::names::RESOURCE_NODE
        ),
    })
}

fn offers_itself(node: &MirroredNode) -> bool {
    let mut offers = node.offers.iter();
    offers.any(|offer| offer.resource == crds::names::RESOURCE_NODE && offer.milli > 0)
}

/// A pod whose claim is not there would hold the node until its deadline.
fn no_claim(validation: &NodeValidation, mirrors: &Mirrors) -> Option<Problem> {
    let name = validation.spec.claim_name.as_deref()?;
    let namespace = crds::names::VALIDATION_NAMESPACE;
    let is_there = mirrors.claims.get(namespace, name).is_some();
    (!is_there).then(|| Problem {
        reason: "ClaimUnusable",
        message: format!("claim {name} does not exist in namespace {namespace}: create it there"),
    })
}

/// What decides that the attempt has its node. No sidecar reads it.
pub fn assignment(key: &JobKey, new: &NewAttempt) -> Assignment {
    let nodes = new.nodes.iter().map(|place| AssignedNode {
        name: place.node.to_string(),
        zone: place.zone.to_string(),
        leaf: place.leaf.to_string(),
    });
    Assignment {
        version: VERSION,
        job: JobRef {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            uid: key.uid.to_string(),
        },
        attempt: new.number,
        algorithm: ALGORITHM,
        procs_per_node: 1,
        nodes: nodes.collect(),
        crossing: new.crossing,
        master_port: MASTER_PORT,
        on_peer_loss: OnPeerLoss::Restart,
        peer_loss_seconds: PEER_LOSS_SECONDS,
        min_nodes: None,
        grace_seconds: Some(GRACE_SECONDS),
        traffic_class: 0,
        relaxed_ordering: true,
        checkpoint: None,
        resume: None,
    }
}

/// What the validator has to do.
pub fn task(
    key: &JobKey,
    validation: &NodeValidation,
    fabric: &FabricSpec,
    mirrors: &Mirrors,
) -> ValidationTask {
    let node = mirrors.nodes.get("", &validation.spec.node_name);
    let class = node.and_then(|node| class_of(node, fabric));
    let offers = node.map_or_else(Vec::new, |node| offers(node, class));
    let mut asked = asked(validation);
    // Its partner has its node by now, and waits.
    asked.sort_by_key(|check| !check.is_shared());
    let peers = finished::peers(mirrors, class, &validation.spec.node_name);
    let screens = health::screens(&asked, &floors(class, &offers), peers, None);
    let checks = asked.into_iter().map(|check| {
        let of_check = screens.iter().filter(|((of, _), _)| *of == check);
        AskedCheck {
            name: check.as_str().to_owned(),
            screens: of_check
                .map(|((_, device), value)| Screen {
                    device: device.clone(),
                    value: *value,
                })
                .collect(),
        }
    });
    ValidationTask {
        version: contract::validation::VERSION,
        validation: key.name.to_string(),
        uid: key.uid.to_string(),
        node: validation.spec.node_name.clone(),
        node_class: class.map(|class| class.name.clone()).unwrap_or_default(),
        deadline_seconds: validation.spec.deadline_seconds,
        checks: checks.collect(),
        offers,
    }
}

/// The status to write for what the planner records.
pub fn record(
    status: &JobStatus,
    key: &JobKey,
    validation: &NodeValidation,
    fabric: &FabricSpec,
    mirrors: &Mirrors,
) -> NodeValidationStatus {
    let mut shown = status::to_api(status, validation);
    let node = mirrors.nodes.get("", &validation.spec.node_name);
    let class = node.and_then(|node| class_of(node, fabric));
    if status.phase.holds_nodes() {
        shown.node_class = class.map(|class| class.name.clone());
    }
    let before = validation.status.as_ref();
    if !status.phase.is_terminal() {
        return shown;
    }
    if before.is_some_and(|before| before.verdict.is_some()) {
        status::keep_verdict(&mut shown, validation);
    } else if status.phase == JobPhase::Failed {
        verdict::of_failure(&mut shown, status);
    } else {
        let name = crds::names::pod_name(&key.name, status.attempt, 0);
        let pod = mirrors.pods.get(&key.namespace, &name);
        let pod = pod.filter(|mirrored| mirrored.pod.job == *key);
        let report = pod.and_then(|mirrored| mirrored.report.as_deref());
        let offers = node.map_or_else(Vec::new, |node| offers(node, class));
        let spec = &validation.spec;
        let partner = spec.partner_node_name.as_deref();
        let links = partner.map(|partner| finished::links(mirrors, &spec.node_name, partner));
        let by = verdict::Measure {
            asked: asked(validation),
            floors: floors(class, &offers),
            peers: finished::peers(mirrors, class, &spec.node_name),
            node: &spec.node_name,
            partner,
            links: links.unwrap_or_default(),
        };
        verdict::of_report(&mut shown, key, report, &by);
    }
    shown
}

/// The checks that are to run.
fn asked(validation: &NodeValidation) -> Vec<Check> {
    match &validation.spec.checks {
        Some(checks) => checks.iter().map(|asked| check(*asked)).collect(),
        None => level(validation.spec.level).checks().collect(),
    }
}

fn level(level: ValidationLevel) -> Level {
    match level {
        ValidationLevel::Quick => Level::Quick,
        ValidationLevel::Standard => Level::Standard,
        ValidationLevel::Full => Level::Full,
    }
}

fn level_to_api(level: Level) -> ValidationLevel {
    match level {
        Level::Quick => ValidationLevel::Quick,
        Level::Standard => ValidationLevel::Standard,
        Level::Full => ValidationLevel::Full,
    }
}

fn check(check: ValidationCheck) -> Check {
    match check {
        ValidationCheck::Offer => Check::Offer,
        ValidationCheck::CpuFrequency => Check::CpuFrequency,
        ValidationCheck::CpuStress => Check::CpuStress,
        ValidationCheck::MemoryBandwidth => Check::MemoryBandwidth,
        ValidationCheck::MemoryPattern => Check::MemoryPattern,
        ValidationCheck::AllReduce => Check::AllReduce,
        ValidationCheck::Disk => Check::Disk,
        ValidationCheck::LockedMemory => Check::LockedMemory,
        ValidationCheck::Gpu => Check::Gpu,
        ValidationCheck::Network => Check::Network,
    }
}

fn check_to_api(check: Check) -> ValidationCheck {
    match check {
        Check::Offer => ValidationCheck::Offer,
        Check::CpuFrequency => ValidationCheck::CpuFrequency,
        Check::CpuStress => ValidationCheck::CpuStress,
        Check::MemoryBandwidth => ValidationCheck::MemoryBandwidth,
        Check::MemoryPattern => ValidationCheck::MemoryPattern,
        Check::AllReduce => ValidationCheck::AllReduce,
        Check::Disk => ValidationCheck::Disk,
        Check::LockedMemory => ValidationCheck::LockedMemory,
        Check::Gpu => ValidationCheck::Gpu,
        Check::Network => ValidationCheck::Network,
    }
}

/// What a node of a class must reach.
fn floors(class: Option<&NodeClass>, offers: &[OfferedResource]) -> Floors {
    let mut floors = Floors::default();
    for floor in class.into_iter().flat_map(|class| &class.floors) {
        let device = floor.device.as_deref().unwrap_or_default();
        floors.set(check(floor.check), device, floor.value);
    }
    for offer in offers {
        floors.set(Check::Offer, &offer.resource, offer.expected);
    }
    floors
}

/// The class of a node, if it has one that the Fabric knows.
fn class_of<'f>(node: &MirroredNode, fabric: &'f FabricSpec) -> Option<&'f NodeClass> {
    let name = node.label(&fabric.class_label)?;
    fabric.classes.iter().find(|class| class.name == name)
}

/// What the node offers of each resource, and how much a job of its class asks for.
fn offers(node: &MirroredNode, class: Option<&NodeClass>) -> Vec<OfferedResource> {
    let Some(class) = class else {
        return Vec::new();
    };
    let sum = |one: &str, other: &str| {
        let sum = quantity::milli(one)?.checked_add(quantity::milli(other)?)?;
        Some(in_units(sum))
    };
    let (trainer, sidecar) = (&class.trainer, &class.sidecar);
    let expected = [
        (crds::names::RESOURCE_NODE, Some(1.0)),
        (crds::names::RESOURCE_GPU, Some(class.gpus.into())),
        (crds::names::RESOURCE_RDMA, Some(class.rdma.into())),
        ("cpu", sum(&trainer.cpu, &sidecar.cpu)),
        ("memory", sum(&trainer.memory, &sidecar.memory)),
    ];
    let expected = expected.into_iter().filter_map(|(resource, expected)| {
        let mut found = node.offers.iter();
        let found = found.find(|amount| amount.resource == resource);
        let (name, unit) = match resource {
            "memory" => ("memory in GiB", GIB),
            other => (other, 1.0),
        };
        Some(OfferedResource {
            resource: name.to_owned(),
            offered: found.map_or(0.0, |amount| in_units(amount.milli)) / unit,
            expected: expected.filter(|expected| *expected > 0.0)? / unit,
        })
    });
    expected.collect()
}

const GIB: f64 = 1_073_741_824.0;

/// An amount in units, from thousandths.
#[expect(
    clippy::as_conversions,
    reason = "a figure for people: its first digits matter"
)]
fn in_units(milli: u128) -> f64 {
    milli as f64 / 1000.0
}
