//! Command lines.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use chain_link::{PeerRole, StoragePeer};
use clap::{Args, Parser, Subcommand};
use kv::{EtcdEngine, KvStore};
use link::handshake::Key;
use storage_rpc::{RpcCredentials, StorageKeys, file_system_uuid};

/// Processes of the Fire-Flyer file system.
#[derive(Debug, Parser)]
#[command(version, about)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub daemon: daemon::Args,
}

/// What a process is.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serves targets: replicas of chunks on the disks of a node.
    Service(ServiceArgs),
    /// Owns the chain table in etcd, and streams it to services and clients.
    Manager(ManagerArgs),
    /// Keeps names, attributes and open files in etcd, and removes what nobody can reach.
    Meta(MetaArgs),
    /// Mounts volumes on a node, for its kubelet.
    Node(NodeArgs),
    /// Makes and deletes volumes, for csi-provisioner.
    Controller(ControllerArgs),
    /// Mounts one volume at a folder, without Kubernetes, until it is unmounted.
    Mount(MountArgs),
}

/// Which file system, and what proves that a process belongs to it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "File system")]
pub struct FileSystemArgs {
    /// Folder with the files `file-system` (its UUID: 32 hexadecimal digits, with or without dashes), `clients`, and for
    /// what is no client `members` (keys: 64 hexadecimal digits).
    #[arg(
        long,
        env = "FIREFLYER_STORAGE_KEYS",
        default_value = "/etc/fireflyer/storage"
    )]
    pub keys: PathBuf,
}

/// Flags of a storage service.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    #[command(flatten)]
    pub file_system: FileSystemArgs,
    /// The chain manager: host:port.
    #[arg(long, env = "FIREFLYER_CHAIN_MANAGER")]
    pub manager: String,
    /// Name of the node that the disks are in.
    #[arg(long, env = "FIREFLYER_NODE_NAME")]
    pub node_name: String,
    /// Where others reach this process: an address of its pod.
    #[arg(long, env = "FIREFLYER_ADDRESS")]
    pub address: IpAddr,
    /// Port for other services. 0: any.
    #[arg(long, default_value_t = 9411)]
    pub member_port: u16,
    /// Port for clients. 0: any.
    #[arg(long, default_value_t = 9412)]
    pub client_port: u16,
    /// A target: an empty folder, a folder with a target, or a block device. May be given several times.
    #[arg(long = "path", required = true)]
    pub paths: Vec<PathBuf>,
    /// Bytes of a target that is made in a folder, at least 64 MiB. By default 90 % of the free room.
    #[arg(long)]
    pub target_bytes: Option<u64>,
    #[command(flatten)]
    pub data: DataArgs,
}

/// Bytes of a chunk where nobody asks for others: one write of the kernel.
pub const DEFAULT_CHUNK_BYTES: u32 = 1 << 20;

/// Where a process keeps its state.
#[derive(Clone, Debug, Args)]
pub struct StoreArgs {
    /// Endpoints of etcd, such as http://10.0.0.1:2379. May be given several times.
    #[arg(
        long = "etcd",
        env = "FIREFLYER_ETCD",
        value_delimiter = ',',
        required = true
    )]
    pub etcd: Vec<String>,
}

impl StoreArgs {
    /// The store.
    pub fn connect(&self) -> anyhow::Result<KvStore> {
        let engine = EtcdEngine::connect(&self.etcd).context("failed to use --etcd")?;
        Ok(engine.into())
    }
}

/// Flags of a chain manager.
#[derive(Debug, Args)]
pub struct ManagerArgs {
    #[command(flatten)]
    pub file_system: FileSystemArgs,
    #[command(flatten)]
    pub store: StoreArgs,
    /// Where to listen. By default every address, port 9413.
    #[arg(long)]
    pub listen: Option<SocketAddr>,
}

/// How a process reaches the others.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "File system")]
pub struct ReachArgs {
    #[command(flatten)]
    pub file_system: FileSystemArgs,
    /// The chain manager: host:port.
    #[arg(long, env = "FIREFLYER_CHAIN_MANAGER")]
    pub manager: String,
    /// Metadata services: host:port. May be given several times.
    #[arg(
        long = "meta",
        env = "FIREFLYER_METADATA",
        value_delimiter = ',',
        required = true
    )]
    pub meta: Vec<String>,
}

/// How bytes of files are kept and sent.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Data")]
pub struct DataArgs {
    /// Bytes of the longest chunk: a power of two from 64 KiB to 4 MiB. The same in all processes.
    #[arg(long, env = "FIREFLYER_CHUNK_BYTES", default_value_t = DEFAULT_CHUNK_BYTES, value_parser = chunk_bytes)]
    pub chunk_bytes: u32,
    /// Traffic class (TOS) of packets with data; the upper six bits are the DSCP.
    #[arg(long, default_value_t = 0)]
    pub traffic_class: u8,
}

/// Flags of a metadata service.
#[derive(Debug, Args)]
pub struct MetaArgs {
    #[command(flatten)]
    pub file_system: FileSystemArgs,
    #[command(flatten)]
    pub store: StoreArgs,
    /// The chain manager: host:port.
    #[arg(long, env = "FIREFLYER_CHAIN_MANAGER")]
    pub manager: String,
    /// Name of this service among its kind, such as that of its pod.
    #[arg(long, env = "FIREFLYER_POD_NAME")]
    pub name: String,
    /// Where to listen. By default every address, port 9414.
    #[arg(long)]
    pub listen: Option<SocketAddr>,
    #[command(flatten)]
    pub data: DataArgs,
}

/// Flags of a node.
#[derive(Debug, Args)]
pub struct NodeArgs {
    #[command(flatten)]
    pub reach: ReachArgs,
    /// Name of the Node.
    #[arg(long, env = "FIREFLYER_NODE_NAME")]
    pub node_name: String,
    /// The kubelet's folder, at the same path for the kubelet and here.
    #[arg(long, default_value = "/var/lib/kubelet")]
    pub kubelet_dir: PathBuf,
    #[command(flatten)]
    pub data: DataArgs,
}

/// Flags of a controller.
#[derive(Debug, Args)]
pub struct ControllerArgs {
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The socket that csi-provisioner calls at.
    #[arg(long, default_value = "/csi/csi.sock")]
    pub socket: PathBuf,
    #[command(flatten)]
    pub volumes: VolumeArgs,
}

/// What new volumes are like.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Volumes")]
pub struct VolumeArgs {
    /// The StoragePool whose chains keep new volumes.
    #[arg(long, default_value = "default")]
    pub pool: String,
    /// How much volumes may be promised together, as a multiple of what the pool's chains can keep.
    #[arg(long, default_value_t = 1.0, value_parser = overcommit)]
    pub overcommit: f64,
    /// Bytes of a chunk of new volumes: a power of two from 64 KiB to the --chunk-bytes of the other processes.
    #[arg(long, env = "FIREFLYER_CHUNK_BYTES", default_value_t = DEFAULT_CHUNK_BYTES, value_parser = chunk_bytes)]
    pub chunk_bytes: u32,
    /// Chains that the chunks of a file take in turn.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    pub stripe: u16,
}

/// Flags of a mount without Kubernetes.
#[derive(Debug, Args)]
pub struct MountArgs {
    #[command(flatten)]
    pub reach: ReachArgs,
    /// The volume.
    #[arg(long)]
    pub volume: String,
    /// The folder.
    #[arg(long)]
    pub at: PathBuf,
    /// Makes the volume first, with so many bytes.
    #[arg(long)]
    pub create_bytes: Option<u64>,
    #[command(flatten)]
    pub volumes: VolumeArgs,
}

/// A file system, and the keys that a process has.
#[derive(Clone, Debug)]
pub struct FileSystem {
    /// Its UUID.
    pub uuid: u128,
    /// The keys.
    pub keys: StorageKeys,
}

impl FileSystemArgs {
    /// As a member sees it.
    pub fn read_as_member(&self) -> anyhow::Result<FileSystem> {
        let members = self.keys.join("members");
        self.read(Some(&members))
    }

    /// As a client sees it.
    pub fn read_as_client(&self) -> anyhow::Result<FileSystem> {
        self.read(None)
    }

    fn read(&self, members: Option<&Path>) -> anyhow::Result<FileSystem> {
        let path = self.keys.join("file-system");
        let text = fs::read_to_string(&path)
            .with_context(|| format!("failed to read {}", path.display()))?;
        let uuid = file_system_uuid(text.trim()).with_context(|| {
            format!(
                "{} is no UUID: write 32 hexadecimal digits, not all of them 0",
                path.display()
            )
        })?;
        let keys = StorageKeys::read(members, &self.keys.join("clients"))?;
        Ok(FileSystem { uuid, keys })
    }
}

impl FileSystem {
    /// Who a process is in calls.
    pub fn credentials(&self, role: PeerRole, number: u32) -> RpcCredentials {
        RpcCredentials {
            identity: StoragePeer::new(self.uuid, role, number),
            keys: self.keys.clone(),
        }
    }

    /// The key between parties of two roles.
    pub fn key(&self, one: PeerRole, other: PeerRole) -> anyhow::Result<Key> {
        let peer = |role| StoragePeer::new(self.uuid, role, 0);
        Ok(self.keys.between(peer(one), peer(other))?.clone())
    }
}

fn chunk_bytes(text: &str) -> Result<u32, String> {
    let bytes = text.parse().ok();
    let fits = |bytes: &u32| bytes.is_power_of_two() && (64 << 10..=4 << 20).contains(bytes);
    bytes
        .filter(fits)
        .ok_or_else(|| "use a power of two from 65536 to 4194304".to_owned())
}

fn overcommit(text: &str) -> Result<f64, String> {
    let factor: Option<f64> = text.parse().ok();
    let factor = factor.filter(|factor| (0.0..=1000.0).contains(factor));
    factor.ok_or_else(|| "use a number from 0 to 1000".to_owned())
}
