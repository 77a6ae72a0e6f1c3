//! The driver's process: volumes in a folder, file systems in memory, both sockets. It serves until
//! it is killed; csi-sanity can be run against it, too.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use csi::serve::{NodeOptions, serve_controller, serve_node};
use csi::{MountError, MountUsage, Mounter};
use fuse::connection::FuseConnection;
use fuse::init::ConnectionOptions;
use fuse::mount::{MountOptions, Unmount};
use fuse::serve::serve;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::common::FolderStore;
use super::memory::Memory;

/// Set for this program as a driver: the folder of its node.
const NODE: &str = "CSI_TEST_NODE";
/// What any volume is said to hold.
pub(crate) const USED_BYTES: u64 = 4096;

/// The file that stalls a volume while it is there.
pub(crate) fn stall(node: &Path, id: &str) -> PathBuf {
    node.join(format!("stall-{id}"))
}

/// The file that keeps a volume from being mounted while it is there.
pub(crate) fn hold(node: &Path, id: &str) -> PathBuf {
    node.join(format!("hold-{id}"))
}

/// The file that is there as soon as a volume is being mounted.
pub(crate) fn mounting(node: &Path, id: &str) -> PathBuf {
    node.join(format!("mounting-{id}"))
}

/// Serves, if this process was started for that.
pub(crate) fn role() -> Option<ExitCode> {
    let node = PathBuf::from(std::env::var_os(NODE)?);
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let volumes = || FolderStore::new(node.join("volumes"));
    let mounter = MemoryMounter {
        node: node.clone(),
        volumes: volumes(),
        mounted: Mutex::default(),
    };
    let options = NodeOptions {
        socket: node.join("csi.sock"),
        kubelet: node.join("kubelet"),
        node_name: "node-1".to_owned(),
    };
    let controller = node.join("controller.sock");
    let shutdown = CancellationToken::new();
    runtime
        .block_on(async {
            let registered = watch::Sender::new(false);
            let controller = serve_controller(controller, Arc::new(volumes()), shutdown.clone());
            let node = serve_node(options, Arc::new(mounter), registered, shutdown);
            let ready = async {
                println!("ready");
                Ok(())
            };
            // In this order: they are polled from the first to the last.
            tokio::try_join!(controller, node, ready)
        })
        .unwrap();
    Some(ExitCode::SUCCESS)
}

/// Starts it, and waits until its sockets are there.
pub(crate) fn start(node: &Path) -> Child {
    let mut process = Command::new(std::env::current_exe().unwrap())
        .env(NODE, node)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let output = process.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    process
}

/// Each mount of a volume is a new file system in memory.
struct MemoryMounter {
    node: PathBuf,
    volumes: FolderStore,
    mounted: Mutex<BTreeMap<PathBuf, Served>>,
}

struct Served {
    id: String,
    server: JoinHandle<()>,
}

impl Mounter for MemoryMounter {
    async fn mount(&self, id: &str, at: &Path, read_only: bool) -> Result<(), MountError> {
        if self.volumes.find(id).is_none() {
            return Err(MountError::NoSuchVolume);
        }
        fs::write(mounting(&self.node, id), "").unwrap();
        while fs::exists(hold(&self.node, id)).unwrap() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let failed = |error: &dyn std::error::Error| MountError::Failed(error.to_string());
        let options = MountOptions {
            source: id.to_owned(),
            read_only,
            ..MountOptions::default()
        };
        let device = fuse::mount::mount(at, &options).map_err(|error| failed(&error))?;
        let connection = FuseConnection::establish(device, &ConnectionOptions::default());
        let connection = Arc::new(connection.map_err(|error| failed(&error))?);
        let (memory, stall) = (Memory::new(Duration::ZERO), stall(&self.node, id));
        let server = thread::spawn(move || {
            serve(&connection, 2.try_into().unwrap(), |request, replier| {
                while fs::exists(&stall).unwrap() {
                    thread::sleep(Duration::from_millis(1));
                }
                memory.handle(&request, replier);
            })
            .unwrap();
        });
        let id = id.to_owned();
        let served = Served { id, server };
        self.mounted.lock().unwrap().insert(at.to_owned(), served);
        Ok(())
    }

    async fn unmount(&self, _: &str, at: &Path) -> Result<(), MountError> {
        let mut mounted = self.mounted.lock().unwrap();
        let Some(served) = mounted.get(at) else {
            return Ok(());
        };
        let how = if served.server.is_finished() {
            Unmount::Detach
        } else {
            Unmount::WhenUnused
        };
        if let Err(error) = fuse::mount::unmount(at, how) {
            return Err(MountError::Failed(error.to_string()));
        }
        mounted.remove(at);
        Ok(())
    }

    fn is_serving(&self, id: &str, at: &Path) -> bool {
        let mounted = self.mounted.lock().unwrap();
        let served = mounted.get(at).filter(|served| served.id == id);
        served.is_some_and(|served| !served.server.is_finished())
    }

    fn usage(&self, id: &str) -> Option<MountUsage> {
        let mounted = self.mounted.lock().unwrap();
        let served = mounted.values().find(|served| served.id == id)?;
        if served.server.is_finished() {
            return None;
        }
        Some(MountUsage {
            bytes: self.volumes.find(id)?.bytes,
            used_bytes: USED_BYTES,
            inodes: None,
            used_inodes: 1,
        })
    }
}
