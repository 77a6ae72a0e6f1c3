//! Which gangs there are, as far as the rendezvous must know: whose attempt is current, who its
//! nodes are, and by which key it authenticates.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use collective::membership::{OnPeerLoss, Policy};
use crds::training_job::{FailurePolicy, Phase, TrainingJob};
use scheduler::JobKey;
use topology::NodeName;
use wire::assignment;
use wire::handshake::{JobId, Key};

use crate::cluster::Cluster;
use crate::proof::{Masters, Signer};
use crate::training_job::translate::{Attempt, Terms};
use crate::training_job::{assignments, observe};

/// A gang that may meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Its job.
    pub job: JobKey,
    /// Its current attempt.
    pub attempt: u32,
    /// The attempt's nodes in rank order.
    pub nodes: Vec<NodeName>,
    /// What becomes of the others when one is lost.
    pub policy: Policy,
}

/// Why a gang may not meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refusal {
    /// In one sentence.
    pub reason: String,
    /// Whether the attempt is over for good. Otherwise another time may be better.
    pub void: bool,
}

impl Refusal {
    /// The attempt is over for good.
    pub fn void(reason: String) -> Self {
        Self { reason, void: true }
    }

    /// Not now.
    pub fn now(reason: String) -> Self {
        Self {
            reason,
            void: false,
        }
    }
}

/// Knows the gangs.
pub trait Directory: Send + Sync + 'static {
    /// The key by which an attempt of a job authenticates; none when the job is unknown.
    fn key(&self, job: JobId, attempt: u32) -> Option<Key>;
    /// The gang that may meet now; else why not.
    fn gang(&self, job: JobId, attempt: u32) -> Result<Gang, Refusal>;
}

/// The directory of a cluster: what the mirrors say.
#[derive(Debug)]
pub struct ClusterDirectory {
    cluster: Arc<Cluster>,
    masters: Arc<Masters>,
    /// Jobs by the hash of their uid. Rebuilt when one is not found: never larger than the mirror.
    ids: Mutex<BTreeMap<JobId, JobKey>>,
}

impl ClusterDirectory {
    /// A directory over these mirrors and these master keys.
    pub fn new(cluster: Arc<Cluster>, masters: Arc<Masters>) -> Self {
        Self {
            cluster,
            masters,
            ids: Mutex::default(),
        }
    }

    fn job(&self, id: JobId) -> Option<(JobKey, Arc<TrainingJob>)> {
        let mirrors = self.cluster.mirrors();
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let known = |ids: &BTreeMap<JobId, JobKey>| {
            let key = ids.get(&id)?;
            Some((key.clone(), Arc::clone(mirrors.job(key)?)))
        };
        if let Some(found) = known(&ids) {
            return Some(found);
        }
        let jobs = mirrors.jobs.values();
        let jobs = jobs.filter_map(|kept| observe::key(kept.whole()?));
        *ids = jobs.map(|key| (JobId::new(&key.uid), key)).collect();
        known(&ids)
    }
}

impl Directory for ClusterDirectory {
    fn key(&self, job: JobId, attempt: u32) -> Option<Key> {
        let (key, _) = self.job(job)?;
        let signer = {
            let mirrors = self.cluster.mirrors();
            let name = crds::names::attempt_name(&key.name, attempt);
            let kept = mirrors.attempts.get(&key.namespace, &name);
            let kept = kept.filter(|kept| kept.attempt.job == key);
            kept.map_or(Signer::Current, Attempt::signer)
        };
        Some(self.masters.attempt_key(signer, &key.uid, attempt))
    }

    fn gang(&self, id: JobId, attempt: u32) -> Result<Gang, Refusal> {
        let gone = || Refusal::void("the job is gone".to_owned());
        let (key, job) = self.job(id).ok_or_else(gone)?;
        let status = job.status.clone().unwrap_or_default();
        if attempt < status.attempt {
            return Err(Refusal::void(format!(
                "attempt {attempt} is void, the job is at {}",
                status.attempt
            )));
        }
        if !holds_nodes(status.phase) || attempt > status.attempt {
            let reason = format!("the job is {:?} and has no attempt {attempt}", status.phase);
            // An attempt that stopped holding nodes never holds them again. Of a later one this leader has not
            // heard yet.
            let void = attempt == status.attempt;
            return Err(Refusal { reason, void });
        }
        let mirrors = self.cluster.mirrors();
        let name = crds::names::attempt_name(&key.name, attempt);
        let kept = mirrors.attempts.get(&key.namespace, &name);
        let kept = kept.filter(|kept| kept.attempt.job == key);
        let known = kept.filter(|kept| !kept.attempt.nodes.is_empty());
        // What no proof holds for says nothing here; the pods of the gang do.
        let nodes = match known {
            Some(kept) => Some(kept.attempt.nodes.clone()),
            None => assignments::gang_of_pods(&mirrors, &key, attempt),
        };
        match nodes {
            Some(nodes) => Ok(Gang {
                nodes,
                attempt,
                job: key,
                policy: kept
                    .and_then(|kept| kept.terms)
                    .map_or_else(|| policy(&job.spec.failure_policy), agreed),
            }),
            None => Err(Refusal::now(format!(
                "the assignment of attempt {attempt} is not known yet"
            ))),
        }
    }
}

/// What the attempt was started with.
fn agreed(terms: Terms) -> Policy {
    let unless_told = Policy::default();
    Policy {
        on_peer_loss: match terms.on_peer_loss {
            assignment::OnPeerLoss::Restart => OnPeerLoss::Restart,
            assignment::OnPeerLoss::Shrink => OnPeerLoss::Shrink,
        },
        peer_loss: terms.peer_loss,
        least: terms.min_nodes.unwrap_or(unless_told.least),
    }
}

fn policy(spec: &FailurePolicy) -> Policy {
    let unless_told = Policy::default();
    Policy {
        on_peer_loss: match spec.on_peer_loss {
            crds::training_job::OnPeerLoss::Restart => OnPeerLoss::Restart,
            crds::training_job::OnPeerLoss::Shrink => OnPeerLoss::Shrink,
        },
        peer_loss: Duration::from_secs(spec.peer_loss_seconds.into()),
        least: spec.min_nodes.unwrap_or(unless_told.least),
    }
}

fn holds_nodes(phase: Phase) -> bool {
    match phase {
        Phase::Assigned | Phase::Starting | Phase::Running | Phase::Interrupting => true,
        Phase::Queued | Phase::Restarting | Phase::Suspended | Phase::Succeeded | Phase::Failed => {
            false
        }
    }
}
