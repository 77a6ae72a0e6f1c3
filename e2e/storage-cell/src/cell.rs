//! The file system: how its processes are started together, and what can be done to each.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use chain_link::{PeerRole, StoragePeer};
use link::handshake::Key;
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use storage_rpc::pb::manager::{
    ChainSpec, CreateChainsRequest, EndSessionRequest, ListRequest, ListResponse,
    OpenSessionRequest,
};
use storage_rpc::{RpcCredentials, StorageKeys, connect};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use crate::etcd::{Etcd, ask};
use crate::process::{CellProcess, ProcessPlace};

/// The UUID of every file system here.
pub const FILE_SYSTEM: u128 = 0xfeed;
/// Far more than anything takes.
pub const LIMIT: Duration = Duration::from_secs(60);
const MEMBERS_KEY: u8 = 0x11;
const CLIENTS_KEY: u8 = 0x22;
/// Storage services, with a target each.
const SERVICES: usize = 3;

/// The key of clients.
#[must_use]
pub fn clients_key() -> Key {
    Key::new([CLIENTS_KEY; 32])
}

/// What is started.
#[derive(Clone, Debug)]
pub struct CellPrograms {
    /// Of `e2e/tools`.
    pub etcd: PathBuf,
    /// The program of all processes that are ours.
    pub storage_csi: PathBuf,
}

/// What the file system is like.
#[derive(Clone, Debug)]
pub struct CellOptions {
    /// Where the services run. Etcd, manager and metadata service are at the first of them.
    pub places: [ProcessPlace; SERVICES],
    /// The folder that everything lies below.
    pub folder: PathBuf,
    /// Chains over the three targets; each target is at each place in equally many.
    pub chains: u32,
    /// Bytes of a target.
    pub target_bytes: u64,
    /// Bytes of a volume.
    pub volume_bytes: u64,
    /// More flags of etcd.
    pub etcd_flags: &'static [&'static str],
}

impl Default for CellOptions {
    fn default() -> Self {
        Self {
            places: [(); SERVICES].map(|()| ProcessPlace::loopback()),
            folder: std::env::temp_dir(),
            chains: 1,
            target_bytes: 320 << 20,
            volume_bytes: 200 << 20,
            etcd_flags: &[],
        }
    }
}

/// A file system.
#[derive(Debug)]
pub struct StorageCell {
    /// What asks the chain manager.
    pub runtime: Runtime,
    /// What keeps the names and the chain table.
    pub etcd: Etcd,
    manager: CellProcess,
    manager_address: String,
    meta: CellProcess,
    services: Vec<CellProcess>,
    /// What every client is given.
    reach: Vec<OsString>,
    program: PathBuf,
    options: CellOptions,
    folder: TempDir,
}

/// The words of a process of ours.
fn words(words: impl IntoIterator<Item = String>) -> Vec<OsString> {
    let flags = ["--metrics-listen=127.0.0.1:0", "--log-format=pretty"];
    let flags = flags.into_iter().map(OsString::from);
    flags.chain(words.into_iter().map(OsString::from)).collect()
}

impl StorageCell {
    /// Starts all of it.
    #[must_use]
    pub fn start(programs: &CellPrograms, options: CellOptions) -> Self {
        let folder = TempDir::new_in(&options.folder).unwrap();
        let keys = folder.path().join("keys");
        fs::create_dir(&keys).unwrap();
        let hex = |byte: u8| format!("{byte:02x}").repeat(32);
        fs::write(keys.join("file-system"), format!("{FILE_SYSTEM:032x}\n")).unwrap();
        fs::write(keys.join("members"), hex(MEMBERS_KEY)).unwrap();
        fs::write(keys.join("clients"), hex(CLIENTS_KEY)).unwrap();
        let keys = format!("--keys={}", keys.display());
        let [first, ..] = &options.places;
        let below = TempDir::new_in(&options.folder).unwrap();
        let etcd = Etcd::start_at(first, &programs.etcd, below, options.etcd_flags);
        let [free, names] = [first.free(), first.free()];
        let program = programs.storage_csi.clone();
        let start = |place: &ProcessPlace, name: &str, ours: Vec<String>| {
            let log = folder.path().join(format!("{name}.log"));
            CellProcess::start(place, &program, words(ours), log)
        };
        let manager = vec![
            "manager".into(),
            keys.clone(),
            format!("--etcd={}", etcd.url()),
            format!("--listen={free}"),
        ];
        let manager = start(first, "manager", manager);
        let meta = vec![
            "meta".into(),
            keys.clone(),
            format!("--etcd={}", etcd.url()),
            format!("--manager={free}"),
            "--name=meta-0".into(),
            format!("--listen={names}"),
        ];
        let meta = start(first, "meta", meta);
        let service = |(number, place): (usize, &ProcessPlace)| {
            let target = folder.path().join(format!("target-{number}"));
            fs::create_dir(&target).unwrap();
            let words = vec![
                "service".into(),
                keys.clone(),
                format!("--manager={free}"),
                format!("--node-name=node-{number}"),
                format!("--address={}", place.address()),
                "--member-port=0".into(),
                "--client-port=0".into(),
                format!("--path={}", target.display()),
                format!("--target-bytes={}", options.target_bytes),
            ];
            start(place, &format!("service-{number}"), words)
        };
        let services = options.places.iter().enumerate().map(service).collect();
        let reach = [
            keys.clone(),
            format!("--manager={free}"),
            format!("--meta={names}"),
        ];
        let cell = Self {
            runtime: Runtime::new().unwrap(),
            etcd,
            manager,
            manager_address: free.to_string(),
            meta,
            services,
            reach: reach.map(OsString::from).into(),
            program,
            options,
            folder,
        };
        cell.create_chains();
        cell
    }

    fn create_chains(&self) {
        let mut manager = self.manager(PeerRole::Meta);
        let is_formatted = |list: &ListResponse| {
            let formatted = list.targets.iter().filter(|target| target.is_formatted);
            formatted.count() == SERVICES
        };
        let list = self.until(is_formatted);
        let targets: Vec<_> = list.targets.iter().map(|of| of.target.clone()).collect();
        let chain = |number: u32| {
            let mut targets = targets.clone();
            targets.rotate_left(number as usize % SERVICES);
            let chain = 1 + number;
            ChainSpec { chain, targets }
        };
        let request = CreateChainsRequest {
            pool: "default".into(),
            chains: (0..self.options.chains).map(chain).collect(),
        };
        self.runtime
            .block_on(manager.create_chains(request))
            .unwrap();
        self.until(|list| list.chains.iter().all(|chain| !chain.is_waiting));
    }

    fn credentials(role: PeerRole) -> RpcCredentials {
        RpcCredentials {
            identity: StoragePeer::new(FILE_SYSTEM, role, 0),
            keys: StorageKeys::of_member(Key::new([MEMBERS_KEY; 32]), clients_key()),
        }
    }

    /// The chain manager, as somebody of this role calls it.
    #[must_use]
    pub fn manager(&self, role: PeerRole) -> ChainManagerClient<Channel> {
        let _runtime = self.runtime.enter();
        let channel = connect(
            &self.manager_address,
            PeerRole::Manager,
            Self::credentials(role),
        );
        ChainManagerClient::new(channel.unwrap())
    }

    /// What the manager lists, once it is so.
    pub fn until(&self, is_so: impl Fn(&ListResponse) -> bool) -> ListResponse {
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

    /// Opens a session of a client.
    #[must_use]
    pub fn open_session(&self, name: &str) -> u64 {
        let mut manager = self.manager(PeerRole::Client);
        let client = name.to_owned();
        let opened = manager.open_session(OpenSessionRequest { client });
        self.runtime.block_on(opened).unwrap().into_inner().session
    }

    /// The folder that everything lies in.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The processes that are ours, less those of mounts.
    #[must_use]
    pub fn processes(&self) -> BTreeSet<u32> {
        let ours = [&self.manager, &self.meta].into_iter();
        ours.chain(&self.services)
            .filter_map(CellProcess::id)
            .collect()
    }

    /// The file of a service's target.
    #[must_use]
    pub fn target(&self, number: usize) -> PathBuf {
        self.folder
            .path()
            .join(format!("target-{number}/fireflyer-target"))
    }

    /// Kills a storage service.
    pub fn kill_service(&mut self, number: usize) {
        self.services[number].kill();
    }

    /// Starts it over its folder.
    pub fn start_service(&mut self, number: usize) {
        self.services[number].start_again();
    }

    /// Whether a service is ready, as its probe in a cluster asks. One that has not begun to answer is not.
    #[must_use]
    pub fn is_ready(&self, number: usize) -> bool {
        let log = self.folder.path().join(format!("service-{number}.log"));
        let log = fs::read_to_string(log).unwrap();
        let (_, line) = log
            .rsplit_once("serving health and metrics")
            .unwrap_or_default();
        let (_, address) = line.split_once("127.0.0.1:").unwrap_or_default();
        let port = address
            .split(|letter: char| !letter.is_ascii_digit())
            .next();
        let Some(port) = port.and_then(|port| port.parse().ok()) else {
            return false;
        };
        let answer = ask((Ipv4Addr::LOCALHOST, port).into(), "GET", "/ready", "");
        answer.is_some_and(|answer| answer.contains(" 200 "))
    }

    /// Mounts a volume at a new folder, in a process of its own.
    #[must_use]
    pub fn mount(&self, name: &str, volume: &str) -> Mounted {
        self.mount_at(&ProcessPlace::loopback(), name, volume)
    }

    /// The same by a process elsewhere.
    #[must_use]
    pub fn mount_at(&self, place: &ProcessPlace, name: &str, volume: &str) -> Mounted {
        let at = self.folder.path().join(name);
        fs::create_dir(&at).unwrap();
        let mut words = words([
            "mount".into(),
            format!("--volume={volume}"),
            format!("--at={}", at.display()),
            format!("--create-bytes={}", self.options.volume_bytes),
        ]);
        words.extend(self.reach.iter().cloned());
        let log = self.folder.path().join(format!("{name}.log"));
        let process = CellProcess::start(place, &self.program, words, log);
        let mut mounted = Mounted { process, at };
        let is_there = || {
            mounted.process.check();
            Ok(is_mounted(&mounted.at).then_some(()))
        };
        cluster::until("a volume is mounted", LIMIT, is_there).unwrap();
        mounted
    }

    /// What a mount of a volume that is not there says.
    pub fn mount_error(&self, volume: &str) -> String {
        let mut command = Command::new(&self.program);
        command.args(["--metrics-listen=127.0.0.1:0", "mount"]);
        command.arg(format!("--volume={volume}"));
        command.arg(format!("--at={}", self.folder.path().display()));
        let output = command.args(&self.reach).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Ends the session of a mount that was killed.
    pub fn end_session(&self, name: &str) {
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

    /// Kills the metadata service and starts it.
    pub fn restart_meta(&mut self) {
        self.meta.kill();
        self.meta.start_again();
    }

    /// Kills the chain manager and starts it.
    pub fn restart_manager(&mut self) {
        self.manager.kill();
        self.manager.start_again();
    }
}

/// A mounted volume. It is unmounted at the end, before its process is killed.
#[derive(Debug)]
pub struct Mounted {
    process: CellProcess,
    /// Where it is.
    pub at: PathBuf,
}

impl Mounted {
    /// Its process.
    #[must_use]
    pub fn process(&self) -> &CellProcess {
        &self.process
    }

    /// As if its node had lost its power.
    pub fn kill(mut self) {
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
