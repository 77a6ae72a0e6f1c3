//! The parameters of a StorageClass: who may use the root of a volume.

use std::collections::BTreeMap;
use std::fmt;

/// All parameters of ours.
const KNOWN: &str = "mode, uid, gid";
/// Keys with this beginning are csi-provisioner's.
const PROVISIONER: &str = "csi.storage.k8s.io/";
/// Permissions, and the three bits before them.
const MODE_LIMIT: u32 = 0o7777;
/// What chown(2) takes for no id.
const NO_ID: u32 = u32::MAX;

/// Mode and owner of a volume's root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeRoot {
    /// Permissions, without the file's type.
    pub mode: u32,
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
}

impl Default for VolumeRoot {
    /// Everybody may use it.
    fn default() -> Self {
        Self {
            mode: 0o777,
            uid: 0,
            gid: 0,
        }
    }
}

impl fmt::Display for VolumeRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, uid, gid } = self;
        write!(f, "mode {mode:04o}, uid {uid}, gid {gid}")
    }
}

/// Why parameters are not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ParameterError {
    #[error("the StorageClass has the unknown parameter {name:?}; known are {KNOWN}")]
    Unknown { name: String },
    #[error(
        "the parameter mode of the StorageClass is {value:?}; write an octal number from 0 to \
         7777, such as \"0750\""
    )]
    Mode { value: String },
    #[error(
        "the parameter {name} of the StorageClass is {value:?}; write a decimal number from 0 to \
         4294967294"
    )]
    Id { name: &'static str, value: String },
}

impl VolumeRoot {
    pub(crate) fn parse(parameters: &BTreeMap<String, String>) -> Result<Self, ParameterError> {
        let mut root = Self::default();
        for (name, value) in parameters {
            match name.as_str() {
                "mode" => root.mode = mode(value)?,
                "uid" => root.uid = id("uid", value)?,
                "gid" => root.gid = id("gid", value)?,
                name if name.starts_with(PROVISIONER) => {}
                name => {
                    let name = name.to_owned();
                    return Err(ParameterError::Unknown { name });
                }
            }
        }
        Ok(root)
    }
}

fn mode(value: &str) -> Result<u32, ParameterError> {
    let parsed = number(value, 8).filter(|mode| *mode <= MODE_LIMIT);
    parsed.ok_or_else(|| ParameterError::Mode {
        value: value.to_owned(),
    })
}

fn id(name: &'static str, value: &str) -> Result<u32, ParameterError> {
    let parsed = number(value, 10).filter(|id| *id != NO_ID);
    parsed.ok_or_else(|| ParameterError::Id {
        name,
        value: value.to_owned(),
    })
}

/// Digits and nothing else: no sign.
fn number(value: &str, radix: u32) -> Option<u32> {
    let is_number = value.chars().all(|digit| digit.is_digit(radix));
    let parsed = is_number.then(|| u32::from_str_radix(value, radix).ok());
    parsed.flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(parameters: &[(&str, &str)]) -> Result<VolumeRoot, ParameterError> {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        VolumeRoot::parse(&parameters.iter().map(owned).collect())
    }

    #[test]
    fn everybody_may_use_a_root_unless_the_class_says_otherwise() {
        assert_eq!(parse(&[]), Ok(VolumeRoot::default()));
        let root = parse(&[
            ("mode", "02750"),
            ("gid", "100"),
            ("csi.storage.k8s.io/pvc/name", "claim"),
        ]);
        let expected = VolumeRoot {
            mode: 0o2750,
            uid: 0,
            gid: 100,
        };
        assert_eq!(root, Ok(expected));
        assert_eq!(expected.to_string(), "mode 2750, uid 0, gid 100");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        let text = |name, value| parse(&[(name, value)]).unwrap_err().to_string();
        let unknown = text("replicas", "3");
        assert!(unknown.contains("\"replicas\"; known are mode, uid, gid"));
        for value in ["", "8", "0o777", "+7", "10000", "-1", " 7", "\u{667}"] {
            assert!(text("mode", value).contains(&format!("{value:?}")));
        }
        for value in ["", "-1", "+1", "0x1", "4294967295", "4294967296", "root"] {
            for name in ["uid", "gid"] {
                assert!(text(name, value).contains(&format!("{name} of the StorageClass")));
            }
        }
    }

    proptest! {
        #[test]
        fn any_root_is_what_its_parameters_say(
            mode in 0..=MODE_LIMIT, uid in 0..NO_ID, gid in 0..NO_ID, zeros in 0..20_usize,
        ) {
            let zeros = "0".repeat(zeros);
            let (octal, user, group) = (
                format!("{zeros}{mode:o}"), format!("{zeros}{uid}"), format!("{gid}"),
            );
            let root = parse(&[("mode", &octal), ("uid", &user), ("gid", &group)]);
            prop_assert_eq!(root, Ok(VolumeRoot { mode, uid, gid }));
        }

        #[test]
        fn any_text_is_understood_or_refused_by_name(name in ".{0,20}", value in ".{0,20}") {
            for name in [name.as_str(), "mode", "uid", "gid"] {
                let named = if KNOWN.contains(name) { name.to_owned() } else { format!("{name:?}") };
                match parse(&[(name, &value)]) {
                    Ok(root) => prop_assert!(root.mode <= MODE_LIMIT && root.uid != NO_ID),
                    Err(error) => prop_assert!(error.to_string().contains(&named)),
                }
            }
        }
    }
}
