//! A kubelet as a plugin sees it: it clears the plugin folder, serves Registration, dials
//! back, follows ListAndWatch, and asks for devices. And a node's folder with an agent on it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use daemon::{CancellationToken, Readiness, Registry};
use device_plugin::agent::{Agent, Error};
use device_plugin::backend::NodeLocation;
use device_plugin::backend::mock::Mock;
use device_plugin::metrics::Metrics;
use device_plugin::pb::v1beta1::device_plugin_client::DevicePluginClient;
use device_plugin::pb::v1beta1::registration_server::{Registration, RegistrationServer};
use device_plugin::pb::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, Empty, PreferredAllocationRequest,
    RegisterRequest,
};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// The paper's node.
pub(crate) const PAPER: &str = include_str!("../../../e2e/fixtures/node-a100.yaml");

/// What a test waits for comes within this, or never.
const PATIENCE: Duration = Duration::from_secs(30);

async fn within<F: Future>(what: &str, wait: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(output) => output,
        Err(_) => panic!("waited {PATIENCE:?} in vain for {what}"),
    }
}

/// Waits until the condition holds.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    within(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Folders of one node.
pub(crate) struct Node {
    root: tempfile::TempDir,
    /// The kubelet's plugin folder.
    pub(crate) plugins: PathBuf,
}

impl Node {
    /// A node with an empty plugin folder and this fixture.
    pub(crate) fn new(fixture: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let plugins = root.path().join("plugins");
        fs::create_dir(&plugins).unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let node = Self { root, plugins };
        node.write(fixture);
        node
    }

    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    fn fixture(&self) -> PathBuf {
        self.root().join("etc/node.yaml")
    }

    /// Replaces the fixture as an editor does.
    pub(crate) fn write(&self, fixture: &str) {
        let new = self.root().join("etc/node.yaml.new");
        fs::write(&new, fixture).unwrap();
        fs::rename(&new, self.fixture()).unwrap();
    }

    /// Starts an agent on the node.
    pub(crate) fn agent(&self) -> RunningAgent {
        let registry = Registry::new("1.2.3").unwrap();
        let readiness = Readiness::default();
        let shutdown = CancellationToken::new();
        let agent = Agent {
            backend: Mock::new(self.fixture(), None, self.root().join("devices")).unwrap(),
            place: NodeLocation::default(),
            plugin_dir: self.plugins.clone(),
            labels: None,
            metrics: Metrics::new(&registry).unwrap(),
            readiness: readiness.clone(),
            shutdown: shutdown.clone(),
        };
        RunningAgent {
            task: tokio::spawn(agent.run()),
            registry,
            readiness,
            shutdown,
        }
    }
}

/// An agent that runs.
pub(crate) struct RunningAgent {
    task: JoinHandle<Result<(), Error>>,
    registry: Registry,
    readiness: Readiness,
    shutdown: CancellationToken,
}

impl RunningAgent {
    pub(crate) fn metrics(&self) -> String {
        self.registry.text().unwrap()
    }

    /// Waits until the agent says that it is ready.
    pub(crate) async fn ready(&self) {
        eventually("readiness", || self.readiness.missing().is_empty()).await;
    }

    /// Waits until the agent ends by itself.
    pub(crate) async fn ended(self) -> Result<(), Error> {
        within("the agent to end", self.task).await.unwrap()
    }

    /// Ends the agent in peace.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.ended().await.unwrap();
    }
}

/// A kubelet. Dropping it is what SIGKILL is to a real one: its socket file stays.
pub(crate) struct Kubelet {
    known: Arc<Known>,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

/// What registered, and how many times it was seen.
struct Known {
    folder: PathBuf,
    refusals: AtomicU32,
    plugins: watch::Sender<BTreeMap<String, Registered>>,
}

#[derive(Clone)]
struct Registered {
    socket: PathBuf,
    channel: Channel,
    prefers: bool,
    taken: Arc<Mutex<bool>>,
}

impl Kubelet {
    /// Starts as a kubelet does: removes every socket, then opens its own.
    pub(crate) fn start(folder: &Path) -> Self {
        for entry in fs::read_dir(folder).unwrap() {
            // Whoever closes a socket may be faster.
            let _removed = fs::remove_file(entry.unwrap().path());
        }
        Self::join(folder)
    }

    /// Opens the socket without removing anything.
    pub(crate) fn join(folder: &Path) -> Self {
        let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        let known = Arc::new(Known {
            folder: folder.to_owned(),
            refusals: AtomicU32::new(0),
            plugins: watch::Sender::new(BTreeMap::new()),
        });
        let service = RegistrationServer::from_arc(known.clone());
        let server = Server::builder()
            .add_service(service)
            .serve_with_incoming(UnixListenerStream::new(listener));
        Self {
            known,
            server: tokio::spawn(server),
        }
    }

    /// Refuses the next registrations.
    pub(crate) fn refuse(&self, times: u32) {
        self.known.refusals.store(times, Ordering::Relaxed);
    }

    /// Whether something registered for the resource.
    pub(crate) fn knows(&self, resource: &str) -> bool {
        self.known.plugins.borrow().contains_key(resource)
    }

    /// Waits for a registration that was not taken yet, and follows the plugin.
    pub(crate) async fn plugin(&mut self, resource: &str) -> Plugin {
        let mut plugins = self.known.plugins.subscribe();
        let found = plugins.wait_for(|plugins| {
            plugins
                .get(resource)
                .is_some_and(|plugin| !std::mem::replace(&mut *plugin.taken.lock().unwrap(), true))
        });
        let found = within(resource, found).await.unwrap()[resource].clone();
        Plugin::follow(found).await
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[tonic::async_trait]
impl Registration for Known {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let left = self.refusals.load(Ordering::Relaxed);
        if left > 0 {
            self.refusals.store(left - 1, Ordering::Relaxed);
            return Err(Status::unavailable("not yet"));
        }
        assert_eq!(request.version, "v1beta1");
        let socket = self.folder.join(&request.endpoint);
        // A Go client says `localhost`, whatever it dials.
        let channel = Endpoint::try_from(format!("unix://{}", socket.display()))
            .unwrap()
            .origin("http://localhost".parse().unwrap())
            .connect()
            .await
            .map_err(|error| Status::internal(error.to_string()))?;
        let options = DevicePluginClient::new(channel.clone())
            .get_device_plugin_options(Empty {})
            .await?
            .into_inner();
        assert_eq!(Some(options), request.options);
        let plugin = Registered {
            socket,
            channel,
            prefers: options.get_preferred_allocation_available,
            taken: Arc::default(),
        };
        self.plugins.send_modify(|plugins| {
            plugins.insert(request.resource_name, plugin);
        });
        Ok(Response::new(Empty {}))
    }
}

/// A plugin that the kubelet follows. Dropping it ends the stream.
pub(crate) struct Plugin {
    pub(crate) socket: PathBuf,
    pub(crate) prefers: bool,
    client: DevicePluginClient<Channel>,
    devices: watch::Receiver<Option<Vec<Device>>>,
    follower: JoinHandle<()>,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

impl Plugin {
    async fn follow(plugin: Registered) -> Self {
        let mut client = DevicePluginClient::new(plugin.channel);
        let mut stream = within("ListAndWatch", client.list_and_watch(Empty {}))
            .await
            .unwrap()
            .into_inner();
        let (sender, devices) = watch::channel(None);
        let follower = tokio::spawn(async move {
            while let Ok(Some(answer)) = stream.message().await {
                sender.send_replace(Some(answer.devices));
            }
        });
        Self {
            socket: plugin.socket,
            prefers: plugin.prefers,
            client,
            devices,
            follower,
        }
    }

    /// The devices that the plugin named last.
    pub(crate) async fn devices(&self) -> Vec<Device> {
        let mut devices = self.devices.clone();
        let some = within("devices", devices.wait_for(Option::is_some)).await;
        some.unwrap().clone().unwrap()
    }

    /// Waits until the plugin names so many devices that may be given out.
    pub(crate) async fn healthy(&self, count: usize) {
        let mut devices = self.devices.clone();
        let counted = devices.wait_for(|devices| {
            devices.as_ref().is_some_and(|devices| {
                let healthy = devices.iter().filter(|device| device.health == "Healthy");
                healthy.count() == count
            })
        });
        within("the right number of healthy devices", counted)
            .await
            .unwrap();
    }

    pub(crate) async fn prefer(
        &self,
        available: &[&str],
        must_include: &[&str],
        allocation_size: i32,
    ) -> Result<Vec<String>, Status> {
        let request = ContainerPreferredAllocationRequest {
            available: owned(available),
            must_include: owned(must_include),
            allocation_size,
        };
        let mut client = self.client.clone();
        let answer = client.get_preferred_allocation(PreferredAllocationRequest {
            container_requests: vec![request],
        });
        let mut answers = answer.await?.into_inner().container_responses;
        Ok(answers.remove(0).device_ids)
    }

    pub(crate) async fn allocate(&self, ids: &[&str]) -> Result<ContainerAllocateResponse, Status> {
        let request = ContainerAllocateRequest {
            device_ids: owned(ids),
        };
        let mut client = self.client.clone();
        let answer = client.allocate(AllocateRequest {
            container_requests: vec![request],
        });
        Ok(answer.await?.into_inner().container_responses.remove(0))
    }
}

fn owned(ids: &[&str]) -> Vec<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}
