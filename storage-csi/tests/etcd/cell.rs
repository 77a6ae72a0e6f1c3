//! A file system of processes on loopback: etcd, a chain manager, and storage services, each of which can be killed and
//! started over its folder.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use chain_link::{PeerRole, StoragePeer};
use craq::SessionId;
use link::handshake::Key;
use storage_client::{ClientOptions, StorageClient};
use storage_csi::follow::follow;
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use storage_rpc::pb::manager::{
    ChainSpec, CreateChainsRequest, EndSessionRequest, ListRequest, ListResponse,
    OpenSessionRequest,
};
use storage_rpc::{RpcCredentials, StorageKeys, connect};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use crate::server::Etcd;

const PROGRAM: &str = env!("CARGO_BIN_EXE_storage-csi");
const FILE_SYSTEM: u128 = 0xfeed;
const CHUNK_BYTES: u32 = 1 << 20;
/// Far more than anything takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A process that is killed at the end, and when the test dies.
struct Process {
    words: Vec<OsString>,
    log: PathBuf,
    child: Option<Child>,
}

impl Process {
    fn start(folder: &Path, name: &str, words: &[String]) -> Self {
        let mut all: Vec<OsString> = ["--pdeathsig", "KILL", PROGRAM].map(OsString::from).into();
        let flags = ["--metrics-listen=127.0.0.1:0", "--log-format=pretty"];
        all.extend(flags.map(OsString::from));
        all.extend(words.iter().map(OsString::from));
        let mut process = Self {
            words: all,
            log: folder.join(format!("{name}.log")),
            child: None,
        };
        process.start_again();
        process
    }

    fn start_again(&mut self) {
        // setpriv becomes the program, so that the child's number is the program's.
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let mut command = Command::new("setpriv");
        command.env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
        command
            .args(&self.words)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let tail: Vec<&str> = text.lines().rev().take(15).collect();
            for line in tail.iter().rev() {
                eprintln!("{}: {line}", self.log.file_name().unwrap().display());
            }
        }
    }
}

pub(crate) struct Cell {
    pub(crate) runtime: Runtime,
    pub(crate) etcd: Etcd,
    manager: Process,
    manager_address: String,
    meta: Process,
    services: Vec<Process>,
    /// What every client is given.
    reach: Vec<String>,
    folder: TempDir,
}

impl Cell {
    /// Starts all of it, with one chain over three targets.
    pub(crate) fn start(etcd: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys");
        fs::create_dir(&keys).unwrap();
        fs::write(keys.join("file-system"), format!("{FILE_SYSTEM:032x}\n")).unwrap();
        fs::write(keys.join("members"), "11".repeat(32)).unwrap();
        fs::write(keys.join("clients"), "22".repeat(32)).unwrap();
        let keys = format!("--keys={}", keys.display());
        let etcd = Etcd::start(etcd, &[]);
        // Nobody else on this machine asks for a port by number.
        let port = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let [free, names] = [port(), port()].map(|port| port.local_addr().unwrap());
        let words = [
            "manager".into(),
            keys.clone(),
            format!("--etcd={}", etcd.url()),
            format!("--listen={free}"),
        ];
        let manager = Process::start(folder.path(), "manager", &words);
        let words = [
            "meta".into(),
            keys.clone(),
            format!("--etcd={}", etcd.url()),
            format!("--manager={free}"),
            "--name=meta-0".into(),
            format!("--listen={names}"),
        ];
        let meta = Process::start(folder.path(), "meta", &words);
        let mut cell = Self {
            runtime: Runtime::new().unwrap(),
            etcd,
            manager,
            manager_address: free.to_string(),
            meta,
            reach: vec![
                keys.clone(),
                format!("--manager={free}"),
                format!("--meta={names}"),
            ],
            services: Vec::new(),
            folder,
        };
        for number in 0..3 {
            let target = cell.folder.path().join(format!("target-{number}"));
            fs::create_dir(&target).unwrap();
            let words = [
                "service".into(),
                keys.clone(),
                format!("--manager={free}"),
                format!("--node-name=node-{number}"),
                "--address=127.0.0.1".into(),
                "--member-port=0".into(),
                "--client-port=0".into(),
                format!("--path={}", target.display()),
                format!("--target-bytes={}", 320 << 20),
            ];
            let service = Process::start(cell.folder.path(), &format!("service-{number}"), &words);
            cell.services.push(service);
        }
        cell.create_chain();
        cell
    }

    fn create_chain(&self) {
        let mut manager = self.manager(PeerRole::Meta);
        let list = self.until(|list| list.targets.iter().filter(|of| of.is_formatted).count() == 3);
        let request = CreateChainsRequest {
            pool: "default".into(),
            chains: vec![ChainSpec {
                chain: 1,
                targets: list.targets.iter().map(|of| of.target.clone()).collect(),
            }],
        };
        self.runtime
            .block_on(manager.create_chains(request))
            .unwrap();
        self.until(|list| list.chains.iter().all(|chain| !chain.is_waiting));
    }

    fn credentials(role: PeerRole) -> RpcCredentials {
        RpcCredentials {
            identity: StoragePeer::new(FILE_SYSTEM, role, 0),
            keys: StorageKeys::of_member(Key::new([0x11; 32]), Key::new([0x22; 32])),
        }
    }

    pub(crate) fn manager(&self, role: PeerRole) -> ChainManagerClient<Channel> {
        let _runtime = self.runtime.enter();
        let channel = connect(
            &self.manager_address,
            PeerRole::Manager,
            Self::credentials(role),
        );
        ChainManagerClient::new(channel.unwrap())
    }

    /// What the manager lists, once it is so.
    pub(crate) fn until(&self, is_so: impl Fn(&ListResponse) -> bool) -> ListResponse {
        let mut manager = self.manager(PeerRole::Meta);
        let look = || {
            let listed = self.runtime.block_on(manager.list(ListRequest {}));
            Ok(listed
                .ok()
                .map(tonic::Response::into_inner)
                .filter(|list| is_so(list)))
        };
        cluster::until("the chain manager lists what is expected", LIMIT, look).unwrap()
    }

    /// A client that follows the manager's map.
    pub(crate) fn client(&self, name: &str) -> Arc<StorageClient> {
        let mut manager = self.manager(PeerRole::Client);
        let request = OpenSessionRequest {
            client: name.into(),
        };
        let session = self
            .runtime
            .block_on(manager.open_session(request))
            .unwrap()
            .into_inner()
            .session;
        let options = ClientOptions {
            file_system: FILE_SYSTEM,
            session: SessionId(session),
            key: Key::new([0x22; 32]),
            chunk_bytes: CHUNK_BYTES,
            traffic_class: 0,
        };
        let client = Arc::new(StorageClient::start(options).unwrap());
        let follows = Arc::clone(&client);
        self.runtime.spawn(async move {
            follow(manager, 0, |map| follows.follow(map)).await;
        });
        client
    }

    /// The file of a service's target.
    pub(crate) fn target(&self, number: usize) -> PathBuf {
        self.folder
            .path()
            .join(format!("target-{number}/fireflyer-target"))
    }

    pub(crate) fn kill_service(&mut self, number: usize) {
        self.services[number].kill();
    }

    pub(crate) fn start_service(&mut self, number: usize) {
        self.services[number].start_again();
    }

    /// Mounts a volume at a new folder, in a process of its own.
    pub(crate) fn mount(&self, name: &str, volume: &str) -> Mounted {
        let at = self.folder.path().join(name);
        fs::create_dir(&at).unwrap();
        let mut words = vec![
            "mount".into(),
            format!("--volume={volume}"),
            format!("--at={}", at.display()),
            format!("--create-bytes={}", 200 << 20),
        ];
        words.extend(self.reach.iter().cloned());
        let process = Process::start(self.folder.path(), name, &words);
        let mounted = Mounted { process, at };
        let is_mounted = || Ok(is_mounted(&mounted.at).then_some(()));
        cluster::until("a volume is mounted", LIMIT, is_mounted).unwrap();
        mounted
    }

    /// What a mount of a volume that is not there says.
    pub(crate) fn mount_error(&self, volume: &str) -> String {
        let mut command = Command::new(PROGRAM);
        command.args(["--metrics-listen=127.0.0.1:0", "mount"]);
        command.arg(format!("--volume={volume}"));
        command.arg(format!("--at={}", self.folder.path().display()));
        let output = command.args(&self.reach).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Ends the session of a mount that was killed.
    pub(crate) fn end_session(&self, name: &str) {
        let list = self.until(|_| true);
        let ended = list
            .sessions
            .iter()
            .find(|session| session.client.ends_with(name))
            .unwrap();
        let request = EndSessionRequest {
            session: ended.session,
        };
        let mut manager = self.manager(PeerRole::Client);
        self.runtime.block_on(manager.end_session(request)).unwrap();
    }

    pub(crate) fn restart_meta(&mut self) {
        self.meta.kill();
        self.meta.start_again();
    }

    pub(crate) fn restart_manager(&mut self) {
        self.manager.kill();
        self.manager.start_again();
    }
}

/// A mounted volume. It is unmounted at the end, before its process is killed.
pub(crate) struct Mounted {
    process: Process,
    pub(crate) at: PathBuf,
}

impl Mounted {
    /// As if its node had lost its power.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        fuse::mount::unmount(&self.at, fuse::mount::Unmount::Detach).unwrap();
    }
}

fn is_mounted(at: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let at = at.display().to_string();
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(&at))
}
