//! The suite of all engines on the one in memory, and what only that one does: faults by plan, and old revisions.

#![expect(clippy::unwrap_used, reason = "test harness")]

#[path = "suite/mod.rs"]
mod suite;

use kv::{CommitError, InjectedFault, KvError, KvStore, KvTransaction, KvUsage, MemoryEngine};

fn put(key: &[u8]) -> KvTransaction {
    let mut transaction = KvTransaction::default();
    transaction.put(key.to_vec(), b"1".to_vec());
    transaction
}

async fn is_there(store: &KvStore, key: &[u8]) -> bool {
    let values = store.snapshot().get(&[key.to_vec()]).await.unwrap();
    values == [Some(b"1".to_vec())]
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_of_all_engines_passes() {
    let store = KvStore::from(MemoryEngine::default());
    for name in suite::NAMES {
        suite::run(name, store.clone()).await;
    }
}

#[tokio::test]
async fn commits_fail_as_planned() {
    use InjectedFault::{Conflict, None, UnknownApplied, UnknownLost};
    let mut plan = [None, Conflict, UnknownApplied, UnknownLost].into_iter();
    let memory = MemoryEngine::with_faults(move || plan.next().unwrap_or(None));
    let store = KvStore::from(memory);
    for (key, planned, is_applied) in [
        (b"a", None, true),
        (b"b", Conflict, false),
        (b"c", UnknownApplied, true),
        (b"d", UnknownLost, false),
    ] {
        let outcome = store.snapshot().commit(put(key)).await;
        let expected = match planned {
            None => outcome == Ok(()),
            Conflict => outcome == Err(CommitError::Conflict),
            UnknownApplied | UnknownLost => matches!(outcome, Err(CommitError::Unknown(_))),
        };
        assert!(expected, "{planned:?}: {outcome:?}");
        assert_eq!(is_there(&store, key).await, is_applied, "{planned:?}");
    }
}

#[tokio::test]
async fn a_full_store_takes_deletions_and_nothing_else() {
    let memory = MemoryEngine::default();
    let store = KvStore::from(memory.clone());
    store.snapshot().commit(put(b"a")).await.unwrap();
    memory.set_usage(KvUsage {
        used_bytes: 10,
        quota_bytes: Some(10),
    });
    let mut deletion = KvTransaction::default();
    deletion.delete(b"a".to_vec());
    let mut mixed = put(b"b");
    mixed.delete(b"a".to_vec());
    assert_eq!(store.snapshot().commit(mixed).await, Err(CommitError::Full));
    assert!(is_there(&store, b"a").await);
    assert_eq!(store.snapshot().commit(deletion).await, Ok(()));
    assert!(!is_there(&store, b"a").await);
    memory.set_usage(KvUsage::default());
    assert_eq!(store.snapshot().commit(put(b"b")).await, Ok(()));
}

#[tokio::test]
async fn a_snapshot_from_before_a_compaction_is_too_old() {
    let memory = MemoryEngine::default();
    let store = KvStore::from(memory.clone());
    let mut snapshot = store.snapshot();
    assert_eq!(snapshot.get(&[b"a".to_vec()]).await, Ok(vec![None]));
    store.snapshot().commit(put(b"b")).await.unwrap();
    memory.compact();
    assert_eq!(snapshot.get(&[b"b".to_vec()]).await, Err(KvError::TooOld));
    assert_eq!(snapshot.list(b"b", None, 1).await, Err(KvError::TooOld));
    assert!(is_there(&store, b"b").await);
    // What it has read before is still compared.
    assert_eq!(snapshot.commit(put(b"c")).await, Ok(()));
}

#[tokio::test]
async fn revisions_are_kept_for_a_while_and_then_removed() {
    let store = KvStore::from(MemoryEngine::default());
    let mut snapshots = Vec::new();
    for _ in 0..3 {
        let mut snapshot = store.snapshot();
        snapshot.get(&[b"a".to_vec()]).await.unwrap();
        snapshots.push(snapshot);
        for _ in 0..6_000 {
            store.snapshot().commit(put(b"a")).await.unwrap();
        }
    }
    let mut outcomes = Vec::new();
    for mut snapshot in snapshots {
        outcomes.push(snapshot.get(&[b"a".to_vec()]).await.is_ok());
    }
    assert_eq!(outcomes, [false, false, true]);
}
