//! What is to be done now, from the objects, the nodes and the chain table: chains that the manager
//! is to take into its table, objects that chains lack, and what every object is to show.

use std::collections::{BTreeMap, BTreeSet};

use chain_placement::{PlacementError, PoolShape, missing_chains};
use chain_table::MOST_POOL_CHAINS;
use crds::storage_chain::StorageChainStatus;
use crds::storage_pool::StoragePoolStatus;
use crds::{StorageChain, StorageChainSpec, StoragePool};

use super::pool::{self, WantedTarget};
use super::status;
use super::table::{ChainTable, TableChain, TargetUuid};
use crate::training_job::translate::MirroredNode;

/// Chains have numbers below this.
const NUMBERS: u32 = 1 << 24;

/// What is to be done now.
#[derive(Debug, Default)]
pub(super) struct StoragePlan {
    /// Chains that the table lacks, by pool.
    pub(super) create: BTreeMap<String, Vec<NewChain>>,
    /// Chains of the table that have no object.
    pub(super) objects: Vec<StorageChainSpec>,
    /// What pools are to show, by name.
    pub(super) pools: BTreeMap<String, StoragePoolStatus>,
    /// What chains are to show, by name.
    pub(super) chains: BTreeMap<String, StorageChainStatus>,
}

/// A chain for the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NewChain {
    pub(super) chain: u32,
    /// From head to tail.
    pub(super) targets: Vec<TargetUuid>,
}

/// What became of a pool's placement.
#[derive(Debug)]
pub(super) enum Placement {
    /// A target has an obstacle; until it is gone no chain is made, since those that come later
    /// would find no others.
    Held,
    /// The targets cannot have a chain.
    Impossible(PlacementError),
    /// So many chains are missing.
    Missing(usize),
}

/// What is known at one moment.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) pools: Vec<StoragePool>,
    pub(super) chains: Vec<StorageChain>,
    pub(super) nodes: BTreeMap<String, MirroredNode>,
    pub(super) table: ChainTable,
    /// Why the manager did not take the chains of a pool the last time.
    pub(super) refused: BTreeMap<String, String>,
}

/// Plans.
pub(super) fn plan(observed: &Observed) -> StoragePlan {
    let Observed { nodes, table, .. } = observed;
    let mut plan = StoragePlan::default();
    let mut by_pool: BTreeMap<&str, Vec<&TableChain>> = BTreeMap::new();
    for chain in table.chains.values() {
        if let Some(pool) = table.pool_of(chain) {
            by_pool.entry(pool).or_default().push(chain);
        }
    }
    let last = table.chains.last_key_value();
    let mut numbers = last.map_or(1, |(number, _)| number + 1)..NUMBERS;
    let mut taken = BTreeMap::new();
    for pool in by_age(&observed.pools) {
        let name = name(pool);
        let existing = by_pool.get(name).map_or(&[][..], Vec::as_slice);
        let wanted = pool::wanted(pool, nodes, table, &mut taken);
        let placement = match place(pool, &wanted, existing) {
            Err(placement) => placement,
            Ok(chains) => {
                let missing = chains.len();
                let named = numbers.by_ref().zip(chains);
                let chains: Vec<_> = named
                    .map(|(chain, targets)| NewChain { chain, targets })
                    .collect();
                if !chains.is_empty() {
                    plan.create.insert(name.to_owned(), chains);
                }
                Placement::Missing(missing)
            }
        };
        let refusal = observed.refused.get(name).map(String::as_str);
        let shown = status::of_pool(pool, &wanted, existing, &placement, refusal, table);
        plan.pools.insert(name.to_owned(), shown);
    }
    objects(&observed.chains, table, &mut plan);
    plan
}

/// The chains that a pool lacks.
fn place(
    pool: &StoragePool,
    wanted: &[WantedTarget],
    existing: &[&TableChain],
) -> Result<Vec<Vec<TargetUuid>>, Placement> {
    if wanted.iter().any(|target| target.obstacle.is_some()) {
        return Err(Placement::Held);
    }
    let replicas = pool.spec.replicas as usize;
    // As many for each target as the table takes of a pool.
    let most = MOST_POOL_CHAINS * replicas / wanted.len().max(1);
    let shape = PoolShape {
        replicas,
        chains_per_target: most.clamp(1, pool.spec.chains_per_target as usize),
    };
    let existing: Vec<_> = existing.iter().map(|chain| chain.members.clone()).collect();
    missing_chains(&pool::placeable(wanted), shape, &existing).map_err(Placement::Impossible)
}

/// Objects of chains: those that lack, and what those that are there show.
fn objects(objects: &[StorageChain], table: &ChainTable, plan: &mut StoragePlan) {
    let mut shown = BTreeSet::new();
    for object in objects {
        let name = object.metadata.name.clone().unwrap_or_default();
        let spec = &object.spec;
        let chain = table.chains.get(&spec.chain);
        let wanted = chain.and_then(|chain| spec_of(spec.chain, chain, table));
        let is_of_table = wanted.as_ref() == Some(spec) && name == object_name(spec);
        if is_of_table {
            shown.insert(spec.chain);
        }
        let status = status::of_chain(object, chain.filter(|_| is_of_table), table);
        plan.chains.insert(name, status);
    }
    let lacking = table
        .chains
        .iter()
        .filter(|(number, _)| !shown.contains(number));
    let specs = lacking.filter_map(|(number, chain)| spec_of(*number, chain, table));
    plan.objects = specs
        .filter(|spec| !plan.chains.contains_key(&object_name(spec)))
        .collect();
}

/// The object's name of a chain.
pub(super) fn object_name(spec: &StorageChainSpec) -> String {
    format!("{}-{}", spec.pool, spec.chain)
}

fn spec_of(number: u32, chain: &TableChain, table: &ChainTable) -> Option<StorageChainSpec> {
    let targets = chain.members.iter().map(|target| format!("{target:032x}"));
    Some(StorageChainSpec {
        pool: table.pool_of(chain)?.to_owned(),
        chain: number,
        targets: targets.collect(),
    })
}

/// The oldest first: of two pools that name a target it belongs to the older.
fn by_age(pools: &[StoragePool]) -> Vec<&StoragePool> {
    let mut pools: Vec<_> = pools.iter().collect();
    pools.sort_by_key(|pool| {
        let created = pool.metadata.creation_timestamp.as_ref();
        (created.map(|time| time.0), name(pool).to_owned())
    });
    pools
}

fn name(pool: &StoragePool) -> &str {
    pool.metadata.name.as_deref().unwrap_or_default()
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
