//! All chains of a file system and where their members are, as the chain manager says it to services and clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use craq::{Table, TargetId};

/// Where a storage service is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceAddress {
    /// Where other services dial it.
    pub members: SocketAddr,
    /// Where clients do.
    pub clients: SocketAddr,
}

/// A chain, and on which service each of its members is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedChain {
    pub table: Table,
    /// Numbers of services, in the order of the members. No two members are on one service.
    pub services: Vec<u32>,
}

/// Everything that a service or a client needs to know of others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChainMap {
    pub services: BTreeMap<u32, ServiceAddress>,
    pub chains: BTreeMap<u32, MappedChain>,
    /// Lists of chains by their versions. A file's layout names one; none changes.
    pub lists: BTreeMap<u32, Vec<u32>>,
}

impl MappedChain {
    /// The member that is on a service.
    #[must_use]
    pub fn member_on(&self, service: u32) -> Option<TargetId> {
        let mut members = self.services.iter().zip(&self.table.members);
        let found = members.find(|(of, _)| **of == service);
        found.map(|(_, member)| member.target)
    }

    /// Where a member is.
    #[must_use]
    pub fn service_of(&self, target: TargetId) -> Option<u32> {
        let mut members = self.services.iter().zip(&self.table.members);
        let found = members.find(|(_, member)| member.target == target);
        found.map(|(service, _)| *service)
    }
}
