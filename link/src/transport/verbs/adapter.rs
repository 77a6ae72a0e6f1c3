//! The device that a node's links use, and what is registered with it to be sent: whole blocks, at their first use,
//! for as long as they are there. Registering pins memory at some gigabytes a second, so it is done once, and for large blocks
//! on a thread of its own: until then what lies in them is copied. That thread lets go of them too.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use crate::block::Block;
use crate::memory_policy::MemoryPolicy;
use crate::segment::Mapping;
use crate::verbs::{
    Access, DeviceContext, Domain, Error, Gid, GidChoice, LinkLayer, PathOptions, Port,
    RegionSource, RegisteredRegion, VerbsLibrary, find,
};

/// Blocks that may be registered: results and inputs in use, and as many idle ones.
const BLOCKS_LIMIT: usize = 4096;
/// A block of at least this size is registered on the thread: smaller ones take a few milliseconds.
const LARGE_BYTES: usize = 16 << 20;

/// Which device is to be used, and how packets travel.
#[derive(Clone, Debug)]
pub struct AdapterChoice {
    /// Its name; the first that will do if none is given.
    pub device: Option<String>,
    /// The number of its port; the first that carries traffic if none is given.
    pub port: Option<u8>,
    /// The address on that port.
    pub gid: GidChoice,
    /// Service level, traffic class, and how long a peer may be silent.
    pub path: PathOptions,
    /// Whether it may write payload in any order. The announcement of the payload is always written after it.
    pub relaxed_ordering: bool,
    /// Where what it writes and reads comes to lie.
    pub home: MemoryPolicy,
}

impl Default for AdapterChoice {
    fn default() -> Self {
        Self {
            device: None,
            port: None,
            gid: GidChoice::default(),
            path: PathOptions::default(),
            relaxed_ordering: true,
            home: MemoryPolicy::default(),
        }
    }
}

/// Is called when memory could not be registered. What lies in it is copied before it is sent.
pub type Trouble = Box<dyn Fn(&Error) + Send + Sync>;

/// By the blocks' numbers; no region for one that could not be registered, or is not yet.
type Registered = BTreeMap<u64, (Weak<Block>, Option<Arc<RegisteredRegion>>)>;

/// Work of the thread.
enum Work {
    /// Registers the memory of the block with this number.
    Register(u64, Arc<Mapping>),
    /// Lets go of memory.
    Forget(Arc<RegisteredRegion>),
}

/// What the thread needs too.
struct Blocks {
    domain: Arc<Domain>,
    registered: Mutex<Registered>,
    trouble: Trouble,
}

/// An open device and what belongs to it.
pub struct Adapter {
    pub(super) context: Arc<DeviceContext>,
    pub(super) domain: Arc<Domain>,
    pub(super) port: Port,
    pub(super) gid: Gid,
    pub(super) path: PathOptions,
    pub(super) relaxed_ordering: bool,
    pub(super) home: MemoryPolicy,
    blocks: Arc<Blocks>,
    /// To the thread, which is started with the first large block and ends with this.
    work: Mutex<Option<SyncSender<Work>>>,
}

impl Adapter {
    /// Opens the device.
    pub fn open(
        library: &Arc<VerbsLibrary>,
        wanted: &AdapterChoice,
        trouble: Trouble,
    ) -> Result<Arc<Self>, Error> {
        let name = wanted.device.as_deref();
        let (context, port, gid) = find(library, name, wanted.port, wanted.gid)?;
        let domain = Domain::new(&context)?;
        let blocks = Arc::new(Blocks {
            domain: Arc::clone(&domain),
            registered: Mutex::default(),
            trouble,
        });
        Ok(Arc::new(Self {
            domain,
            context,
            port,
            gid,
            path: wanted.path,
            relaxed_ordering: wanted.relaxed_ordering,
            home: wanted.home.clone(),
            blocks,
            work: Mutex::default(),
        }))
    }

    /// What its cable speaks: only those that speak the same can be linked.
    pub fn link_layer(&self) -> LinkLayer {
        self.port.link
    }

    /// Bytes that lie in a block, as something to send; none if the block is not registered, now or ever.
    pub(super) fn source(
        &self,
        block: &Arc<Block>,
        start: usize,
        bytes: u32,
    ) -> Result<Option<RegionSource>, Error> {
        let number = block.number();
        let known = self
            .blocks
            .lock()
            .get(&number)
            .map(|(_, region)| region.clone());
        let region = match known {
            Some(region) => region,
            None if self.blocks.lock().len() >= BLOCKS_LIMIT => None,
            None => {
                let is_large = block.len() >= LARGE_BYTES;
                let mapping = block.mapping();
                let region = (!is_large).then(|| self.blocks.register(mapping.clone()));
                let entry = (Arc::downgrade(block), region.flatten());
                let region = entry.1.clone();
                self.blocks.lock().insert(number, entry);
                if is_large {
                    self.ask(Work::Register(number, mapping));
                }
                region
            }
        };
        region
            .map(|region| region.source(start as u64, bytes))
            .transpose()
    }

    /// Lets go of blocks that are gone: until then the device keeps their memory. To be called now and then, also while
    /// nobody has a link over this device.
    pub fn forget_gone(&self) {
        let mut gone = Vec::new();
        self.blocks.lock().retain(|_, (block, region)| {
            let is_there = block.strong_count() > 0;
            gone.extend(region.take_if(|_| !is_there));
            is_there
        });
        for region in gone {
            if region.len() >= LARGE_BYTES {
                self.ask(Work::Forget(region));
            }
        }
    }

    /// Has the thread do something. If it cannot be started, or has more to do than there may be blocks, what lies in the block
    /// is copied for good, and memory is let go of here.
    fn ask(&self, work: Work) {
        let mut sender = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_none() {
            let (ask, asked) = sync_channel(BLOCKS_LIMIT);
            let blocks = Arc::clone(&self.blocks);
            let thread = thread::Builder::new().name("register".to_owned());
            if thread.spawn(move || blocks.work_off(&asked)).is_ok() {
                *sender = Some(ask);
            }
        }
        if let Some(sender) = &*sender {
            sender.try_send(work).ok();
        }
    }
}

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, Registered> {
        let registered = self.registered.lock();
        registered.unwrap_or_else(PoisonError::into_inner)
    }

    fn work_off(&self, asked: &Receiver<Work>) {
        for work in asked {
            match work {
                Work::Forget(region) => drop(region),
                Work::Register(number, mapping) => {
                    let is_there = |(block, _): &(Weak<Block>, _)| block.strong_count() > 0;
                    if !self.lock().get(&number).is_some_and(is_there) {
                        continue;
                    }
                    // Dropped here if the block has gone meanwhile.
                    let mut region = self.register(mapping);
                    if let Some((_, place)) = self.lock().get_mut(&number) {
                        *place = region.take();
                    }
                }
            }
        }
    }

    fn register(&self, mapping: Arc<Mapping>) -> Option<Arc<RegisteredRegion>> {
        // Read by this device only.
        RegisteredRegion::register_mapping(&self.domain, mapping, Access::default())
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
