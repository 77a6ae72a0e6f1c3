//! The command line of the agent.

use std::path::PathBuf;

use crate::backend::NodeLocation;
use crate::labels;

/// Where the facts about this node's hardware come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BackendKind {
    /// A node fixture, for machines without the hardware.
    Mock,
}

/// Agent of one node: reports its GPUs and adapters to the kubelet, and labels the node.
#[derive(Clone, Debug, clap::Parser)]
#[command(version)]
#[group(skip)]
pub struct Args {
    /// Source of the facts about this node's hardware.
    #[arg(long, env = "FIREFLYER_DEVICE_BACKEND", value_enum)]
    pub backend: BackendKind,
    /// Node fixture of the mock backend. A file beside it that is called after the node,
    /// `NODE.yaml`, goes first. The agent watches the folder, so mount the folder, not the file.
    #[arg(
        long,
        env = "FIREFLYER_NODE_FIXTURE",
        required_if_eq("backend", "mock")
    )]
    pub fixture: Option<PathBuf>,
    /// Folder of the host for the files that represent devices of the mock backend. Agent and host
    /// must see it at the same path, because containers mount the files.
    #[arg(
        long,
        env = "FIREFLYER_DEVICE_DIR",
        default_value = "/run/fireflyer/devices"
    )]
    pub device_dir: PathBuf,
    /// The kubelet's device plugin folder.
    #[arg(
        long,
        env = "FIREFLYER_PLUGIN_DIR",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    pub plugin_dir: PathBuf,
    /// Name of this node. Without it the agent sets no labels.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: Option<String>,
    /// Class of this node, instead of the one that the backend reports.
    #[arg(long, env = "FIREFLYER_NODE_CLASS", value_parser = labels::value)]
    pub node_class: Option<String>,
    /// Zone of this node, instead of the one that the backend reports.
    #[arg(long, env = "FIREFLYER_ZONE", value_parser = labels::value)]
    pub zone: Option<String>,
    /// Leaf switch of this node, instead of the one that the backend reports.
    #[arg(long, env = "FIREFLYER_LEAF", value_parser = labels::value)]
    pub leaf: Option<String>,
    /// Flags of every process.
    #[command(flatten)]
    pub daemon: daemon::Args,
}

impl Args {
    /// Where this node belongs, as far as the flags say.
    pub fn place(&self) -> NodeLocation {
        NodeLocation {
            node_class: self.node_class.clone(),
            zone: self.zone.clone(),
            leaf: self.leaf.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn the_mock_backend_needs_a_fixture() {
        let refused = Args::try_parse_from(["device-plugin", "--backend", "mock"]);
        assert!(refused.is_err_and(|error| error.to_string().contains("--fixture")));
    }

    #[test]
    fn a_zone_that_is_no_label_value_is_refused_while_parsing() {
        let fixture = ["device-plugin", "--backend=mock", "--fixture=node.yaml"];
        let zone = |zone| Args::try_parse_from(fixture.into_iter().chain([zone]));
        assert_eq!(
            zone("--zone=a").expect("a zone").place().zone.as_deref(),
            Some("a")
        );
        assert!(zone("--zone=-a").is_err_and(|error| error.to_string().contains("label value")));
    }
}
