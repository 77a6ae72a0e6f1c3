//! What a sidecar gets at its start: its place in the attempt, how to work, and who sends it the members.

use std::net::IpAddr;
use std::path::PathBuf;

use collective::DoubleTree;
use collective::machine::{DEFAULT_CHUNK_BYTES, DEFAULT_SLOTS, DEFAULT_WINDOW, Timing};
use collective::membership::encoding::Peer;
use contract::identity::{Identity, JobId, Party};
use link::connect::Credentials;
use link::handshake::Key;
use topology::OnPeerLoss;

use crate::background::Before;
pub use crate::limits::DEFAULT_LIMIT_BYTES;
use crate::negotiate::{Checksum, Preference, RdmaNegotiation};
use crate::numa::Places;
use crate::workers::WorkerOptions;

/// This node's place in the attempt.
#[derive(Clone, Debug)]
pub struct Member {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: u32,
    /// The attempt's key.
    pub key: Key,
    /// This node's rank.
    pub rank: u32,
    /// Processes on each node.
    pub procs_per_node: u32,
    /// Names and zones of the nodes, in rank order.
    pub nodes: Vec<MemberLocation>,
    /// The port that rank 0 offers to the training framework.
    pub master_port: u16,
    /// The rule for the operations in flight when a node is lost.
    pub on_peer_loss: OnPeerLoss,
}

impl Member {
    /// Who it is to the others.
    pub fn identity(&self) -> Identity {
        Identity {
            job: self.job,
            attempt: self.attempt,
            party: Party::Sidecar { rank: self.rank },
        }
    }

    /// What proves it to them.
    pub fn credentials(&self) -> Credentials<Identity> {
        Credentials {
            identity: self.identity(),
            key: self.key.clone(),
        }
    }

    /// The trees over the zones of these of its nodes.
    pub fn trees(&self, members: &[u32]) -> DoubleTree {
        let zone = |rank: &u32| {
            let place = self.nodes.get(*rank as usize);
            place.map_or("", |place| place.zone.as_str())
        };
        let zones: Vec<&str> = members.iter().map(zone).collect();
        DoubleTree::build(&zones)
    }
}

/// A node's name and zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberLocation {
    /// Its name.
    pub name: String,
    /// Its zone.
    pub zone: String,
}

/// How the node works.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// The run directory.
    pub run_dir: PathBuf,
    /// Bytes of results, and bytes of inputs of each process, at most.
    pub limit_bytes: usize,
    /// Bytes of a chunk; the same on every node.
    pub chunk_bytes: u32,
    /// Slots of a tree edge; the same on every node.
    pub slots: u8,
    /// How many of them this node fills at a time. By default what keeps its workers busy.
    pub window: Option<u8>,
    /// Time limits.
    pub timing: Timing,
    /// How neighbours are reached.
    pub transport: Preference,
    /// Which RDMA device is used.
    pub rdma: RdmaNegotiation,
    /// Whether payload over TCP has checksums.
    pub checksum: Checksum,
    /// The traffic class of data packets, of which the upper six bits are the DSCP.
    pub traffic_class: u8,
    /// Where memory and the engine lie.
    pub places: Places,
    /// What is done before memory is made for inputs or results: nothing, but in tests that make that slow.
    pub before_memory: Before,
    /// Who computes.
    pub workers: WorkerOptions,
}

impl MemberOptions {
    /// What is right for most, with this run directory.
    pub fn new(run_dir: PathBuf) -> Self {
        Self {
            run_dir,
            limit_bytes: DEFAULT_LIMIT_BYTES,
            chunk_bytes: DEFAULT_CHUNK_BYTES,
            slots: DEFAULT_SLOTS,
            window: None,
            timing: Timing::default(),
            transport: Preference::default(),
            rdma: RdmaNegotiation::default(),
            checksum: Checksum::default(),
            traffic_class: 0,
            places: Places::default(),
            before_memory: Before::default(),
            workers: WorkerOptions::default(),
        }
    }

    /// How many slots of an edge this node fills at a time. While one worker adds up a part, that part's slot is taken here,
    /// and as long again at the parent.
    pub(crate) fn window(&self) -> u8 {
        let of_workers = u8::try_from(2 * self.workers.count()).unwrap_or(u8::MAX);
        let window = self.window.unwrap_or(of_workers.max(DEFAULT_WINDOW));
        window.min(self.slots)
    }
}

/// Who sends the members.
#[derive(Clone, Debug)]
pub enum RosterSource {
    /// A list; the node starts once its own links stand.
    List(Vec<Peer>),
    /// The operator.
    Operator {
        /// Its rendezvous service.
        service: String,
        /// Where peers reach this node.
        address: IpAddr,
    },
}
