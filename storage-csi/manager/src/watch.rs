//! What a watcher is sent: of each table, what differs from the one before, as far as it matters to the watcher.

use std::collections::{BTreeMap, BTreeSet};

use chain_table::{ChainRecord, TableState};
use storage_rpc::pb::manager::{
    OpenSessions, WatchResponse, WatchedChain, WatchedList, WatchedMember, WatchedService,
};

/// Chains of one message: 512 chains of 8 members are 200 KiB.
const MOST_IN_MESSAGE: usize = 512;
/// Lists of one message: 64 lists of 4,096 chains are 600 KiB.
const MOST_LISTS_IN_MESSAGE: usize = 64;

/// What a watcher was sent.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    /// Chains of this service only; 0 for all.
    service: u32,
    services: BTreeMap<u32, WatchedService>,
    chains: BTreeMap<u32, WatchedChain>,
    /// The last list.
    list: u32,
    /// None before the first message.
    sessions: Option<Vec<u64>>,
}

impl Watcher {
    pub(crate) fn new(service: u32) -> Self {
        Self {
            service,
            ..Self::default()
        }
    }

    /// The messages that bring the watcher to this table; none if nothing matters to it.
    pub(crate) fn next(&mut self, state: &TableState) -> Vec<WatchResponse> {
        let chains = self.changed_chains(state);
        let services = self.changed_services(state);
        let lists = self.new_lists(state);
        let sessions: Vec<u64> = state.sessions().keys().copied().collect();
        let sessions = (self.sessions.as_ref() != Some(&sessions)).then_some(sessions);
        let is_known = chains.is_empty() && services.is_empty() && lists.is_empty();
        if is_known && sessions.is_none() {
            return Vec::new();
        }
        let mut messages: Vec<_> = chains
            .chunks(MOST_IN_MESSAGE)
            .map(|chains| WatchResponse {
                chains: chains.to_vec(),
                ..WatchResponse::default()
            })
            .collect();
        self.list = lists.last().map_or(self.list, |list| list.list);
        messages.extend(
            lists
                .chunks(MOST_LISTS_IN_MESSAGE)
                .map(|lists| WatchResponse {
                    lists: lists.to_vec(),
                    ..WatchResponse::default()
                }),
        );
        let rest = WatchResponse {
            is_complete: true,
            services: services.clone(),
            sessions: sessions.clone().map(|sessions| OpenSessions { sessions }),
            ..WatchResponse::default()
        };
        messages.push(rest);
        for message in &mut messages {
            message.revision = state.head().revision;
        }
        self.chains
            .extend(chains.into_iter().map(|chain| (chain.chain, chain)));
        let services = services.into_iter();
        self.services
            .extend(services.map(|service| (service.service, service)));
        if sessions.is_some() {
            self.sessions = sessions;
        }
        messages
    }

    fn new_lists(&self, state: &TableState) -> Vec<WatchedList> {
        if self.service != 0 {
            return Vec::new();
        }
        let lists = state.lists().range(self.list + 1..);
        let lists = lists.map(|(list, record)| WatchedList {
            list: *list,
            chains: record.chains.clone(),
        });
        lists.collect()
    }

    fn changed_chains(&self, state: &TableState) -> Vec<WatchedChain> {
        let complete = state
            .chains()
            .iter()
            .filter(|(_, chain)| chain.is_complete());
        let chains = complete.map(|(number, chain)| watched_chain(state, *number, chain));
        let changed = chains.filter(|chain| {
            let known = self.chains.get(&chain.chain);
            known != Some(chain) && (known.is_some() || self.matters(chain))
        });
        changed.collect()
    }

    fn matters(&self, chain: &WatchedChain) -> bool {
        let mut members = chain.members.iter();
        self.service == 0 || members.any(|member| member.service == self.service)
    }

    /// Those of all chains that the watcher knows or is about to, and itself.
    fn changed_services(&self, state: &TableState) -> Vec<WatchedService> {
        let of_members: BTreeSet<u32> = match self.service {
            0 => state.services().keys().copied().collect(),
            service => {
                let chains = state.chains().values().filter(|chain| chain.is_complete());
                let numbers = chains.map(|chain| {
                    let services = chain
                        .members
                        .iter()
                        .filter_map(|member| state.service_of(member.target));
                    services.collect::<BTreeSet<u32>>()
                });
                let mine = numbers.filter(|services| services.contains(&service));
                mine.flatten()
                    .chain([service])
                    .chain(self.services.keys().copied())
                    .collect()
            }
        };
        let services = state.services().iter();
        let services = services.filter(|(number, _)| of_members.contains(number));
        let services = services.map(|(number, service)| WatchedService {
            service: *number,
            member_address: service.member_address.clone(),
            client_address: service.client_address.clone(),
        });
        let is_new =
            |service: &WatchedService| self.services.get(&service.service) != Some(service);
        services.filter(is_new).collect()
    }
}

/// A chain with the services of its members. The life of a member that has not come is 0.
pub(crate) fn watched_chain(state: &TableState, number: u32, chain: &ChainRecord) -> WatchedChain {
    let members = chain.members.iter().map(|member| WatchedMember {
        target: member.target.0.to_be_bytes().to_vec(),
        life: member.life.unwrap_or_default(),
        service: state.service_of(member.target).unwrap_or_default(),
    });
    WatchedChain {
        chain: number,
        version: chain.version,
        members: members.collect(),
    }
}
