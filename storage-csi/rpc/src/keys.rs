//! Keys of a file system's programs: one that its services, managers and metadata services share, and one between these
//! and clients. A client holds only the second, so it cannot pass for a member; it could pass for a server to another
//! client.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use chain_link::{PeerRole, StoragePeer};
use link::handshake::{KEY_BYTES, Key};

/// The UUID of a file system as people write it: 32 hexadecimal digits, not all of them 0, with or without dashes.
#[must_use]
pub fn file_system_uuid(text: &str) -> Option<u128> {
    let digits: String = text.chars().filter(|letter| *letter != '-').collect();
    let is_uuid = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(&digits, 16).ok();
    number.filter(|number| is_uuid && *number != 0)
}

/// The keys that a program holds.
#[derive(Clone, Debug)]
pub struct StorageKeys {
    members: Option<Key>,
    clients: Key,
}

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// No file.
    #[error("failed to read the key {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("the key {path} is none: write {KEY_BYTES} random bytes as hexadecimal digits")]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// It is not for this program.
    #[error("there is no key for {0}: only members of the file system have it")]
    Missing(String),
}

impl StorageKeys {
    /// Of a client.
    #[must_use]
    pub fn of_client(clients: Key) -> Self {
        let members = None;
        Self { members, clients }
    }

    /// Of a member: a service, a manager, a metadata service.
    #[must_use]
    pub fn of_member(members: Key, clients: Key) -> Self {
        let members = Some(members);
        Self { members, clients }
    }

    /// Reads the files of an operator's Secret, each with 64 hexadecimal digits. A client has none of members.
    pub fn read(members: Option<&Path>, clients: &Path) -> Result<Self, KeyError> {
        Ok(Self {
            members: members.map(read).transpose()?,
            clients: read(clients)?,
        })
    }

    /// The key between two parties, of which this program is one. What a peer claims is good enough to choose a key: it
    /// has to prove that it holds it.
    pub fn between(&self, one: StoragePeer, other: StoragePeer) -> Result<&Key, KeyError> {
        let missing = |peer: StoragePeer| KeyError::Missing(peer.to_string());
        let is_client = |peer: StoragePeer| match peer.role() {
            Some(role) => Ok(role == PeerRole::Client),
            None => Err(missing(peer)),
        };
        if is_client(one)? || is_client(other)? {
            Ok(&self.clients)
        } else {
            self.members.as_ref().ok_or_else(|| missing(other))
        }
    }
}

fn read(path: &Path) -> Result<Key, KeyError> {
    let text = fs::read_to_string(path).map_err(|source| KeyError::Read {
        path: path.to_owned(),
        source,
    })?;
    let key = parse(text.trim()).ok_or_else(|| KeyError::Format {
        path: path.to_owned(),
    })?;
    Ok(Key::new(key))
}

fn parse(text: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else {
        return None;
    };
    if pairs.len() != key.len() {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(pairs) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        let [high, low] = pair.map(digit);
        *byte = (high? << 4 | low?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_may_have_dashes_and_nothing_else() {
        let uuid = file_system_uuid;
        assert_eq!(uuid("00000000-0000-0000-0000-0000000000ff"), Some(255));
        assert_eq!(uuid("000000000000000000000000000000ff"), Some(255));
        for wrong in [
            "",
            "ff",
            "+000000000000000000000000000000f",
            &"0".repeat(32),
            &"g".repeat(32),
        ] {
            assert_eq!(uuid(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn each_pair_of_roles_has_its_key() {
        let peer = |role| StoragePeer::new(1, role, 0);
        let keys = StorageKeys::of_member(Key::new([1; 32]), Key::new([2; 32]));
        let of_client = StorageKeys::of_client(Key::new([2; 32]));
        let key = |keys: &StorageKeys, one, other| {
            let key = keys.between(peer(one), peer(other)).ok();
            key.map(|key| key.as_bytes()[0])
        };
        use PeerRole::{Client, Manager, Meta, Service};
        for member in [Service, Manager, Meta] {
            assert_eq!(key(&keys, Client, member), Some(2));
            assert_eq!(key(&of_client, Client, member), Some(2));
            assert_eq!(key(&keys, member, Manager), Some(1));
            assert_eq!(key(&of_client, member, Service), None);
        }
        let unknown = StoragePeer::from([0xff; 24]);
        assert!(keys.between(peer(Manager), unknown).is_err());
    }

    #[test]
    fn a_key_is_64_digits_in_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clients");
        let digits = "00ff".repeat(16);
        for (text, is_key) in [
            (digits.clone(), true),
            (digits.to_uppercase() + "\n", true),
            (digits.clone() + "0", false),
            (digits.replace('f', "g"), false),
            (digits.replace("ff", "é"), false),
            (String::new(), false),
        ] {
            fs::write(&path, &text).unwrap();
            let keys = StorageKeys::read(None, &path);
            assert_eq!(keys.is_ok(), is_key, "{text:?}");
            if let Err(error) = keys {
                assert!(error.to_string().contains("clients"), "{error}");
            }
        }
        assert_eq!(parse(&digits).unwrap()[..4], [0, 0xff, 0, 0xff]);
        let missing = StorageKeys::read(Some(&folder.path().join("members")), &path);
        assert!(missing.unwrap_err().to_string().contains("members"));
    }
}
