//! Conditions of objects of ours, and texts that fit into a status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff;

/// Longest text of a status, in bytes: the schemas count characters, which are no more.
const TEXT_BYTES: usize = 1024;

/// A condition as it is to be shown. It keeps its time while it holds as `before` says.
pub(crate) fn condition(
    before: &[Condition],
    kind: &str,
    holds: bool,
    reason: &str,
    message: String,
) -> Condition {
    let status = if holds { "True" } else { "False" };
    let mut before = before.iter();
    let before = before.find(|one| one.type_ == kind && one.status == status);
    let now = || {
        Time(jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default())
    };
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: cut(&message),
        last_transition_time: before.map_or_else(now, |one| one.last_transition_time.clone()),
        observed_generation: None,
    }
}

/// As much of a text as fits.
pub(crate) fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES)].to_owned()
}
