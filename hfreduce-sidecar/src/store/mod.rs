//! This node's copy of the gang's store: a thread that carries out what [`store::Replica`] decides, for processes at a
//! unix socket and members at the data port. It outlives epochs, and its content the sidecars of all nodes but one.

mod connection;
mod guests;
mod shell;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use tracing::{info, warn};
use wire::bell::Bell;
use wire::rendezvous::Peer;
use wire::run_dir;

use crate::introduce::Credentials;
use crate::stop::Stop;
pub(crate) use guests::Guests;
use shell::Shell;

/// What the store's thread is told.
#[derive(Debug)]
enum Order {
    Enter {
        epoch: u64,
        /// By rank.
        members: Vec<(u32, SocketAddr)>,
        from_start: bool,
    },
    GiveUp(String),
}

/// The store of a node that runs. Its thread ends with the process.
#[derive(Debug)]
pub(crate) struct Store {
    orders: Sender<Order>,
    bell: Arc<Bell>,
}

impl Store {
    /// Opens its socket in the run directory, and waits for the first epoch.
    pub(crate) fn start(
        dir: &Path,
        (rank, credentials): (u32, Credentials),
        guests: Guests,
        stop: Stop,
    ) -> io::Result<Self> {
        let path = dir.join(run_dir::STORE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        // The trainer may run as another user than the sidecar; the pod's own folder is the fence.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        let bell = Arc::new(Bell::new()?);
        let (orders, heard) = channel();
        let mut shell = Shell::new(rank, credentials, listener, guests, Arc::clone(&bell));
        thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || {
                while !stop.is_asked() {
                    for order in heard.try_iter() {
                        shell.obey(order);
                    }
                    if let Err(error) = shell.turn() {
                        warn!(%error, "the store does not go on");
                        return;
                    }
                }
            })?;
        info!(socket = %path.display(), "the store is open");
        Ok(Self { orders, bell })
    }

    /// Goes on with the members of an epoch. `from_start`: whether this sidecar was there before the gang's first.
    pub(crate) fn enter(&self, epoch: u64, members: &[Peer], from_start: bool) {
        let address = |peer: &Peer| (peer.rank, SocketAddr::new(peer.address, peer.port));
        self.tell(Order::Enter {
            epoch,
            members: members.iter().map(address).collect(),
            from_start,
        });
    }

    /// The others go on without this node: everything fails, for this reason.
    pub(crate) fn give_up(&self, reason: String) {
        self.tell(Order::GiveUp(reason));
    }

    fn tell(&self, order: Order) {
        self.orders.send(order).ok();
        self.bell.ring();
    }
}
