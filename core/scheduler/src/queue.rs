//! Who is next. Later orders (tier, fair share) replace [`rank`], nothing else.

use std::sync::Arc;

use crate::snapshot::Job;
use crate::status::Phase;
use crate::time::Timestamp;

/// Sorts jobs: lowest first. Jobs that ran already go before jobs that have not, because leaving
/// was not their wish; inside that, the older first, then by name.
pub(crate) fn rank(job: &Job) -> (bool, Timestamp, Arc<str>, Arc<str>) {
    let waits_for_first_start = match job.status.phase {
        Phase::Queued | Phase::Suspended => true,
        Phase::Assigned
        | Phase::Starting
        | Phase::Running
        | Phase::Interrupting
        | Phase::Restarting
        | Phase::Succeeded
        | Phase::Failed => false,
    };
    (
        waits_for_first_start,
        job.created,
        job.key.namespace.clone(),
        job.key.name.clone(),
    )
}
