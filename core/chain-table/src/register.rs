//! What a service that starts is answered about each of its paths, and what its targets' chains become.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::record::{ServiceRecord, TableRecord, TableUuid, TargetRecord};
use crate::state::TableState;
use crate::step::{TableAnswer, TableRefusal, TableStep, check_name};
use crate::{MOST_CHANGED, MOST_PATHS, MOST_SERVICES};

/// What a service says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Its node, by which it is known.
    pub node: String,
    /// Its start: another number each time.
    pub life: u64,
    /// Where other services dial it.
    pub member_address: String,
    /// Where clients do.
    pub client_address: String,
    /// Where its targets are.
    pub paths: Vec<RegisteredPath>,
}

/// A path, and what is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredPath {
    /// The path.
    pub path: String,
    /// The target that is there; none if the path is empty.
    pub target: Option<TableUuid>,
    /// A new UUID for the case that the path is to be formatted. Nobody has used it.
    pub fresh: TableUuid,
}

/// What a service is to do with a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathVerdict {
    /// Serve the target that is there.
    Serve(TableUuid),
    /// Format the path as this target, and register again.
    Format(TableUuid),
    /// Leave it alone.
    Offline {
        /// The target that is there, or should be.
        target: TableUuid,
        /// Why, and what can be done.
        why: String,
    },
}

/// Targets by the path that they came with in this registration, and the changes to the table.
struct Changes<'a> {
    state: &'a TableState,
    service: u32,
    life: u64,
    /// What the registration says is somewhere.
    brought: BTreeSet<TableUuid>,
    targets: BTreeMap<TableUuid, TargetRecord>,
    served: BTreeMap<TableUuid, &'a str>,
}

pub(crate) fn step(
    state: &TableState,
    registration: &Registration,
) -> Result<TableStep, TableRefusal> {
    check(registration)?;
    let mut head = state.head().clone();
    let known = state.services().iter();
    let known = known.filter(|(_, service)| service.node == registration.node);
    let number = match known.map(|(number, _)| *number).next() {
        Some(number) => number,
        None if state.services().len() >= MOST_SERVICES => return Err(TableRefusal::Services),
        None => {
            head.last_service += 1;
            head.last_service
        }
    };
    let mut changes = Changes {
        state,
        service: number,
        life: registration.life,
        brought: registration
            .paths
            .iter()
            .filter_map(|path| path.target)
            .collect(),
        targets: BTreeMap::new(),
        served: BTreeMap::new(),
    };
    let paths = registration.paths.iter();
    let verdicts = paths.map(|path| changes.verdict(path)).collect();
    let service = ServiceRecord {
        node: registration.node.clone(),
        member_address: registration.member_address.clone(),
        client_address: registration.client_address.clone(),
    };
    let mut records = Vec::new();
    if state.services().get(&number) != Some(&service) {
        records.push(TableRecord::Service(number, service));
    }
    let is_complete = changes.write(&mut records);
    let step = TableStep {
        records,
        is_complete,
        answer: TableAnswer::Registered(number, verdicts),
    };
    Ok(step.with_head(head))
}

fn check(registration: &Registration) -> Result<(), TableRefusal> {
    check_name("name of a node", &registration.node)?;
    for address in [&registration.member_address, &registration.client_address] {
        if address.parse::<SocketAddr>().is_err() {
            return Err(TableRefusal::Address(address.clone()));
        }
    }
    let count = registration.paths.len();
    if count > MOST_PATHS {
        return Err(TableRefusal::Paths(count));
    }
    let mut seen = BTreeSet::new();
    for path in &registration.paths {
        check_name("path of a target", &path.path)?;
        if !seen.insert(&path.path) {
            return Err(TableRefusal::PathTwice(path.path.clone()));
        }
    }
    Ok(())
}

impl<'a> Changes<'a> {
    fn verdict(&mut self, path: &'a RegisteredPath) -> PathVerdict {
        match path.target {
            None => self.empty(path),
            Some(target) => match self.obstacle(target) {
                None => self.serve(target, &path.path),
                Some(why) => PathVerdict::Offline { target, why },
            },
        }
    }

    /// A path without a target: what should be there may be at another path now.
    fn empty(&mut self, path: &RegisteredPath) -> PathVerdict {
        let missing = self.state.target_at(self.service, &path.path);
        match missing.filter(|(target, _)| !self.brought.contains(target)) {
            Some((target, record)) if record.life.is_some() => PathVerdict::Offline {
                target,
                why: format!(
                    "{} is empty and was target {target}, which is never formatted: mount its disk there, and start the \
                     service again",
                    path.path
                ),
            },
            Some((target, _)) => PathVerdict::Format(target),
            None => {
                let record = TargetRecord {
                    service: self.service,
                    path: Some(path.path.clone()),
                    life: None,
                    pool: None,
                };
                self.targets.insert(path.fresh, record);
                PathVerdict::Format(path.fresh)
            }
        }
    }

    /// Why a target cannot be served.
    fn obstacle(&self, target: TableUuid) -> Option<String> {
        if !self.state.targets().contains_key(&target) {
            return Some(format!(
                "target {target} is not in this file system's chain table: it belongs to another file system, or the \
                 table was lost"
            ));
        }
        if let Some(path) = self.served.get(&target) {
            return Some(format!(
                "target {target} is at {path} too: one of them is a copy, remove it"
            ));
        }
        let chains = self.state.chains_of(target);
        let is_here = |other: TableUuid| {
            self.served.contains_key(&other) || self.state.service_of(other) == Some(self.service)
        };
        let mut others = chains.filter_map(|number| {
            let members = self.state.chains().get(&number)?.members.iter();
            let mut others = members.map(|member| member.target);
            let other = others.find(|other| *other != target && is_here(*other))?;
            Some((number, other))
        });
        // Where it was before nothing like that was refused.
        let (chain, other) = match self.state.service_of(target) {
            Some(service) if service == self.service => None,
            _ => others.next(),
        }?;
        Some(format!(
            "target {target} came to the node of target {other}, and both are in chain {chain}: move it to another node"
        ))
    }

    fn serve(&mut self, target: TableUuid, path: &'a str) -> PathVerdict {
        self.served.insert(target, path);
        if let Some((other, record)) = self.state.target_at(self.service, path)
            && other != target
        {
            let record = TargetRecord {
                path: None,
                ..record.clone()
            };
            // It may have come with another path of this registration.
            self.targets.entry(other).or_insert(record);
        }
        if let Some(record) = self.state.targets().get(&target) {
            let now = TargetRecord {
                service: self.service,
                path: Some(path.to_owned()),
                life: Some(self.life),
                ..record.clone()
            };
            self.targets.insert(target, now);
        }
        PathVerdict::Serve(target)
    }

    /// Adds what changes, as far as there is room; answers whether that is all.
    fn write(self, records: &mut Vec<TableRecord>) -> bool {
        let targets = self.targets.into_iter();
        let changed = |(target, record): &(TableUuid, TargetRecord)| {
            self.state.targets().get(target) != Some(record)
        };
        let targets = targets.filter(changed);
        records.extend(targets.map(|(target, record)| TableRecord::Target(target, record)));
        let chains = self
            .served
            .keys()
            .flat_map(|target| self.state.chains_of(*target));
        let chains: BTreeSet<u32> = chains.collect();
        for number in chains {
            let Some(mut chain) = self.state.chains().get(&number).cloned() else {
                continue;
            };
            let mut is_changed = false;
            for member in &mut chain.members {
                if self.served.contains_key(&member.target) && member.life != Some(self.life) {
                    member.life = Some(self.life);
                    is_changed = true;
                }
            }
            if !is_changed {
                continue;
            }
            // With room for the head.
            if records.len() + 2 > MOST_CHANGED {
                return false;
            }
            chain.version += 1;
            records.push(TableRecord::Chain(number, chain));
        }
        true
    }
}
