//! A client of chains: writes and reads chunks, whoever holds them now, and asks again until it is answered. A thread owns the
//! links to services and a `craq` client for each chain. Leaves to others how the chain manager's map comes, and which
//! chunk is on which chain.

mod engine;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use chain_link::{Buffers, ChainMap, ChunkBytes, Dialler, PeerRole, StoragePeer};
use craq::{ChainCall, ChainOutcome, SessionId};
use link::connect::{Checksum, Credentials, Negotiator};
use link::handshake::Key;
use link::wake_fd::WakeFd;

use engine::{Command, Engine, Then};

/// What a client is.
#[derive(Debug)]
pub struct ClientOptions {
    pub file_system: u128,
    /// The chain manager's. No two clients have the same.
    pub session: SessionId,
    /// What proves that it is a client.
    pub key: Key,
    /// Bytes of the longest chunk of the file system.
    pub chunk_bytes: u32,
    /// The traffic class of packets with data.
    pub traffic_class: u8,
}

/// A client that runs.
#[derive(Debug)]
pub struct StorageClient {
    commands: Sender<Command>,
    wakes: Arc<WakeFd>,
    buffers: Arc<Buffers>,
    thread: Option<JoinHandle<()>>,
}

impl StorageClient {
    /// Starts. Nothing is sent before there is a map.
    pub fn start(options: ClientOptions) -> io::Result<Self> {
        let ClientOptions {
            file_system,
            session,
            key,
            chunk_bytes,
            traffic_class,
        } = options;
        let identity = StoragePeer::new(file_system, PeerRole::Client, session.0 as u32);
        let credentials = Credentials { identity, key };
        let negotiator = Negotiator::new(None, traffic_class, Checksum::Auto);
        let (wakes, buffers) = (Arc::new(WakeFd::new()?), Buffers::new(chunk_bytes));
        let (commands, queue) = channel();
        let dialler = Dialler::new(credentials, negotiator, &wakes);
        let queue = (Arc::clone(&wakes), queue);
        let engine = Engine::new(session, dialler, &buffers, queue);
        let named = thread::Builder::new().name("chain-client".to_owned());
        let thread = named.spawn(move || engine.run())?;
        Ok(Self {
            commands,
            wakes,
            buffers,
            thread: Some(thread),
        })
    }

    /// The chain manager has another map.
    pub fn follow(&self, map: Arc<ChainMap>) {
        self.command(Command::Follow(map));
    }

    /// Memory for what is written.
    #[must_use]
    pub fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// Asks something of a chain. `then` gets how it ended, on the client's thread; it is dropped if the client ends first.
    pub fn call(
        &self,
        chain: u32,
        what: ChainCall<ChunkBytes>,
        then: impl FnOnce(ChainOutcome<ChunkBytes>) + Send + 'static,
    ) {
        let then: Then = Box::new(then);
        self.command(Command::Call { chain, what, then });
    }

    /// The same, and waits. Nothing: the client has ended.
    #[must_use]
    pub fn wait(
        &self,
        chain: u32,
        what: ChainCall<ChunkBytes>,
    ) -> Option<ChainOutcome<ChunkBytes>> {
        let (sender, outcome) = channel();
        self.call(chain, what, move |outcome| {
            // It waits below.
            sender.send(outcome).ok();
        });
        outcome.recv().ok()
    }

    fn command(&self, command: Command) {
        // It ends with this handle only.
        self.commands.send(command).ok();
        self.wakes.notify();
    }
}

impl Drop for StorageClient {
    fn drop(&mut self) {
        self.command(Command::Stop);
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
