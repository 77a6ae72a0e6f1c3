//! What pools and chains show: where replicas lie, and what is wrong.

use crds::storage_chain::{ChainMemberStatus, ChainPhase, StorageChainStatus};
use crds::storage_pool::{StoragePoolStatus, StorageTargetState, StorageTargetStatus};
use crds::{StorageChain, StoragePool};

use super::TARGET_TEXT_BYTES;
use super::plan::Placement;
use super::pool::{self, WantedTarget};
use super::table::{ChainTable, TableChain, TargetUuid};
use crate::condition::{condition, cut};

/// Targets that a pool's status lists.
const LISTED: usize = 256;
/// Targets that a message names.
const NAMED: usize = 8;
/// Reason of a pool with which nothing is wrong.
const READY: &str = "Ready";

/// What a pool shows.
pub(super) fn of_pool(
    pool: &StoragePool,
    wanted: &[WantedTarget],
    chains: &[&TableChain],
    placement: &Placement,
    refusal: Option<&str>,
    table: &ChainTable,
) -> StoragePoolStatus {
    let serving = chains
        .iter()
        .filter(|chain| phase(chain, table) == ChainPhase::Serving);
    let (serving, offline) = (
        serving.count(),
        wanted.iter().filter(|target| !is_online(target)),
    );
    let (reason, message) = reason(wanted, chains, serving, placement, refusal);
    let message = cut(&message);
    let known = wanted
        .iter()
        .filter_map(|target| table.targets.get(&target.target?));
    let (used, capacity) = known.fold((0, 0), |(used, capacity), target| {
        (used + target.used_bytes, capacity + target.capacity_bytes)
    });
    let mut targets: Vec<_> = wanted.iter().collect();
    targets.sort_by_key(|target| (target.state, &target.place));
    let listed = targets.into_iter().take(LISTED);
    let before = pool
        .status
        .as_ref()
        .map_or(&[][..], |status| &status.conditions);
    StoragePoolStatus {
        conditions: vec![condition(
            before,
            READY,
            reason == READY,
            reason,
            message.clone(),
        )],
        reason: Some(reason.to_owned()),
        message: Some(message),
        target_count: count(wanted.len()),
        offline_count: count(offline.count()),
        chain_count: count(chains.len()),
        serving_count: count(serving),
        used: Some(quantity(used)),
        capacity: Some(quantity(capacity)),
        targets: listed
            .map(|target| of_target(target, chains, table))
            .collect(),
        observed_generation: pool.metadata.generation,
    }
}

/// The first thing that is wrong with a pool, and what to do.
fn reason(
    wanted: &[WantedTarget],
    chains: &[&TableChain],
    serving: usize,
    placement: &Placement,
    refusal: Option<&str>,
) -> (&'static str, String) {
    if wanted.is_empty() {
        let text = "no node with a label of nodeSelector has the pool's paths: label nodes, or change the selector";
        return ("NoTargets", text.to_owned());
    }
    if let Some(obstacle) = wanted.iter().filter_map(|target| target.obstacle).min() {
        let kept = wanted
            .iter()
            .filter(|target| target.obstacle == Some(obstacle));
        let text = format!(
            "{}. Until then the pool gets no new chains",
            named(kept, wanted.len())
        );
        return (obstacle.reason(), text);
    }
    if let Placement::Impossible(error) = placement {
        return ("TooFewDomains", error.to_string());
    }
    if let Some(refusal) = refusal {
        return (
            "ManagerRefused",
            format!("the chain manager does not take the chains: {refusal}"),
        );
    }
    if let Placement::Missing(missing @ 1..) = placement {
        return (
            "CreatingChains",
            format!("{missing} chains are being created"),
        );
    }
    let waiting = chains.iter().filter(|chain| chain.is_waiting).count();
    if waiting > 0 {
        let text = format!("{waiting} chains wait until each of their targets has come once");
        return ("ChainsWaiting", text);
    }
    if wanted.iter().any(|target| !is_online(target)) {
        let offline = wanted.iter().filter(|target| !is_online(target));
        let stalled = chains.len() - serving;
        let text = format!(
            "{}. Writes to {stalled} chains wait for them",
            named(offline, wanted.len())
        );
        return ("TargetsOffline", text);
    }
    if serving < chains.len() {
        let text = format!(
            "{} chains have targets that are no more in the pool and do not serve: see kubectl get storagechains",
            chains.len() - serving
        );
        return ("ChainsStalled", text);
    }
    (
        READY,
        format!("{} chains of {} targets serve", chains.len(), wanted.len()),
    )
}

/// Some targets with what is wrong with each.
fn named<'a>(targets: impl Iterator<Item = &'a WantedTarget> + Clone, all: usize) -> String {
    let some = targets.clone().take(NAMED).map(|target| {
        let why = target.message.as_deref().unwrap_or("it does not serve");
        format!("{} of {}: {why}", target.place.path, target.place.node_name)
    });
    let some = some.collect::<Vec<_>>().join("; ");
    format!("{} of {all} targets: {some}", targets.count())
}

fn of_target(
    wanted: &WantedTarget,
    chains: &[&TableChain],
    table: &ChainTable,
) -> StorageTargetStatus {
    let uuid = wanted.target;
    let known = uuid.and_then(|uuid| table.targets.get(&uuid));
    let of = |uuid: &TargetUuid| {
        chains
            .iter()
            .filter(|chain| chain.members.contains(uuid))
            .count()
    };
    let text = |text: &String| text[..text.floor_char_boundary(TARGET_TEXT_BYTES)].to_owned();
    StorageTargetStatus {
        node_name: wanted.place.node_name.clone(),
        path: wanted.place.path.clone(),
        target: uuid.map(|uuid| format!("{uuid:032x}")),
        state: wanted.state,
        message: wanted.message.as_ref().map(text),
        chains: count(uuid.as_ref().map_or(0, of)),
        used: known.map(|target| quantity(target.used_bytes)),
        capacity: known.map(|target| quantity(target.capacity_bytes)),
    }
}

/// What a chain shows, which is in the table as the object says or not.
pub(super) fn of_chain(
    object: &StorageChain,
    chain: Option<&TableChain>,
    table: &ChainTable,
) -> StorageChainStatus {
    let observed_generation = object.metadata.generation;
    let Some(chain) = chain else {
        let text = "the chain table has no such chain, and it decides: delete this object. Chains come from a StoragePool";
        return StorageChainStatus {
            message: Some(text.to_owned()),
            observed_generation,
            ..StorageChainStatus::default()
        };
    };
    let members = chain.members.iter().map(|uuid| {
        let target = table.targets.get(uuid);
        ChainMemberStatus {
            target: format!("{uuid:032x}"),
            node_name: target.map(|target| target.node.clone()),
            path: target.and_then(|target| target.path.clone()),
            state: pool::state(target),
        }
    });
    let members: Vec<_> = members.collect();
    let replica = |member: &ChainMemberStatus| {
        let node = member.node_name.as_deref().unwrap_or("?");
        match member.state {
            StorageTargetState::Online => node.to_owned(),
            state @ (StorageTargetState::Missing | StorageTargetState::Offline) => {
                format!("{node} ({state:?})")
            }
        }
    };
    let replicas: Vec<_> = members.iter().map(replica).collect();
    let wrong = chain.members.iter().filter_map(|uuid| {
        let target = table.targets.get(uuid)?;
        let place = target
            .path
            .as_deref()
            .unwrap_or("a path that holds another target now");
        Some(format!(
            "{place} of {}: {}",
            target.node,
            target.offline.as_deref()?
        ))
    });
    let wrong: Vec<_> = wrong.collect();
    StorageChainStatus {
        phase: phase(chain, table),
        message: Some(cut(&wrong.join("; "))).filter(|text| !text.is_empty()),
        replicas: Some(replicas.join(", ")),
        version: i64::try_from(chain.version).ok(),
        members,
        observed_generation,
    }
}

fn phase(chain: &TableChain, table: &ChainTable) -> ChainPhase {
    let is_online =
        |uuid: &TargetUuid| pool::state(table.targets.get(uuid)) == StorageTargetState::Online;
    if chain.is_waiting {
        ChainPhase::Waiting
    } else if chain.members.iter().all(is_online) {
        ChainPhase::Serving
    } else {
        ChainPhase::Stalled
    }
}

fn is_online(target: &WantedTarget) -> bool {
    target.state == StorageTargetState::Online
}

fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Bytes with two to five digits, rounded down: a status that showed each byte would be written all
/// the time.
fn quantity(bytes: u64) -> String {
    let units = ["", "Ki", "Mi", "Gi", "Ti"];
    let (mut value, mut units) = (bytes, units.into_iter());
    let mut unit = units.next();
    while value >= 10 * 1024
        && let Some(next) = units.next()
    {
        (value, unit) = (value / 1024, Some(next));
    }
    format!("{value}{}", unit.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::quantity;

    #[test]
    fn bytes_are_shown_by_a_unit_that_changes_seldom() {
        let shown: Vec<_> = [0, 10_239, 10_240, 3 << 40, 1 << 62].map(quantity).into();
        assert_eq!(shown, ["0", "10239", "10Ki", "3072Gi", "4194304Ti"]);
    }
}
