//! Three services with a target each, in one chain, and clients.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chain_link::{ChainMap, ChunkBytes, MappedChain, ServiceAddress};
use craq::{ChainCall, ChainOutcome, ChunkId, Edit, Place, SessionId, Table, TargetId};
use link::handshake::Key;
use storage::disk::{DiskFound, look};
use storage::{ServiceOptions, ServiceTarget, StorageService, TargetStatus};
use storage_client::{ClientOptions, StorageClient};

pub(crate) const CHAIN: u32 = 3;
/// Another of the same members.
pub(crate) const OTHER: u32 = 4;
/// Far more than anything takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const FILE_SYSTEM: u128 = 0xfeed;
const TARGET_BYTES: u64 = 160 << 20;
const CHUNK_BYTES: u32 = 1 << 20;

pub(crate) struct Trio {
    folders: Vec<tempfile::TempDir>,
    services: Vec<Option<StorageService>>,
    clients: RefCell<Vec<Arc<StorageClient>>>,
    table: Table,
    map: Arc<ChainMap>,
}

impl Trio {
    pub(crate) fn start() -> Self {
        let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let members = (0..3).map(|number| Place {
            target: TargetId(number),
            life: 0,
        });
        let mut trio = Self {
            folders,
            services: vec![None, None, None],
            clients: RefCell::default(),
            map: Arc::default(),
            table: Table {
                members: members.collect(),
                sessions: (1..9).map(SessionId).collect::<BTreeSet<_>>(),
                ..Table::default()
            },
        };
        for number in 0..3 {
            let DiskFound::Empty(empty) = look(trio.folders[number].path()).unwrap() else {
                panic!("a new folder holds a target");
            };
            empty.format(number as u128, Some(TARGET_BYTES)).unwrap();
            trio.start_again(number);
        }
        trio
    }

    /// Over its disk, as a new life.
    pub(crate) fn start_again(&mut self, number: usize) {
        let DiskFound::Target(disk) = look(self.folders[number].path()).unwrap() else {
            panic!("the target is gone");
        };
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        self.table.members[number].life += 1;
        self.table.version += 1;
        let life = self.table.members[number].life;
        let options = ServiceOptions {
            file_system: FILE_SYSTEM,
            number: number as u32,
            members: (listen(), Key::new([1; 32])),
            clients: (listen(), Key::new([2; 32])),
            chunk_bytes: CHUNK_BYTES,
            traffic_class: 0,
        };
        let target = ServiceTarget { disk, life };
        self.services[number] = Some(StorageService::start(options, vec![target]).unwrap());
        self.publish();
    }

    pub(crate) fn stop(&mut self, number: usize) {
        self.services[number] = None;
    }

    /// Services and clients get a map from a manager that they watch; here the test is it.
    pub(crate) fn publish(&mut self) {
        self.table.revision += 1;
        let services = self.services.iter().enumerate();
        let services = services.filter_map(|(number, service)| {
            let (members, clients) = service.as_ref()?.addresses();
            Some((number as u32, ServiceAddress { members, clients }))
        });
        let chain = MappedChain {
            table: self.table.clone(),
            services: vec![0, 1, 2],
        };
        self.map = Arc::new(ChainMap {
            services: services.collect(),
            chains: BTreeMap::from([(CHAIN, chain.clone()), (OTHER, chain)]),
            ..ChainMap::default()
        });
        for service in self.services.iter().flatten() {
            service.follow(Arc::clone(&self.map));
        }
        for client in self.clients.borrow().iter() {
            client.follow(Arc::clone(&self.map));
        }
    }

    pub(crate) fn client(&self, session: u64) -> Arc<StorageClient> {
        let client = self.client_without_other(session);
        client.follow(Arc::clone(&self.map));
        client
    }

    /// One that will know the other chain with the next map.
    pub(crate) fn client_without_other(&self, session: u64) -> Arc<StorageClient> {
        let options = ClientOptions {
            file_system: FILE_SYSTEM,
            session: SessionId(session),
            key: Key::new([2; 32]),
            chunk_bytes: CHUNK_BYTES,
            traffic_class: 0,
        };
        let client = Arc::new(StorageClient::start(options).unwrap());
        let mut map = ChainMap::clone(&self.map);
        map.chains.remove(&OTHER);
        client.follow(Arc::new(map));
        self.clients.borrow_mut().push(Arc::clone(&client));
        client
    }

    /// Nothing is under way any more.
    pub(crate) fn settle(&self) {
        let is_quiet = |of: &TargetStatus| of.dirty_chunks == 0 && of.complete_chains == of.chains;
        self.wait_until(|trio| trio.status().iter().all(is_quiet));
    }

    /// Pages of a target's disk that hold this.
    fn pages(&self, number: usize, page: &[u8]) -> (std::fs::File, Vec<u64>) {
        let path = self.folders[number].path().join("fireflyer-target");
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut &file, &mut bytes).unwrap();
        let pages = bytes.chunks(page.len()).enumerate();
        let pages = pages.filter(|(_, bytes)| *bytes == page);
        let pages = pages.map(|(at, _)| (at * page.len()) as u64).collect();
        (file, pages)
    }

    pub(crate) fn count(&self, number: usize, page: &[u8]) -> usize {
        self.pages(number, page).1.len()
    }

    /// Spoils one of them. Answers how many there were.
    pub(crate) fn flip_bytes(&self, number: usize, page: &[u8]) -> usize {
        let (file, pages) = self.pages(number, page);
        if let Some(first) = pages.first() {
            file.write_all_at(b"oops", *first).unwrap();
            file.sync_all().unwrap();
        }
        pages.len()
    }

    pub(crate) fn status(&self) -> Vec<TargetStatus> {
        let all = self.services.iter().flatten();
        all.flat_map(StorageService::status).collect()
    }

    pub(crate) fn wait_until(&self, holds: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            assert!(start.elapsed() < LIMIT, "{:?}", self.status());
            std::thread::yield_now();
        }
    }
}

pub(crate) fn edit(client: &StorageClient, chunk: ChunkId, edit: Edit<ChunkBytes>) {
    let outcome = client.wait(CHAIN, ChainCall::Edit { chunk, edit }).unwrap();
    assert!(matches!(outcome, ChainOutcome::Edited), "{outcome:?}");
}

pub(crate) fn write(client: &StorageClient, chunk: ChunkId, offset: u32, bytes: &[u8]) {
    let bytes = client.buffers().copy(bytes).unwrap();
    edit(client, chunk, Edit::Write { offset, bytes });
}

pub(crate) fn read(client: &StorageClient, chunk: ChunkId, offset: u32, length: u32) -> Vec<u8> {
    let call = ChainCall::Read {
        chunk,
        offset,
        length,
    };
    match client.wait(CHAIN, call).unwrap() {
        ChainOutcome::Bytes(_, bytes) => bytes.to_vec(),
        outcome @ (ChainOutcome::Edited | ChainOutcome::Failed(_)) => panic!("{outcome:?}"),
    }
}
