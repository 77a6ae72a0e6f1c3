//! The chain table as the manager lists it, and which targets serve. A manager that has just
//! started has no reports yet: a target is offline only when nothing was reported for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use storage_rpc::pb::manager::{self as pb, ListResponse};

use super::TARGET_TEXT_BYTES;

/// A report that is older says nothing of the present.
const FRESH: Duration = Duration::from_secs(10);
/// Without a report for so long a target is offline. Services report every few seconds.
const SILENCE: Duration = Duration::from_secs(30);

/// A target's UUID.
pub(super) type TargetUuid = u128;

/// What the manager answered, with what was reported before.
#[derive(Debug, Default)]
pub(super) struct ChainTable {
    pub(super) targets: BTreeMap<TargetUuid, TableTarget>,
    pub(super) chains: BTreeMap<u32, TableChain>,
    /// Targets by node and path.
    places: BTreeMap<(String, String), TargetUuid>,
}

/// A target that a service has brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TableTarget {
    pub(super) node: String,
    /// None when another target is where it was.
    pub(super) path: Option<String>,
    pub(super) is_formatted: bool,
    /// None before its first chain.
    pub(super) pool: Option<String>,
    pub(super) capacity_bytes: u64,
    pub(super) used_bytes: u64,
    /// Why it does not serve.
    pub(super) offline: Option<String>,
}

/// A chain of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TableChain {
    pub(super) version: u64,
    /// From head to tail.
    pub(super) members: Vec<TargetUuid>,
    pub(super) is_waiting: bool,
}

/// The last reports, by our own clock.
#[derive(Debug, Default)]
pub(super) struct LastReports(BTreeMap<TargetUuid, LastReport>);

#[derive(Clone, Debug)]
struct LastReport {
    at: Instant,
    offline: Option<String>,
    capacity_bytes: u64,
    used_bytes: u64,
}

/// An answer that cannot be understood.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to read the chain table: a target's UUID has {0} bytes, not 16; is the manager of another release?"
)]
pub(super) struct DamagedTable(usize);

impl ChainTable {
    pub(super) fn new(
        list: ListResponse,
        reports: &mut LastReports,
        now: Instant,
    ) -> Result<Self, DamagedTable> {
        let services = list.services.into_iter();
        let nodes: BTreeMap<_, _> = services
            .map(|service| (service.service, service.node))
            .collect();
        let mut table = Self::default();
        for target in list.targets {
            let uuid = uuid(&target.target)?;
            let last = reports.note(uuid, &target, now);
            let offline = if !target.is_formatted {
                Some("its path is not formatted yet".to_owned())
            } else if now.saturating_duration_since(last.at) >= SILENCE {
                Some(format!(
                    "its storage service has reported nothing for {} s",
                    SILENCE.as_secs()
                ))
            } else {
                last.offline
            };
            let listed = TableTarget {
                node: nodes.get(&target.service).cloned().unwrap_or_default(),
                path: Some(target.path).filter(|path| !path.is_empty()),
                is_formatted: target.is_formatted,
                pool: Some(target.pool).filter(|pool| !pool.is_empty()),
                capacity_bytes: last.capacity_bytes,
                used_bytes: last.used_bytes,
                offline,
            };
            if let Some(path) = &listed.path {
                let place = (listed.node.clone(), path.clone());
                table.places.insert(place, uuid);
            }
            table.targets.insert(uuid, listed);
        }
        for chain in list.chains {
            let members = chain.members.iter().map(|member| uuid(&member.target));
            let listed = TableChain {
                version: chain.version,
                members: members.collect::<Result<_, _>>()?,
                is_waiting: chain.is_waiting,
            };
            table.chains.insert(chain.chain, listed);
        }
        reports
            .0
            .retain(|target, _| table.targets.contains_key(target));
        Ok(table)
    }

    /// The pool of a chain: that of its targets.
    pub(super) fn pool_of(&self, chain: &TableChain) -> Option<&str> {
        let mut pools = chain
            .members
            .iter()
            .filter_map(|member| self.targets.get(member));
        pools.find_map(|target| target.pool.as_deref())
    }

    /// The target at a path of a node.
    pub(super) fn at(&self, node: &str, path: &str) -> Option<(TargetUuid, &TableTarget)> {
        let uuid = self.places.get(&(node.to_owned(), path.to_owned()))?;
        Some((*uuid, self.targets.get(uuid)?))
    }
}

impl LastReports {
    /// Takes in what is listed of a target, and returns its last report.
    fn note(&mut self, uuid: TargetUuid, target: &pb::ListedTarget, now: Instant) -> LastReport {
        let age = Duration::from_millis(target.report_age_ms);
        let fresh = target.report.as_ref().filter(|_| age < FRESH);
        let last = self.0.entry(uuid).or_insert(LastReport {
            at: now,
            offline: None,
            capacity_bytes: 0,
            used_bytes: 0,
        });
        if let Some(report) = fresh {
            let text = &report.offline;
            let text = &text[..text.floor_char_boundary(TARGET_TEXT_BYTES)];
            *last = LastReport {
                at: now.checked_sub(age).unwrap_or(now),
                offline: Some(text.to_owned()).filter(|text| !text.is_empty()),
                capacity_bytes: report.capacity_bytes,
                used_bytes: report.used_bytes,
            };
        }
        last.clone()
    }
}

fn uuid(bytes: &[u8]) -> Result<TargetUuid, DamagedTable> {
    let number = <[u8; 16]>::try_from(bytes).map(u128::from_be_bytes);
    number.map_err(|_| DamagedTable(bytes.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(is_formatted: bool, report: Option<(&str, u64)>) -> ListResponse {
        let (report, report_age_ms) = match report {
            Some((offline, age)) => (
                Some(pb::TargetReport {
                    offline: offline.to_owned(),
                    capacity_bytes: 7,
                    ..pb::TargetReport::default()
                }),
                age,
            ),
            None => (None, 0),
        };
        ListResponse {
            targets: vec![pb::ListedTarget {
                target: 5_u128.to_be_bytes().to_vec(),
                is_formatted,
                report,
                report_age_ms,
                ..pb::ListedTarget::default()
            }],
            ..ListResponse::default()
        }
    }

    #[test]
    fn a_target_is_offline_after_a_while_without_reports_and_at_once_where_one_says_so() {
        let mut reports = LastReports::default();
        let began = Instant::now();
        let mut offline = |seconds, list| {
            let now = began + Duration::from_secs(seconds);
            let table = ChainTable::new(list, &mut reports, now).unwrap();
            table.targets[&5].offline.clone()
        };
        // A manager without a report, and one whose report is old.
        assert_eq!(offline(0, listed(true, None)), None);
        assert_eq!(offline(5, listed(true, Some(("", 600_000)))), None);
        assert_eq!(
            offline(6, listed(true, Some(("disk full", 0)))).as_deref(),
            Some("disk full")
        );
        // The next manager has none either: what was known holds.
        assert_eq!(
            offline(20, listed(true, None)).as_deref(),
            Some("disk full")
        );
        let silent = offline(36, listed(true, None)).unwrap();
        assert_eq!(silent, "its storage service has reported nothing for 30 s");
        assert_eq!(offline(37, listed(true, Some(("", 0)))), None);
        let unformatted = offline(38, listed(false, Some(("", 0)))).unwrap();
        assert_eq!(unformatted, "its path is not formatted yet");
    }

    #[test]
    fn a_damaged_uuid_is_refused() {
        let mut list = listed(true, None);
        list.targets[0].target.pop();
        let refused = ChainTable::new(list, &mut LastReports::default(), Instant::now());
        assert!(refused.unwrap_err().to_string().contains("15 bytes"));
    }
}
