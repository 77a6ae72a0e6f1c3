//! The records of a chain table, and their keys and values in a key-value store: keys sort by kind and number, values
//! are JSON.

use std::fmt;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names a target, or a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TableUuid(pub u128);

impl fmt::Display for TableUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for TableUuid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TableUuid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = u128::from_str_radix(&text, 16);
        number.map(Self).map_err(D::Error::custom)
    }
}

/// What all changes write: a transaction that depends on it depends on the whole table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableHead {
    /// The file system's UUID.
    pub file_system: TableUuid,
    /// Rises with each change.
    pub revision: u64,
    /// The last number of a session; 0 before the first.
    pub last_session: u64,
    /// The last number of a service; 0 before the first.
    pub last_service: u32,
    /// The last number of a list of chains; 0 before the first.
    pub last_list: u32,
}

/// A process that has targets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRecord {
    /// Its node, by which it is known.
    pub node: String,
    /// Where other services dial it.
    pub member_address: String,
    /// Where clients do.
    pub client_address: String,
}

/// A target: a slice of a disk that is a member of chains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetRecord {
    /// The service that had it last.
    pub service: u32,
    /// Where it was there; none when another target is there now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The start of the service that it came with last, with its data. None before its first: its path may be formatted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<u64>,
    /// The pool whose chains it is in; none before its first chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

/// A member of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableMember {
    /// Where its chunks are.
    pub target: TableUuid,
    /// The start of the service that it came with last; none before its first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub life: Option<u64>,
}

/// A chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainRecord {
    /// Rises with each change of a member.
    pub version: u64,
    /// From head to tail.
    pub members: Vec<TableMember>,
}

impl ChainRecord {
    /// Whether all members have come once. Before, nobody is a member.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.members.iter().all(|member| member.life.is_some())
    }
}

/// All chains of a pool at some time, which layouts of files name by its number. It never changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainListRecord {
    /// The pool.
    pub pool: String,
    /// Numbers of chains, ascending.
    pub chains: Vec<u32>,
}

/// An open session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecord {
    /// Who opened it. A client has one session.
    pub client: String,
}

/// A record that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableRecord {
    /// The head.
    Head(TableHead),
    /// A service by its number.
    Service(u32, ServiceRecord),
    /// A target.
    Target(TableUuid, TargetRecord),
    /// A chain by its number.
    Chain(u32, ChainRecord),
    /// A list of chains by its number.
    List(u32, ChainListRecord),
    /// A session by its number; none when it has ended.
    Session(u64, Option<SessionRecord>),
}

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to read the chain table: the record {key:?} {problem}: was it written by a newer release?"
)]
pub struct DamagedRecord {
    /// Its key.
    pub key: String,
    /// What is wrong.
    pub problem: String,
}

/// The head's key.
pub const HEAD_KEY: &str = "head";
const SERVICE: &str = "service/";
const TARGET: &str = "target/";
const CHAIN: &str = "chain/";
const LIST: &str = "list/";
const SESSION: &str = "session/";

impl TableRecord {
    /// Its key in a store.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Head(_) => HEAD_KEY.to_owned(),
            Self::Service(number, _) => format!("{SERVICE}{number:08x}"),
            Self::Target(target, _) => format!("{TARGET}{target}"),
            Self::Chain(number, _) => format!("{CHAIN}{number:06x}"),
            Self::List(number, _) => format!("{LIST}{number:08x}"),
            Self::Session(number, _) => format!("{SESSION}{number:016x}"),
        }
    }

    /// Its value; none if the key goes.
    #[must_use]
    pub fn value(&self) -> Option<Vec<u8>> {
        match self {
            Self::Head(head) => Some(json(head)),
            Self::Service(_, service) => Some(json(service)),
            Self::Target(_, target) => Some(json(target)),
            Self::Chain(_, chain) => Some(json(chain)),
            Self::List(_, list) => Some(json(list)),
            Self::Session(_, session) => session.as_ref().map(json),
        }
    }

    /// Reads a key and its value.
    pub fn parse(key: &str, value: &[u8]) -> Result<Self, DamagedRecord> {
        let number = |text: &str| {
            u128::from_str_radix(text, 16).map_err(|_| damaged(key, "has no number in its key"))
        };
        if key == HEAD_KEY {
            Ok(Self::Head(read(key, value)?))
        } else if let Some(text) = key.strip_prefix(SERVICE) {
            Ok(Self::Service(number(text)? as u32, read(key, value)?))
        } else if let Some(text) = key.strip_prefix(TARGET) {
            Ok(Self::Target(TableUuid(number(text)?), read(key, value)?))
        } else if let Some(text) = key.strip_prefix(CHAIN) {
            Ok(Self::Chain(number(text)? as u32, read(key, value)?))
        } else if let Some(text) = key.strip_prefix(LIST) {
            Ok(Self::List(number(text)? as u32, read(key, value)?))
        } else if let Some(text) = key.strip_prefix(SESSION) {
            Ok(Self::Session(number(text)? as u64, Some(read(key, value)?)))
        } else {
            Err(damaged(key, "is of no known kind"))
        }
    }
}

fn damaged(key: &str, problem: &str) -> DamagedRecord {
    DamagedRecord {
        key: key.to_owned(),
        problem: problem.to_owned(),
    }
}

fn json(record: &impl Serialize) -> Vec<u8> {
    // Records have no maps with keys that are no text, so there is always one.
    serde_json::to_vec(record).unwrap_or_default()
}

fn read<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, DamagedRecord> {
    serde_json::from_slice(value)
        .map_err(|error| damaged(key, &format!("cannot be parsed: {error}")))
}
