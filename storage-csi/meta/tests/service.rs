//! Services over a store whose commits fail, asked by clients over loopback and killed in between. One client at a time is
//! judged by the tree in memory of core/metadata; what several leave behind is counted anew.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "test harness"
)]

#[path = "shared/judged.rs"]
mod judged;
#[path = "../../../core/metadata/tests/tree/oracle/mod.rs"]
mod oracle;
#[path = "../../../core/metadata/tests/tree/physical.rs"]
mod physical;
#[path = "shared/mod.rs"]
mod shared;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kv::{InjectedFault, KvStore, KvUsage, MemoryEngine};
use metadata::{
    AttributeChange, EntryName, Errno, HandleId, InodeAttributes, InodeKind, InodeNumber,
    MetaOperation, NewNode, RenameRule, WantedHandle, Written,
};
use sim::{Rng, for_each_seed};
use storage_rpc::{MetaClient, MetaError, NodeOwner};
use tokio::runtime::Runtime;
use tokio::time::sleep;

use judged::{Judged, MOST_BYTES, name, volume};
use shared::{Backend, LAYOUT, LIMIT, Running, SETTINGS, client};

const OWNER: NodeOwner = NodeOwner {
    mode: 0o644,
    uid: 1,
    gid: 2,
};
/// How often it is looked whether something has happened.
const POLL: Duration = Duration::from_millis(20);

/// A store a tenth of whose commits fail.
fn store(seed: u64) -> KvStore {
    let mut rng = Rng::new(seed);
    let plan = move || match rng.below(30) {
        0 => InjectedFault::Conflict,
        1 => InjectedFault::UnknownApplied,
        2 => InjectedFault::UnknownLost,
        _ => InjectedFault::None,
    };
    KvStore::from(MemoryEngine::with_faults(plan))
}

async fn root(client: &MetaClient) -> InodeNumber {
    let made = client.make_volume("one".to_owned(), SETTINGS, LAYOUT, u64::MAX);
    made.await.unwrap().root
}

/// META-1 and META-3, through services.
#[test]
fn services_that_are_killed_over_a_failing_store_answer_as_one_tree() {
    for_each_seed(4, |rng| {
        let (store, backend) = (store(rng.next_u64()), Backend::default());
        let start = || Running::start(store.clone(), &backend);
        let mut services = [start(), start()];
        let runtime = Runtime::new().unwrap();
        let client = runtime.block_on(async { client(&services, 1) });
        let mut judged = Judged::new(client.clone(), backend.clone(), rng.fork());
        runtime.block_on(judged.ask(volume())).unwrap();
        for round in 0..300 {
            runtime.block_on(judged.act());
            if round % 40 == 39 {
                let at = rng.below(services.len());
                services[at].replace(store.clone(), &backend);
            }
        }
        let usage = MetaOperation::GetVolume {
            name: "one".to_owned(),
        };
        runtime.block_on(judged.ask(usage)).unwrap();
        runtime.block_on(client.end_mount(client.mount())).unwrap();
        runtime.block_on(everything_is_counted(&services, &store, &backend));
    });
}

/// META-4 to META-7, through services: when all mounts have ended, nothing is left that nobody can reach.
async fn everything_is_counted(services: &[Running], store: &KvStore, backend: &Backend) {
    let started = Instant::now();
    for prefix in [b"mo", b"mr", b"mh", b"mg"] {
        while !store
            .snapshot()
            .list(prefix, None, 1)
            .await
            .unwrap()
            .is_empty()
        {
            assert!(started.elapsed() < LIMIT, "keys of {prefix:?} stay");
            sleep(POLL).await;
        }
    }
    let client = client(services, 98);
    let root = root(&client).await;
    let mut found: BTreeMap<InodeNumber, (InodeAttributes, u32)> = BTreeMap::new();
    let mut directories = vec![root];
    while let Some(directory) = directories.pop() {
        let listed = client
            .read_directory(directory, None, 256, true)
            .await
            .unwrap();
        let below = listed.iter().filter(|one| one.kind == InodeKind::Directory);
        let links = 2 + below.clone().count() as u32;
        directories.extend(below.map(|one| one.inode));
        assert_eq!(client.get_attributes(directory).await.unwrap().links, links);
        for one in listed {
            let attributes = one.attributes.unwrap();
            found.entry(one.inode).or_insert((attributes, 0)).1 += 1;
        }
    }
    let mut bytes = 0;
    for (inode, (attributes, names)) in &found {
        if attributes.kind != InodeKind::Directory {
            assert_eq!(attributes.links, *names, "{inode:?}");
        }
        if attributes.kind == InodeKind::File {
            bytes += attributes.size.cast_signed();
            let end = backend.physical().length(*inode, LAYOUT, 0, 1 << 40);
            assert!(end <= attributes.size, "{inode:?} has bytes behind its end");
        }
    }
    let usage = client.get_volume("one".to_owned()).await.unwrap().usage;
    assert_eq!((usage.bytes, usage.inodes), (bytes, found.len() as i64));
    let files: Vec<_> = backend.physical().files().collect();
    assert!(files.iter().all(|inode| found.contains_key(inode)));
    let inodes = store.snapshot().list(b"mi", None, 1024).await.unwrap();
    assert_eq!(inodes.len(), found.len() + 1);
}

/// Operations of several mounts in one tree; refusals are answers too.
async fn wander(client: MetaClient, root: InodeNumber, backend: Backend, mut rng: Rng) {
    let mut directories = vec![root];
    for number in 1..120 {
        let names = ["a", "b", "c", "d"].map(name);
        let mut pick = |from: &[InodeNumber]| from[rng.below(from.len())];
        let (parent, other) = (pick(&directories), pick(&directories));
        let one = names[rng.below(4)].clone();
        let two = names[rng.below(4)].clone();
        let outcome = match rng.below(8) {
            0 => {
                let made = client.make(parent, one, NewNode::Directory, OWNER).await;
                made.map(|made| directories.push(made.inode))
            }
            1 => client.unlink(parent, one).await,
            2 => client.remove_directory(parent, one).await,
            3 => {
                client
                    .rename((parent, one), (other, two), RenameRule::Replace)
                    .await
            }
            4 => {
                client
                    .rename((parent, one), (other, two), RenameRule::Exchange)
                    .await
            }
            5 => match client.lookup(parent, one).await {
                Ok(found) => client.link(found.inode, other, two).await.map(drop),
                Err(error) => Err(error),
            },
            _ => {
                write(
                    &client,
                    parent,
                    one,
                    &backend,
                    number,
                    rng.range(1..MOST_BYTES),
                )
                .await
            }
        };
        match outcome {
            Ok(()) | Err(MetaError::Refused(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

async fn write(
    client: &MetaClient,
    parent: InodeNumber,
    name: EntryName,
    backend: &Backend,
    number: u64,
    bytes: u64,
) -> Result<(), MetaError> {
    let mount = client.mount();
    let handle = HandleId { mount, number };
    let open = WantedHandle {
        handle,
        bound: Some(bytes),
        is_truncating: true,
        is_exclusive: false,
    };
    let opened = client.create(parent, name, OWNER, open).await?;
    let (inode, cut) = (opened.attributes.inode, opened.attributes.cut);
    if let Some(trim) = opened.trim {
        backend.cut_off(inode, &trim);
        client.trimmed(inode, trim.cut).await?;
    }
    backend.physical().write(inode, LAYOUT, 0, bytes);
    if number.is_multiple_of(4) {
        // It stays open.
        return Ok(());
    }
    let written = Written {
        length: bytes,
        cut,
        mtime_ns: 0,
    };
    client.close(inode, handle, Some(written)).await
}

#[test]
fn mounts_that_meet_and_end_leave_a_whole_tree() {
    for_each_seed(2, |rng| {
        let (store, backend) = (store(rng.next_u64()), Backend::default());
        let mut services = [
            Running::start(store.clone(), &backend),
            Running::start(store.clone(), &backend),
        ];
        let runtime = Runtime::new().unwrap();
        let mut wandering = Vec::new();
        for mount in 1..5 {
            let client = runtime.block_on(async { client(&services, mount) });
            let root = runtime.block_on(root(&client));
            let (backend, rng) = (backend.clone(), rng.fork());
            wandering.push(runtime.spawn(wander(client, root, backend, rng)));
        }
        services[0].replace(store.clone(), &backend);
        services[1].replace(store.clone(), &backend);
        for (mount, one) in (1..).zip(wandering) {
            runtime.block_on(one).unwrap();
            match mount % 2 {
                // Its service finds out.
                0 => backend.lose(metadata::MountId(mount)),
                _ => runtime.block_on(async {
                    let client = client(&services, mount);
                    client.end_mount(client.mount()).await.unwrap();
                }),
            }
        }
        runtime.block_on(everything_is_counted(&services, &store, &backend));
    });
}

/// META-5.
#[test]
fn a_truncation_of_a_mount_that_is_gone_is_finished_and_the_length_looked_up() {
    let (store, backend) = (store(3), Backend::default());
    let services = [
        Running::start(store.clone(), &backend),
        Running::start(store.clone(), &backend),
    ];
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let (first, second) = (client(&services, 1), client(&services, 2));
        let root = root(&first).await;
        write(&first, root, name("file"), &backend, 1, 200_000)
            .await
            .unwrap();
        let file = second.lookup(root, name("file")).await.unwrap().inode;
        let wanted = |mount| WantedHandle {
            handle: HandleId { mount, number: 9 },
            bound: Some(300_000),
            is_truncating: false,
            is_exclusive: false,
        };
        second.open(file, wanted(second.mount())).await.unwrap();
        let size = Some(70_000);
        let change = AttributeChange {
            size,
            ..AttributeChange::default()
        };
        let (_, trim) = first.set_attributes(file, change).await.unwrap();
        assert!(trim.is_some());
        // It dies with nothing cut off. The second one cannot say what it wrote before that is done.
        backend.lose(first.mount());
        let written = Written {
            length: 1,
            cut: 0,
            mtime_ns: 0,
        };
        let handle = wanted(second.mount()).handle;
        let extent = second.sync(file, handle, written).await.unwrap();
        assert_eq!((extent.size, extent.cut), (70_000, 1));
        backend.physical().write(file, LAYOUT, 0, 250_000);
        // It knows the cut no more: an older one is looked up in the chunks.
        let extent = second.sync(file, handle, written).await.unwrap();
        assert_eq!((extent.size, extent.cut), (250_000, 1));
        second.end_mount(second.mount()).await.unwrap();
        everything_is_counted(&services, &store, &backend).await;
    });
}

#[test]
fn a_deleted_volume_is_gone_with_all_its_chunks() {
    let (store, backend) = (store(7), Backend::default());
    let services = [Running::start(store, &backend)];
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let client = client(&services, 1);
        let mut at = root(&client).await;
        for number in 1..30 {
            let file = name(&format!("file {number}"));
            write(&client, at, file, &backend, number, 200_000)
                .await
                .unwrap();
            if number % 5 == 0 {
                at = client
                    .make(at, name("below"), NewNode::Directory, OWNER)
                    .await
                    .unwrap()
                    .inode;
            }
        }
        assert_eq!(client.get_promised().await.unwrap(), SETTINGS.bytes);
        client.delete_volume("one".to_owned()).await.unwrap();
        client.end_mount(client.mount()).await.unwrap();
        let started = Instant::now();
        while backend.physical().files().next().is_some() {
            assert!(started.elapsed() < LIMIT, "chunks stay");
            sleep(POLL).await;
        }
        let gone = client.get_volume("one".to_owned()).await;
        assert!(matches!(gone, Err(MetaError::Refused(Errno::NotFound))));
    });
}

/// Of a quota of 64.
fn usage(used_bytes: u64) -> KvUsage {
    KvUsage {
        used_bytes,
        quota_bytes: Some(64),
    }
}

/// Makes a name as soon as the service knows that there is room for it.
async fn make_soon(client: &MetaClient, root: InodeNumber, text: &str) {
    let started = Instant::now();
    while let Err(error) = client.make(root, name(text), NewNode::Fifo, OWNER).await {
        assert!(matches!(error, MetaError::Full(_)), "{error}");
        assert!(started.elapsed() < LIMIT, "names are still refused");
        sleep(POLL).await;
    }
}

#[test]
fn a_full_store_says_so_and_reads_go_on() {
    let (memory, backend) = (MemoryEngine::default(), Backend::default());
    let services = [Running::start(KvStore::from(memory.clone()), &backend)];
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let client = client(&services, 1);
        let root = root(&client).await;
        memory.set_usage(usage(64));
        let made = client.make(root, name("a"), NewNode::Fifo, OWNER).await;
        assert!(matches!(made, Err(MetaError::Full(_))), "{made:?}");
        // No service refuses this: the store does.
        let mode = AttributeChange {
            mode: Some(0o700),
            ..AttributeChange::default()
        };
        let changed = client.set_attributes(root, mode).await;
        assert!(matches!(changed, Err(MetaError::Full(_))), "{changed:?}");
        client.get_attributes(root).await.unwrap();
        memory.set_usage(usage(10));
        make_soon(&client, root, "a").await;
    });
}

#[test]
fn names_are_refused_in_time_and_taken_again() {
    let (memory, backend) = (MemoryEngine::default(), Backend::default());
    let services = [Running::start(KvStore::from(memory.clone()), &backend)];
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let client = client(&services, 1);
        let root = root(&client).await;
        let make = async |text| client.make(root, name(text), NewNode::Fifo, OWNER).await;
        let old = make("old").await.unwrap();
        // No more than 7/8 is used.
        memory.set_usage(usage(56));
        make("a").await.unwrap();
        memory.set_usage(usage(57));
        let started = Instant::now();
        let refused = loop {
            match make("more").await {
                Ok(_) => client.unlink(root, name("more")).await.unwrap(),
                Err(error) => break error,
            }
            assert!(started.elapsed() < LIMIT, "names are taken");
            sleep(POLL).await;
        };
        assert!(matches!(refused, MetaError::Full(_)), "{refused}");
        let link = client.link(old.inode, root, name("link")).await;
        assert!(matches!(link, Err(MetaError::Full(_))), "{link:?}");
        let volume = client.make_volume("two".to_owned(), SETTINGS, LAYOUT, u64::MAX);
        assert!(matches!(volume.await, Err(MetaError::Full(_))));
        let renamed = client.rename((root, name("a")), (root, name("b")), RenameRule::Replace);
        renamed.await.unwrap();
        client.unlink(root, name("b")).await.unwrap();
        memory.set_usage(usage(55));
        make_soon(&client, root, "new").await;
    });
}
