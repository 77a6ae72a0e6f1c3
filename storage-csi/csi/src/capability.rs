//! How a volume shall be used: which of that this driver offers.

use crate::pb::csi::VolumeCapability;
use crate::pb::csi::volume_capability::AccessType;
use crate::pb::csi::volume_capability::access_mode::Mode;

/// What a claim may name as the type of the file system; it need not.
const FILE_SYSTEM: &str = "fireflyer";

/// Why a volume cannot be used so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CapabilityError {
    #[error("volume_capability is missing")]
    Missing,
    #[error("a volume capability has no access type; ask for a mount")]
    NoAccessType,
    #[error("block volumes are not offered; use `volumeMode: Filesystem`")]
    Block,
    #[error(
        "the file system type {name:?} is not offered; leave it out or write \"{FILE_SYSTEM}\""
    )]
    FileSystem { name: String },
    #[error("the mount options {options:?} are not offered; remove mountOptions")]
    MountOptions { options: Vec<String> },
    #[error("a volume capability has no access mode; ask for one, such as MULTI_NODE_MULTI_WRITER")]
    NoAccessMode,
    #[error(
        "the access mode {number} is not offered; use ReadWriteOnce, ReadWriteOncePod, \
         ReadOnlyMany or ReadWriteMany"
    )]
    AccessMode { number: i32 },
}

/// The access mode of a capability that is offered.
pub(crate) fn parse(capability: &VolumeCapability) -> Result<Mode, CapabilityError> {
    match &capability.access_type {
        None => return Err(CapabilityError::NoAccessType),
        Some(AccessType::Block(_)) => return Err(CapabilityError::Block),
        Some(AccessType::Mount(mount)) => {
            if !["", FILE_SYSTEM].contains(&mount.fs_type.as_str()) {
                let name = mount.fs_type.clone();
                return Err(CapabilityError::FileSystem { name });
            }
            if !mount.mount_flags.is_empty() {
                let options = mount.mount_flags.clone();
                return Err(CapabilityError::MountOptions { options });
            }
        }
    }
    let number = capability.access_mode.map_or(0, |mode| mode.mode);
    match Mode::try_from(number) {
        Ok(Mode::Unknown) => Err(CapabilityError::NoAccessMode),
        Ok(mode) => Ok(mode),
        Err(_) => Err(CapabilityError::AccessMode { number }),
    }
}

/// The access modes of all capabilities of a request.
pub(crate) fn parse_all(capabilities: &[VolumeCapability]) -> Result<Vec<Mode>, CapabilityError> {
    if capabilities.is_empty() {
        return Err(CapabilityError::Missing);
    }
    capabilities.iter().map(parse).collect()
}

/// Whether nobody may write.
pub(crate) fn is_read_only(mode: Mode) -> bool {
    match mode {
        Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly => true,
        Mode::Unknown
        | Mode::SingleNodeWriter
        | Mode::SingleNodeSingleWriter
        | Mode::SingleNodeMultiWriter
        | Mode::MultiNodeSingleWriter
        | Mode::MultiNodeMultiWriter => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pb::csi::Empty;
    use crate::pb::csi::volume_capability::{AccessMode, Mount};

    fn mount(mode: i32, mount: Mount) -> VolumeCapability {
        VolumeCapability {
            access_mode: Some(AccessMode { mode }),
            access_type: Some(AccessType::Mount(mount)),
        }
    }

    #[test]
    fn every_access_mode_of_the_interface_is_offered_and_no_other() {
        for number in 1..=7 {
            let mode = parse(&mount(number, Mount::default())).unwrap();
            assert_eq!(mode as i32, number);
            assert_eq!(is_read_only(mode), [2, 3].contains(&number));
        }
        let refused = |number| parse(&mount(number, Mount::default())).unwrap_err();
        assert_eq!(refused(0), CapabilityError::NoAccessMode);
        assert_eq!(refused(8), CapabilityError::AccessMode { number: 8 });
        assert!(refused(-3).to_string().contains("access mode -3 is not"));
    }

    #[test]
    fn what_is_not_offered_is_refused_by_name() {
        let text = |capability| parse(&capability).unwrap_err().to_string();
        let of_type = |name: &str| Mount {
            fs_type: name.to_owned(),
            mount_flags: Vec::new(),
        };
        assert!(text(mount(1, of_type("ext4"))).contains("\"ext4\""));
        assert!(parse(&mount(1, of_type("fireflyer"))).is_ok());
        let flags = Mount {
            mount_flags: vec!["noatime".to_owned()],
            ..Mount::default()
        };
        assert!(text(mount(1, flags)).contains("noatime"));
        let block = VolumeCapability {
            access_type: Some(AccessType::Block(Empty {})),
            ..mount(1, Mount::default())
        };
        assert!(text(block).contains("block volumes"));
        let none = VolumeCapability {
            access_type: None,
            ..mount(1, Mount::default())
        };
        assert!(text(none).contains("no access type"));
    }
}
