//! The catalogue of checks: names, levels, units and what to do about a failure. Leaves running
//! them to the validator.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// What is checked on a node. Every value is the better the bigger it is. In files it is its name
/// in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Check {
    /// How much of each resource the node offers, against what its class promises.
    Offer,
    /// The clock of the cores under load, by a chain of dependent instructions.
    CpuFrequency,
    /// Arithmetic with known answers on every core; the slowest core against the node's median.
    CpuStress,
    /// How fast a NUMA node's memory is read and written.
    MemoryBandwidth,
    /// How much of a NUMA node's memory returned the patterns that were written to it.
    MemoryPattern,
    /// An all-reduce over the ranks of the node, compared with the known sum.
    AllReduce,
    /// Data written, read back and compared.
    Disk,
    /// How much memory a pod may lock.
    LockedMemory,
    /// The GPUs.
    Gpu,
    /// How fast data goes to a partner node and comes from it, compared with what was sent.
    Network,
}

/// How thorough a run is. A level runs the checks of those below it, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Seconds.
    Quick,
    /// Minutes.
    Standard,
    /// With another node, too.
    Full,
}

/// No check has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to find a check named {0:?}: there are Offer, CpuFrequency, CpuStress, \
         MemoryBandwidth, MemoryPattern, AllReduce, Disk, LockedMemory, Gpu and Network"
)]
pub struct UnknownCheck(String);

impl Check {
    /// All checks.
    pub const ALL: [Self; 10] = [
        Self::Offer,
        Self::CpuFrequency,
        Self::CpuStress,
        Self::MemoryBandwidth,
        Self::MemoryPattern,
        Self::AllReduce,
        Self::Disk,
        Self::LockedMemory,
        Self::Gpu,
        Self::Network,
    ];

    /// The word in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Offer => "Offer",
            Self::CpuFrequency => "CpuFrequency",
            Self::CpuStress => "CpuStress",
            Self::MemoryBandwidth => "MemoryBandwidth",
            Self::MemoryPattern => "MemoryPattern",
            Self::AllReduce => "AllReduce",
            Self::Disk => "Disk",
            Self::LockedMemory => "LockedMemory",
            Self::Gpu => "Gpu",
            Self::Network => "Network",
        }
    }

    /// The lowest level that runs it.
    #[must_use]
    pub const fn level(self) -> Level {
        match self {
            Self::Offer | Self::CpuFrequency | Self::CpuStress | Self::LockedMemory => Level::Quick,
            Self::MemoryBandwidth | Self::MemoryPattern => Level::Standard,
            Self::AllReduce | Self::Disk | Self::Gpu => Level::Standard,
            Self::Network => Level::Full,
        }
    }

    /// The unit of its values; empty where the device says of what they are.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Offer => "",
            Self::CpuFrequency => "GHz",
            Self::CpuStress => "% of the median core",
            Self::MemoryBandwidth | Self::AllReduce | Self::Disk => "GB/s",
            Self::Gpu | Self::Network => "GB/s",
            Self::MemoryPattern | Self::LockedMemory => "GiB",
        }
    }

    /// Whether its values are noisy, and comparable between nodes. What is counted or configured
    /// is judged by the class's floor alone.
    #[must_use]
    pub const fn is_compared(self) -> bool {
        match self {
            Self::Offer | Self::MemoryPattern | Self::LockedMemory => false,
            Self::CpuFrequency | Self::CpuStress | Self::MemoryBandwidth => true,
            Self::AllReduce | Self::Disk | Self::Gpu | Self::Network => true,
        }
    }

    /// Whether it measures what two nodes share, so that a bad result may be due to either.
    #[must_use]
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Network)
    }

    /// What a person does about a failure.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Offer => {
                "look at the node's agent and at dmesg for a lost device, reseat or replace it, \
                 then validate again"
            }
            Self::CpuFrequency => {
                "compare governor, power limit and temperatures with a node that passes, then \
                 validate again"
            }
            Self::CpuStress => {
                "look at dmesg for machine checks and throttling, and at what else uses the core; \
                 replace a CPU that computed wrongly"
            }
            Self::MemoryBandwidth => {
                "count the modules (dmidecode -t memory) and the EDAC errors, reseat or replace \
                 the lost module, then validate again"
            }
            Self::MemoryPattern => {
                "find the module by the EDAC counters or rasdaemon, replace it, then validate again"
            }
            Self::AllReduce => {
                "see whether cores and memory pass, and what else runs on the node; replace its \
                 CPU or memory if the sum was wrong"
            }
            Self::Disk => {
                "look at the disk's SMART data and at dmesg, free or replace the disk, then \
                 validate again"
            }
            Self::LockedMemory => {
                "raise LimitMEMLOCK of the node's container runtime, restart it, then validate again"
            }
            Self::Gpu => {
                "look at dmesg for Xid lines and at the link's width and speed (lspci -vv), \
                 reseat or replace the GPU, then validate again"
            }
            Self::Network => {
                "check the link's rate and cable (ethtool, ibstat) and the switch port, then \
                 validate with another partner"
            }
        }
    }

    /// The place whose values on other nodes a device's value is compared with: the same place,
    /// since GPU 5 may be slower than GPU 0 by design. Which core of a node is its slowest is
    /// chance, so those compare with each other.
    #[must_use]
    pub const fn place(self, device: &str) -> &str {
        match matches!(self, Self::CpuStress) {
            true => "",
            false => device,
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Check {
    type Err = UnknownCheck;

    fn from_str(name: &str) -> Result<Self, UnknownCheck> {
        let known = Self::ALL.into_iter().find(|check| check.as_str() == name);
        known.ok_or_else(|| UnknownCheck(name.to_owned()))
    }
}

impl Level {
    /// Whether it runs a check that needs another node.
    pub fn needs_partner(self) -> bool {
        self.checks().any(Check::is_shared)
    }

    /// What it runs.
    pub fn checks(self) -> impl Iterator<Item = Check> {
        let runs = move |check: &Check| check.level() <= self;
        Check::ALL.into_iter().filter(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_has_one_name_everywhere() {
        for check in Check::ALL {
            assert_eq!(check.as_str().parse(), Ok(check));
            assert_eq!(serde_json::to_value(check).unwrap(), check.as_str());
        }
        assert!("Gpus".parse::<Check>().is_err_and(|why| {
            Check::ALL
                .iter()
                .all(|one| why.to_string().contains(one.as_str()))
        }));
    }

    #[test]
    fn levels_add_checks_and_quick_takes_seconds() {
        use Check::{CpuFrequency, CpuStress, LockedMemory, Offer};
        let quick: Vec<_> = Level::Quick.checks().collect();
        assert_eq!(quick, [Offer, CpuFrequency, CpuStress, LockedMemory]);
        let with_others = |check: &Check| *check == Check::Network;
        let alone = Check::ALL.into_iter().filter(|check| !with_others(check));
        assert!(Level::Standard.checks().eq(alone));
        assert!(Level::Full.checks().eq(Check::ALL));
    }
}
