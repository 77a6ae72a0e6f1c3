//! The device that a node's links use, and what is registered with it to be sent: whole blocks, at their first use,
//! for as long as they are there. Registering pins memory and takes milliseconds, so it is done once.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::block::Block;
use crate::home::Home;
use crate::verbs::{
    Access, Context, Domain, Error, Gid, GidChoice, Library, LinkLayer, PathOptions, Port, Region,
    Source, find,
};

/// Blocks that may be registered: results and inputs in use, and as many idle ones.
const BLOCKS_LIMIT: usize = 4096;

/// Which device is to be used, and how packets travel.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Its name; the first that will do if none is given.
    pub device: Option<String>,
    /// The number of its port; the first that carries traffic if none is given.
    pub port: Option<u8>,
    /// The address on that port.
    pub gid: GidChoice,
    /// Service level, traffic class, and how long a peer may be silent.
    pub path: PathOptions,
    /// Whether it may write payload in any order. What tells of the payload is always written after it.
    pub relaxed_ordering: bool,
    /// Where what it writes and reads comes to lie.
    pub home: Home,
}

impl Default for Wanted {
    fn default() -> Self {
        Self {
            device: None,
            port: None,
            gid: GidChoice::default(),
            path: PathOptions::default(),
            relaxed_ordering: true,
            home: Home::default(),
        }
    }
}

/// Is told when memory could not be registered. What lies in it is copied before it is sent.
pub type Trouble = Box<dyn Fn(&Error) + Send + Sync>;

/// By the blocks' numbers; no region for one that could not be registered.
type Registered = BTreeMap<u64, (Weak<Block>, Option<Arc<Region>>)>;

/// An open device and what belongs to it.
pub struct Adapter {
    pub(super) context: Arc<Context>,
    pub(super) domain: Arc<Domain>,
    pub(super) port: Port,
    pub(super) gid: Gid,
    pub(super) path: PathOptions,
    pub(super) relaxed_ordering: bool,
    pub(super) home: Home,
    blocks: Mutex<Registered>,
    trouble: Trouble,
}

impl Adapter {
    /// Opens the device.
    pub fn open(
        library: &Arc<Library>,
        wanted: &Wanted,
        trouble: Trouble,
    ) -> Result<Arc<Self>, Error> {
        let name = wanted.device.as_deref();
        let (context, port, gid) = find(library, name, wanted.port, wanted.gid)?;
        Ok(Arc::new(Self {
            domain: Domain::new(&context)?,
            context,
            port,
            gid,
            path: wanted.path,
            relaxed_ordering: wanted.relaxed_ordering,
            home: wanted.home.clone(),
            blocks: Mutex::default(),
            trouble,
        }))
    }

    /// What its cable speaks: only those that speak the same can be linked.
    pub fn link_layer(&self) -> LinkLayer {
        self.port.link
    }

    /// Bytes that lie in a block, as something to send; none if the block cannot be registered.
    pub(super) fn source(
        &self,
        block: &Arc<Block>,
        start: usize,
        bytes: u32,
    ) -> Result<Option<Source>, Error> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let region = match blocks.get(&block.number()) {
            Some((_, region)) => region.clone(),
            None if blocks.len() >= BLOCKS_LIMIT => None,
            None => {
                let region = self.register(block);
                blocks.insert(block.number(), (Arc::downgrade(block), region.clone()));
                region
            }
        };
        drop(blocks);
        region
            .map(|region| region.source(start as u64, bytes))
            .transpose()
    }

    /// Lets go of blocks that are gone: until then the device keeps their memory. To be called now and then, also while
    /// nobody has a link over this device.
    pub fn forget_gone(&self) {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.retain(|_, (block, _)| block.strong_count() > 0);
    }

    fn register(&self, block: &Block) -> Option<Arc<Region>> {
        // Read by this device only.
        Region::register_mapping(&self.domain, block.mapping(), Access::default())
            .inspect_err(|error| (self.trouble)(error))
            .ok()
    }
}

impl fmt::Debug for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// As logs name it.
impl fmt::Display for Adapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, port) = (self.context.name(), self.port.number);
        write!(f, "port {port} of {name}, GID {}", self.gid)
    }
}
