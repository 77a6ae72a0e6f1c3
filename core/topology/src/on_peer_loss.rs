//! The rule for a job that loses a node: the one switch that planner, membership, sidecars and
//! launcher share.

use serde::{Deserialize, Serialize};

/// The rule for the nodes that are left when one is lost. In files it is its name in the API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnPeerLoss {
    /// The attempt ends and another one starts. Operations in flight fail with the cause.
    #[default]
    Restart,
    /// They go on. Operations in flight wait: the next epoch serves them or runs them again.
    Shrink,
}

impl OnPeerLoss {
    /// Its name in the API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Restart => "Restart",
            Self::Shrink => "Shrink",
        }
    }
}
