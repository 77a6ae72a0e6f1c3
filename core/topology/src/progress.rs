//! How far training is: the one type for it in the file that a rank writes, on the stream to the
//! operator, and in membership; and the rule for sentences that end up in a status.

use serde::{Deserialize, Deserializer, Serialize};

use crate::CheckpointRef;

/// Longest sentence that a rank writes for people, in characters.
pub const TEXT_LIMIT_CHARS: usize = 512;

/// How far training is. In files and messages its fields have these names in camelCase; what is
/// null is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The step last finished.
    pub step: u64,
    /// Loss of that step, if the trainer reports it. Membership does not keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// The newest durable checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointRef>,
    /// What the run has resumed from, and why from no newer checkpoint, where a newer one is
    /// damaged.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "some_text"
    )]
    pub passed_over: Option<String>,
}

/// A sign that training goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignKind {
    /// The program reported another step or checkpoint.
    Step,
    /// A rank finished a collective.
    Operation,
}

/// A sentence that ends up in a status: bounded, and without control characters.
pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    checked(String::deserialize(deserializer)?)
}

fn some_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Option::deserialize(deserializer)?.map(checked).transpose()
}

fn checked<E: serde::de::Error>(text: String) -> Result<String, E> {
    if text.chars().count() > TEXT_LIMIT_CHARS || text.chars().any(char::is_control) {
        return Err(E::custom(format_args!(
            "a sentence has at most {TEXT_LIMIT_CHARS} characters, none of them a control character"
        )));
    }
    Ok(text)
}
