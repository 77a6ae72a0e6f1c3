//! Where facts about this node's hardware come from. A backend finds devices and notices changes;
//! what the kubelet and the API server learn of them is decided elsewhere.

pub mod fixture;
pub mod mock;

use std::collections::BTreeMap;
use std::path::PathBuf;

use topology::node::Hardware;

/// What a backend knows of this node at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// The hardware.
    pub node: Hardware,
    /// Where this node belongs, as far as the backend knows.
    pub place: NodeLocation,
    /// Broken devices and what is wrong with them, by a GPU's UUID or an adapter's name.
    pub faults: BTreeMap<String, String>,
    /// What a container needs to reach a device, by a GPU's UUID or an adapter's name.
    pub access: BTreeMap<String, Vec<Mount>>,
}

/// Where a node belongs. Every value is a legal label value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLocation {
    /// Kind of node, for example `a100`.
    pub node_class: Option<String>,
    /// Fat tree.
    pub zone: Option<String>,
    /// Leaf switch.
    pub leaf: Option<String>,
}

impl NodeLocation {
    /// This place, with what it leaves open taken from the other.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            node_class: self.node_class.or(other.node_class),
            zone: self.zone.or(other.zone),
            leaf: self.leaf.or(other.leaf),
        }
    }
}

/// A file or folder of the host that a container sees, read-only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    /// Where the container sees it.
    pub container: PathBuf,
    /// Where it lies on the host.
    pub host: PathBuf,
}

/// Why the hardware could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("failed to read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A file could not be written.
    #[error("failed to write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// A folder could not be watched.
    #[error(transparent)]
    Watch(#[from] crate::folder::Error),
    /// The fixture says something that cannot be.
    #[error("failed to parse the node fixture {path}: {problem}")]
    Fixture {
        /// The file.
        path: PathBuf,
        /// Where in it, what is wrong, and what to do.
        problem: fixture::Error,
    },
}

/// A source of facts about this node's hardware.
pub trait HardwareBackend: Send + 'static {
    /// Reads the hardware as it is now, and makes what containers will mount.
    fn discover(&mut self) -> Result<Inventory, Error>;

    /// Waits until discovering again may give another answer. Dropping the wait loses nothing.
    fn changed(&mut self) -> impl Future<Output = Result<(), Error>> + Send;
}
