//! The map of chains as a service or a client follows it: what the chain manager's stream says, put together.

use std::collections::BTreeSet;

use chain_link::{ChainMap, MappedChain, ServiceAddress};
use craq::{Place, SessionId, Table, TargetId};

use crate::pb::manager::WatchResponse;

/// Messages of one revision: far more than a whole table has.
const MOST_PARTS: usize = 1024;

/// What came is not what the protocol says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read the chain table's stream: {0}")]
pub struct WatchError(String);

/// A target's bytes in a message.
#[must_use]
pub fn target_bytes(target: TargetId) -> Vec<u8> {
    target.0.to_be_bytes().to_vec()
}

/// The target that a message means.
pub fn target_from(bytes: &[u8]) -> Result<TargetId, WatchError> {
    let number = <[u8; 16]>::try_from(bytes).map(u128::from_be_bytes);
    let error = |_| WatchError(format!("a target's UUID has {} bytes, not 16", bytes.len()));
    number.map(TargetId).map_err(error)
}

/// Follows one or more streams, one after the other, and never goes back.
#[derive(Debug, Default)]
pub struct MapFollower {
    /// As of the last complete revision.
    map: ChainMap,
    revision: u64,
    sessions: BTreeSet<SessionId>,
    /// Parts of a revision that is not complete.
    parts: Vec<WatchResponse>,
}

impl MapFollower {
    /// A new stream begins: what the last one left unfinished is dropped.
    pub fn reconnect(&mut self) {
        self.parts.clear();
    }

    /// Takes a message; the map, if it has changed. After an error the stream is of no use.
    pub fn take(&mut self, message: WatchResponse) -> Result<Option<&ChainMap>, WatchError> {
        let (revision, is_complete) = (message.revision, message.is_complete);
        self.parts.push(message);
        if self.parts.len() > MOST_PARTS {
            let text = format!("revision {revision} has more than {MOST_PARTS} messages");
            return Err(WatchError(text));
        }
        if !is_complete {
            return Ok(None);
        }
        let parts = std::mem::take(&mut self.parts);
        // A manager that has not read the newest table yet.
        if revision < self.revision {
            return Ok(None);
        }
        for part in parts {
            self.take_part(part)?;
        }
        self.revision = revision;
        for chain in self.map.chains.values_mut() {
            chain.table.revision = revision;
            chain.table.sessions.clone_from(&self.sessions);
        }
        Ok(Some(&self.map))
    }

    fn take_part(&mut self, part: WatchResponse) -> Result<(), WatchError> {
        for service in part.services {
            let address = |text: &str| {
                let error = |_| {
                    WatchError(format!(
                        "{text:?} is no address of service {}",
                        service.service
                    ))
                };
                text.parse().map_err(error)
            };
            let members = address(&service.member_address)?;
            let clients = address(&service.client_address)?;
            let address = ServiceAddress { members, clients };
            self.map.services.insert(service.service, address);
        }
        for chain in part.chains {
            let mut members = Vec::with_capacity(chain.members.len());
            for member in &chain.members {
                let target = target_from(&member.target)?;
                members.push(Place {
                    target,
                    life: member.life,
                });
            }
            let table = Table {
                version: chain.version,
                members,
                ..Table::default()
            };
            let services = chain.members.iter().map(|member| member.service).collect();
            self.map
                .chains
                .insert(chain.chain, MappedChain { table, services });
        }
        let lists = part.lists.into_iter();
        self.map
            .lists
            .extend(lists.map(|list| (list.list, list.chains)));
        if let Some(sessions) = part.sessions {
            self.sessions = sessions.sessions.into_iter().map(SessionId).collect();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::manager::{
        OpenSessions, WatchedChain, WatchedList, WatchedMember, WatchedService,
    };

    fn chain(chain: u32, version: u64, life: u64) -> WatchedChain {
        let target = target_bytes(TargetId(7));
        WatchedChain {
            chain,
            version,
            members: vec![WatchedMember {
                target,
                life,
                service: 3,
            }],
        }
    }

    fn whole(revision: u64) -> WatchResponse {
        WatchResponse {
            revision,
            is_complete: true,
            services: vec![WatchedService {
                service: 3,
                member_address: "10.0.0.1:1".to_owned(),
                client_address: "[fd00::1]:2".to_owned(),
            }],
            chains: vec![chain(1, 1, 5), chain(2, 1, 5)],
            sessions: Some(OpenSessions { sessions: vec![8] }),
            lists: vec![WatchedList {
                list: 1,
                chains: vec![1, 2],
            }],
        }
    }

    #[test]
    fn changes_are_put_together_when_a_revision_is_complete() {
        let mut follower = MapFollower::default();
        let map = follower.take(whole(4)).unwrap().unwrap();
        assert_eq!(map.chains[&1].member_on(3), Some(TargetId(7)));
        assert_eq!(map.lists[&1], [1, 2]);
        assert_eq!(map.services[&3].clients, "[fd00::1]:2".parse().unwrap());
        let part = WatchResponse {
            revision: 6,
            chains: vec![chain(2, 2, 6)],
            ..WatchResponse::default()
        };
        assert_eq!(follower.take(part), Ok(None));
        let last = WatchResponse {
            revision: 6,
            is_complete: true,
            sessions: Some(OpenSessions { sessions: vec![9] }),
            ..WatchResponse::default()
        };
        let map = follower.take(last).unwrap().unwrap();
        let of = |chain: u32| {
            let table = &map.chains[&chain].table;
            (table.revision, table.version, table.members[0].life)
        };
        assert_eq!((of(1), of(2)), ((6, 1, 5), (6, 2, 6)));
        let sessions = BTreeSet::from([SessionId(9)]);
        assert!(
            map.chains
                .values()
                .all(|chain| chain.table.sessions == sessions)
        );
    }

    #[test]
    fn an_older_revision_of_another_manager_is_skipped() {
        let mut follower = MapFollower::default();
        follower.take(whole(4)).unwrap();
        let unfinished = WatchResponse {
            is_complete: false,
            ..whole(5)
        };
        assert_eq!(follower.take(unfinished), Ok(None));
        follower.reconnect();
        assert_eq!(follower.take(whole(3)), Ok(None));
        let again = follower.take(whole(4)).unwrap().unwrap();
        assert_eq!(again.chains[&1].table.revision, 4);
    }

    #[test]
    fn damaged_messages_are_refused() {
        let mut bad_target = whole(1);
        bad_target.chains[0].members[0].target.pop();
        let mut bad_address = whole(1);
        bad_address.services[0].member_address = "storage-0:1".to_owned();
        for (message, part) in [(bad_target, "15 bytes"), (bad_address, "storage-0:1")] {
            let refused = MapFollower::default()
                .take(message)
                .unwrap_err()
                .to_string();
            assert!(refused.contains(part), "{refused}");
        }
        let mut follower = MapFollower::default();
        let part = WatchResponse {
            is_complete: false,
            ..whole(1)
        };
        let endless = (0..=MOST_PARTS).map(|_| follower.take(part.clone()).is_err());
        assert_eq!(endless.filter(|refused| *refused).count(), 1);
    }
}
