//! The node's process as a kubelet sees it: found by its socket, registered, asked again after
//! either has started anew; and what it refuses. Nothing is mounted here.
#![expect(clippy::unwrap_used, clippy::panic, reason = "test harness")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi::pb::csi::node_client::NodeClient;
use csi::pb::csi::volume_capability::{AccessMode, AccessType, Mount};
use csi::pb::csi::{
    Empty, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
    node_service_capability,
};
use csi::pb::pluginregistration::registration_client::RegistrationClient;
use csi::pb::pluginregistration::{InfoRequest, RegistrationStatus};
use csi::serve::{NodeOptions, SocketError, serve_node};
use csi::{DRIVER_NAME, MountError, MountUsage, Mounter};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// What a test waits for comes within this, or never.
const PATIENCE: Duration = Duration::from_secs(30);

/// A node without volumes.
struct NoVolumes;

impl Mounter for NoVolumes {
    async fn mount(&self, _: &str, _: &Path, _: bool) -> Result<(), MountError> {
        Err(MountError::NoSuchVolume)
    }

    async fn unmount(&self, _: &str, _: &Path) -> Result<(), MountError> {
        Ok(())
    }

    fn is_serving(&self, _: &str, _: &Path) -> bool {
        false
    }

    fn usage(&self, _: &str) -> Option<MountUsage> {
        None
    }
}

/// A node's folders, and the driver's process on it.
struct Node {
    root: TempDir,
    registered: watch::Sender<bool>,
    shutdown: CancellationToken,
    served: Option<JoinHandle<Result<(), csi::serve::Error>>>,
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for folder in ["plugins", "plugins_registry", "pods"] {
            fs::create_dir(root.path().join(folder)).unwrap();
        }
        Self {
            root,
            registered: watch::Sender::new(false),
            shutdown: CancellationToken::new(),
            served: None,
        }
    }

    fn options(&self) -> NodeOptions {
        NodeOptions {
            socket: self.path("plugins/csi.sock"),
            kubelet: self.root.path().to_owned(),
            node_name: "node-1".to_owned(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn registration(&self) -> PathBuf {
        self.path(&format!("plugins_registry/kubelet@{DRIVER_NAME}-reg.sock"))
    }

    fn start(&mut self) {
        let (registered, shutdown) = (self.registered.clone(), self.shutdown.clone());
        let served = serve_node(self.options(), Arc::new(NoVolumes), registered, shutdown);
        self.served = Some(tokio::spawn(served));
    }

    /// A client, as soon as somebody listens.
    async fn client(&self) -> NodeClient<Channel> {
        NodeClient::new(reach(&self.path("plugins/csi.sock"), "localhost").await)
    }

    async fn is_registered(&self, wanted: bool) {
        let mut registered = self.registered.subscribe();
        let waits = registered.wait_for(|registered| *registered == wanted);
        within("the registration", waits).await.unwrap();
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.served.unwrap().await.unwrap().unwrap();
        assert!(!fs::exists(self.root.path().join("plugins/csi.sock")).unwrap());
        let left = fs::read_dir(self.root.path().join("plugins_registry"));
        assert_eq!(left.unwrap().count(), 0);
    }
}

async fn within<F: Future>(what: &str, wait: F) -> F::Output {
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(output) => output,
        Err(_) => panic!("waited {PATIENCE:?} in vain for {what}"),
    }
}

/// A connection to a socket, as soon as somebody listens.
async fn reach(socket: &Path, authority: &str) -> Channel {
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).unwrap();
    let endpoint = endpoint.origin(format!("http://{authority}").parse().unwrap());
    within("a socket", async {
        loop {
            match endpoint.connect().await {
                Ok(channel) => return channel,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await
}

/// What a kubelet does with a socket that it finds: asks who it is, calls the driver, says how it
/// went. The name of the node.
async fn register(node: &Node, error: &str) -> String {
    let socket = node.registration();
    // The two ways in which it names whom it calls.
    let authority = socket.to_str().unwrap().replace('/', "%2F");
    let mut registration = RegistrationClient::new(reach(&socket, &authority).await);
    let plugin = registration
        .get_info(InfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (&plugin.r#type[..], &plugin.name[..]),
        ("CSIPlugin", DRIVER_NAME)
    );
    // A kubelet takes version 1, and 0 no more.
    assert!(
        plugin
            .supported_versions
            .iter()
            .any(|version| version.starts_with("1."))
    );
    let mut driver = NodeClient::new(reach(Path::new(&plugin.endpoint), "localhost").await);
    let answer = driver.node_get_info(Empty {}).await.unwrap();
    let status = RegistrationStatus {
        plugin_registered: error.is_empty(),
        error: error.to_owned(),
    };
    registration
        .notify_registration_status(status)
        .await
        .unwrap();
    answer.into_inner().node_id
}

#[tokio::test]
async fn a_kubelet_finds_the_driver_again_whenever_it_starts() {
    let mut node = Node::new();
    node.start();
    for _ in 0..2 {
        assert_eq!(register(&node, "").await, "node-1");
        node.is_registered(true).await;
    }
    node.stop().await;
}

#[tokio::test]
async fn a_driver_that_a_kubelet_refuses_is_not_registered() {
    let mut node = Node::new();
    node.start();
    for (error, wanted) in [("", true), ("the version is another", false), ("", true)] {
        register(&node, error).await;
        node.is_registered(wanted).await;
    }
    node.stop().await;
}

#[tokio::test]
async fn sockets_that_are_removed_come_back() {
    let mut node = Node::new();
    node.start();
    register(&node, "").await;
    node.is_registered(true).await;
    for socket in [node.registration(), node.path("plugins/csi.sock")] {
        fs::remove_file(socket).unwrap();
    }
    node.is_registered(false).await;
    assert_eq!(register(&node, "").await, "node-1");
    node.is_registered(true).await;
    node.stop().await;
}

#[tokio::test]
async fn sockets_of_a_process_that_was_killed_are_replaced_and_others_are_not() {
    let mut node = Node::new();
    for socket in [node.registration(), node.path("plugins/csi.sock")] {
        drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
    }
    node.start();
    register(&node, "").await;

    let registered = watch::Sender::new(false);
    let second = serve_node(
        node.options(),
        Arc::new(NoVolumes),
        registered,
        node.shutdown.clone(),
    );
    let taken = second.await.unwrap_err();
    assert!(
        matches!(taken, csi::serve::Error::Socket(SocketError::Taken { .. })),
        "{taken}"
    );
    assert_eq!(register(&node, "").await, "node-1", "the first one goes on");
    node.stop().await;
}

#[tokio::test]
async fn folders_that_are_not_there_are_named() {
    let node = Node::new();
    let fails = async |options: NodeOptions| {
        let (registered, shutdown) = (watch::Sender::new(false), CancellationToken::new());
        let served = serve_node(options, Arc::new(NoVolumes), registered, shutdown);
        served.await.unwrap_err().to_string()
    };
    let kubelet = node.path("none");
    let options = NodeOptions {
        kubelet,
        ..node.options()
    };
    let error = fails(options).await;
    assert!(
        error.contains("/none; mount it into the container"),
        "{error}"
    );
    let socket = node.path("none/csi.sock");
    let options = NodeOptions {
        socket,
        ..node.options()
    };
    let error = fails(options).await;
    assert!(
        error.contains("none/csi.sock; is its folder mounted"),
        "{error}"
    );
    fs::remove_dir(node.path("plugins_registry")).unwrap();
    let error = fails(node.options()).await;
    assert!(error.contains("plugins_registry"), "{error}");
}

fn capability(mode: i32) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode }),
        access_type: Some(AccessType::Mount(Mount::default())),
    }
}

fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, expected: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(expected), "{status}");
}

#[tokio::test]
async fn requests_that_say_too_little_or_name_other_folders_are_refused() {
    let mut node = Node::new();
    node.start();
    let mut client = node.client().await;
    let folder = |name: &str| node.path(name).to_str().unwrap().to_owned();
    let stage = NodeStageVolumeRequest {
        volume_id: "volume".to_owned(),
        staging_target_path: folder("staging"),
        volume_capability: Some(capability(5)),
    };
    let publish = NodePublishVolumeRequest {
        volume_id: "volume".to_owned(),
        staging_target_path: folder("staging"),
        target_path: folder("pods/mount"),
        volume_capability: Some(capability(5)),
        readonly: false,
    };
    let invalid = Code::InvalidArgument;
    macro_rules! refuses {
        ($call:ident, $request:ident, $field:ident: $value:expr, $code:expr, $text:expr) => {{
            let mut request = $request.clone();
            request.$field = $value;
            refused(client.$call(request).await, $code, $text);
        }};
    }
    let none = String::new;
    refuses!(node_stage_volume, stage, volume_id: none(), invalid, "volume_id is missing");
    refuses!(node_stage_volume, stage, staging_target_path: none(), invalid, "staging_target_path");
    refuses!(node_stage_volume, stage, volume_capability: None, invalid, "volume_capability");
    refuses!(node_stage_volume, stage, volume_capability: Some(capability(8)), invalid, "access mode 8");
    refuses!(node_publish_volume, publish, volume_id: none(), invalid, "volume_id");
    refuses!(node_publish_volume, publish, target_path: none(), invalid, "target_path");
    refuses!(node_publish_volume, publish, volume_capability: None, invalid, "volume_capability");
    let unstaged = Code::FailedPrecondition;
    refuses!(node_publish_volume, publish, staging_target_path: none(), unstaged, "stage the");
    for elsewhere in [
        "/etc".to_owned(),
        "pods/a".to_owned(),
        folder("pods/../../a"),
    ] {
        let path = || elsewhere.clone();
        refuses!(node_stage_volume, stage, staging_target_path: path(), invalid, &path());
        refuses!(node_publish_volume, publish, staging_target_path: path(), invalid, &path());
        refuses!(node_publish_volume, publish, target_path: path(), invalid, &path());
    }
    // Neither folder is there, nor is the volume.
    refused(
        client.node_stage_volume(stage).await,
        Code::NotFound,
        "no volume \"volume\"",
    );
    refused(
        client.node_publish_volume(publish).await,
        Code::NotFound,
        "no volume \"volume\"",
    );

    let unstage = NodeUnstageVolumeRequest {
        volume_id: "volume".to_owned(),
        staging_target_path: folder("staging"),
    };
    let unpublish = NodeUnpublishVolumeRequest {
        volume_id: "volume".to_owned(),
        target_path: folder("pods/mount"),
    };
    refuses!(node_unstage_volume, unstage, volume_id: none(), invalid, "volume_id");
    refuses!(node_unstage_volume, unstage, staging_target_path: none(), invalid, "staging");
    refuses!(node_unpublish_volume, unpublish, volume_id: none(), invalid, "volume_id");
    refuses!(node_unpublish_volume, unpublish, target_path: none(), invalid, "target_path");
    refuses!(node_unpublish_volume, unpublish, target_path: "/etc".to_owned(), invalid, "/etc");

    let stats = NodeGetVolumeStatsRequest {
        volume_id: "volume".to_owned(),
        volume_path: folder("pods/mount"),
    };
    refuses!(node_get_volume_stats, stats, volume_id: none(), invalid, "volume_id");
    refuses!(node_get_volume_stats, stats, volume_path: none(), invalid, "volume_path");
    for path in ["some/path".to_owned(), folder("pods/mount")] {
        let text = format!("not mounted at {path:?}");
        refuses!(node_get_volume_stats, stats, volume_path: path, Code::NotFound, &text);
    }
    refused(
        client.node_expand_volume(Empty {}).await,
        Code::Unimplemented,
        "copy the files",
    );
    node.stop().await;
}

/// As after a restart of the node, when the kubelet's folders are there and nothing is mounted.
#[tokio::test]
async fn folders_without_a_mount_are_unpublished_and_only_empty_ones_removed() {
    let mut node = Node::new();
    node.start();
    let mut client = node.client().await;
    let kept = node.path("pods/kept/file");
    fs::create_dir_all(kept.parent().unwrap()).unwrap();
    fs::write(&kept, "the only copy").unwrap();
    fs::create_dir(node.path("pods/empty")).unwrap();
    fs::write(node.path("pods/file"), "").unwrap();
    for _ in 0..2 {
        for name in [
            "pods/kept",
            "pods/empty",
            "pods/file",
            "pods/none",
            "pods/none/below",
        ] {
            let path = node.path(name).to_str().unwrap().to_owned();
            let volume_id = "volume".to_owned();
            let unpublish = NodeUnpublishVolumeRequest {
                volume_id: volume_id.clone(),
                target_path: path.clone(),
            };
            client.node_unpublish_volume(unpublish).await.unwrap();
            let unstage = NodeUnstageVolumeRequest {
                volume_id,
                staging_target_path: path,
            };
            client.node_unstage_volume(unstage).await.unwrap();
        }
    }
    assert_eq!(fs::read_to_string(kept).unwrap(), "the only copy");
    let absent = fs::metadata(node.path("pods/empty")).unwrap_err();
    assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    node.stop().await;
}

#[tokio::test]
async fn the_node_says_what_it_offers() {
    let mut node = Node::new();
    node.start();
    let answer = node.client().await.node_get_capabilities(Empty {}).await;
    let offered = answer
        .unwrap()
        .into_inner()
        .capabilities
        .into_iter()
        .map(|offered| {
            let Some(node_service_capability::Type::Rpc(rpc)) = offered.r#type else {
                panic!("{offered:?}");
            };
            rpc.r#type
        });
    // STAGE_UNSTAGE_VOLUME, GET_VOLUME_STATS, SINGLE_NODE_MULTI_WRITER.
    assert_eq!(offered.collect::<Vec<_>>(), [1, 2, 5]);
    node.stop().await;
}
