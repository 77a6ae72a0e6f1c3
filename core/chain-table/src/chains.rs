//! Chains that a pool should have. A chain that is there keeps its targets.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{ChainRecord, TableMember, TableRecord, TableUuid, TargetRecord};
use crate::state::TableState;
use crate::step::{TableAnswer, TableRefusal, TableStep, check_name};
use crate::{CHAIN_BITS, MOST_CHAINS, MOST_CHANGED, MOST_MEMBERS};

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
    let (mut chains, mut targets) = (Vec::new(), BTreeMap::new());
    let mut rest = wanted.into_values();
    // With room for the head, and for one more chain and its targets.
    while chains.len() + targets.len() + MOST_MEMBERS + 2 <= MOST_CHANGED
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
        chains.push(TableRecord::Chain(spec.chain, record));
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
    chains.extend(targets.map(|(target, record)| TableRecord::Target(target, record)));
    let step = TableStep {
        records: chains,
        is_complete: rest.next().is_none(),
        answer: TableAnswer::Done,
    };
    Ok(step.with_head(state.head().clone()))
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
