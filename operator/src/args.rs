//! The operator's flags. Each has an environment variable of the same words, set by the chart.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use topology::numa::MAX_NUMBER;

/// How the sidecar's own variables begin.
const SIDECAR_VARIABLES: [&str; 2] = ["FIREFLYER_HFREDUCE_", "FIREFLYER_RDMA_"];
/// The one that has a flag here.
const SIDECAR_NUMA: &str = "FIREFLYER_HFREDUCE_NUMA";

/// Karpenter's second name is that of its releases before 1.0.
const LEAVE_TAINTS: &str =
    "ToBeDeletedByClusterAutoscaler,karpenter.sh/disrupted,karpenter.sh/disruption";

/// Plans TrainingJobs onto nodes and serves the rendezvous of their gangs.
#[derive(Clone, Debug, Parser)]
#[command(name = "operator", version)]
pub struct Cli {
    /// What to do. Without a command the program runs as the operator of a cluster.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Shared by all commands.
    #[command(flatten)]
    pub daemon: daemon::Args,
    /// Flags of the operator of a cluster.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Other commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Serve the rendezvous of one attempt without a cluster, for tests and measurements.
    Rendezvous(StandaloneArgs),
}

/// Flags of the operator of a cluster.
#[derive(Clone, Debug, Args)]
pub struct OperatorArgs {
    /// Namespace of the operator, with its Lease and its master key.
    #[arg(long, env = "POD_NAMESPACE", default_value = crds::names::SYSTEM_NAMESPACE)]
    pub namespace: String,
    /// Name of this replica. It must be unique among the replicas.
    #[arg(long, env = "POD_NAME", default_value = "operator")]
    pub pod_name: String,
    /// Address at which sidecars reach this replica when another replica sends them here.
    #[arg(long, env = "POD_IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub pod_ip: IpAddr,
    /// `host:port` at which sidecars reach the rendezvous service. By default the address that the
    /// kubelet sets for the Service fireflyer-rendezvous in every pod of the namespace.
    #[arg(long, env = "FIREFLYER_RENDEZVOUS_SERVICE")]
    pub rendezvous_service: Option<String>,
    /// Host of the Service fireflyer-rendezvous, set by the kubelet.
    #[arg(long, env = "FIREFLYER_RENDEZVOUS_SERVICE_HOST", hide = true)]
    pub rendezvous_service_host: Option<String>,
    /// Port of the Service fireflyer-rendezvous, set by the kubelet.
    #[arg(long, env = "FIREFLYER_RENDEZVOUS_SERVICE_PORT", hide = true)]
    pub rendezvous_service_port: Option<String>,
    /// Address on which the rendezvous service listens. By default every address, port 9443.
    #[arg(long, env = "FIREFLYER_RENDEZVOUS_LISTEN")]
    pub rendezvous_listen: Option<SocketAddr>,
    /// Image of the sidecar that each job pod gets.
    #[arg(
        long,
        env = "FIREFLYER_SIDECAR_IMAGE",
        default_value = concat!("localhost/fireflyer/hfreduce-sidecar:", env!("CARGO_PKG_VERSION"))
    )]
    pub sidecar_image: String,
    /// Image of the validator, which checks a node for a NodeValidation.
    #[arg(
        long,
        env = "FIREFLYER_VALIDATOR_IMAGE",
        default_value = concat!("localhost/fireflyer/validator:", env!("CARGO_PKG_VERSION"))
    )]
    pub validator_image: String,
    /// When the kubelet pulls the images of sidecar and validator: Always, IfNotPresent or Never.
    #[arg(
        long,
        env = "FIREFLYER_SIDECAR_PULL_POLICY",
        default_value = "IfNotPresent",
        value_parser = ["Always", "IfNotPresent", "Never"]
    )]
    pub sidecar_pull_policy: String,
    /// Names of Secrets with registry credentials. Each job pod gets them beside those of its
    /// template. The kubelet looks for them in the job's namespace and ignores those that do not
    /// exist.
    #[arg(long, env = "FIREFLYER_PULL_SECRETS", value_delimiter = ',')]
    pub pull_secrets: Vec<String>,
    /// At which NUMA node the network adapter is, on machines with several. `auto`: sidecars look
    /// in sysfs. A number names the node. `off`: the kernel places all memory.
    #[arg(
        long,
        env = "FIREFLYER_SIDECAR_NUMA",
        default_value = "auto",
        value_parser = numa
    )]
    pub sidecar_numa: String,
    /// Flags for the sidecar of each job pod, by their variables `FIREFLYER_HFREDUCE_...` and
    /// `FIREFLYER_RDMA_...`, as `NAME=VALUE`.
    #[arg(
        long,
        env = "FIREFLYER_SIDECAR_ENV",
        value_delimiter = ',',
        value_parser = sidecar_variable
    )]
    pub sidecar_env: Vec<(String, String)>,
    /// File with the spec of the Fabric. The operator creates the Fabric when there is none.
    /// Without the file it has the paper's node class.
    #[arg(long, env = "FIREFLYER_DEFAULT_FABRIC")]
    pub default_fabric: Option<PathBuf>,
    /// Keys of NoSchedule taints that dedicate nodes to training. Job pods tolerate them. A node
    /// with any other NoSchedule taint gets no new work, and what runs there goes on.
    #[arg(
        long,
        env = "FIREFLYER_DEDICATED_TAINTS",
        value_delimiter = ',',
        default_value = "nvidia.com/gpu,fireflyer.dev/dedicated"
    )]
    pub dedicated_taints: Vec<String>,
    /// Keys of taints that count as a cordon, whatever their effect but PreferNoSchedule: jobs
    /// leave such a node. A taint with the effect NoExecute does in any case. By default those by
    /// which the cluster autoscaler and Karpenter mark nodes that they are about to take away.
    #[arg(
        long,
        env = "FIREFLYER_LEAVE_TAINTS",
        value_delimiter = ',',
        default_value = LEAVE_TAINTS
    )]
    pub leave_taints: Vec<String>,
    /// Where storage is on.
    #[command(flatten)]
    pub storage: StorageArgs,
}

/// What the storage controller needs. Without an address there is none.
#[derive(Clone, Debug, Args)]
pub struct StorageArgs {
    /// `host:port` of the chain manager. Without it storage is off.
    #[arg(
        long,
        env = "FIREFLYER_STORAGE_MANAGER",
        requires_all = ["storage_file_system", "storage_member_key", "storage_client_key"]
    )]
    pub storage_manager: Option<String>,
    /// UUID of the file system, 32 hexadecimal digits.
    #[arg(long, env = "FIREFLYER_STORAGE_FILE_SYSTEM", value_parser = uuid)]
    pub storage_file_system: Option<u128>,
    /// File with the key that the members of the file system share.
    #[arg(long, env = "FIREFLYER_STORAGE_MEMBER_KEY")]
    pub storage_member_key: Option<PathBuf>,
    /// File with the key between members and clients.
    #[arg(long, env = "FIREFLYER_STORAGE_CLIENT_KEY")]
    pub storage_client_key: Option<PathBuf>,
}

/// Flags of the rendezvous of one attempt without a cluster.
#[derive(Clone, Debug, Args)]
pub struct StandaloneArgs {
    /// Required: the rendezvous runs without a cluster.
    #[arg(long, required = true)]
    pub standalone: bool,
    /// The attempt's assignment, as in its ConfigMap.
    #[arg(long)]
    pub assignment: PathBuf,
    /// The attempt's key, as in its Secret.
    #[arg(long)]
    pub key: PathBuf,
    /// Address to serve on.
    #[arg(long, default_value = "127.0.0.1:9443")]
    pub listen: SocketAddr,
}

/// What is missing from the flags.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to learn the address of the rendezvous service: give --rendezvous-service host:port, or create the Service fireflyer-rendezvous before this pod"
)]
pub struct NoRendezvous;

impl OperatorArgs {
    /// The address that pods dial.
    pub fn rendezvous(&self) -> Result<String, NoRendezvous> {
        if let Some(address) = &self.rendezvous_service {
            return Ok(address.clone());
        }
        let host = self
            .rendezvous_service_host
            .as_deref()
            .ok_or(NoRendezvous)?;
        let port = self.rendezvous_service_port.as_deref().unwrap_or("9443");
        // An IPv6 address needs brackets in front of a port.
        Ok(if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        })
    }
}

/// A variable of the sidecar's that it does not get from the operator, and its value.
fn sidecar_variable(text: &str) -> Result<(String, String), String> {
    let known = |name: &str| {
        SIDECAR_VARIABLES
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    match text.split_once('=') {
        Some((SIDECAR_NUMA, _)) => Err("use --sidecar-numa".to_owned()),
        Some((name, value)) if known(name) => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err(format!(
            "use NAME=VALUE with a name that begins with {}",
            SIDECAR_VARIABLES.join(" or ")
        )),
    }
}

fn uuid(text: &str) -> Result<u128, String> {
    let uuid = storage_rpc::file_system_uuid(text);
    uuid.ok_or_else(|| "use 32 hexadecimal digits, with or without dashes".to_owned())
}

/// A value that sidecars take: one that they refuse would end every gang.
fn numa(text: &str) -> Result<String, String> {
    let is_node = |text: &str| {
        let number = text.parse();
        number.is_ok_and(|number: u32| number <= MAX_NUMBER)
    };
    if ["auto", "off"].contains(&text) || is_node(text) {
        Ok(text.to_owned())
    } else {
        Err("use auto, off, or the number of a NUMA node".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(flags: &[&str]) -> OperatorArgs {
        Cli::parse_from([&["operator"], flags].concat()).operator
    }

    #[test]
    fn the_service_is_found_through_what_the_kubelet_tells() {
        let args = parsed(&[
            "--rendezvous-service-host",
            "fd00::7",
            "--rendezvous-service-port",
            "9443",
        ]);
        assert_eq!(args.rendezvous().unwrap(), "[fd00::7]:9443");
        let args = parsed(&["--rendezvous-service", "rendezvous.example:1"]);
        assert_eq!(args.rendezvous().unwrap(), "rendezvous.example:1");
        assert!(parsed(&[]).rendezvous().is_err());
    }

    #[test]
    fn a_numa_node_that_no_sidecar_would_take_is_refused() {
        assert_eq!(parsed(&[]).sidecar_numa, "auto");
        for word in ["auto", "off", "0", "1023"] {
            assert_eq!(parsed(&["--sidecar-numa", word]).sidecar_numa, word);
        }
        for word in ["Auto", "-1", "1024", ""] {
            let refused = Cli::try_parse_from(["operator", "--sidecar-numa", word]);
            let error = refused.unwrap_err().to_string();
            assert!(!error.is_empty(), "{word}");
        }
    }

    #[test]
    fn only_what_is_the_sidecars_is_passed_on_to_it() {
        let word = "FIREFLYER_HFREDUCE_TRANSPORT=tcp,FIREFLYER_RDMA_PORT=2";
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            parsed(&["--sidecar-env", word]).sidecar_env,
            [
                pair("FIREFLYER_HFREDUCE_TRANSPORT", "tcp"),
                pair("FIREFLYER_RDMA_PORT", "2")
            ]
        );
        assert!(parsed(&[]).sidecar_env.is_empty());
        let refused = [
            ("FIREFLYER_KEY=x", "FIREFLYER_RDMA_"),
            ("FIREFLYER_RDMA_PORT", "NAME=VALUE"),
            ("FIREFLYER_HFREDUCE_NUMA=1", "--sidecar-numa"),
        ];
        for (word, why) in refused {
            let refused = Cli::try_parse_from(["operator", "--sidecar-env", word]);
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn taints_are_a_list() {
        let args = parsed(&["--dedicated-taints", "a,b/c"]);
        assert_eq!(args.dedicated_taints, ["a", "b/c"]);
    }

    #[test]
    fn the_charts_taints_are_the_defaults_of_the_flags() {
        let values = include_str!("../../helm/fireflyer/values.yaml");
        let values: serde_json::Value = serde_yaml::from_str(values).unwrap();
        let args = parsed(&[]);
        let ours = &values["operator"];
        assert_eq!(
            ours["dedicatedTaints"],
            serde_json::json!(args.dedicated_taints)
        );
        assert_eq!(ours["leaveTaints"], serde_json::json!(args.leave_taints));
    }

    #[test]
    fn storage_is_off_without_an_address_and_needs_all_with_one() {
        assert_eq!(parsed(&[]).storage.storage_manager, None);
        let manager = ["operator", "--storage-manager", "10.0.0.1:9500"];
        assert!(Cli::try_parse_from(manager).is_err());
        let rest = [
            "--storage-file-system=01234567-89ab-cdef-0123-456789abcdef",
            "--storage-member-key=/keys/members",
            "--storage-client-key=/keys/clients",
        ];
        let storage = parsed(&[&manager[1..], &rest].concat()).storage;
        let uuid = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        assert_eq!(storage.storage_file_system, Some(uuid));
        assert!(super::uuid("01234567").is_err());
    }
}
