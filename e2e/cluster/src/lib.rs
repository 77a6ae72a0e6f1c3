//! A real Kubernetes cluster for the demo and the end-to-end tests, brought up and taken down by
//! code.
//!
//! Where Docker answers it is one of kind's; otherwise the cluster is made here, of the real
//! programs in namespaces of this machine: an API server with its own certificate authority, and
//! nodes with a kubelet and containerd each, whose whole life hangs on one process, so that a test
//! can end a node like a power cut. What the cluster is used for is not known here.
//!
//! ```no_run
//! use cluster::{Cluster, ClusterOptions, Name, StepOutcome};
//!
//! let quiet = |_: &str, _: StepOutcome, _: std::time::Duration| {};
//! let options = ClusterOptions::new(Name::new("demo")?).nodes(2).zones(&["a", "b"]);
//! let cluster = Cluster::up(&options, &quiet)?;
//! println!("export KUBECONFIG={}", cluster.kubeconfig().display());
//! cluster.node("demo-2")?.kill()?;
//! # Ok::<(), cluster::Error>(())
//! ```

mod cgroup;
pub mod chart;
mod cluster;
pub mod command;
mod control;
pub mod digest;
mod down;
mod error;
mod fake;
mod forwarder;
mod handle;
pub mod image;
mod kind;
mod layout;
mod network;
mod node;
mod options;
pub mod paths;
mod pki;
pub mod prerequisites;
mod process;
pub mod processors;
mod progress;
mod state;
mod status;
mod template;
pub mod tools;
mod up;
mod wait;

pub use cluster::Cluster;
pub use error::{Error, ErrorContext, Result};
pub use handle::NodeHandle;
pub use kind::NODE_IMAGE;
pub use layout::Name;
pub use options::ClusterOptions;
pub use progress::{ProgressFn, StepOutcome, step};
pub use state::{ENGINE, NodeEngine};
pub use status::{ClusterStatus, list};
pub use wait::until;
