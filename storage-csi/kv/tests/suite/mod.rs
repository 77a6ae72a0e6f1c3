//! What holds on every engine. Each test has a part of the store to itself: all its keys begin with a name of its own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

use std::time::Duration;

use kv::{
    CommitError, KvError, KvLimit, KvStore, KvTransaction, MOST_KEY_BYTES, MOST_LISTED,
    MOST_OPERATIONS, MOST_VALUE_BYTES,
};

/// Names tests as their functions are called, for an engine's own list.
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];

        /// Runs one of them on a store that nobody else uses under its name.
        pub(crate) async fn run(name: &str, store: KvStore) {
            match name {
                $(stringify!($name) => $name(Space { store, name: stringify!($name) }).await,)*
                _ => panic!("there is no test {name}"),
            }
        }
    };
}

tests![
    a_snapshot_reads_at_one_revision,
    a_commit_conflicts_when_a_key_it_read_changed_came_or_went,
    writers_that_read_nothing_do_not_conflict,
    a_scan_conflicts_with_what_comes_changes_and_goes,
    a_scan_with_a_limit_depends_on_what_it_saw,
    what_came_and_went_again_is_no_conflict,
    a_list_is_no_dependence_and_pages_are_complete_and_in_order,
    a_prefix_has_no_neighbours,
    a_transaction_is_applied_as_a_whole,
    what_is_too_much_is_refused_before_it_is_sent,
    the_largest_transaction_is_taken,
    counters_lose_no_increment,
];

/// A part of a store.
#[derive(Clone)]
struct Space {
    store: KvStore,
    name: &'static str,
}

impl Space {
    fn key(&self, key: &str) -> Vec<u8> {
        format!("{}/{key}", self.name).into_bytes()
    }

    /// Writes without reading: `None` deletes.
    async fn write(&self, writes: &[(&str, Option<&str>)]) {
        let committed = self.store.snapshot().commit(self.transaction(writes)).await;
        committed.unwrap();
    }

    fn transaction(&self, writes: &[(&str, Option<&str>)]) -> KvTransaction {
        let mut transaction = KvTransaction::default();
        for (key, value) in writes {
            match value {
                Some(value) => transaction.put(self.key(key), value.as_bytes().to_vec()),
                None => transaction.delete(self.key(key)),
            }
        }
        transaction
    }

    async fn value(&self, key: &str) -> Option<Vec<u8>> {
        let mut snapshot = self.store.snapshot();
        let mut values = snapshot.get(&[self.key(key)]).await.unwrap();
        values.pop().unwrap()
    }
}

async fn a_snapshot_reads_at_one_revision(space: Space) {
    space.write(&[("a", Some("1")), ("b", Some("1"))]).await;
    let mut snapshot = space.store.snapshot();
    let (a, b, c) = (space.key("a"), space.key("b"), space.key("c"));
    let one = Some(b"1".to_vec());
    assert_eq!(
        snapshot.get(std::slice::from_ref(&a)).await.unwrap(),
        vec![one.clone()]
    );
    let later = [("a", Some("2")), ("b", None), ("c", Some("2"))];
    space.write(&later).await;
    let both = snapshot.get(&[c, a.clone(), b.clone()]).await.unwrap();
    assert_eq!(both, [None, one.clone(), one]);
    let listed = snapshot.list(&space.key(""), None, 9).await.unwrap();
    assert_eq!(listed, [(a, b"1".to_vec()), (b, b"1".to_vec())]);
    assert_eq!(space.value("c").await, Some(b"2".to_vec()));
}

async fn a_commit_conflicts_when_a_key_it_read_changed_came_or_went(space: Space) {
    space
        .write(&[("there", Some("1")), ("bystander", Some("1"))])
        .await;
    for (key, change) in [
        ("there", Some("2")),
        ("there", None),
        ("there", Some("2")),
        ("absent", Some("1")),
    ] {
        let mut snapshot = space.store.snapshot();
        snapshot.get(&[space.key(key)]).await.unwrap();
        space.write(&[(key, change)]).await;
        let stale = snapshot
            .commit(space.transaction(&[("written", Some("1"))]))
            .await;
        assert_eq!(stale, Err(CommitError::Conflict), "{key} became {change:?}");
        let mut snapshot = space.store.snapshot();
        snapshot.get(&[space.key(key)]).await.unwrap();
        space.write(&[("bystander", Some("2"))]).await;
        let fresh = snapshot
            .commit(space.transaction(&[(key, Some("3"))]))
            .await;
        assert_eq!(fresh, Ok(()), "{key}");
    }
    assert_eq!(space.value("written").await, None);
}

async fn writers_that_read_nothing_do_not_conflict(space: Space) {
    let (one, other) = (space.store.snapshot(), space.store.snapshot());
    let committed = one.commit(space.transaction(&[("d/a", Some("1"))])).await;
    assert_eq!(committed, Ok(()));
    let committed = other
        .commit(space.transaction(&[("d/b", Some("1")), ("d/a", None)]))
        .await;
    assert_eq!(committed, Ok(()));
    assert_eq!(space.value("d/a").await, None);
}

async fn a_scan_conflicts_with_what_comes_changes_and_goes(space: Space) {
    space.write(&[("d/b", Some("1")), ("e/a", Some("1"))]).await;
    for change in [
        ("d/a", Some("1")),
        ("d/c", Some("1")),
        ("d/b", Some("2")),
        ("d/b", None),
    ] {
        let mut snapshot = space.store.snapshot();
        snapshot.scan(&space.key("d/"), 9).await.unwrap();
        // Not the revision right after the snapshot's.
        space.write(&[("e/c", Some("1"))]).await;
        space.write(&[change]).await;
        let stale = snapshot
            .commit(space.transaction(&[("written", Some("1"))]))
            .await;
        assert_eq!(stale, Err(CommitError::Conflict), "{change:?}");
        let mut snapshot = space.store.snapshot();
        snapshot.scan(&space.key("d/"), 9).await.unwrap();
        space
            .write(&[("e/a", Some("2")), ("e/b", None), ("d", Some("1"))])
            .await;
        let fresh = snapshot.commit(space.transaction(&[("d/z", None)])).await;
        assert_eq!(fresh, Ok(()), "after {change:?}");
    }
    assert_eq!(space.value("written").await, None);
    // Nothing was there: that is what the commit depends on.
    let mut snapshot = space.store.snapshot();
    assert_eq!(snapshot.scan(&space.key("empty/"), 1).await, Ok(Vec::new()));
    space.write(&[("empty/a", Some("1"))]).await;
    let stale = snapshot
        .commit(space.transaction(&[("written", Some("1"))]))
        .await;
    assert_eq!(stale, Err(CommitError::Conflict));
}

async fn a_scan_with_a_limit_depends_on_what_it_saw(space: Space) {
    let three = [("d/b", Some("1")), ("d/c", Some("1")), ("d/e", Some("1"))];
    for (change, conflicts) in [
        (("d/a", Some("1")), true),
        (("d/b", None), true),
        (("d/bb", Some("1")), true),
        (("d/c", Some("2")), true),
        (("d/d", Some("1")), false),
        (("d/e", None), false),
    ] {
        space
            .write(&[("d/a", None), ("d/bb", None), ("d/d", None)])
            .await;
        space.write(&three).await;
        let mut snapshot = space.store.snapshot();
        let found = snapshot.scan(&space.key("d/"), 2).await.unwrap();
        assert_eq!(found.len(), 2);
        space.write(&[change]).await;
        let committed = snapshot
            .commit(space.transaction(&[("x", Some("1"))]))
            .await;
        assert_eq!(
            committed == Err(CommitError::Conflict),
            conflicts,
            "{change:?}: {committed:?}"
        );
    }
}

async fn what_came_and_went_again_is_no_conflict(space: Space) {
    let mut snapshot = space.store.snapshot();
    snapshot.scan(&space.key("d/"), 1).await.unwrap();
    snapshot.get(&[space.key("absent")]).await.unwrap();
    space
        .write(&[("d/a", Some("1")), ("absent", Some("1"))])
        .await;
    space.write(&[("d/a", None), ("absent", None)]).await;
    let same = snapshot
        .commit(space.transaction(&[("written", Some("1"))]))
        .await;
    assert_eq!(same, Ok(()));
}

async fn a_list_is_no_dependence_and_pages_are_complete_and_in_order(space: Space) {
    let names: Vec<String> = (0..250).map(|number| format!("d/{number:04}")).collect();
    for names in names.chunks(100) {
        let writes: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), Some("1")))
            .collect();
        space.write(&writes).await;
    }
    let mut snapshot = space.store.snapshot();
    let mut listed: Vec<Vec<u8>> = Vec::new();
    loop {
        let after = listed.last().cloned();
        let page = snapshot
            .list(&space.key("d/"), after.as_deref(), 60)
            .await
            .unwrap();
        let count = page.len();
        listed.extend(page.into_iter().map(|(key, _)| key));
        // What changes meanwhile is in no page.
        space
            .write(&[("d/0000a", Some("1")), ("d/9999", Some("1"))])
            .await;
        if count < 60 {
            break;
        }
    }
    let keys: Vec<_> = names.iter().map(|name| space.key(name)).collect();
    assert_eq!(listed, keys);
    let committed = snapshot
        .commit(space.transaction(&[("x", Some("1"))]))
        .await;
    assert_eq!(committed, Ok(()));
}

async fn a_prefix_has_no_neighbours(space: Space) {
    let key = |end: &[u8]| [space.key("p").as_slice(), end].concat();
    let mut transaction = KvTransaction::default();
    for end in [&[0xfe, 0xff][..], &[0xff], &[0xff, 0xff], b""] {
        transaction.put(key(end), b"1".to_vec());
    }
    space.store.snapshot().commit(transaction).await.unwrap();
    space.write(&[("o", Some("1")), ("q", Some("1"))]).await;
    let mut snapshot = space.store.snapshot();
    let mut count = async |prefix: Vec<u8>| snapshot.list(&prefix, None, 9).await.unwrap().len();
    assert_eq!(count(key(b"")).await, 4);
    assert_eq!(count(key(&[0xff])).await, 2);
    assert_eq!(count(key(&[0xfe])).await, 1);
    assert_eq!(count(key(&[0xfd])).await, 0);
    let mut snapshot = space.store.snapshot();
    let all = snapshot.list(b"", None, MOST_LISTED).await.unwrap();
    assert!(all.len() >= 6 && all.is_sorted());
}

async fn a_transaction_is_applied_as_a_whole(space: Space) {
    space.write(&[("a", Some("1")), ("b", Some("1"))]).await;
    let mut transaction = space.transaction(&[("a", None), ("b", Some("2")), ("c", Some("2"))]);
    transaction.delete(space.key("c"));
    transaction.delete(space.key("never there"));
    space.store.snapshot().commit(transaction).await.unwrap();
    let mut snapshot = space.store.snapshot();
    let all = snapshot.list(&space.key(""), None, 9).await.unwrap();
    assert_eq!(all, [(space.key("b"), b"2".to_vec())]);
}

async fn what_is_too_much_is_refused_before_it_is_sent(space: Space) {
    let put = |pairs: Vec<(Vec<u8>, Vec<u8>)>| {
        let mut transaction = KvTransaction::default();
        for (key, value) in pairs {
            transaction.put(key, value);
        }
        space.store.snapshot().commit(transaction)
    };
    let key = |number: usize| space.key(&number.to_string());
    let many = (0..=MOST_OPERATIONS).map(|number| (key(number), vec![]));
    let refused = Err(CommitError::Limit(KvLimit::Writes(MOST_OPERATIONS + 1)));
    assert_eq!(put(many.collect()).await, refused);
    let large = (0..17).map(|number| (key(number), vec![0; MOST_VALUE_BYTES]));
    let refused = put(large.collect()).await.unwrap_err();
    assert!(
        matches!(refused, CommitError::Limit(KvLimit::Bytes(_))),
        "{refused}"
    );
    let refused = Err(CommitError::Limit(KvLimit::Value(MOST_VALUE_BYTES + 1)));
    assert_eq!(
        put(vec![(key(0), vec![0; MOST_VALUE_BYTES + 1])]).await,
        refused
    );
    for length in [0, MOST_KEY_BYTES + 1] {
        let refused = Err(CommitError::Limit(KvLimit::Key(length)));
        assert_eq!(put(vec![(vec![b'x'; length], vec![])]).await, refused);
        let read = space.store.snapshot().get(&[vec![b'x'; length]]).await;
        assert_eq!(read, Err(KvError::Limit(KvLimit::Key(length))));
    }
    for limit in [0, MOST_LISTED + 1] {
        let listed = space.store.snapshot().list(b"x", None, limit).await;
        assert_eq!(listed, Err(KvError::Limit(KvLimit::Listed(limit))));
    }
    let mut snapshot = space.store.snapshot();
    let keys: Vec<_> = (0..=MOST_OPERATIONS).map(key).collect();
    snapshot.get(&keys).await.unwrap();
    let refused = snapshot
        .commit(space.transaction(&[("x", Some("1"))]))
        .await;
    assert_eq!(
        refused,
        Err(CommitError::Limit(KvLimit::Reads(MOST_OPERATIONS + 1)))
    );
    assert_eq!(
        space.store.snapshot().scan(&space.key(""), 1).await,
        Ok(Vec::new())
    );
}

async fn the_largest_transaction_is_taken(space: Space) {
    let key = |number: usize| space.key(&format!("{number:0900}"));
    let keys: Vec<_> = (0..MOST_OPERATIONS).map(key).collect();
    let mut snapshot = space.store.snapshot();
    snapshot.get(&keys).await.unwrap();
    let mut transaction = KvTransaction::default();
    for key in &keys {
        transaction.put(key.clone(), vec![7; 6_000]);
    }
    assert_eq!(snapshot.commit(transaction).await, Ok(()));
    let values = space.store.snapshot().get(&keys).await.unwrap();
    assert!(
        values
            .into_iter()
            .all(|value| value == Some(vec![7; 6_000]))
    );
}

/// Clients add to one counter at the same time, and repeat what conflicts.
async fn counters_lose_no_increment(space: Space) {
    const CLIENTS: u64 = 6;
    const EACH: u64 = 20;
    let increment = async |space: &Space| loop {
        let mut snapshot = space.store.snapshot();
        let [value] = &snapshot.get(&[space.key("count")]).await.unwrap()[..] else {
            panic!("one value for one key");
        };
        let count = value
            .as_ref()
            .map_or(0, |value| u64::from_le_bytes(value[..].try_into().unwrap()));
        let mut transaction = KvTransaction::default();
        transaction.put(space.key("count"), (count + 1).to_le_bytes().to_vec());
        match snapshot.commit(transaction).await {
            Ok(()) => break,
            Err(CommitError::Conflict) => tokio::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
    };
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let space = space.clone();
            tokio::spawn(async move {
                for _ in 0..EACH {
                    increment(&space).await;
                }
            })
        })
        .collect();
    for client in clients {
        tokio::time::timeout(Duration::from_secs(60), client)
            .await
            .unwrap()
            .unwrap();
    }
    assert_eq!(
        space.value("count").await,
        Some((CLIENTS * EACH).to_le_bytes().to_vec())
    );
}
