//! The operator's flags. Each has an environment variable of the same words, set by the chart.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Plans TrainingJobs onto nodes and serves the rendezvous of their gangs.
#[derive(Clone, Debug, Parser)]
#[command(name = "operator", version)]
pub struct Cli {
    /// What to do; without one, run as the operator of a cluster.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Shared by all commands.
    #[command(flatten)]
    pub daemon: daemon::Args,
    /// For running in a cluster.
    #[command(flatten)]
    pub operator: OperatorArgs,
}

/// Commands besides running as the operator.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Serve the rendezvous of one attempt without a cluster, for tests and measurements.
    Rendezvous(StandaloneArgs),
}

/// For running in a cluster.
#[derive(Clone, Debug, Args)]
pub struct OperatorArgs {
    /// Namespace of the operator: its Lease and the master key are there.
    #[arg(long, env = "POD_NAMESPACE", default_value = crds::names::SYSTEM_NAMESPACE)]
    pub namespace: String,
    /// Name of this replica; unique among the replicas.
    #[arg(long, env = "POD_NAME", default_value = "operator")]
    pub pod_name: String,
    /// Address at which sidecars reach this replica, when another one sends them here.
    #[arg(long, env = "POD_IP", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub pod_ip: IpAddr,
    /// `host:port` at which sidecars reach the rendezvous service; by default what the kubelet
    /// tells every pod of the namespace about the Service fireflyer-rendezvous.
    #[arg(long, env = "FIREFLYER_RENDEZVOUS_SERVICE")]
    pub rendezvous_service: Option<String>,
    /// Host of the Service fireflyer-rendezvous, told by the kubelet.
    #[arg(long, env = "FIREFLYER_RENDEZVOUS_SERVICE_HOST", hide = true)]
    pub rendezvous_service_host: Option<String>,
    /// Port of the Service fireflyer-rendezvous, told by the kubelet.
    #[arg(long, env = "FIREFLYER_RENDEZVOUS_SERVICE_PORT", hide = true)]
    pub rendezvous_service_port: Option<String>,
    /// Address of the rendezvous service; by default every address, port 9443.
    #[arg(long, env = "FIREFLYER_RENDEZVOUS_LISTEN")]
    pub rendezvous_listen: Option<SocketAddr>,
    /// Image of the sidecar that each job pod gets.
    #[arg(
        long,
        env = "FIREFLYER_SIDECAR_IMAGE",
        default_value = concat!("localhost/fireflyer/hfreduce-sidecar:", env!("CARGO_PKG_VERSION"))
    )]
    pub sidecar_image: String,
    /// File with the spec of the Fabric that is created when there is none; without it, one with
    /// the paper's node class.
    #[arg(long, env = "FIREFLYER_DEFAULT_FABRIC")]
    pub default_fabric: Option<PathBuf>,
    /// Keys of NoSchedule taints that dedicate nodes to training: job pods tolerate them. Any other
    /// such taint counts as a cordon.
    #[arg(
        long,
        env = "FIREFLYER_DEDICATED_TAINTS",
        value_delimiter = ',',
        default_value = "nvidia.com/gpu,fireflyer.dev/dedicated"
    )]
    pub dedicated_taints: Vec<String>,
}

/// For serving one attempt without a cluster.
#[derive(Clone, Debug, Args)]
pub struct StandaloneArgs {
    /// Says that there is no cluster; a later form of the command may take one.
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
    /// What pods are told to dial.
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
    fn taints_are_a_list() {
        let args = parsed(&["--dedicated-taints", "a,b/c"]);
        assert_eq!(args.dedicated_taints, ["a", "b/c"]);
    }
}
