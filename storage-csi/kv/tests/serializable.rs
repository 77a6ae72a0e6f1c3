//! Transactions of several clients, interleaved at random and with injected faults, against one map: whatever commits has
//! read what the map holds at that moment, and a conflict means that it has not.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use kv::{CommitError, InjectedFault, KvSnapshot, KvStore, KvTransaction, MemoryEngine};
use sim::{Rng, explore};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A read, and what it saw.
enum Seen {
    Key(Vec<u8>, Option<Vec<u8>>),
    Scan(Vec<u8>, usize, Vec<(Vec<u8>, Vec<u8>)>),
}

impl Seen {
    /// Whether it would see the same now.
    fn holds(&self, map: &Map) -> bool {
        match self {
            Self::Key(key, value) => map.get(key) == value.as_ref(),
            Self::Scan(prefix, limit, seen) => {
                let now = map.iter().filter(|(key, _)| key.starts_with(prefix));
                let now = now
                    .take(*limit)
                    .map(|(key, value)| (key.clone(), value.clone()));
                now.eq(seen.iter().cloned())
            }
        }
    }
}

struct Client {
    snapshot: KvSnapshot,
    seen: Vec<Seen>,
}

fn key(rng: &mut Rng) -> Vec<u8> {
    format!("{}/{}", rng.pick(&["a", "b"]), rng.below(4)).into_bytes()
}

async fn read(rng: &mut Rng, client: &mut Client) {
    client.seen.push(if rng.chance(1, 2) {
        let key = key(rng);
        let values = client
            .snapshot
            .get(std::slice::from_ref(&key))
            .await
            .unwrap();
        Seen::Key(key, values[0].clone())
    } else {
        let prefix = rng.pick(&[&b"a/"[..], b"b/", b"a/2", b"c"]).to_vec();
        let limit = rng.range(1..5) as usize;
        let seen = client.snapshot.scan(&prefix, limit).await.unwrap();
        Seen::Scan(prefix, limit, seen)
    });
}

fn writes(rng: &mut Rng, number: u64) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let count = rng.range(1..4);
    let value = |rng: &mut Rng| rng.chance(2, 3).then(|| number.to_le_bytes().to_vec());
    (0..count).map(|_| (key(rng), value(rng))).collect()
}

/// Each transaction also writes a key of its own, so that who does not know whether it was applied can look.
fn marker(number: u64) -> Vec<u8> {
    format!("done/{number}").into_bytes()
}

#[derive(Default)]
struct Counts {
    committed: u64,
    conflicts: u64,
    applied_unknown: u64,
}

async fn run(rng: &mut Rng, counts: &mut Counts) {
    let injected = Arc::new(Mutex::new(InjectedFault::None));
    let (plan, mut faults) = (injected.clone(), rng.fork());
    let store = KvStore::from(MemoryEngine::with_faults(move || {
        let fault = match faults.below(10) {
            0 => InjectedFault::Conflict,
            1 => InjectedFault::UnknownApplied,
            2 => InjectedFault::UnknownLost,
            _ => InjectedFault::None,
        };
        *plan.lock().unwrap() = fault;
        fault
    }));
    let mut map = Map::new();
    let mut clients: Vec<Option<Client>> = (0..4).map(|_| None).collect();
    for number in 0..150 {
        let place = rng.below(clients.len());
        let Some(mut client) = clients[place].take() else {
            let (snapshot, seen) = (store.snapshot(), Vec::new());
            let mut client = Client { snapshot, seen };
            read(rng, &mut client).await;
            clients[place] = Some(client);
            continue;
        };
        if rng.chance(1, 2) {
            read(rng, &mut client).await;
            clients[place] = Some(client);
            continue;
        }
        let writes = writes(rng, number);
        let mut transaction = KvTransaction::default();
        transaction.put(marker(number), Vec::new());
        for (key, value) in writes.clone() {
            match value {
                Some(value) => transaction.put(key, value),
                None => transaction.delete(key),
            }
        }
        let holds = client.seen.iter().all(|seen| seen.holds(&map));
        let outcome = client.snapshot.commit(transaction).await;
        let fault = *injected.lock().unwrap();
        let is_applied = match outcome {
            Ok(()) => {
                counts.committed += 1;
                true
            }
            Err(CommitError::Conflict) => {
                assert!(
                    !holds || fault == InjectedFault::Conflict,
                    "a conflict without one"
                );
                counts.conflicts += u64::from(fault == InjectedFault::None);
                false
            }
            Err(CommitError::Unknown(_)) => {
                let marked = store.snapshot().get(&[marker(number)]).await.unwrap();
                let is_applied = marked[0].is_some();
                assert_eq!(is_applied, holds && fault == InjectedFault::UnknownApplied);
                counts.applied_unknown += u64::from(is_applied);
                is_applied
            }
            Err(other) => panic!("{other}"),
        };
        if is_applied {
            assert!(
                holds,
                "what a transaction had read was no longer so when it committed"
            );
            for (key, value) in writes {
                match value {
                    Some(value) => map.insert(key, value),
                    None => map.remove(&key),
                };
            }
        }
    }
    let mut snapshot = store.snapshot();
    for prefix in [b"a/", b"b/"] {
        let all = snapshot.list(prefix, None, 100).await.unwrap();
        let expected = map
            .clone()
            .into_iter()
            .filter(|(key, _)| key.starts_with(prefix));
        assert!(expected.eq(all));
    }
}

#[test]
fn transactions_are_serializable_under_conflicts_and_unknown_commits() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let mut counts = Counts::default();
    explore(1_000, &[], |rng| runtime.block_on(run(rng, &mut counts)));
    if !sim::is_replay() {
        let Counts {
            committed,
            conflicts,
            applied_unknown,
        } = counts;
        let enough = committed > 5_000 && conflicts > 1_000 && applied_unknown > 300;
        assert!(enough, "{committed}, {conflicts}, {applied_unknown}");
    }
}
