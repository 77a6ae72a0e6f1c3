//! Jobs that run on given nodes, to validate one: whether the nodes can take one now, and why not.
//! Leaves who is next, and what is kept for others, to `assign`.

use std::time::Duration;

use topology::NodeName;

use crate::assign::Placement;
use crate::filter::Waiting;
use crate::ledger::Ledger;
use crate::node::{NodeReason, Ready, State, Wish};
use crate::plan::PlacedNode;
use crate::snapshot::{Node, Pin};

/// How long a job waits for its partner while its node is free: then it runs without.
pub(crate) const PARTNER_PATIENCE: Duration = Duration::from_secs(600);

/// Whether a node in this state can be validated. One that is short of something, suspect,
/// cordoned, tainted or in quarantine is why one validates. One that goes, or whose kubelet does
/// not answer, runs nothing.
pub(crate) fn admits(state: &State) -> bool {
    match state {
        State::Usable | State::Suspect { .. } | State::Short { .. } => true,
        State::Leaving { why, .. } => match why {
            Wish::Cordoned | Wish::Tainted(_) | Wish::Validated(_) => true,
            Wish::Deleted => false,
        },
        State::NoNewWork { why } => {
            matches!(why, NodeReason::Quarantined(_) | NodeReason::Awaited(_))
        }
        State::Lost { .. } => false,
    }
}

/// The nodes, if they can take the job; else why it waits. `take` takes all of them, unless one is
/// kept for somebody.
pub(crate) fn place<'a>(
    pin: &Pin,
    ledger: &Ledger<'a>,
    take: impl FnOnce(&[&'a Node]) -> Result<(), usize>,
) -> Result<Placement, Waiting> {
    let nodes = pin.nodes().zip(REASONS);
    let nodes = nodes.map(|(name, reasons)| vacant(name, reasons, ledger));
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    if let [node, partner] = nodes[..]
        && node.zone != partner.zone
    {
        let message = format!(
            "Waiting: node {} is in another zone than {}; it is validated without a partner soon",
            partner.name, node.name
        );
        return Err(Waiting::warning(PARTNER_ELSEWHERE, message));
    }
    take(&nodes).map_err(|at| {
        let name = &nodes[at].name;
        let message = format!("Waiting: node {name} is kept for somebody who waits for it");
        Waiting::new(REASONS[at].reserved, message)
    })?;
    let places = nodes.into_iter().map(|node| PlacedNode {
        node: node.name.clone(),
        zone: node.zone.clone(),
        leaf: node.leaf.clone(),
    });
    Ok(Placement {
        places: places.collect(),
        crossing: false,
    })
}

/// Why a job waits for a node.
struct Reasons {
    unknown: &'static str,
    not_ready: &'static str,
    in_use: &'static str,
    reserved: &'static str,
}

/// For the node that is validated, and for its partner.
const REASONS: [Reasons; 2] = [
    Reasons {
        unknown: "NodeUnknown",
        not_ready: "NodeNotReady",
        in_use: "NodeInUse",
        reserved: "NodeReserved",
    },
    Reasons {
        unknown: "PartnerUnknown",
        not_ready: "PartnerNotReady",
        in_use: "PartnerInUse",
        reserved: "PartnerReserved",
    },
];

/// Its partner is in another zone: what is between them is not the node's.
const PARTNER_ELSEWHERE: &str = "PartnerElsewhere";

/// Whether a job that waits for this reason has only its partner to wait for.
pub(crate) fn waits_for_partner(reason: &str) -> bool {
    let of_partner = &REASONS[1];
    let reasons = [
        of_partner.unknown,
        of_partner.not_ready,
        of_partner.in_use,
        of_partner.reserved,
        PARTNER_ELSEWHERE,
    ];
    reasons.contains(&reason)
}

/// The node, if something can run there now and nobody uses it.
fn vacant<'a>(name: &NodeName, reasons: Reasons, ledger: &Ledger<'a>) -> Result<&'a Node, Waiting> {
    let Some(node) = ledger.node(name) else {
        let message = format!(
            "Waiting: the cluster has no node {name}; it runs when the node joins, or delete it and \
             create it again with another nodeName"
        );
        return Err(Waiting::warning(reasons.unknown, message));
    };
    let state = ledger.states().of(name);
    let is_ready = node.ready == Ready::True;
    if !admits(state) || !is_ready {
        let why = match state {
            State::NoNewWork { why } | State::Lost { why } => why.to_string(),
            State::Leaving { why, .. } if is_ready => format!("it is {why}"),
            State::Leaving { .. } | State::Usable | State::Suspect { .. } | State::Short { .. } => {
                NodeReason::NotReady.to_string()
            }
        };
        let message = format!("Waiting: node {name} cannot be validated now: {why}");
        return Err(Waiting::warning(reasons.not_ready, message));
    }
    if !ledger.is_vacant(name) {
        let message = format!("Waiting: node {name} is in use; it is validated when it is free");
        return Err(Waiting::new(reasons.in_use, message));
    }
    Ok(node)
}
