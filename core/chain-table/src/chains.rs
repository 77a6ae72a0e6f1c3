//! Chains that a pool should have, and lists of them. A chain that is there keeps its targets.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{
    ChainListRecord, ChainRecord, TableMember, TableRecord, TableUuid, TargetRecord,
};
use crate::state::TableState;
use crate::step::{TableAnswer, TableRefusal, TableStep, check_name};
use crate::{CHAIN_BITS, MOST_CHAINS, MOST_CHANGED, MOST_LISTS, MOST_MEMBERS, MOST_POOL_CHAINS};

/// A chain as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSpec {
    /// Its number.
    pub chain: u32,
    /// From head to tail.
    pub targets: Vec<TableUuid>,
}

pub(crate) fn step(
    state: &TableState,
    pool: &str,
    specs: &[ChainSpec],
) -> Result<TableStep, TableRefusal> {
    check_name("name of a pool", pool)?;
    // Refused as a whole, before anything is written.
    let mut wanted = BTreeMap::new();
    for spec in specs {
        if !is_there(state, spec)? {
            check(state, pool, spec)?;
            if *wanted.entry(spec.chain).or_insert(spec) != spec {
                return Err(TableRefusal::ChainExists { chain: spec.chain });
            }
        }
    }
    let all = state.chains().len() + wanted.len();
    if all > MOST_CHAINS {
        return Err(TableRefusal::Chains(all));
    }
    let mut listed: BTreeSet<u32> = state.chains_of_pool(pool).collect();
    listed.extend(wanted.keys());
    if listed.len() > MOST_POOL_CHAINS {
        let (pool, chains) = (pool.to_owned(), listed.len());
        return Err(TableRefusal::PoolChains { pool, chains });
    }
    if !wanted.is_empty() && state.lists().len() >= MOST_LISTS {
        return Err(TableRefusal::Lists);
    }
    let (mut records, mut targets) = (Vec::new(), BTreeMap::new());
    let mut rest = wanted.into_values().peekable();
    // With room for one more chain and its targets, the list and the head.
    while records.len() + targets.len() + MOST_MEMBERS + 3 <= MOST_CHANGED
        && let Some(spec) = rest.next()
    {
        let members = spec.targets.iter().map(|target| TableMember {
            target: *target,
            life: state.targets().get(target).and_then(|target| target.life),
        });
        let record = ChainRecord {
            version: 1,
            members: members.collect(),
        };
        records.push(TableRecord::Chain(spec.chain, record));
        for target in &spec.targets {
            let record = state.targets().get(target);
            if let Some(record) = record.filter(|record| record.pool.is_none()) {
                let pool = Some(pool.to_owned());
                let record = TargetRecord {
                    pool,
                    ..record.clone()
                };
                targets.insert(*target, record);
            }
        }
    }
    let targets = targets.into_iter();
    records.extend(targets.map(|(target, record)| TableRecord::Target(target, record)));
    let is_complete = rest.peek().is_none();
    let mut head = state.head().clone();
    let mut list = newest(state, pool).map_or(0, |(number, _)| number);
    if is_complete && let Some(record) = next_list(state, pool, listed) {
        head.last_list += 1;
        list = head.last_list;
        records.push(TableRecord::List(list, record));
    }
    let step = TableStep {
        records,
        is_complete,
        answer: TableAnswer::Created(list),
    };
    Ok(step.with_head(head))
}

fn newest<'a>(state: &'a TableState, pool: &str) -> Option<(u32, &'a ChainListRecord)> {
    let mut newest_first = state.lists().iter().rev();
    let found = newest_first.find(|(_, list)| list.pool == pool);
    found.map(|(number, list)| (*number, list))
}

/// A list of these chains, unless the pool's newest is the same.
fn next_list(state: &TableState, pool: &str, chains: BTreeSet<u32>) -> Option<ChainListRecord> {
    let is_listed = match newest(state, pool) {
        Some((_, list)) => list.chains.iter().eq(&chains),
        None => chains.is_empty(),
    };
    (!is_listed).then(|| ChainListRecord {
        pool: pool.to_owned(),
        chains: chains.into_iter().collect(),
    })
}

/// Whether the chain is there; refused if it is another.
fn is_there(state: &TableState, spec: &ChainSpec) -> Result<bool, TableRefusal> {
    let Some(chain) = state.chains().get(&spec.chain) else {
        return Ok(false);
    };
    let targets = chain.members.iter().map(|member| &member.target);
    if targets.eq(&spec.targets) {
        Ok(true)
    } else {
        Err(TableRefusal::ChainExists { chain: spec.chain })
    }
}

fn check(state: &TableState, pool: &str, spec: &ChainSpec) -> Result<(), TableRefusal> {
    let chain = spec.chain;
    if chain >> CHAIN_BITS != 0 {
        return Err(TableRefusal::ChainNumber(chain));
    }
    let members = spec.targets.len();
    if !(1..=MOST_MEMBERS).contains(&members) {
        return Err(TableRefusal::Members { chain, members });
    }
    let mut seen = BTreeSet::new();
    let mut services = BTreeMap::new();
    for &target in &spec.targets {
        if !seen.insert(target) {
            return Err(TableRefusal::MemberTwice { chain, target });
        }
        let Some(record) = state.targets().get(&target) else {
            return Err(TableRefusal::UnknownTarget { chain, target });
        };
        if let Some(other) = record.pool.as_ref().filter(|other| *other != pool) {
            let (asked, pool) = (pool.to_owned(), other.clone());
            return Err(TableRefusal::OtherPool {
                chain,
                asked,
                target,
                pool,
            });
        }
        let service = record.service;
        if let Some(one) = services.insert(service, target) {
            return Err(TableRefusal::SameService {
                chain,
                one,
                other: target,
                service,
            });
        }
    }
    Ok(())
}
