//! A storage service: a thread that owns targets, their members of chains, and the links to other services and to clients. It
//! follows the chain manager's map. Leaves to its program how the map comes and how the service is named.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use chain_link::{Buffers, ChainMap, PeerRole, StoragePeer};
use craq::TargetId;
use link::connect::{Acceptor, Checksum, Credentials, Negotiator};
use link::handshake::Key;
use link::wake_fd::WakeFd;

use crate::disk::{TargetDisk, TargetDiskError};
use crate::engine::{Engine, Ports};

/// What a service is, and how it is reached.
#[derive(Debug)]
pub struct ServiceOptions {
    pub file_system: u128,
    /// The manager's number for it.
    pub number: u32,
    /// Where other services dial it, and what proves that they are some.
    pub members: (TcpListener, Key),
    /// The same for clients.
    pub clients: (TcpListener, Key),
    /// Bytes of the longest chunk of the file system.
    pub chunk_bytes: u32,
    /// The traffic class of packets with data.
    pub traffic_class: u8,
}

/// A target that a service has, and which start of it this is.
#[derive(Debug)]
pub struct ServiceTarget {
    pub disk: TargetDisk,
    pub life: u64,
}

/// Why a service does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    #[error(transparent)]
    Disk(#[from] TargetDiskError),
    #[error("failed to start the storage service")]
    System(#[from] io::Error),
}

/// What is said of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    pub target: TargetId,
    /// Of its disk that chunks may take.
    pub capacity_bytes: u64,
    pub used_bytes: u64,
    /// Why it is out of service.
    pub failed: Option<String>,
    /// Chunks whose bytes are being repaired.
    pub damaged_chunks: usize,
    /// Chunks with a write under way.
    pub dirty_chunks: usize,
    /// Of its chains, those in which it answers.
    pub complete_chains: usize,
    pub chains: usize,
}

/// What a service is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    Follow(Arc<ChainMap>),
    Status(Sender<Vec<TargetStatus>>),
    Stop,
}

/// A service that runs.
#[derive(Debug)]
pub struct StorageService {
    commands: Sender<Command>,
    wakes: Arc<WakeFd>,
    thread: Option<JoinHandle<()>>,
    addresses: (SocketAddr, SocketAddr),
}

impl StorageService {
    /// Opens the stores of its targets, and starts.
    pub fn start(
        options: ServiceOptions,
        targets: Vec<ServiceTarget>,
    ) -> Result<Self, ServiceError> {
        let identity = StoragePeer::new(options.file_system, PeerRole::Service, options.number);
        let negotiator = || Negotiator::new(None, options.traffic_class, Checksum::Auto);
        let wakes = Arc::new(WakeFd::new()?);
        let open = |(listener, key): (TcpListener, Key)| {
            let credentials = Credentials { identity, key };
            let acceptor = Acceptor::open(listener, credentials.clone(), negotiator(), || {})?;
            Ok::<_, io::Error>((acceptor, credentials))
        };
        let (members, credentials) = open(options.members)?;
        let (clients, _) = open(options.clients)?;
        let addresses = (members.address(), clients.address());
        let ports = Ports::new(members, clients, credentials, negotiator(), &wakes);
        let buffers = Buffers::new(options.chunk_bytes);
        let (commands, queue) = channel();
        let engine = Engine::new(
            options.number,
            ports,
            targets,
            &buffers,
            (Arc::clone(&wakes), queue),
        )?;
        let named = thread::Builder::new().name("chains".to_owned());
        let thread = named.spawn(move || engine.run())?;
        Ok(Self {
            commands,
            wakes,
            thread: Some(thread),
            addresses,
        })
    }

    /// Where other services and clients dial it.
    #[must_use]
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        self.addresses
    }

    /// The chain manager has another map.
    pub fn follow(&self, map: Arc<ChainMap>) {
        self.command(Command::Follow(map));
    }

    /// What is said of its targets; nothing when it has ended.
    #[must_use]
    pub fn status(&self) -> Vec<TargetStatus> {
        let (sender, answer) = channel();
        self.command(Command::Status(sender));
        answer.recv().unwrap_or_default()
    }

    fn command(&self, command: Command) {
        // It ends with this handle only, or because of a bug that its thread has said.
        self.commands.send(command).ok();
        self.wakes.notify();
    }
}

impl Drop for StorageService {
    fn drop(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
