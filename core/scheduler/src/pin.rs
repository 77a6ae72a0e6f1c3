//! Jobs that run on one given node, to validate it: whether the node can take one now, and why not.
//! Leaves who is next, and what is kept for others, to `assign`.

use topology::NodeName;

use crate::assign::Placement;
use crate::filter::Waiting;
use crate::ledger::Ledger;
use crate::node::{NodeReason, Ready, State, Wish};
use crate::plan::PlacedNode;
use crate::snapshot::Node;

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

/// The node, if it can take the job; else why the job waits. `take` says whether nobody else is to
/// have the node.
pub(crate) fn place<'a>(
    name: &NodeName,
    ledger: &Ledger<'a>,
    take: impl FnOnce(&'a Node) -> bool,
) -> Result<Placement, Waiting> {
    let Some(node) = ledger.node(name) else {
        let message = format!(
            "Waiting: the cluster has no node {name}; it runs when the node joins, or delete it and \
             create it again with another nodeName"
        );
        return Err(Waiting::warning("NodeUnknown", message));
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
        return Err(Waiting::warning("NodeNotReady", message));
    }
    if !ledger.is_vacant(name) {
        let message = format!("Waiting: node {name} is in use; it is validated when it is free");
        return Err(Waiting::new("NodeInUse", message));
    }
    if !take(node) {
        let message = format!("Waiting: node {name} is kept for somebody who waits for it");
        return Err(Waiting::new("NodeReserved", message));
    }
    Ok(Placement {
        places: vec![PlacedNode {
            node: node.name.clone(),
            zone: node.zone.clone(),
            leaf: node.leaf.clone(),
        }],
        crossing: false,
    })
}
