//! The part of `apply` that writes who takes part in an attempt, for its rendezvous: into the job's status, and only
//! over what the rendezvous has read there. Of two leaders one succeeds.

use std::sync::Arc;

use collective::membership::Commit;
use crds::training_job::TrainingJob;
use scheduler::{JobKey, Membership};
use topology::NodeName;
use tracing::warn;

use super::Applier;
use crate::training_job::{members, status, write};

/// Tries against other writers of the same status: the planner's records, one at a time.
const TRIES: u32 = 5;

impl Applier {
    /// Who takes part in an attempt, read from the API server: a mirror may be behind an earlier leader.
    pub async fn committed(
        &self,
        job: &JobKey,
        attempt: u32,
        nodes: usize,
    ) -> Result<Option<Commit>, write::Error> {
        let seen = self.look_at_job(job).await?;
        Ok(seen.and_then(|seen| last(&seen, attempt, nodes)))
    }

    /// Writes down who takes part in an attempt, if the last commit is that of epoch `after`. Else what is there, if
    /// that is known and the attempt still is.
    pub async fn commit(
        &self,
        job: &JobKey,
        attempt: u32,
        nodes: &[NodeName],
        commit: &Commit,
        after: Option<u64>,
    ) -> Result<(), Option<Commit>> {
        let recorded = members::of_commit(attempt, nodes, commit).map_err(|error| {
            warn!(%job, attempt, %error, "an epoch is not committed");
            None
        })?;
        for _ in 0..TRIES {
            let seen = self.look_at_job(job).await.map_err(|error| {
                warn!(%job, attempt, %error, "whether an epoch is committed is not known");
                None
            })?;
            let seen = seen.ok_or(None)?;
            let is_current = seen.status.as_ref().is_some_and(|status| {
                status.attempt == attempt && status::from_api(status).phase.holds_nodes()
            });
            let current = last(&seen, attempt, nodes.len());
            if !is_current {
                return Err(None);
            }
            if current.as_ref() == Some(commit) {
                return Ok(()); // Ours, of which we did not hear.
            }
            if current.as_ref().map(|current| current.epoch) != after {
                return Err(current);
            }
            match self.put_membership(job, &seen, &recorded).await {
                Ok(_) => {
                    self.cluster.notify();
                    return Ok(());
                }
                Err(write::Error::Conflict { .. }) => {}
                Err(error) => warn!(%job, attempt, %error, "an epoch may not be committed"),
            }
        }
        Err(None)
    }

    async fn put_membership(
        &self,
        job: &JobKey,
        seen: &TrainingJob,
        membership: &Membership,
    ) -> Result<Arc<TrainingJob>, write::Error> {
        let mut status = seen.status.clone().unwrap_or_default();
        status.membership = Some(members::to_api(membership));
        self.write_status(job, seen, &status).await
    }
}

/// The last commit of an attempt that a job's status holds.
fn last(job: &TrainingJob, attempt: u32, nodes: usize) -> Option<Commit> {
    let shown = job.status.as_ref()?.membership.as_ref()?;
    let recorded = members::from_api(shown).filter(|recorded| recorded.attempt == attempt)?;
    members::to_commit(&recorded, nodes)
}
