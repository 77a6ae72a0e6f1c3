//! A node with its driver, as a kubelet uses it: claims, pods, and what is mounted where.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use csi::pb::csi::controller_client::ControllerClient;
use csi::pb::csi::node_client::NodeClient;
use csi::pb::csi::volume_capability::access_mode::Mode;
use csi::pb::csi::volume_capability::{AccessMode, AccessType, Mount};
use csi::pb::csi::{
    CreateVolumeRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
    VolumeUsage,
};
use fuse::mount::{MountState, Unmount};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::common::connect;
use super::driver;
use super::namespace::CONNECTIONS;

/// Longer than anything here takes, so that only what never comes fails.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A node that runs.
pub(crate) struct Node {
    folder: TempDir,
    driver: Child,
    pub(crate) runtime: Runtime,
    pub(crate) client: NodeClient<Channel>,
}

impl Node {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in [
            "volumes",
            "kubelet/plugins_registry",
            "kubelet/staging",
            "kubelet/pods",
        ] {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let driver = driver::start(folder.path());
        let runtime = Runtime::new().unwrap();
        let socket = folder.path().join("csi.sock");
        let channel = runtime.block_on(connect(&socket)).unwrap();
        Self {
            client: NodeClient::new(channel),
            folder,
            driver,
            runtime,
        }
    }

    /// Kills the driver, and with it whatever it serves.
    pub(crate) fn kill(&mut self) {
        self.driver.kill().unwrap();
        self.driver.wait().unwrap();
    }

    /// Starts a driver after one was killed.
    pub(crate) fn restart(&mut self) {
        self.driver = driver::start(self.folder.path());
        let channel = self
            .runtime
            .block_on(connect(&self.folder().join("csi.sock")));
        self.client = NodeClient::new(channel.unwrap());
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn staging(&self, id: &str) -> PathBuf {
        self.folder().join("kubelet/staging").join(id)
    }

    pub(crate) fn pod(&self, name: &str) -> PathBuf {
        self.folder().join("kubelet/pods").join(name)
    }

    /// Makes a volume of 1 GiB: its id.
    pub(crate) fn volume(&self, name: &str) -> String {
        let socket = self.folder().join("controller.sock");
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            volume_capabilities: vec![capability(Mode::MultiNodeMultiWriter)],
            ..CreateVolumeRequest::default()
        };
        let created = self.runtime.block_on(async {
            let mut client = ControllerClient::new(connect(&socket).await.unwrap());
            client.create_volume(request).await
        });
        created.unwrap().into_inner().volume.unwrap().volume_id
    }

    pub(crate) fn stage_request(&self, id: &str, mode: Mode) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(&self.staging(id)),
            volume_capability: Some(capability(mode)),
        }
    }

    pub(crate) fn publish_request(&self, id: &str, pod: &str) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(&self.staging(id)),
            target_path: text(&self.pod(pod)),
            volume_capability: Some(capability(Mode::MultiNodeMultiWriter)),
            readonly: false,
        }
    }

    pub(crate) fn stage(&self, id: &str, mode: Mode) -> Result<(), Status> {
        let request = self.stage_request(id, mode);
        let mut client = self.client.clone();
        let staged = self.runtime.block_on(client.node_stage_volume(request));
        staged.map(drop)
    }

    pub(crate) fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), Status> {
        let mut client = self.client.clone();
        let published = self.runtime.block_on(client.node_publish_volume(request));
        published.map(drop)
    }

    /// Stages and publishes, for any number of writers.
    pub(crate) fn give(&self, id: &str, pod: &str) -> PathBuf {
        self.stage(id, Mode::MultiNodeMultiWriter).unwrap();
        self.publish(self.publish_request(id, pod)).unwrap();
        self.pod(pod)
    }

    pub(crate) fn unpublish(&self, id: &str, pod: &str) -> Result<(), Status> {
        let request = NodeUnpublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: text(&self.pod(pod)),
        };
        let mut client = self.client.clone();
        let unpublished = self.runtime.block_on(client.node_unpublish_volume(request));
        unpublished.map(drop)
    }

    pub(crate) fn unstage(&self, id: &str) -> Result<(), Status> {
        let request = NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: text(&self.staging(id)),
        };
        let mut client = self.client.clone();
        let unstaged = self.runtime.block_on(client.node_unstage_volume(request));
        unstaged.map(drop)
    }

    pub(crate) fn stats(&self, id: &str, path: &Path) -> Result<Vec<VolumeUsage>, Status> {
        let request = NodeGetVolumeStatsRequest {
            volume_id: id.to_owned(),
            volume_path: text(path),
        };
        let mut client = self.client.clone();
        let stats = self.runtime.block_on(client.node_get_volume_stats(request));
        Ok(stats?.into_inner().usage)
    }

    /// How many mounts there are on this node.
    pub(crate) fn mounts(&self) -> usize {
        let table = fuse::mount::table().unwrap();
        let ours = table
            .iter()
            .filter(|entry| entry.folder.starts_with(self.folder()));
        ours.count()
    }

    /// The number of a volume's connection, as the kernel shows it.
    fn connection(&self, id: &str) -> String {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let staging = text(&self.staging(id));
        let line = table
            .lines()
            .rfind(|line| line.split(' ').nth(4) == Some(&staging));
        let device = line.unwrap().split(' ').nth(2).unwrap();
        let (_, number) = device.split_once(':').unwrap();
        number.to_owned()
    }

    /// Waits until so many requests wait for a volume's file system.
    pub(crate) fn wait_for_requests(&self, id: &str, count: u64) {
        let file = format!("{CONNECTIONS}/{}/waiting", self.connection(id));
        wait_until("requests", || {
            let waiting = fs::read_to_string(&file).unwrap();
            waiting.trim().parse::<u64>().unwrap() >= count
        });
    }

    /// Ends a volume's connection as an administrator does; its process lives.
    pub(crate) fn abort(&self, id: &str) {
        let file = format!("{CONNECTIONS}/{}/abort", self.connection(id));
        fs::write(file, "1").unwrap();
    }

    /// Takes everything away, and sees that nothing is left.
    pub(crate) fn stop(self, id: &str, pods: &[&str]) {
        for pod in pods {
            self.unpublish(id, pod).unwrap();
            assert!(!self.pod(pod).exists());
        }
        self.unstage(id).unwrap();
        assert!(!self.staging(id).exists());
        assert_eq!(self.mounts(), 0);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.driver.kill().ok();
        self.driver.wait().ok();
        // Where a test has failed: nothing is removed below a mount.
        for entry in fuse::mount::table().unwrap_or_default() {
            if entry.folder.starts_with(self.folder()) {
                fuse::mount::unmount(&entry.folder, Unmount::Detach).ok();
            }
        }
    }
}

pub(crate) fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(Mount::default())),
    }
}

pub(crate) fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

pub(crate) fn refused<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, expected: &str) {
    let status = answer.unwrap_err();
    assert_eq!(status.code(), code, "{status}");
    assert!(status.message().contains(expected), "{status}");
}

pub(crate) fn is_live(folder: &Path, id: &str) -> bool {
    let source = id.to_owned();
    fuse::mount::state(folder).unwrap() == MountState::Live { source }
}

pub(crate) fn is_dead(folder: &Path) -> bool {
    let state = fuse::mount::state(folder).unwrap();
    matches!(state, MountState::Dead { .. })
}
