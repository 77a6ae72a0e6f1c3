//! A node of the snapshot: what its labels say, and whether it offers what its class asks for.

use std::sync::Arc;

use crds::fabric::{FabricSpec, NodeClass};
use crds::names;
use scheduler::Timestamp;

use super::Reports;
use crate::quantity;
use crate::training_job::translate;

/// A node without a class stays in the snapshot: one that is not there counts as lost, and taking
/// its label away must not end the job that trains on it.
pub(super) fn of(
    mirrored: &translate::MirroredNode,
    fabric: &FabricSpec,
    reports: &Reports,
) -> scheduler::Node {
    let label = |name: &str| mirrored.label(name);
    let name = label(&fabric.class_label).unwrap_or_default();
    let class = fabric.classes.iter().find(|class| class.name == name);
    scheduler::Node {
        name: mirrored.name.clone(),
        class: name.into(),
        zone: label(&fabric.zone_label).unwrap_or_default().into(),
        leaf: label(&fabric.leaf_label).unwrap_or_default().into(),
        ready: mirrored.ready,
        unready_since: Timestamp::default(),
        taint: mirrored.taint.clone(),
        foreign_taint: mirrored.foreign_taint.clone(),
        quarantine: mirrored.quarantine.clone(),
        wishes: mirrored
            .wishes
            .iter()
            .map(|wish| (wish.clone(), Timestamp::default()))
            .collect(),
        short: class.and_then(|class| short(mirrored, class)),
        suspect_until: reports.suspects.get(&mirrored.name).copied(),
    }
}

/// What the node offers less of than its class asks for, if there is something. CPU and memory are
/// the shares of both containers, and a node that says nothing about them is not judged.
fn short(node: &translate::MirroredNode, class: &NodeClass) -> Option<Arc<str>> {
    let offered = |resource: &str| {
        let mut offers = node.offers.iter();
        offers.find(|amount| amount.resource == resource)
    };
    let devices = [
        (names::RESOURCE_NODE, 1),
        (names::RESOURCE_GPU, class.gpus),
        (names::RESOURCE_RDMA, class.rdma),
    ];
    for (resource, asked) in devices {
        let offer = offered(resource);
        if offer.map_or(0, |offer| offer.milli) < u128::from(asked) * 1000 {
            let text = offer.map_or("0", |offer| &*offer.text);
            return Some(format!("{text} of {asked} {resource}").into());
        }
    }
    let (trainer, sidecar) = (&class.trainer, &class.sidecar);
    let shares = [
        ("cpu", &trainer.cpu, &sidecar.cpu),
        ("memory", &trainer.memory, &sidecar.memory),
    ];
    shares.into_iter().find_map(|(resource, one, other)| {
        let offer = offered(resource)?;
        let asked = quantity::milli(one)?.checked_add(quantity::milli(other)?)?;
        let text = &offer.text;
        (offer.milli < asked).then(|| format!("{text} of {one} + {other} {resource}").into())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use scheduler::Ready;

    use super::*;
    use crate::training_job::observe::tests::offers;

    #[test]
    fn a_node_that_offers_less_than_its_class_asks_for_is_short_of_it() {
        let class = |rdma: u32| NodeClass {
            name: "a100".to_owned(),
            default: false,
            gpus: 8,
            rdma,
            trainer: crds::fabric::Share {
                cpu: "48".to_owned(),
                memory: "400Gi".to_owned(),
            },
            sidecar: crds::fabric::Share {
                cpu: "500m".to_owned(),
                memory: "1Gi".to_owned(),
            },
            shared_memory: None,
            start_progress_deadline_seconds: 7200,
            floors: Vec::new(),
        };
        let short = |amounts: &[(&'static str, &str)], rdma| {
            let whole = [
                ("fireflyer.dev/node", "1"),
                ("nvidia.com/gpu", "8"),
                ("cpu", "64"),
                ("memory", "430497152Ki"),
            ];
            let is_other = |name: &str| amounts.iter().all(|(other, _)| *other != name);
            let whole = whole.into_iter().filter(|(name, _)| is_other(name));
            let all: Vec<_> = whole.chain(amounts.iter().copied()).collect();
            let node = translate::MirroredNode {
                created: Timestamp::default(),
                name: "n1".into(),
                labels: Vec::new(),
                ready: Ready::True,
                taint: None,
                foreign_taint: None,
                quarantine: None,
                boot: "".into(),
                wishes: BTreeSet::new(),
                offers: offers(&all),
            };
            super::short(&node, &class(rdma)).map(|of| of.to_string())
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(short(&[], 0), None);
        assert_eq!(
            short(&[("nvidia.com/gpu", "7")], 0),
            text("7 of 8 nvidia.com/gpu")
        );
        assert_eq!(
            short(&[("fireflyer.dev/node", "0")], 0),
            text("0 of 1 fireflyer.dev/node")
        );
        assert_eq!(short(&[], 2), text("0 of 2 fireflyer.dev/rdma"));
        assert_eq!(
            short(&[("fireflyer.dev/rdma", "0")], 2),
            text("0 of 2 fireflyer.dev/rdma")
        );
        assert_eq!(short(&[("cpu", "48")], 0), text("48 of 48 + 500m cpu"));
        assert_eq!(short(&[("cpu", "48500m")], 0), None);
        assert_eq!(
            short(&[("memory", "400Gi")], 0),
            text("400Gi of 400Gi + 1Gi memory")
        );
    }
}
