//! The engines behind one store. What is read and compared is in `reads`, the same for all.

use crate::error::{CommitError, KvError};
use crate::etcd::EtcdEngine;
use crate::memory::MemoryEngine;
use crate::reads::{Found, KeyRange, Reads};
use crate::transaction::KvTransaction;
use crate::usage::KvUsage;

/// What an engine read, and at which revision.
pub(crate) type ReadAt<T> = Result<(i64, T), KvError>;

#[derive(Clone, Debug)]
pub(crate) enum Engine {
    Memory(MemoryEngine),
    Etcd(EtcdEngine),
}

impl Engine {
    /// Reads keys at a revision, or at the newest.
    pub(crate) async fn get(
        &self,
        revision: Option<i64>,
        keys: &[Vec<u8>],
    ) -> ReadAt<Vec<Option<Found>>> {
        match self {
            Self::Memory(memory) => memory.get(revision, keys),
            Self::Etcd(etcd) => etcd.get(revision, keys).await,
        }
    }

    /// Reads the first keys of a range at a revision, or at the newest.
    pub(crate) async fn list(
        &self,
        revision: Option<i64>,
        range: &KeyRange,
        limit: usize,
    ) -> ReadAt<Vec<Found>> {
        match self {
            Self::Memory(memory) => memory.list(revision, range, limit),
            Self::Etcd(etcd) => etcd.list(revision, range, limit).await,
        }
    }

    pub(crate) async fn commit(
        &self,
        reads: &Reads,
        transaction: KvTransaction,
    ) -> Result<(), CommitError> {
        match self {
            Self::Memory(memory) => memory.commit(reads, transaction),
            Self::Etcd(etcd) => etcd.commit(reads, transaction).await,
        }
    }

    pub(crate) async fn usage(&self) -> Result<KvUsage, KvError> {
        match self {
            Self::Memory(memory) => Ok(memory.usage()),
            Self::Etcd(etcd) => etcd.usage().await,
        }
    }
}
