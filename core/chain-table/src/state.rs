//! The whole table in memory: as its records have it, with an index.

use std::collections::{BTreeMap, BTreeSet};

use crate::record::{
    ChainListRecord, ChainRecord, DamagedRecord, ServiceRecord, SessionRecord, TableHead,
    TableRecord, TableUuid, TargetRecord,
};

/// All records of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableState {
    head: TableHead,
    services: BTreeMap<u32, ServiceRecord>,
    targets: BTreeMap<TableUuid, TargetRecord>,
    chains: BTreeMap<u32, ChainRecord>,
    lists: BTreeMap<u32, ChainListRecord>,
    sessions: BTreeMap<u64, SessionRecord>,
    /// Chains that a target is a member of.
    chains_of: BTreeMap<TableUuid, BTreeSet<u32>>,
}

impl TableState {
    /// What a store holds: keys and values, in any order.
    pub fn load<'a>(
        pairs: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<Self, DamagedRecord> {
        let mut state = Self::default();
        for (key, value) in pairs {
            state.apply(TableRecord::parse(key, value)?);
        }
        Ok(state)
    }

    /// Takes a record over.
    pub fn apply(&mut self, record: TableRecord) {
        match record {
            TableRecord::Head(head) => self.head = head,
            TableRecord::Service(number, service) => {
                self.services.insert(number, service);
            }
            TableRecord::Target(target, record) => {
                self.targets.insert(target, record);
            }
            TableRecord::Chain(number, chain) => {
                for member in &chain.members {
                    self.chains_of
                        .entry(member.target)
                        .or_default()
                        .insert(number);
                }
                self.chains.insert(number, chain);
            }
            TableRecord::List(number, list) => {
                self.lists.insert(number, list);
            }
            TableRecord::Session(number, Some(session)) => {
                self.sessions.insert(number, session);
            }
            TableRecord::Session(number, None) => {
                self.sessions.remove(&number);
            }
        }
    }

    /// What all changes write.
    #[must_use]
    pub fn head(&self) -> &TableHead {
        &self.head
    }

    /// All services by number.
    #[must_use]
    pub fn services(&self) -> &BTreeMap<u32, ServiceRecord> {
        &self.services
    }

    /// All targets.
    #[must_use]
    pub fn targets(&self) -> &BTreeMap<TableUuid, TargetRecord> {
        &self.targets
    }

    /// All chains by number, those that wait for members too.
    #[must_use]
    pub fn chains(&self) -> &BTreeMap<u32, ChainRecord> {
        &self.chains
    }

    /// All lists of chains by number.
    #[must_use]
    pub fn lists(&self) -> &BTreeMap<u32, ChainListRecord> {
        &self.lists
    }

    /// All open sessions by number.
    #[must_use]
    pub fn sessions(&self) -> &BTreeMap<u64, SessionRecord> {
        &self.sessions
    }

    /// Chains that a target is a member of.
    pub fn chains_of(&self, target: TableUuid) -> impl Iterator<Item = u32> {
        self.chains_of.get(&target).into_iter().flatten().copied()
    }

    /// The service that has a member of this chain, if there is one.
    #[must_use]
    pub fn service_of(&self, target: TableUuid) -> Option<u32> {
        self.targets.get(&target).map(|target| target.service)
    }

    /// Chains of a pool, ascending.
    pub(crate) fn chains_of_pool(&self, pool: &str) -> impl Iterator<Item = u32> {
        let is_of = move |chain: &ChainRecord| {
            let mut targets = chain
                .members
                .iter()
                .filter_map(|member| self.targets.get(&member.target));
            targets.any(|target| target.pool.as_deref() == Some(pool))
        };
        let chains = self.chains.iter().filter(move |(_, chain)| is_of(chain));
        chains.map(|(number, _)| *number)
    }

    /// The target that is, or should be, at a path of a service.
    pub(crate) fn target_at(&self, service: u32, path: &str) -> Option<(TableUuid, &TargetRecord)> {
        let here = |target: &TargetRecord| {
            target.service == service && target.path.as_deref() == Some(path)
        };
        let mut found = self.targets.iter().filter(|(_, target)| here(target));
        found.next().map(|(uuid, target)| (*uuid, target))
    }
}
