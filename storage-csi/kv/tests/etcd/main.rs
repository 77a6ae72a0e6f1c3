//! The suite of all engines on a real etcd, and what only etcd can show: a server that is killed, one at its quota, a
//! compaction. Where the program is not built, every test counts as ignored, with the reason.

#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

#[path = "../suite/mod.rs"]
mod suite;

use std::panic::UnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kv::{CommitError, EtcdEngine, KvError, KvStore, KvTransaction};
use storage_cell::{Etcd, ask, etcd_program};
use tokio::runtime::Runtime;

/// A test by its name, which gets the path of etcd.
type Test = (&'static str, fn(&Path));

const TESTS: [Test; 5] = [
    (
        "the_suite_of_all_engines_passes",
        the_suite_of_all_engines_passes,
    ),
    (
        "a_server_that_is_killed_again_and_again_loses_no_commit",
        a_server_that_is_killed_again_and_again_loses_no_commit,
    ),
    (
        "a_commit_to_a_dead_server_is_unknown_and_a_read_says_so",
        a_commit_to_a_dead_server_is_unknown_and_a_read_says_so,
    ),
    (
        "at_its_quota_it_takes_deletions_and_nothing_else",
        at_its_quota_it_takes_deletions_and_nothing_else,
    ),
    (
        "a_snapshot_from_before_a_compaction_is_too_old",
        a_snapshot_from_before_a_compaction_is_too_old,
    ),
];

fn main() -> ExitCode {
    let program = etcd_program();
    let test = |(name, test): Test| (name.to_owned(), runnable(&program, test));
    sim::run_tests(TESTS.map(test))
}

fn runnable(
    program: &Result<std::path::PathBuf, String>,
    test: fn(&Path),
) -> Result<impl FnOnce() + UnwindSafe, String> {
    let program = program.clone()?;
    Ok(move || test(&program))
}

fn connect(etcd: &Etcd, runtime: &Runtime) -> KvStore {
    let _entered = runtime.enter();
    EtcdEngine::connect(&[etcd.url()]).unwrap().into()
}

fn put(key: &[u8], value: Vec<u8>) -> KvTransaction {
    let mut transaction = KvTransaction::default();
    transaction.put(key.to_vec(), value);
    transaction
}

fn the_suite_of_all_engines_passes(program: &Path) {
    let etcd = Etcd::start(program, &[]);
    let runtime = Runtime::new().unwrap();
    let store = connect(&etcd, &runtime);
    runtime.block_on(async {
        for name in suite::NAMES {
            suite::run(name, store.clone()).await;
        }
        // The same over more than one URL.
        let both = EtcdEngine::connect(&[etcd.url(), etcd.url()]).unwrap();
        let mut snapshot = KvStore::from(both).snapshot();
        assert!(!snapshot.list(b"", None, 1).await.unwrap().is_empty());
    });
}

/// One client counts up, and leaves a record of each step beside the counter. What is done counts, what is refused does
/// not, and what is unknown did happen or did not, but not half.
fn a_server_that_is_killed_again_and_again_loses_no_commit(program: &Path) {
    const KILLS: u64 = 3;
    let mut etcd = Etcd::start(program, &[]);
    let runtime = Runtime::new().unwrap();
    let store = connect(&etcd, &runtime);
    let (done, unknown) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let is_over = Arc::new(AtomicBool::new(false));
    let client = {
        let (store, done, unknown, is_over) = (
            store.clone(),
            done.clone(),
            unknown.clone(),
            is_over.clone(),
        );
        runtime.spawn(async move {
            let mut number = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                let mut snapshot = store.snapshot();
                let Ok(values) = snapshot.get(&[b"count".to_vec()]).await else {
                    tokio::task::yield_now().await;
                    continue;
                };
                let count = values[0].as_ref().map_or(0, |value| count(value));
                let mut transaction = put(b"count", (count + 1).to_le_bytes().to_vec());
                transaction.put(format!("done/{number:08}").into_bytes(), Vec::new());
                match snapshot.commit(transaction).await {
                    Ok(()) => done.fetch_add(1, Ordering::Relaxed),
                    Err(CommitError::Unknown(_)) => unknown.fetch_add(1, Ordering::Relaxed),
                    // What was unknown arrived after all.
                    Err(CommitError::Conflict) => continue,
                    Err(other) => panic!("{other}"),
                };
            }
        })
    };
    let await_more = |count: &AtomicU64, what: &str| {
        let before = count.load(Ordering::Relaxed);
        let more = || Ok((count.load(Ordering::Relaxed) > before + 20).then_some(()));
        cluster::until(what, Duration::from_secs(60), more).unwrap();
    };
    for _ in 0..KILLS {
        await_more(&done, "commits before a kill");
        etcd.kill();
        etcd.start_again();
    }
    await_more(&done, "commits after the last start");
    is_over.store(true, Ordering::Relaxed);
    runtime.block_on(client).unwrap();
    let (done, unknown) = (
        done.load(Ordering::Relaxed),
        unknown.load(Ordering::Relaxed),
    );
    runtime.block_on(async {
        let mut snapshot = store.snapshot();
        let values = snapshot.get(&[b"count".to_vec()]).await.unwrap();
        let count = count(values[0].as_ref().unwrap());
        let mut records = 0;
        let mut after = None;
        loop {
            let page = snapshot
                .list(b"done/", after.as_deref(), 1000)
                .await
                .unwrap();
            records += page.len() as u64;
            let Some((last, _)) = page.last() else {
                break;
            };
            after = Some(last.clone());
        }
        assert_eq!(count, records);
        assert!(
            (done..=done + unknown).contains(&count),
            "{done}, {unknown}: {count}"
        );
    });
}

fn count(value: &[u8]) -> u64 {
    u64::from_le_bytes(value.try_into().unwrap())
}

fn a_commit_to_a_dead_server_is_unknown_and_a_read_says_so(program: &Path) {
    let mut etcd = Etcd::start(program, &[]);
    let runtime = Runtime::new().unwrap();
    let store = connect(&etcd, &runtime);
    runtime.block_on(async {
        let mut snapshot = store.snapshot();
        assert_eq!(snapshot.get(&[b"a".to_vec()]).await, Ok(vec![None]));
        etcd.kill();
        let started = Instant::now();
        let outcome = snapshot.clone().commit(put(b"a", Vec::new())).await;
        assert!(
            matches!(outcome, Err(CommitError::Unknown(_))),
            "{outcome:?}"
        );
        let read = store.snapshot().get(&[b"a".to_vec()]).await;
        assert!(matches!(read, Err(KvError::Unavailable(_))), "{read:?}");
        assert!(started.elapsed() < Duration::from_secs(20));
        etcd.start_again();
        // Nobody has to connect again by hand; the first call may still meet the old connection.
        let committed = loop {
            match snapshot.clone().commit(put(b"a", Vec::new())).await {
                Err(CommitError::Unknown(_)) if started.elapsed() < Duration::from_secs(60) => {}
                other => break other,
            }
        };
        assert!(
            matches!(committed, Ok(()) | Err(CommitError::Conflict)),
            "{committed:?}"
        );
        assert_eq!(
            store.snapshot().get(&[b"a".to_vec()]).await,
            Ok(vec![Some(Vec::new())])
        );
    });
}

fn at_its_quota_it_takes_deletions_and_nothing_else(program: &Path) {
    let etcd = Etcd::start(program, &["--quota-backend-bytes=4194304"]);
    let runtime = Runtime::new().unwrap();
    let store = connect(&etcd, &runtime);
    runtime.block_on(async {
        let key = |number: u32| format!("k/{number:04}").into_bytes();
        let mut number = 0;
        let refused = loop {
            let mut transaction = KvTransaction::default();
            for _ in 0..8 {
                transaction.put(key(number), vec![7; 60_000]);
                number += 1;
            }
            if let Err(refused) = store.snapshot().commit(transaction).await {
                break refused;
            }
            assert!(number < 1_000, "etcd takes more than its quota");
        };
        assert_eq!(refused, CommitError::Full);
        let small = store.snapshot().commit(put(b"small", Vec::new())).await;
        assert_eq!(small, Err(CommitError::Full));
        let mut mixed = put(b"small", Vec::new());
        mixed.delete(key(0));
        assert_eq!(store.snapshot().commit(mixed).await, Err(CommitError::Full));
        // Deletions that depend on keys and on a whole prefix, as a removal of a directory does.
        let mut snapshot = store.snapshot();
        assert!(snapshot.get(&[key(0)]).await.unwrap()[0].is_some());
        assert_eq!(snapshot.scan(b"k/0000/", 1).await, Ok(Vec::new()));
        let mut deletion = KvTransaction::default();
        deletion.delete(key(0));
        assert_eq!(snapshot.commit(deletion).await, Ok(()));
        assert_eq!(store.snapshot().get(&[key(0)]).await, Ok(vec![None]));
        // What an operator does then.
        for number in 1..number {
            let mut deletion = KvTransaction::default();
            deletion.delete(key(number));
            store.snapshot().commit(deletion).await.unwrap();
        }
        compact(&etcd);
        call(&etcd, "/v3/maintenance/defragment", "{}");
        let alarms = call(&etcd, "/v3/maintenance/alarm", "{}");
        let member = field(&alarms, "memberID");
        let body =
            format!(r#"{{"action": "DEACTIVATE", "alarm": "NOSPACE", "memberID": "{member}"}}"#);
        call(&etcd, "/v3/maintenance/alarm", &body);
        let again = store.snapshot().commit(put(b"small", Vec::new())).await;
        assert_eq!(again, Ok(()));
    });
}

fn a_snapshot_from_before_a_compaction_is_too_old(program: &Path) {
    let etcd = Etcd::start(program, &[]);
    let runtime = Runtime::new().unwrap();
    let store = connect(&etcd, &runtime);
    runtime.block_on(async {
        let mut snapshot = store.snapshot();
        assert_eq!(snapshot.get(&[b"a".to_vec()]).await, Ok(vec![None]));
        store
            .snapshot()
            .commit(put(b"b", Vec::new()))
            .await
            .unwrap();
        compact(&etcd);
        assert_eq!(snapshot.get(&[b"b".to_vec()]).await, Err(KvError::TooOld));
        assert_eq!(snapshot.list(b"b", None, 1).await, Err(KvError::TooOld));
        // What it has read before is still compared.
        assert_eq!(snapshot.commit(put(b"c", Vec::new())).await, Ok(()));
    });
}

/// Calls what clients of the key-value store never call.
fn call(etcd: &Etcd, path: &str, body: &str) -> String {
    ask(etcd.address(), "POST", path, body).unwrap()
}

/// Forgets all revisions but the newest.
fn compact(etcd: &Etcd) {
    let status = call(etcd, "/v3/maintenance/status", "{}");
    let revision = field(&status, "revision");
    let body = format!(r#"{{"revision": "{revision}", "physical": true}}"#);
    let compacted = call(etcd, "/v3/kv/compaction", &body);
    assert!(
        compacted.starts_with("HTTP/1.0 200") || compacted.starts_with("HTTP/1.1 200"),
        "{compacted}"
    );
}

/// The value of a number in an answer.
fn field<'a>(answer: &'a str, name: &str) -> &'a str {
    let (_, rest) = answer.split_once(&format!("\"{name}\":\"")).unwrap();
    rest.split_once('"').unwrap().0
}
