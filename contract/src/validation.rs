//! The task of a validation: what the validator has to check on its node, and what only the
//! operator knows of that node. The operator writes it into the attempt's ConfigMap, the validator
//! reads it. What a check measures is the validator's; what a value means is `core/health`'s.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

pub use crate::limits::{PARTNER_SECONDS, TASK_LIMIT_BYTES};
use serde::{Deserialize, Serialize};

/// Its file in the attempt's ConfigMap.
pub const FILE: &str = "validation.json";
/// The layout that is written and read.
pub const VERSION: u32 = 1;
/// How long a run may take: a day is enough for anything.
pub const DEADLINE_SECONDS: RangeInclusive<u32> = 1..=86_400;
/// Port at which a validator waits for that of its partner node.
pub const PORT: u16 = 9410;
/// Most checks of a run.
pub const MAX_CHECKS: usize = 32;
/// Most screens of a check: one for each device that it can report.
pub const MAX_SCREENS: usize = 32;
/// Most kinds of resources that a node offers.
pub const MAX_OFFERS: usize = 64;
/// Longest name of anything in Kubernetes, and of a resource with its domain.
const NAME_LIMIT_BYTES: usize = 317;

/// Why a task could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No operator of ours writes so much.
    #[error("failed to read the task: it is larger than {TASK_LIMIT_BYTES} bytes")]
    TooLarge,
    /// It is not the JSON we write.
    #[error("failed to parse the task")]
    Parse(#[source] serde_json::Error),
    /// Another release wrote it.
    #[error(
        "failed to read the task: it has version {0}, this release reads {VERSION}; \
         run the validator of the operator's release"
    )]
    Release(u32),
    /// It says something that cannot be.
    #[error("failed to accept the task: {0}")]
    Invalid(String),
}

/// What has to be checked on a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ValidationTask {
    /// Layout of this file.
    pub version: u32,
    /// Name of the NodeValidation.
    pub validation: String,
    /// Its UID, which no later one of the same name shares.
    pub uid: String,
    /// The node.
    pub node: String,
    /// Its class; empty where it has none.
    pub node_class: String,
    /// How long all checks together may take.
    pub deadline_seconds: u32,
    /// The checks, in the order in which they run.
    pub checks: Vec<AskedCheck>,
    /// What the node offers, and what its class says it has.
    pub offers: Vec<OfferedResource>,
}

/// A check that has to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AskedCheck {
    /// The API's word for it. This release may not know it.
    pub name: String,
    /// The values below which it is measured again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub screens: Vec<Screen>,
}

/// The value of a device below which it is measured three times more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Screen {
    /// The device as the check reports it; empty: all that have no screen of their own.
    pub device: String,
    /// In the check's unit.
    pub value: f64,
}

/// A kind of resource of the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OfferedResource {
    /// `nvidia.com/gpu`, say.
    pub resource: String,
    /// How much of it the kubelet offers.
    pub offered: f64,
    /// How much a node of the class has.
    pub expected: f64,
}

/// The member that says how the others are to be read.
#[derive(Deserialize)]
struct Layout {
    version: u32,
}

impl ValidationTask {
    /// The file's content.
    pub fn to_json(&self) -> String {
        // Numbers, text and lists always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the file's content.
    pub fn from_json(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > TASK_LIMIT_BYTES {
            return Err(Error::TooLarge);
        }
        // What another release wrote in its own way is no damage.
        let layout: Layout = serde_json::from_slice(bytes).map_err(Error::Parse)?;
        if layout.version != VERSION {
            return Err(Error::Release(layout.version));
        }
        let task: Self = serde_json::from_slice(bytes).map_err(Error::Parse)?;
        task.validate()?;
        Ok(task)
    }

    fn validate(&self) -> Result<(), Error> {
        for (what, text) in [
            ("the validation", &self.validation),
            ("the uid", &self.uid),
            ("the node", &self.node),
        ] {
            name(what, text)?;
        }
        if self.node_class.len() > NAME_LIMIT_BYTES {
            return refuse("the class has a name that is too long".to_owned());
        }
        if !DEADLINE_SECONDS.contains(&self.deadline_seconds) {
            let (least, most) = (DEADLINE_SECONDS.start(), DEADLINE_SECONDS.end());
            let found = self.deadline_seconds;
            return refuse(format!("deadlineSeconds {found}, not {least} to {most}"));
        }
        at_most("checks", self.checks.len(), MAX_CHECKS)?;
        at_most("offers", self.offers.len(), MAX_OFFERS)?;
        unique("check", self.checks.iter().map(|check| &check.name))?;
        unique("resource", self.offers.iter().map(|offer| &offer.resource))?;
        for check in &self.checks {
            name("a check", &check.name)?;
            at_most("screens", check.screens.len(), MAX_SCREENS)?;
            unique("screen", check.screens.iter().map(|screen| &screen.device))?;
            for screen in &check.screens {
                amount(&screen.device, screen.value)?;
            }
        }
        for offer in &self.offers {
            name("a resource", &offer.resource)?;
            amount(&offer.resource, offer.offered)?;
            amount(&offer.resource, offer.expected)?;
        }
        Ok(())
    }
}

fn refuse(why: String) -> Result<(), Error> {
    Err(Error::Invalid(why))
}

fn at_most(what: &str, found: usize, most: usize) -> Result<(), Error> {
    match found <= most {
        true => Ok(()),
        false => refuse(format!("{found} {what}, at most {most}")),
    }
}

fn unique<'a>(what: &str, mut names: impl Iterator<Item = &'a String>) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    match names.find(|name| !seen.insert(*name)) {
        Some(twice) => refuse(format!("{what} `{twice}` is listed twice")),
        None => Ok(()),
    }
}

fn name(what: &str, text: &str) -> Result<(), Error> {
    match (1..=NAME_LIMIT_BYTES).contains(&text.len()) {
        true => Ok(()),
        false => refuse(format!("{what} has a name of {} bytes", text.len())),
    }
}

fn amount(of: &str, value: f64) -> Result<(), Error> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(()),
        false => refuse(format!("`{of}` has the amount {value}")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn task() -> ValidationTask {
        ValidationTask {
            version: VERSION,
            validation: "node-7".to_owned(),
            uid: "2c1f2a6e-8f0b-4a77-9a53-0d6f3a5d1b11".to_owned(),
            node: "node-7".to_owned(),
            node_class: "a100".to_owned(),
            deadline_seconds: 600,
            checks: vec![AskedCheck {
                name: "CpuFrequency".to_owned(),
                screens: vec![Screen {
                    device: String::new(),
                    value: 2.5,
                }],
            }],
            offers: vec![OfferedResource {
                resource: "nvidia.com/gpu".to_owned(),
                offered: 7.0,
                expected: 8.0,
            }],
        }
    }

    fn refused(change: impl FnOnce(&mut ValidationTask)) -> String {
        let mut changed = task();
        change(&mut changed);
        ValidationTask::from_json(changed.to_json().as_bytes())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn what_is_written_is_read() {
        let json = task().to_json();
        assert_eq!(ValidationTask::from_json(json.as_bytes()).unwrap(), task());
        assert!(json.contains(r#""nodeClass":"a100""#), "{json}");
    }

    #[test]
    fn a_task_that_cannot_be_is_refused_with_its_reason() {
        assert!(refused(|task| task.uid.clear()).contains("the uid has a name of 0 bytes"));
        assert!(refused(|task| task.deadline_seconds = 0).contains("deadlineSeconds 0, not 1 to"));
        assert!(refused(|task| task.offers[0].offered = -1.0).contains("the amount -1"));
        let twice = refused(|task| task.checks.push(task.checks[0].clone()));
        assert!(twice.contains("check `CpuFrequency` is listed twice"));
        let many = refused(|task| task.offers = vec![task.offers[0].clone(); 65]);
        assert!(many.contains("65 offers, at most 64"), "{many}");
        let newer = refused(|task| task.version = 2);
        assert!(newer.contains("version 2, this release reads 1"), "{newer}");
        let long = refused(|task| task.node_class = "x".repeat(TASK_LIMIT_BYTES));
        assert!(long.contains("larger than 65536 bytes"), "{long}");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = ValidationTask::from_json(&bytes);
        }

        #[test]
        fn a_damaged_file_never_panics(place in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut json = task().to_json().into_bytes();
            let place = place.index(json.len());
            json[place] = byte;
            if let Ok(read) = ValidationTask::from_json(&json) {
                let again = ValidationTask::from_json(read.to_json().as_bytes());
                prop_assert_eq!(again.ok(), Some(read));
            }
        }
    }
}
