//! Puts the driver's two processes together: which services are on which socket.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use crate::controller::ControllerService;
use crate::identity::{IdentityService, NodePart, StorePart};
use crate::node::{KubeletPaths, NodeService};
use crate::pb::csi::controller_server::ControllerServer;
use crate::pb::csi::identity_server::IdentityServer;
use crate::pb::csi::node_server::NodeServer;
use crate::pb::pluginregistration::registration_server::RegistrationServer;
use crate::registration::{self, RegistrationService};
pub use crate::socket::Error as SocketError;
use crate::socket::Socket;
use crate::{Mounter, VolumeStore};

/// Why the driver cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A socket cannot be served.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The kubelet's folder is not there.
    #[error("failed to find the kubelet's folder {path}; mount it into the container at that path")]
    Kubelet {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The kubelet cannot be given this path.
    #[error("the path of the socket {path:?} is no UTF-8; use another")]
    SocketPath {
        /// The socket.
        path: PathBuf,
    },
}

/// Where the driver is on a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The socket for the kubelet's calls, at the same path for the kubelet and here.
    pub socket: PathBuf,
    /// The kubelet's folder, such as `/var/lib/kubelet`, at the same path for the kubelet and here;
    /// what is mounted below it here has to show there.
    pub kubelet: PathBuf,
    /// The name of the Node.
    pub node_name: String,
}

/// Serves Identity and Controller, for csi-provisioner, until shutdown.
pub async fn serve_controller<S: VolumeStore>(
    socket: PathBuf,
    store: Arc<S>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let identity = IdentityService(StorePart(Arc::clone(&store)));
    let routes = Routes::new(IdentityServer::new(identity))
        .add_service(ControllerServer::new(ControllerService(store)));
    Ok(Socket::bind(&socket)?
        .serve(routes, || {}, shutdown)
        .await?)
}

/// Serves Identity and Node, and registers with the kubelet, until shutdown. `registered` says
/// whether the kubelet has registered the driver.
pub async fn serve_node<M: Mounter>(
    options: NodeOptions,
    mounter: Arc<M>,
    registered: watch::Sender<bool>,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    let NodeOptions {
        socket,
        kubelet,
        node_name,
    } = options;
    let paths = KubeletPaths::new(&kubelet).map_err(|source| Error::Kubelet {
        path: kubelet.clone(),
        source,
    })?;
    let endpoint = socket.to_str().map(str::to_owned);
    let endpoint = endpoint.ok_or_else(|| Error::SocketPath {
        path: socket.clone(),
    })?;
    let services = Routes::new(IdentityServer::new(IdentityService(NodePart)))
        .add_service(NodeServer::new(NodeService::new(node_name, paths, mounter)));
    let registration = Routes::new(RegistrationServer::new(RegistrationService {
        endpoint,
        registered: registered.clone(),
    }));
    // In this order: a kubelet that sees the second socket calls at the first.
    let first = Socket::bind(&socket)?;
    let second = Socket::bind(&registration::socket_path(&kubelet))?;
    let forgets = || {
        registered.send_replace(false);
    };
    // The first that cannot go on ends both.
    tokio::try_join!(
        first.serve(services, || {}, shutdown.clone()),
        second.serve(registration, forgets, shutdown),
    )?;
    Ok(())
}
