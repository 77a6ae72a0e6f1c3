//! Carries out a job's plan: the only code that writes to the API server for jobs. Actions go in
//! their order and stop at the first that fails; what a write answers is laid over the mirrors, so
//! that the next plan contains it.

mod attempts;
pub mod commit;
mod dry_run;
mod job;
mod look;
mod patch;
mod pods;
mod template;

use std::sync::Arc;

use crds::fabric::FabricSpec;
use futures::stream::{FuturesUnordered, StreamExt};
use kube::api::Preconditions;
use scheduler::{Action, JobKey, JobPlan};
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use attempts::MASTER_PORT;
pub use dry_run::DryRunAnswer;
pub use template::Templates;

use template::HeldTemplate;

use crate::cluster::SharedCluster;
use crate::proof::Masters;
use crate::training_job::pod::Settings;
use crate::training_job::write::{self, IN_FLIGHT, WritePurpose, Writer};
use crate::workload::Workload;

/// Requests of one job in flight: three quarters of all, so that a gang of 1,250 pods leaves room
/// for what is decided about others meanwhile.
const TOGETHER: usize = IN_FLIGHT * 3 / 4;

/// How much is kept of the API server's own words when it refuses an object.
const REFUSAL_BYTES: usize = 2000;

/// Why a job's actions stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A write failed.
    #[error(transparent)]
    Write(#[from] write::Error),
    /// Somebody else decided this attempt, or the job is another one by now.
    #[error("{0}; reading it again")]
    Stale(String),
    /// A name that the job needs is taken by something else.
    #[error("{what} exists and belongs to {owner}: {remedy}")]
    Taken {
        /// What has the name.
        what: String,
        /// Whose it is.
        owner: String,
        /// What to do about it.
        remedy: &'static str,
        /// Whether it goes away by itself.
        leaving: bool,
    },
    /// The assignment could not be packed.
    #[error(transparent)]
    Assignment(#[from] contract::assignment::Error),
}

impl Error {
    /// The error for an object that exists already, and what owns it if a job does.
    fn taken(kind: &str, name: &str, key: &JobKey, owner: Option<JobKey>) -> Self {
        let what = format!("{kind} {name}");
        match owner {
            Some(owner) => Self::Taken {
                what,
                owner: format!("an earlier job {owner}"),
                remedy: "it is deleted with that job",
                leaving: true,
            },
            None => Self::Taken {
                what,
                owner: format!("somebody in namespace {}", key.namespace),
                remedy: "delete it or give the job another name",
                leaving: false,
            },
        }
    }

    /// What helps, when `action` failed in this way.
    fn wait(&self, key: &JobKey, action: &Action) -> Wait {
        match self {
            Self::Stale(_) | Self::Write(write::Error::Conflict { .. }) => Wait::Look,
            Self::Write(write::Error::Refused { reason, .. }) if creates(action) => {
                Wait::Refused(refusal(&key.namespace, reason))
            }
            Self::Taken { leaving: false, .. } => Wait::Refused(self.to_string()),
            Self::Write(_) | Self::Taken { .. } | Self::Assignment(_) => Wait::Retry,
        }
    }
}

/// What helps after a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Looking again is all it takes.
    Look,
    /// Trying again later.
    Retry,
    /// Only somebody can help; the sentence says what is wrong with what was to be created.
    Refused(String),
}

/// Why a plan was not written to its end.
#[derive(Debug)]
pub struct Stopped {
    /// What happened.
    pub error: Error,
    /// What helps.
    pub wait: Wait,
}

/// Carries out plans.
#[derive(Clone, Debug)]
pub struct Applier {
    /// Sends.
    pub writer: Writer,
    /// Takes the answers.
    pub cluster: Arc<SharedCluster>,
    /// What all pods have in common.
    pub settings: Settings,
    /// From which each attempt's key is derived.
    pub masters: Arc<Masters>,
    /// Name of this operator's pod, for Events.
    pub instance: String,
    /// Bounds the templates of attempts under way.
    pub templates: Templates,
}

/// The state of one job's application: its version after the last own write.
struct Progress<'a> {
    key: &'a JobKey,
    job: Option<Workload>,
    /// The template of the attempt that gets pods.
    template: Option<HeldTemplate>,
    fabric: &'a FabricSpec,
    writer: Writer,
    /// Whether the job is not to get its nodes any more.
    cancelled: &'a CancellationToken,
}

impl Progress<'_> {
    fn is_cancelled(&self) -> bool {
        self.cancelled.is_cancelled()
    }

    fn stopped(&self) -> Error {
        Error::Stale(format!("job {} is not to run any more", self.key))
    }
}

impl Applier {
    /// Applies the plan of a job, which the snapshot saw as `job`. When it is cancelled nothing
    /// more is created.
    pub async fn apply(
        &self,
        plan: &JobPlan,
        purpose: WritePurpose,
        job: Option<Workload>,
        fabric: &FabricSpec,
        cancelled: &CancellationToken,
    ) -> Result<(), Stopped> {
        let key = &plan.job;
        let mut progress = Progress {
            key,
            job,
            template: None,
            fabric,
            writer: self.writer.for_purpose(purpose),
            cancelled,
        };
        let mut rest = &plan.actions[..];
        while let Some(first) = rest.first() {
            let alike = rest
                .iter()
                .take_while(|action| go_together(first, action))
                .count();
            let (now, later) = rest.split_at(alike.max(1));
            if let Err(error) = self.act_on(&mut progress, now).await {
                self.look_again(key, first).await;
                let wait = error.wait(key, first);
                return Err(Stopped { error, wait });
            }
            rest = later;
        }
        Ok(())
    }

    /// One action, or several that go together.
    async fn act_on(&self, progress: &mut Progress<'_>, actions: &[Action]) -> Result<(), Error> {
        if progress.is_cancelled() {
            return Err(progress.stopped());
        }
        if matches!(actions, [Action::CreatePod { .. }, ..]) {
            self.hold_template(progress).await?;
        }
        match actions {
            [one] => self.act(progress, one).await,
            several => self.act_together(progress, several).await,
        }
    }

    /// Actions on pods of one kind: they do not depend on each other.
    async fn act_together(&self, progress: &Progress<'_>, actions: &[Action]) -> Result<(), Error> {
        debug!(job = %progress.key, action = kind(&actions[0]), pods = actions.len(), "applying");
        if let Some(groups) = self.groups(progress.key, actions) {
            match self.delete_groups(progress.key, groups).await {
                // An operator newer than its chart may not delete collections: one by one then.
                Err(Error::Write(write::Error::Refused { .. })) => {}
                done => return done,
            }
        }
        let creating = creates(&actions[0]);
        let mut rest = actions.iter();
        let mut running = FuturesUnordered::new();
        let mut result = Ok(());
        loop {
            // A gang that misses one pod is of no use, so no more are created after a failure. What
            // is to be removed is tried to the end.
            let over = creating && (result.is_err() || progress.is_cancelled());
            while running.len() < TOGETHER && !over {
                let Some(action) = rest.next() else { break };
                running.push(self.act_on_pod(progress, action));
            }
            let Some(one) = running.next().await else {
                let is_cut = over && result.is_ok() && rest.len() > 0;
                return if is_cut {
                    Err(progress.stopped())
                } else {
                    result
                };
            };
            // What succeeded is seen, the first failure is reported.
            if result.is_ok() {
                result = one;
            }
        }
    }

    async fn act(&self, progress: &mut Progress<'_>, action: &Action) -> Result<(), Error> {
        debug!(job = %progress.key, action = kind(action), "applying");
        match action {
            Action::AddFinalizer => self.set_finalizer(progress, true).await,
            Action::RemoveFinalizer => self.set_finalizer(progress, false).await,
            Action::Record { status, event } => {
                self.record(progress, status).await?;
                if let Some(event) = event {
                    self.publish(progress, event).await;
                }
                Ok(())
            }
            Action::CreateAttempt(attempt) => self.create_attempt(progress, attempt).await,
            Action::CreateKey { attempt } => self.create_key(progress, *attempt).await,
            Action::DeleteAttempt { attempt } => self.delete_attempt(progress.key, *attempt).await,
            Action::DeleteJob => self.delete_job(progress).await,
            Action::CreatePod { .. } | Action::DeletePod { .. } | Action::StripPod { .. } => {
                self.act_on_pod(progress, action).await
            }
        }
    }
}

/// Whether two neighbouring actions may be on their way at the same time.
fn go_together(first: &Action, other: &Action) -> bool {
    matches!(
        (first, other),
        (Action::CreatePod { .. }, Action::CreatePod { .. })
            | (Action::DeletePod { .. }, Action::DeletePod { .. })
            | (Action::StripPod { .. }, Action::StripPod { .. })
    )
}

/// Whether it is a step of giving a job its nodes.
pub fn creates(action: &Action) -> bool {
    matches!(
        action,
        Action::CreateAttempt(_) | Action::CreateKey { .. } | Action::CreatePod { .. }
    )
}

/// A word for logs and metrics.
pub fn kind(action: &Action) -> &'static str {
    match action {
        Action::AddFinalizer => "add_finalizer",
        Action::RemoveFinalizer => "remove_finalizer",
        Action::Record { .. } => "record",
        Action::CreateAttempt(_) => "create_attempt",
        Action::CreateKey { .. } => "create_key",
        Action::CreatePod { .. } => "create_pod",
        Action::DeletePod { .. } => "delete_pod",
        Action::StripPod { .. } => "strip_pod",
        Action::DeleteAttempt { .. } => "delete_attempt",
        Action::DeleteJob => "delete_job",
    }
}

/// Why the API server will not have what a job consists of, and what to do.
fn refusal(namespace: &str, words: &str) -> String {
    let mut end = words.len().min(REFUSAL_BYTES);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    let cut = if end < words.len() { "..." } else { "" };
    format!(
        "the API server refuses its objects: {}{cut}. Delete the job and create it again with another template; or \
         change the quota, policy or pod security of namespace {namespace}, and the job goes on by itself",
        words[..end].trim_end_matches('.'),
    )
}

/// Another object of the same name is left alone.
fn same_uid(uid: &str) -> Preconditions {
    Preconditions {
        uid: Some(uid.to_owned()),
        resource_version: None,
    }
}

fn gone_is_fine(result: Result<(), write::Error>) -> Result<(), Error> {
    match result {
        Ok(()) | Err(write::Error::Missing { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
