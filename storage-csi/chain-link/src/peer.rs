//! Who is at an end of a connection of a file system, and what proves it.

use std::fmt;

use link::handshake::{IDENTITY_BYTES, REALM_BYTES};

/// Bits of a number; the role is above them.
const NUMBER_BITS: u32 = 28;

/// What a process does in a file system. Of two that are linked the lower dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerRole {
    /// Reads and writes.
    Client = 1,
    /// Has targets.
    Service = 2,
    /// Owns the chain table.
    Manager = 3,
    /// Has names and attributes.
    Meta = 4,
}

/// A process of a file system: an identity of `link`'s handshake.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoragePeer {
    file_system: u128,
    party: u32,
}

impl StoragePeer {
    /// The number is the manager's for this process among those of its role; 0 before it has one.
    #[must_use]
    pub fn new(file_system: u128, role: PeerRole, number: u32) -> Self {
        let number = number & ((1 << NUMBER_BITS) - 1);
        let party = (role as u32) << NUMBER_BITS | number;
        Self { file_system, party }
    }

    /// The file system's UUID.
    #[must_use]
    pub const fn file_system(&self) -> u128 {
        self.file_system
    }

    /// What it does; nothing that this release knows if it is newer.
    #[must_use]
    pub const fn role(&self) -> Option<PeerRole> {
        match self.party >> NUMBER_BITS {
            1 => Some(PeerRole::Client),
            2 => Some(PeerRole::Service),
            3 => Some(PeerRole::Manager),
            4 => Some(PeerRole::Meta),
            _ => None,
        }
    }

    /// Which of those that do the same.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.party & ((1 << NUMBER_BITS) - 1)
    }
}

impl From<[u8; IDENTITY_BYTES]> for StoragePeer {
    fn from(bytes: [u8; IDENTITY_BYTES]) -> Self {
        let mut file_system = [0; 16];
        let mut party = [0; 4];
        file_system.copy_from_slice(&bytes[..16]);
        party.copy_from_slice(&bytes[REALM_BYTES..]);
        Self {
            file_system: u128::from_be_bytes(file_system),
            party: u32::from_be_bytes(party),
        }
    }
}

impl From<StoragePeer> for [u8; IDENTITY_BYTES] {
    fn from(peer: StoragePeer) -> Self {
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[..16].copy_from_slice(&peer.file_system.to_be_bytes());
        bytes[REALM_BYTES..].copy_from_slice(&peer.party.to_be_bytes());
        bytes
    }
}

impl fmt::Display for StoragePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number();
        match self.role() {
            Some(PeerRole::Client) => write!(f, "client {number}")?,
            Some(PeerRole::Service) => write!(f, "storage service {number}")?,
            Some(PeerRole::Manager) => write!(f, "chain manager {number}")?,
            Some(PeerRole::Meta) => write!(f, "metadata service {number}")?,
            None => write!(f, "an unknown party {:#x}", self.party)?,
        }
        write!(f, " of file system {:032x}", self.file_system)
    }
}

impl fmt::Debug for StoragePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_keeps_its_bytes_and_clients_dial_services() {
        let client = StoragePeer::new(0x0102, PeerRole::Client, 7);
        let service = StoragePeer::new(0x0102, PeerRole::Service, 3);
        let mut bytes = [0; IDENTITY_BYTES];
        (bytes[14], bytes[15], bytes[20], bytes[23]) = (1, 2, 0x10, 7);
        assert_eq!(<[u8; IDENTITY_BYTES]>::from(client), bytes);
        assert_eq!(StoragePeer::from(bytes), client);
        assert!(client < service);
        assert_eq!(
            (service.role(), service.number()),
            (Some(PeerRole::Service), 3)
        );
    }
}
