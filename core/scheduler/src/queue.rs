//! Who is next. Later orders (tier, fair share) replace [`rank`], nothing else.

use std::sync::Arc;

use crate::snapshot::Job;
use crate::status::JobPhase;
use crate::time::Timestamp;

/// Sorts jobs: lowest first. Jobs that are pinned to a node come last: they take what nobody waits
/// for. Jobs that ran already go before jobs that have not, because leaving was not their wish;
/// inside that, the older first, then by name.
pub(crate) fn rank(job: &Job) -> (bool, bool, Timestamp, Arc<str>, Arc<str>) {
    let waits_for_first_start = match job.status.phase {
        JobPhase::Queued | JobPhase::Suspended => true,
        JobPhase::Assigned
        | JobPhase::Starting
        | JobPhase::Running
        | JobPhase::Interrupting
        | JobPhase::Restarting
        | JobPhase::Succeeded
        | JobPhase::Failed => false,
    };
    (
        job.pin.is_some(),
        waits_for_first_start,
        job.created,
        job.key.namespace.clone(),
        job.key.name.clone(),
    )
}
