//! What is measured, in which order, and in which unit.

use std::collections::BTreeSet;
use std::fmt;

/// A word of `--only`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    Write,
    Read,
    Copy,
    TorchSave,
    Cat,
    Sync,
    Create,
    Idle,
}

impl Group {
    pub(super) const ALL: [Self; 8] = [
        Self::Write,
        Self::Read,
        Self::Copy,
        Self::TorchSave,
        Self::Cat,
        Self::Sync,
        Self::Create,
        Self::Idle,
    ];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Copy => "cp",
            Self::TorchSave => "torch.save",
            Self::Cat => "cat",
            Self::Sync => "fsync",
            Self::Create => "create",
            Self::Idle => "idle",
        }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Access {
    Write,
    Read,
}

/// Through what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// A file on the disk.
    Disk,
    /// Relays, and a file system that does no more than to reach them.
    Loop,
    /// A mounted volume.
    Ours,
}

/// Blocks on their way at a time.
pub(super) const DEPTHS: [usize; 2] = [1, 4];

/// A figure of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Quantity {
    /// A whole file of blocks, so many on their way.
    Sequential(Access, usize, Way),
    /// `cp` of a file from the page cache, into a volume.
    Copy,
    /// `torch.save`, into a volume.
    TorchSave,
    /// `cat`, from a volume that has nothing cached.
    Cat,
    /// 4 KiB over three relays and the answer back.
    Hops,
    /// The slowest of three commits.
    Commit,
    /// 4 KiB into a volume, and fsync.
    Sync,
    /// Empty files in a volume.
    Create,
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequential(access, depth, way) => {
                let access = match access {
                    Access::Write => "write",
                    Access::Read => "read",
                };
                let way = match way {
                    Way::Disk => "disk",
                    Way::Loop => "loop",
                    Way::Ours => "ours",
                };
                write!(f, "{access}, depth {depth}, {way}")
            }
            Self::Copy => f.write_str("cp, ours"),
            Self::TorchSave => f.write_str("torch.save, ours"),
            Self::Cat => f.write_str("cat, ours"),
            Self::Hops => f.write_str("six hops with 4 KiB"),
            Self::Commit => f.write_str("slowest of three journal commits"),
            Self::Sync => f.write_str("4 KiB + fsync, ours"),
            Self::Create => f.write_str("creates of empty files, ours"),
        }
    }
}

impl Quantity {
    pub(super) const fn unit(self) -> &'static str {
        match self {
            Self::Sequential(..) | Self::Copy | Self::TorchSave | Self::Cat => "MB/s",
            Self::Hops | Self::Commit | Self::Sync => "us",
            Self::Create => "1/s",
        }
    }

    const fn group(self) -> Group {
        match self {
            Self::Sequential(Access::Write, ..) => Group::Write,
            Self::Sequential(Access::Read, ..) => Group::Read,
            Self::Copy => Group::Copy,
            Self::TorchSave => Group::TorchSave,
            Self::Cat => Group::Cat,
            Self::Hops | Self::Commit | Self::Sync => Group::Sync,
            Self::Create => Group::Create,
        }
    }

    /// Whether a group needs it: it is of the group, or one side of the group's bars.
    fn is_for(self, group: Group) -> bool {
        let side = matches!(group, Group::Copy | Group::TorchSave);
        self.group() == group || side && self == Self::Sequential(Access::Write, 1, Way::Ours)
    }
}

/// What a round measures. What is compared is measured close in time.
pub(super) fn of_round(groups: &BTreeSet<Group>) -> Vec<Quantity> {
    let mut all = Vec::new();
    for access in [Access::Write, Access::Read] {
        for depth in DEPTHS {
            let ways = [Way::Disk, Way::Loop, Way::Ours].into_iter();
            all.extend(ways.map(|way| Quantity::Sequential(access, depth, way)));
        }
    }
    all.extend([
        Quantity::Copy,
        Quantity::TorchSave,
        Quantity::Cat,
        Quantity::Hops,
        Quantity::Commit,
        Quantity::Sync,
        Quantity::Create,
    ]);
    all.retain(|quantity| groups.iter().any(|group| quantity.is_for(*group)));
    all
}

#[cfg(test)]
mod tests {
    use super::{Access, Group, Quantity, Way, of_round};

    #[test]
    fn a_group_is_measured_with_what_it_is_compared_with() {
        let ours = Quantity::Sequential(Access::Write, 1, Way::Ours);
        assert_eq!(of_round(&[Group::Copy].into()), [ours, Quantity::Copy]);
        assert_eq!(of_round(&[Group::Read].into()).len(), 6);
        assert_eq!(of_round(&Group::ALL.into()).len(), 19);
        assert!(of_round(&[Group::Idle].into()).is_empty());
    }
}
