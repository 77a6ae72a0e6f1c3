//! A status as the changes to the one before: what a newer release keeps in the same place is not
//! in either, and so survives. What this release knows and has dropped is removed by name.

use crds::training_job::TrainingJobStatus;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::training_job::status;

/// The JSON merge patch from one status to another.
pub(super) fn between(before: Option<&TrainingJobStatus>, after: &TrainingJobStatus) -> Value {
    let Some(before) = before else {
        return changes(&Value::Null, after);
    };
    let mut after = after.clone();
    // A list is replaced as a whole: conditions of a newer release are said again.
    let unknown = before.conditions.iter().filter(|condition| {
        let said = |other: &_| status::same_type(other, condition);
        !status::is_ours(condition) && !after.conditions.iter().any(said)
    });
    let unknown: Vec<_> = unknown.cloned().collect();
    after.conditions.extend(unknown);
    changes(before, &after)
}

/// The JSON merge patch from one status to another, of whatever kind: all of it where there was
/// none.
pub(super) fn changes<B: Serialize, A: Serialize>(before: &B, after: &A) -> Value {
    let value = |status: serde_json::Result<Value>| status.unwrap_or_default();
    let before = value(serde_json::to_value(before));
    let after = value(serde_json::to_value(after));
    match before.is_null() {
        true => after,
        false => differences(&before, &after),
    }
}

/// What turns one value into another.
fn differences(before: &Value, after: &Value) -> Value {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return after.clone();
    };
    let mut patch = Map::new();
    for (name, value) in after {
        match before.get(name) {
            Some(old) if old == value => {}
            Some(old) => {
                patch.insert(name.clone(), differences(old, value));
            }
            None => {
                patch.insert(name.clone(), value.clone());
            }
        }
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        patch.insert(name.clone(), Value::Null);
    }
    Value::Object(patch)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::merge;

    fn status(value: Value) -> TrainingJobStatus {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn what_a_newer_release_keeps_in_the_status_survives_and_what_ended_goes() {
        let condition = |kind: &str, holds: &str| {
            json!({"type": kind, "status": holds, "reason": "R", "message": "m",
                "lastTransitionTime": "2026-01-02T03:04:05Z"})
        };
        let mut stored = json!({
            "phase": "Running", "attempt": 2, "queueTime": "2026-01-02T03:04:05Z",
            "conditions": [condition("Running", "True"), condition("Rehearsed", "True")],
            "failure": {"attempt": 1, "rank": 5, "message": "rank 5 failed", "cause": "new"},
        });
        let before = status(stored.clone());
        let after = status(json!({
            "phase": "Restarting", "attempt": 2,
            "conditions": [condition("Running", "False")],
            "failure": {"attempt": 2, "message": "node n1 was lost"},
        }));
        let patch = between(Some(&before), &after);
        assert!(
            patch
                .as_object()
                .is_some_and(|all| !all.contains_key("attempt"))
        );
        merge(&mut stored, &patch);
        assert_eq!(stored["queueTime"], "2026-01-02T03:04:05Z");
        assert_eq!(stored["failure"]["cause"], "new");
        assert_eq!(stored["failure"]["rank"], Value::Null);
        let kinds: Vec<_> = stored["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["type"].clone())
            .collect();
        assert_eq!(kinds, ["Running", "Rehearsed"]);
        assert_eq!(status(stored).phase, after.phase);
    }
}
