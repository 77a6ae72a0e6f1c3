//! The part of `apply` that writes who takes part in an attempt, for its rendezvous: into the job's
//! status, and only over what the rendezvous has read there. Of two leaders one succeeds.
//!
//! What the members begin with is too long for a status that every watcher gets. It is written
//! before, into a ConfigMap that is named by its digest and never changes, so the one write to the
//! status decides about both.

use std::sync::Arc;

use collective::membership::Commit;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::DeleteParams;
use scheduler::{CommittedMembers, JobKey, JobKind};
use serde_json::json;
use topology::NodeName;
use tracing::{debug, warn};

use super::Applier;
use super::attempts::metadata;
use crate::training_job::job_view::JobView;
use crate::training_job::members::Recorded;
use crate::training_job::{members, status, write};
use crate::workload::owner_reference;

/// Tries against other writers of the same status: the planner's records, one at a time.
const TRIES: u32 = 5;
/// Entry of the ConfigMap that holds what the members begin with.
const RECORD: &str = "resume.json";

/// Why it is not known who takes part.
#[derive(Debug, thiserror::Error)]
pub enum CommitUnknown {
    /// The API server did not say.
    #[error(transparent)]
    Write(#[from] write::Error),
    /// What it said is not what was written.
    #[error("failed to read the members of attempt {attempt}: {what} was changed or deleted")]
    Damaged {
        /// The attempt.
        attempt: u32,
        /// What was.
        what: String,
    },
}

impl Applier {
    /// Who takes part in an attempt, read from the API server: a mirror may be behind an earlier
    /// leader.
    pub async fn committed(
        &self,
        job: &JobKey,
        attempt: u32,
        nodes: usize,
    ) -> Result<Option<Commit>, CommitUnknown> {
        match self.look_at_training(job).await? {
            Some(seen) => self.last(job, &seen, attempt, nodes).await,
            None => Ok(None),
        }
    }

    /// Writes down who takes part in an attempt, if the last commit is that of epoch `after`. Else
    /// what is there, if that is known and the attempt still is.
    pub async fn commit(
        &self,
        job: &JobKey,
        attempt: u32,
        nodes: &[NodeName],
        commit: &Commit,
        after: Option<u64>,
    ) -> Result<(), Option<Commit>> {
        let recorded = members::of_commit(&job.name, attempt, nodes, commit).map_err(|error| {
            warn!(%job, attempt, %error, "failed to commit an epoch");
            None
        })?;
        let ours = members::to_api(&recorded.membership);
        for _ in 0..TRIES {
            let seen = self.look_at_training(job).await.map_err(|error| {
                warn!(%job, attempt, %error, "failed to learn whether an epoch is committed");
                None
            })?;
            let seen = seen.ok_or(None)?;
            let is_current = seen.status.as_ref().is_some_and(|status| {
                status.attempt == attempt && status::from_api(status).phase.holds_nodes()
            });
            if !is_current {
                return Err(None);
            }
            let current = shown(&seen, attempt);
            if current == Some(&ours) {
                return Ok(()); // Ours; its answer was lost.
            }
            if current.map(|current| current.epoch) != after {
                return Err(self.known(job, &seen, attempt, nodes.len()).await);
            }
            if let Err(error) = self.keep_record(job, &seen, &recorded).await {
                warn!(%job, attempt, %error, "failed to commit an epoch");
                continue;
            }
            match self.put_membership(job, &seen, &recorded.membership).await {
                Ok(written) => {
                    self.cluster.notify();
                    if shown(&written, attempt) == Some(&ours) {
                        return Ok(());
                    }
                    warn!(%job, attempt, "the API server drops status.membership: its CRD is of an older chart");
                    return Err(None);
                }
                Err(write::Error::Conflict { .. }) => {}
                Err(error) => {
                    warn!(%job, attempt, %error, "failed to write the commit; it may be stored all the same");
                }
            }
        }
        Err(None)
    }

    async fn put_membership(
        &self,
        job: &JobKey,
        seen: &JobView,
        membership: &CommittedMembers,
    ) -> Result<Arc<JobView>, write::Error> {
        let mut status = seen.status.clone().unwrap_or_default();
        status.membership = Some(members::to_api(membership));
        self.write_status(&self.writer, job, seen, &status).await
    }

    /// The last commit of an attempt that a job's status holds, if it can be read.
    async fn known(
        &self,
        job: &JobKey,
        seen: &JobView,
        attempt: u32,
        nodes: usize,
    ) -> Option<Commit> {
        let read = self.last(job, seen, attempt, nodes).await;
        read.unwrap_or_else(|error| {
            warn!(%job, attempt, %error, "failed to learn whether an epoch is committed");
            None
        })
    }

    /// The last commit of an attempt that a job's status holds.
    async fn last(
        &self,
        job: &JobKey,
        seen: &JobView,
        attempt: u32,
        nodes: usize,
    ) -> Result<Option<Commit>, CommitUnknown> {
        let Some(shown) = shown(seen, attempt) else {
            return Ok(None);
        };
        let damaged = |what: &str| CommitUnknown::Damaged {
            attempt,
            what: what.to_owned(),
        };
        let text = match &shown.record {
            Some(name) => Some(
                self.record_text(job, (attempt, shown.epoch), name)
                    .await?
                    .ok_or_else(|| damaged(&format!("ConfigMap {name}")))?,
            ),
            None => None,
        };
        let commit = members::from_api(shown)
            .and_then(|recorded| members::to_commit(&recorded, nodes, text.as_deref()));
        commit.map(Some).ok_or_else(|| damaged("status.membership"))
    }

    /// Writes what the members begin with, unless it is there.
    async fn keep_record(
        &self,
        job: &JobKey,
        seen: &JobView,
        recorded: &Recorded,
    ) -> Result<(), CommitUnknown> {
        let (Some(name), Some(text)) = (&recorded.membership.record, &recorded.text) else {
            return Ok(());
        };
        let attempt = recorded.membership.attempt;
        let owner = owner_reference(JobKind::TrainingJob.as_str(), &seen.metadata);
        let config_map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata(&owner, job, name, attempt),
            "immutable": true,
            "data": {RECORD: text},
        });
        let created = self.writer.create::<ConfigMap>(&job.namespace, &config_map);
        match created.await {
            Ok(_) => Ok(()),
            // By an earlier try, unless somebody has put something else in its place.
            Err(write::Error::Exists { .. }) => {
                let epoch = recorded.membership.epoch;
                match self.record_text(job, (attempt, epoch), name).await? {
                    Some(_) => Ok(()),
                    None => Err(CommitUnknown::Damaged {
                        attempt,
                        what: format!("ConfigMap {name}"),
                    }),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What a record holds; none when it is not what was written.
    async fn record_text(
        &self,
        job: &JobKey,
        of: (u32, u64),
        name: &str,
    ) -> Result<Option<String>, write::Error> {
        let read = self.writer.get::<ConfigMap>(&job.namespace, name).await;
        let text = match read {
            Ok(found) => found.data.unwrap_or_default().remove(RECORD),
            Err(write::Error::Missing { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(text.filter(|text| members::record_name(&job.name, of, text) == name))
    }

    /// Deletes a record that a status referred to and its successor does not. One that is left over
    /// goes with its job.
    pub(super) async fn drop_superseded(&self, job: &JobKey, before: &JobView, after: &JobView) {
        let of = |job: &JobView| job.status.as_ref()?.membership.as_ref()?.record.clone();
        let Some(old) = of(before).filter(|old| Some(old) != of(after).as_ref()) else {
            return;
        };
        let (namespace, params) = (&job.namespace, DeleteParams::default());
        let deleted = self.writer.delete::<ConfigMap>(namespace, &old, &params);
        if let Err(error) = deleted.await {
            debug!(%job, record = old, %error, "failed to delete an old record of members; it is deleted with its job");
        }
    }
}

/// The members of an attempt as a job's status shows them.
fn shown(job: &JobView, attempt: u32) -> Option<&crds::training_job::MembershipStatus> {
    let membership = job.status.as_ref()?.membership.as_ref()?;
    (membership.attempt == attempt).then_some(membership)
}
