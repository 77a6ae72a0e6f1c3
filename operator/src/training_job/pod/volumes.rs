//! The volumes that the operator adds.

use crds::fabric::NodeClass;
use crds::names;
use serde_json::{Value, json};

use super::{
    Rank, VOLUME_ATTEMPT, VOLUME_CHECKPOINT, VOLUME_KEY, VOLUME_RUN, VOLUME_SHARED_MEMORY,
};

use crate::training_job::job_view::JobView;

pub(super) fn volumes_of(job: &JobView, class: &NodeClass, rank: Rank<'_>) -> Vec<Value> {
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

/// Half of a quantity, in bytes; none of what is no quantity.
pub(super) fn half(quantity: &str) -> Option<String> {
    let half = bytes(quantity)? / 2;
    // More than the API server can count is as good as no limit.
    let half = half.min(i64::MAX.unsigned_abs().into());
    Some(half.to_string())
}

/// The whole bytes of a quantity in any of Kubernetes' forms: `1.5Gi`, `2e9`, `1500m`.
fn bytes(quantity: &str) -> Option<u128> {
    let end = quantity
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(quantity.len());
    let (number, suffix) = quantity.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let (factor, mut exponent) = unit(suffix)?;
    exponent -= i32::try_from(fraction.len()).ok()?;
    let scale = |exponent: u32| 10_u128.checked_pow(exponent).unwrap_or(u128::MAX);
    let exact = digits.saturating_mul(factor);
    Some(match u32::try_from(exponent) {
        Ok(exponent) => exact.saturating_mul(scale(exponent)),
        Err(_) => exact / scale(exponent.unsigned_abs()),
    })
}

/// What a suffix multiplies by: a factor, and a power of ten.
fn unit(suffix: &str) -> Option<(u128, i32)> {
    let binary = |power: u32| Some((1 << (10 * power), 0));
    let decimal = |exponent| Some((1, exponent));
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            decimal(exponent.parse::<i8>().ok()?.into())
        }
    }
}
