//! The volumes that the operator adds.

use crds::fabric::NodeClass;
use crds::names;
use crds::training_job::TrainingJob;
use serde_json::{Value, json};

use super::{
    Rank, VOLUME_ATTEMPT, VOLUME_CHECKPOINT, VOLUME_KEY, VOLUME_RUN, VOLUME_SHARED_MEMORY,
};

pub(super) fn volumes_of(job: &TrainingJob, class: &NodeClass, rank: Rank<'_>) -> Vec<Value> {
    let job_name = job.metadata.name.as_deref().unwrap_or_default();
    let attempt_name = names::attempt_name(job_name, rank.attempt);
    let mut shared_memory = json!({"medium": "Memory"});
    if let Some(size) = class
        .shared_memory
        .clone()
        .or_else(|| half(&class.trainer.memory))
    {
        shared_memory["sizeLimit"] = json!(size);
    }
    let mut volumes = vec![
        json!({"name": VOLUME_RUN, "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}),
        json!({"name": VOLUME_ATTEMPT, "configMap": {"name": attempt_name}}),
        json!({"name": VOLUME_KEY, "secret": {"secretName": rank.key_name}}),
        json!({"name": VOLUME_SHARED_MEMORY, "emptyDir": shared_memory}),
    ];
    if let Some(checkpoint) = &job.spec.checkpoint {
        let claim = json!({"claimName": checkpoint.claim_name});
        volumes.push(json!({"name": VOLUME_CHECKPOINT, "persistentVolumeClaim": claim}));
    }
    volumes
}

/// Half of a memory quantity, in bytes; none for forms that people do not use for memory.
pub(super) fn half(quantity: &str) -> Option<String> {
    const UNITS: [(&str, u64); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
        ("", 1),
    ];
    let (number, unit) = UNITS
        .iter()
        .find_map(|&(suffix, unit)| Some((quantity.strip_suffix(suffix)?, unit)))?;
    let bytes = number.parse::<u64>().ok()?.checked_mul(unit)?;
    Some((bytes / 2).to_string())
}
