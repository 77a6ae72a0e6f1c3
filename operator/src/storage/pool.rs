//! The targets of a pool: which it asks for, where they are in the table, and what keeps them from
//! having chains.

use std::collections::{BTreeMap, BTreeSet};

use chain_placement::PoolTarget;
use crds::StoragePool;
use crds::storage_pool::{StorageTarget, StorageTargetState};

use super::table::{ChainTable, TableTarget, TargetUuid};
use crate::training_job::translate::MirroredNode;

/// A target that a pool asks for.
#[derive(Debug)]
pub(super) struct WantedTarget {
    pub(super) place: StorageTarget,
    /// None while no service has brought it.
    pub(super) target: Option<TargetUuid>,
    pub(super) state: StorageTargetState,
    /// Why it can have no chain, or does not serve.
    pub(super) message: Option<String>,
    /// What keeps it from having chains.
    pub(super) obstacle: Option<Obstacle>,
    /// What it is lost with.
    domain: Option<String>,
}

/// What keeps a target from having chains; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Obstacle {
    /// It belongs to another pool.
    OtherPool,
    /// Its node does not say what it is lost with.
    NoDomain,
    /// No service has brought it, or it is not formatted.
    Missing,
}

impl Obstacle {
    /// The word of the status.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::OtherPool => "TargetOfAnotherPool",
            Self::NoDomain => "NoFailureDomain",
            Self::Missing => "TargetsMissing",
        }
    }
}

/// The targets of a pool, in the order of node and path. `taken` names the pool that each target
/// already belongs to by its claims; older pools come first.
pub(super) fn wanted(
    pool: &StoragePool,
    nodes: &BTreeMap<String, MirroredNode>,
    table: &ChainTable,
    taken: &mut BTreeMap<TargetUuid, String>,
) -> Vec<WantedTarget> {
    let name = pool.metadata.name.as_deref().unwrap_or_default();
    let label = &pool.spec.failure_domain;
    let of = |place: StorageTarget| {
        let node = nodes.get(&place.node_name);
        let domain = node.and_then(|node| node.label(label)).map(str::to_owned);
        let found = table.at(&place.node_name, &place.path);
        let owner = found.and_then(|(uuid, target)| {
            let owner = target.pool.clone();
            let owner =
                owner.unwrap_or_else(|| taken.entry(uuid).or_insert(name.to_owned()).clone());
            Some(owner).filter(|owner| owner != name)
        });
        let obstacle = match (&found, &owner, &domain) {
            (_, Some(_), _) => Some(Obstacle::OtherPool),
            (_, _, None) if node.is_some() => Some(Obstacle::NoDomain),
            (Some((_, target)), _, Some(_)) if target.is_formatted => None,
            (Some(_) | None, None, Some(_) | None) => Some(Obstacle::Missing),
        };
        let message = match (obstacle, &owner, found) {
            (Some(Obstacle::OtherPool), Some(owner), _) => Some(format!(
                "it belongs to the pool {owner}: take it out of one of the two"
            )),
            (Some(Obstacle::NoDomain), ..) => Some(format!(
                "its node has no label {label}, which says what it is lost with: label the node"
            )),
            _ if node.is_none() => Some("there is no such node".to_owned()),
            (_, _, Some((_, target))) => target.offline.clone(),
            (_, _, None) => Some(
                "no storage service has brought it: see that one runs on the node and is given this path".to_owned(),
            ),
        };
        WantedTarget {
            place,
            target: found.map(|(uuid, _)| uuid),
            state: state(found.map(|(_, target)| target)),
            message,
            obstacle,
            domain,
        }
    };
    places(pool, nodes).into_iter().map(of).collect()
}

/// Whether a target serves.
pub(super) fn state(target: Option<&TableTarget>) -> StorageTargetState {
    match target {
        None => StorageTargetState::Missing,
        Some(target) if target.offline.is_some() => StorageTargetState::Offline,
        Some(_) => StorageTargetState::Online,
    }
}

/// The targets as `chain-placement` takes them.
pub(super) fn placeable(wanted: &[WantedTarget]) -> Vec<PoolTarget<TargetUuid>> {
    let placeable = wanted.iter().filter_map(|wanted| {
        Some(PoolTarget {
            target: wanted.target?,
            domain: wanted.domain.clone()?,
        })
    });
    placeable.collect()
}

fn places(pool: &StoragePool, nodes: &BTreeMap<String, MirroredNode>) -> BTreeSet<StorageTarget> {
    let spec = &pool.spec;
    if let Some(targets) = &spec.targets {
        return targets.iter().cloned().collect();
    }
    let is_selected = |node: &&MirroredNode| {
        let mut labels = spec.node_selector.iter();
        labels.all(|(key, value)| node.label(key) == Some(value))
    };
    let selected: Vec<_> = nodes.values().filter(is_selected).collect();
    let paths = spec.paths.iter().flatten();
    let of_path = |path: &String| {
        let of = |node: &&MirroredNode| StorageTarget {
            node_name: node.name.as_str().to_owned(),
            path: path.clone(),
        };
        selected.iter().map(of).collect::<Vec<_>>()
    };
    paths.flat_map(of_path).collect()
}
