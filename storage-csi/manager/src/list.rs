//! Everything there is, for people and for status; and what services report of their targets, which is kept here only.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use chain_table::{TableState, TableUuid};
use storage_rpc::pb::manager::{
    ListResponse, ListedChain, ListedChains, ListedService, ListedSession, ListedTarget,
    TargetReport,
};

use crate::watch::watched_chain;

/// Bytes of a reason that are kept.
const MOST_REASON_BYTES: usize = 1 << 10;

/// The last report of each target.
#[derive(Debug, Default)]
pub(crate) struct Reports(Mutex<BTreeMap<TableUuid, (Instant, TargetReport)>>);

impl Reports {
    /// Keeps a report of a target of the table, which bounds how many there are.
    pub(crate) fn take(&self, target: TableUuid, mut report: TargetReport) {
        let end = report.offline.floor_char_boundary(MOST_REASON_BYTES);
        report.offline.truncate(end);
        self.reports().insert(target, (Instant::now(), report));
    }

    // One insertion at a time: whole after every step.
    fn reports(&self) -> MutexGuard<'_, BTreeMap<TableUuid, (Instant, TargetReport)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn list(state: &TableState, reports: &Reports) -> ListResponse {
    let reports = reports.reports();
    let services = state
        .services()
        .iter()
        .map(|(number, service)| ListedService {
            service: *number,
            node: service.node.clone(),
            member_address: service.member_address.clone(),
            client_address: service.client_address.clone(),
        });
    let targets = state.targets().iter().map(|(target, record)| {
        let report = reports.get(target);
        let age = report.map(|(taken, _)| taken.elapsed().as_millis());
        ListedTarget {
            target: target.0.to_be_bytes().to_vec(),
            service: record.service,
            path: record.path.clone().unwrap_or_default(),
            is_formatted: record.life.is_some(),
            pool: record.pool.clone().unwrap_or_default(),
            report: report.map(|(_, report)| report.clone()),
            report_age_ms: age.unwrap_or_default() as u64,
        }
    });
    let chains = state.chains().iter().map(|(number, chain)| {
        let watched = watched_chain(state, *number, chain);
        ListedChain {
            chain: *number,
            version: chain.version,
            members: watched.members,
            is_waiting: !chain.is_complete(),
        }
    });
    let sessions = state
        .sessions()
        .iter()
        .map(|(session, record)| ListedSession {
            session: *session,
            client: record.client.clone(),
        });
    let lists = state.lists().iter().map(|(list, record)| ListedChains {
        list: *list,
        pool: record.pool.clone(),
        chains: record.chains.clone(),
    });
    ListResponse {
        revision: state.head().revision,
        services: services.collect(),
        targets: targets.collect(),
        chains: chains.collect(),
        sessions: sessions.collect(),
        lists: lists.collect(),
    }
}
