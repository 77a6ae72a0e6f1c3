//! What this node brings to the negotiation with its peers: its RDMA device, if it has one and may use it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use collective::machine::{DEFAULT_WINDOW, Timing};
pub use link::connect::Checksum;
use link::connect::{Negotiator, Shape};
use link::transport::verbs::{Adapter, AdapterChoice};
use link::verbs::{Error, GidChoice, PathOptions, VerbsLibrary};
use tracing::{debug, info, warn};

use crate::member::MemberOptions;

/// Flows in each direction of a link: two trees, up and down.
const FLOWS: usize = 4;

/// Slots of a flow that have a place where RDMA writes from the start: each is a chunk of locked memory. Those who need more
/// get more.
const LANDING_SLOTS: u8 = DEFAULT_WINDOW;

/// How peers are reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Preference {
    /// Over RDMA where both have it, else over TCP.
    #[default]
    Auto,
    /// Over TCP always.
    Tcp,
    /// As `auto`; a node without RDMA warns.
    Verbs,
}

impl Preference {
    pub(crate) const fn uses_rdma(self) -> bool {
        match self {
            Self::Auto | Self::Verbs => true,
            Self::Tcp => false,
        }
    }
}

/// Which device is used and how its packets are marked; what is not said is found out.
#[derive(Clone, Debug)]
pub struct RdmaNegotiation {
    /// Another libibverbs than the machine's.
    pub library: Option<PathBuf>,
    /// The kernel's name for the device.
    pub device: Option<String>,
    /// Its port, from 1.
    pub port: Option<u8>,
    /// The place in the port's table of addresses.
    pub gid_index: Option<u8>,
    /// Where peers reach this node: a device with this address is preferred.
    pub near: Option<IpAddr>,
    /// InfiniBand's service level.
    pub service_level: u8,
    /// Whether the device may write payload to this node's memory in any order.
    pub relaxed_ordering: bool,
    /// How long a peer's device may not answer before the peer is lost.
    pub patience: Duration,
}

impl Default for RdmaNegotiation {
    fn default() -> Self {
        Self {
            library: None,
            device: None,
            port: None,
            gid_index: None,
            near: None,
            service_level: 0,
            relaxed_ordering: true,
            patience: Timing::default().lost,
        }
    }
}

/// Prepares for the peers of this node: opens its RDMA device.
pub(crate) fn open(options: &MemberOptions) -> Negotiator {
    let preference = options.transport;
    let opened = if preference.uses_rdma() {
        adapter(options).map_err(|error| error.to_string())
    } else {
        Err(format!("the transport is {preference:?}"))
    };
    match &opened {
        Ok(device) => info!(%device, "RDMA is on"),
        Err(reason) if preference == Preference::Verbs => warn!(reason, "RDMA is off"),
        Err(reason) => info!(reason, "RDMA is off"),
    }
    let shape = Shape {
        payload_bytes: options.chunk_bytes,
        slots: options.slots.min(LANDING_SLOTS),
        flows: FLOWS,
    };
    let rdma = opened.ok().map(|adapter| (adapter, shape));
    Negotiator::new(rdma, options.traffic_class, options.checksum)
}

fn adapter(options: &MemberOptions) -> Result<Arc<Adapter>, Error> {
    let rdma = &options.rdma;
    let library = VerbsLibrary::load(rdma.library.as_deref())?;
    let path = PathOptions {
        service_level: rdma.service_level,
        traffic_class: options.traffic_class,
        ..PathOptions::default()
    }
    .lasting(rdma.patience);
    let open = |gid| {
        let wanted = AdapterChoice {
            device: rdma.device.clone(),
            port: rdma.port,
            gid,
            path,
            relaxed_ordering: rdma.relaxed_ordering,
            home: options.places.results.clone(),
        };
        Adapter::open(&library, &wanted, Box::new(trouble()))
    };
    match (rdma.gid_index, rdma.near) {
        (Some(index), _) => open(GidChoice::Index(index)),
        // A pod's address is often not that of a device.
        (None, Some(near)) => {
            open(GidChoice::Address(near)).or_else(|_| open(GidChoice::Automatic))
        }
        (None, None) => open(GidChoice::Automatic),
    }
}

/// Says once what keeps memory from being registered.
fn trouble() -> impl Fn(&Error) + Send + Sync {
    let said = AtomicBool::new(false);
    move |error| {
        if said.swap(true, Ordering::Relaxed) {
            debug!(%error, "this memory is copied before it is sent");
        } else {
            warn!(%error, "some memory is copied before it is sent");
        }
    }
}
