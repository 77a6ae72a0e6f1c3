//! The command line: `serve` (also without a word), `ready`, `bench`, `validate`. Parses and explains; what the
//! commands do is in the modules of their names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use collective::encoding::PAYLOAD_LIMIT_BYTES;
use collective::machine::{DEFAULT_CHUNK_BYTES, DEFAULT_SLOTS, MIN_CHUNK_BYTES, Timing};
use hfreduce_client::{DType, Numerics};

use crate::bench::LAYERS;
use crate::negotiate::{Checksum, Preference, RdmaNegotiation};
use crate::numa::Numa;
use crate::workers::{THREAD_LIMIT, WorkerOptions};

/// Reduces gradients on the CPU for the processes of a node, together with the other nodes of its gang.
#[derive(Debug, Parser)]
#[command(
    name = "hfreduce-sidecar",
    version,
    args_conflicts_with_subcommands = true
)]
pub struct Cli {
    /// What to do. `serve` by default.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Flags of `serve`, which is the default.
    #[command(flatten)]
    pub serve: Serve,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Join the gang and serve the node's processes until a signal.
    Serve(Box<Serve>),
    /// Exit with 0 when the gang has joined and processes may attach. Else print the reason and exit with 1.
    Ready(ReadyArgs),
    /// Measure all-reduce between sidecars over this machine's loopback, and compare it with memcpy. Its nodes share the
    /// machine: without `--workers` each has its share of the processors.
    Bench(Bench),
    /// Check this machine with an all-reduce within one node. The exit code is the result: 0 passed, 1 could not run, 2
    /// wrong flags, 3 wrong sums, 4 too slow.
    Validate(Validate),
}

/// Flags of `serve`.
#[derive(Clone, Debug, clap::Args)]
pub struct Serve {
    /// Flags of every process.
    #[command(flatten)]
    pub daemon: daemon::Args,
    /// The folder that is shared with the trainer. It holds socket, roster, progress and launcher.
    #[arg(long, env = "FIREFLYER_RUN_DIR", default_value = contract::run_dir::PATH)]
    pub run_dir: PathBuf,
    /// The operator's rendezvous service, as address:port.
    #[arg(long, env = "FIREFLYER_RENDEZVOUS")]
    pub rendezvous: Option<String>,
    /// File with the members, instead of a rendezvous: {"procsPerNode":2,"nodes":[{"rank","address","port"}]}.
    #[arg(long, env = "FIREFLYER_ROSTER")]
    pub roster: Option<PathBuf>,
    /// File with the attempt's assignment.
    #[arg(long, env = "FIREFLYER_ASSIGNMENT", default_value = contract::run_dir::ASSIGNMENT)]
    pub assignment: PathBuf,
    /// File with the attempt's key, 32 bytes. Optional with a roster.
    #[arg(long, env = "FIREFLYER_KEY", default_value = contract::run_dir::KEY)]
    pub key: PathBuf,
    /// This node's rank.
    #[arg(long, env = "FIREFLYER_NODE_RANK")]
    pub rank: Option<u32>,
    /// The address at which peers reach this node.
    #[arg(long, env = "POD_IP")]
    pub address: Option<IpAddr>,
    /// The data port.
    #[arg(long, env = "FIREFLYER_DATA_PORT", default_value_t = 9404)]
    pub port: u16,
    /// The launcher that the sidecar copies into the shared folder, if it exists.
    #[arg(long, env = "FIREFLYER_LAUNCHER", default_value = "/usr/bin/launcher")]
    pub launcher: PathBuf,
    /// Limit of the memory for results, and of the memory for the inputs of each process, in MiB.
    #[arg(long, env = "FIREFLYER_HFREDUCE_LIMIT_MIB", default_value_t = 16_384)]
    pub limit_mib: usize,
    /// Bytes of a chunk. It must be the same on every node.
    #[arg(long, env = "FIREFLYER_HFREDUCE_CHUNK_BYTES", default_value_t = DEFAULT_CHUNK_BYTES, value_parser = chunk_bytes)]
    pub chunk_bytes: u32,
    /// Transport to peers.
    #[arg(
        long,
        env = "FIREFLYER_HFREDUCE_TRANSPORT",
        value_enum,
        default_value_t
    )]
    pub transport: Preference,
    /// Whether each payload over TCP has a checksum.
    #[arg(long, env = "FIREFLYER_HFREDUCE_CHECKSUM", default_value = "auto", value_parser = checksum())]
    pub checksum: Checksum,
    /// Which RDMA device is used.
    #[command(flatten)]
    pub rdma: RdmaFlags,
    /// Where memory and the engine are on a machine with several NUMA nodes. `auto`: results and the engine are next to the
    /// adapter, inputs on all nodes. A number says at which node the adapter is. `off`: the kernel decides.
    #[arg(long, env = "FIREFLYER_HFREDUCE_NUMA", default_value = "auto")]
    pub numa: Numa,
    /// Who computes.
    #[command(flatten)]
    pub workers: WorkerFlags,
    /// The type-of-service byte of data packets, over TCP and RoCE. Its upper six bits are the DSCP. By default the class
    /// selector of HFReduce's traffic class in the Fabric.
    #[arg(long, env = "FIREFLYER_TRAFFIC_CLASS")]
    pub traffic_class: Option<u8>,
}

/// Flags about the threads that compute.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct WorkerFlags {
    /// Threads that add and copy beside the engine's own. With 0 or 1 the engine does it by itself. By default one for each
    /// processor that the container may use, and no more than 12. In a job's pod as many as the node class's `sidecar`
    /// requests.
    #[arg(long, env = "FIREFLYER_HFREDUCE_WORKERS", value_parser = clap::value_parser!(u16).range(..=THREAD_LIMIT))]
    pub workers: Option<u16>,
}

impl WorkerFlags {
    /// As the engine takes them.
    pub fn options(self) -> WorkerOptions {
        WorkerOptions {
            threads: self.workers.map(usize::from),
            ..WorkerOptions::default()
        }
    }
}

/// Flags about RDMA.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RdmaFlags {
    /// The kernel's name of the RDMA device. By default the device with this node's address, else the first whose port is
    /// active.
    #[arg(long, env = "FIREFLYER_RDMA_DEVICE")]
    pub rdma_device: Option<String>,
    /// The port of the device. By default the first that is active.
    #[arg(long, env = "FIREFLYER_RDMA_PORT", value_parser = clap::value_parser!(u8).range(1..))]
    pub rdma_port: Option<u8>,
    /// The index in the port's GID table. By default RoCE v2 with this node's address, else with an IPv4 address.
    #[arg(long, env = "FIREFLYER_RDMA_GID_INDEX")]
    pub rdma_gid_index: Option<u8>,
    /// InfiniBand's service level. By default HFReduce's traffic class in the Fabric.
    #[arg(long, env = "FIREFLYER_RDMA_SERVICE_LEVEL", value_parser = clap::value_parser!(u8).range(..16))]
    pub rdma_service_level: Option<u8>,
    /// Whether the device may write payload to this node's memory in any order. By default as the Fabric says.
    #[arg(
        long,
        env = "FIREFLYER_RDMA_RELAXED_ORDERING",
        value_name = "true|false"
    )]
    pub rdma_relaxed_ordering: Option<bool>,
    /// Path of a libibverbs, instead of the one that the loader finds.
    #[arg(long, env = "FIREFLYER_RDMA_LIBRARY")]
    pub rdma_library: Option<PathBuf>,
}

/// What the Fabric says of the network, as in the assignment.
#[derive(Clone, Copy, Debug)]
pub struct Fabric {
    /// The traffic class of the job's data.
    pub class: u8,
    /// Whether RDMA devices may write payload in any order.
    pub relaxed_ordering: bool,
    /// How long a peer may be silent.
    pub patience: Duration,
}

impl Default for Fabric {
    fn default() -> Self {
        Self {
            class: 0,
            relaxed_ordering: true,
            patience: Timing::default().lost,
        }
    }
}

impl RdmaFlags {
    /// For a node that peers reach at this address, on this Fabric.
    pub fn resolve(&self, near: IpAddr, fabric: Fabric) -> RdmaNegotiation {
        RdmaNegotiation {
            library: self.rdma_library.clone(),
            device: self.rdma_device.clone(),
            port: self.rdma_port,
            gid_index: self.rdma_gid_index,
            near: Some(near),
            service_level: self.rdma_service_level.unwrap_or(fabric.class),
            relaxed_ordering: self
                .rdma_relaxed_ordering
                .unwrap_or(fabric.relaxed_ordering),
            patience: fabric.patience,
        }
    }
}

/// Flags of `ready`.
#[derive(Clone, Debug, clap::Args)]
pub struct ReadyArgs {
    /// The folder shared with the trainer.
    #[arg(long, env = "FIREFLYER_RUN_DIR", default_value = contract::run_dir::PATH)]
    pub run_dir: PathBuf,
}

/// Flags of `bench`.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Bench {
    /// A part of a bench that another program controls.
    #[command(subcommand)]
    pub part: Option<BenchPart>,
    /// Number of nodes. Each has its own sidecar.
    #[arg(long, default_value_t = 2, value_parser = at_least_one)]
    pub nodes: usize,
    /// Number of processes of each node.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub procs: u32,
    /// Type of the elements: f64, f32, f16, bf16, u8, i8, i32 or i64.
    #[arg(long, default_value = "f32", value_parser = dtype)]
    pub dtype: DType,
    /// How sums are rounded: fast, precise or bitwise. The bench measures the other modes beside fast.
    #[arg(long, default_value = "fast", value_parser = numerics)]
    pub numerics: Numerics,
    /// Bytes of a chunk.
    #[arg(long, default_value_t = DEFAULT_CHUNK_BYTES, value_parser = chunk_bytes)]
    pub chunk_bytes: u32,
    /// Slots of a tree edge that a node fills at a time. By default what keeps its workers busy.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=i64::from(DEFAULT_SLOTS)))]
    pub window: Option<u8>,
    /// Transport between the nodes.
    #[arg(long, value_enum, default_value_t)]
    pub transport: Preference,
    /// Whether each payload over TCP has a checksum.
    #[arg(long, default_value = "auto", value_parser = checksum())]
    pub checksum: Checksum,
    /// Who computes.
    #[command(flatten)]
    pub workers: WorkerFlags,
}

/// Parts of a bench.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchPart {
    /// One process of a conducted gang; `cargo xtask bench hfreduce` starts it.
    #[command(hide = true)]
    Rank(BenchRank),
    /// Measure what the engine's own thread costs. Workers take their time and compute nothing, and links carry no payload.
    Protocol(BenchProtocol),
}

/// Flags of `bench protocol`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct BenchProtocol {
    /// Number of processes of each node.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub procs: u32,
    /// Number of workers of each node.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=THREAD_LIMIT))]
    pub workers: u16,
    /// Chunks that the workers of a node could do in a second.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub rate: u32,
    /// Slots of a tree edge that a node fills at a time. By default what keeps its workers busy.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=i64::from(DEFAULT_SLOTS)))]
    pub window: Option<u8>,
    /// Seconds that are measured.
    #[arg(long, default_value_t = 5.0, value_parser = rate)]
    pub seconds: f64,
}

/// Flags of `bench rank`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchRank {
    /// The folder of the sidecar to attach to.
    #[arg(long)]
    pub run_dir: PathBuf,
    /// Which of the node's processes this is.
    #[arg(long)]
    pub local_rank: u32,
    /// The conductor's socket.
    #[arg(long)]
    pub conductor: PathBuf,
}

/// Flags of `validate`.
#[derive(Clone, Debug, clap::Args)]
pub struct Validate {
    /// Number of processes of the node. Give as many as it has GPUs.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub procs: u32,
    /// Number of tensors that are reduced at once. By default the paper's load.
    #[arg(long, default_value_t = LAYERS.0, value_parser = at_least_one)]
    pub tensors: usize,
    /// Bytes of a tensor of f32.
    #[arg(long, default_value_t = LAYERS.1, value_parser = whole_f32s)]
    pub tensor_bytes: usize,
    /// How many times it is measured.
    #[arg(long, default_value_t = 10, value_parser = at_least_one)]
    pub rounds: usize,
    /// Least algorithm bandwidth in GB/s (10^9 bytes a second), on every NUMA node by itself and on all together. Without it only
    /// --of-memcpy counts.
    #[arg(long, value_parser = rate)]
    pub at_least: Option<f64>,
    /// Least memory traffic, as a share of what memcpy reaches in the same run with a thread for each processor, 12 at the most.
    /// 0: no comparison.
    #[arg(long, default_value_t = 0.3, value_parser = rate)]
    pub of_memcpy: f64,
    /// Who computes.
    #[command(flatten)]
    pub workers: WorkerFlags,
    /// Format of the result.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// How an outcome is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Where `serve` listens.
impl Serve {
    /// The data port on every address of the kind at which peers reach this node.
    pub fn listen(&self, reached_at: IpAddr) -> SocketAddr {
        let every = match reached_at {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        SocketAddr::new(every, self.port)
    }
}

/// A chunk is cut as the schedules need it and fits into a frame.
fn chunk_bytes(text: &str) -> Result<u32, String> {
    let range = MIN_CHUNK_BYTES..=PAYLOAD_LIMIT_BYTES;
    text.parse()
        .ok()
        .filter(|bytes: &u32| range.contains(bytes) && bytes.is_multiple_of(64))
        .ok_or_else(|| {
            format!("use a multiple of 64 from {MIN_CHUNK_BYTES} to {PAYLOAD_LIMIT_BYTES}")
        })
}

fn checksum() -> impl TypedValueParser<Value = Checksum> {
    let values = [
        PossibleValue::new("auto")
            .help("Where packets leave the machine, unless a peer has turned it off"),
        PossibleValue::new("on").help("Always: a peer that has turned it off is refused"),
        PossibleValue::new("off").help("Never"),
    ];
    PossibleValuesParser::new(values).map(|value| match &*value {
        "on" => Checksum::On,
        "off" => Checksum::Off,
        _ => Checksum::Auto,
    })
}

fn at_least_one(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "use a number from 1 on".to_owned())
}

fn whole_f32s(text: &str) -> Result<usize, String> {
    let bytes = at_least_one(text).ok();
    let bytes = bytes.filter(|bytes| bytes.is_multiple_of(4) && *bytes <= 1 << 30);
    bytes.ok_or_else(|| "use a multiple of 4 from 4 to 1073741824".to_owned())
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok();
    let rate = rate.filter(|rate: &f64| rate.is_finite() && *rate >= 0.0);
    rate.ok_or_else(|| "use a number from 0 on".to_owned())
}

fn dtype(name: &str) -> Result<DType, String> {
    named(&DType::ALL, DType::name, name)
}

fn numerics(name: &str) -> Result<Numerics, String> {
    named(&Numerics::ALL, Numerics::name, name)
}

/// The one of `all` that is called `name`.
fn named<T: Copy>(all: &[T], name_of: fn(T) -> &'static str, name: &str) -> Result<T, String> {
    let known = all.iter().copied().find(|one| name_of(*one) == name);
    known.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|one| name_of(*one)).collect();
        format!("use one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_word_it_serves() {
        let cli = Cli::try_parse_from(["hfreduce-sidecar", "--rank", "3"]).unwrap();
        assert!(cli.command.is_none() && cli.serve.rank == Some(3));
        let cli = Cli::try_parse_from(["hfreduce-sidecar", "serve", "--rank", "3"]).unwrap();
        assert!(matches!(cli.command, Some(Command::Serve(serve)) if serve.rank == Some(3)));
    }

    #[test]
    fn peers_are_listened_to_where_they_reach_the_node() {
        for (address, listen) in [("10.0.0.7", "0.0.0.0:9404"), ("fd00::7", "[::]:9404")] {
            let cli = Cli::try_parse_from(["hfreduce-sidecar", "--address", address]).unwrap();
            let address = cli.serve.address.unwrap();
            assert_eq!(cli.serve.listen(address).to_string(), listen);
        }
    }

    #[test]
    fn a_bench_without_nodes_or_processes_is_refused() {
        for flag in ["--nodes", "--procs"] {
            let refused =
                Cli::try_parse_from(["hfreduce-sidecar", "bench", flag, "0"]).unwrap_err();
            assert!(refused.to_string().contains(flag), "{refused}");
        }
    }

    #[test]
    fn a_chunk_that_no_frame_or_schedule_takes_is_refused_with_the_range() {
        let parse = |bytes| Cli::try_parse_from(["hfreduce-sidecar", "--chunk-bytes", bytes]);
        assert_eq!(parse("16777216").unwrap().serve.chunk_bytes, 16 << 20);
        for wrong in ["16777280", "1000", "256", "0", "many"] {
            let refused = parse(wrong).unwrap_err().to_string();
            assert!(refused.contains("from 512 to 16777216"), "{refused}");
        }
    }

    #[test]
    fn the_fabric_says_what_no_flag_says() {
        let near = IpAddr::from(Ipv4Addr::LOCALHOST);
        let resolve = |flags: &[&str], relaxed_ordering| {
            let words = ["hfreduce-sidecar"].iter().chain(flags);
            let cli = Cli::try_parse_from(words).unwrap();
            let fabric = Fabric {
                class: 3,
                relaxed_ordering,
                ..Fabric::default()
            };
            let rdma = cli.serve.rdma.resolve(near, fabric);
            (rdma.service_level, rdma.relaxed_ordering)
        };
        assert_eq!(resolve(&[], true), (3, true));
        assert_eq!(resolve(&[], false), (3, false));
        let level = ["--rdma-service-level", "5"];
        assert_eq!(resolve(&level, true), (5, true));
        let off = ["--rdma-relaxed-ordering", "false"];
        assert_eq!(resolve(&off, true), (3, false));
        let on = ["--rdma-relaxed-ordering", "true"];
        assert_eq!(resolve(&on, false), (3, true));
    }

    #[test]
    fn a_type_that_is_none_is_refused_with_the_choice() {
        let refused = Cli::try_parse_from(["hfreduce-sidecar", "bench", "--dtype", "f8"]);
        assert!(refused.is_err_and(|error| error.to_string().contains("bf16")));
    }
}
