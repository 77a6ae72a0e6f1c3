//! Chains of real services.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use chain_link::PeerRole;
use craq::{ChainCall, ChainOutcome, ChunkId, Edit, SessionId};
use storage_cell::{FILE_SYSTEM, LIMIT, StorageCell, clients_key};
use storage_client::{ClientOptions, StorageClient};
use storage_csi::follow::follow;

use crate::start_cell;

const CHAIN: u32 = 1;
const CHUNK_BYTES: u32 = 1 << 20;

fn chunk(index: u64) -> ChunkId {
    ChunkId { file: 7, index }
}

/// A client that follows the manager's map.
fn start_client(cell: &StorageCell, name: &str) -> Arc<StorageClient> {
    let options = ClientOptions {
        file_system: FILE_SYSTEM,
        session: SessionId(cell.open_session(name)),
        key: clients_key(),
        chunk_bytes: CHUNK_BYTES,
        traffic_class: 0,
    };
    let client = Arc::new(StorageClient::start(options).unwrap());
    let (follows, manager) = (Arc::clone(&client), cell.manager(PeerRole::Client));
    cell.runtime.spawn(async move {
        follow(manager, 0, |map| follows.follow(map)).await;
    });
    client
}

fn write(client: &StorageClient, index: u64, bytes: &[u8]) {
    let bytes = client.buffers().copy(bytes).unwrap();
    let edit = Edit::Write { offset: 0, bytes };
    let call = ChainCall::Edit {
        chunk: chunk(index),
        edit,
    };
    let outcome = client.wait(CHAIN, call).unwrap();
    assert!(matches!(outcome, ChainOutcome::Edited), "{outcome:?}");
}

fn read(client: &StorageClient, index: u64) -> Vec<u8> {
    let call = ChainCall::Read {
        chunk: chunk(index),
        offset: 0,
        length: 1 << 20,
    };
    match client.wait(CHAIN, call).unwrap() {
        ChainOutcome::Bytes(_, bytes) => bytes.to_vec(),
        outcome @ (ChainOutcome::Edited | ChainOutcome::Failed(_)) => panic!("{outcome:?}"),
    }
}

fn content(index: u64, round: u64) -> Vec<u8> {
    let word = (index << 32 | round).to_le_bytes();
    word.iter().copied().cycle().take(100_000).collect()
}

/// Writers go on while head, middle and tail are killed and come back; each chunk ends as its last writer left it.
pub(crate) fn three_services_keep_what_was_written_when_each_is_killed_under_load(etcd: &Path) {
    const WRITERS: u64 = 4;
    let mut cell = start_cell(etcd);
    let client = start_client(&cell, "writer");
    let is_over = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let writers: Vec<_> = (0..WRITERS)
        .map(|index| {
            let (client, is_over) = (Arc::clone(&client), Arc::clone(&is_over));
            let done = Arc::clone(&done);
            std::thread::spawn(move || {
                let mut round = 0;
                while !is_over.load(Ordering::Relaxed) {
                    round += 1;
                    write(&client, index, &content(index, round));
                    assert_eq!(read(&client, index), content(index, round));
                    done.fetch_add(1, Ordering::Relaxed);
                }
                round
            })
        })
        .collect();
    let goes_on = || {
        let before = done.load(Ordering::Relaxed);
        let look = || Ok((done.load(Ordering::Relaxed) >= before + 2 * WRITERS).then_some(()));
        cluster::until("writers go on", LIMIT, look).unwrap();
    };
    goes_on();
    for service in 0..3 {
        cell.kill_service(service);
        cell.start_service(service);
        goes_on();
    }
    is_over.store(true, Ordering::Relaxed);
    let other = start_client(&cell, "reader");
    for (index, writer) in writers.into_iter().enumerate() {
        let round = writer.join().unwrap();
        for _ in 0..3 {
            // Each goes to the next member.
            assert_eq!(read(&other, index as u64), content(index as u64, round));
        }
    }
}

/// A node whose disk was not mounted looks as if it had nothing to do, and nobody else may be drained meanwhile.
pub(crate) fn a_service_is_ready_when_all_chains_of_its_disks_are_complete(etcd: &Path) {
    let mut cell = start_cell(etcd);
    let until = |what, is_so: &dyn Fn() -> bool| {
        cluster::until(what, LIMIT, || Ok(is_so().then_some(()))).unwrap();
    };
    until("all are ready", &|| (0..3).all(|of| cell.is_ready(of)));
    cell.kill_service(1);
    let folder = cell.target(1).parent().unwrap().to_owned();
    let unmounted = folder.with_extension("elsewhere");
    std::fs::rename(&folder, &unmounted).unwrap();
    std::fs::create_dir(&folder).unwrap();
    cell.start_service(1);
    let log = cell.folder().join("service-1.log");
    let says = |word| std::fs::read_to_string(&log).unwrap().matches(word).count();
    let starts = says("serving service=");
    until("it serves without its disk", &|| {
        says("a target is offline") == 1 && says("serving service=") == starts + 1
    });
    assert!(!cell.is_ready(1));
    cell.kill_service(1);
    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(&unmounted, &folder).unwrap();
    cell.start_service(1);
    until("it is ready over its disk", &|| cell.is_ready(1));
}

/// Neither is needed by a chain that is whole; a service that comes back needs both.
pub(crate) fn a_manager_and_etcd_may_be_away_while_chains_serve(etcd: &Path) {
    let mut cell = start_cell(etcd);
    let client = start_client(&cell, "writer");
    write(&client, 0, b"before");
    cell.etcd.kill();
    cell.restart_manager();
    write(&client, 0, b"during");
    assert_eq!(read(&client, 0), b"during");
    cell.kill_service(1);
    cell.start_service(1);
    cell.etcd.start_again();
    write(&client, 0, b"after!");
    assert_eq!(read(&client, 0), b"after!");
}
