//! Which gangs there are, as far as the rendezvous must know: whose attempt is current, who its
//! nodes are, and by which key it authenticates.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use collective::membership::RecoveryPolicy;
use contract::identity::JobId;
use crds::training_job::{FailurePolicy, Phase};
use link::handshake::Key;
use scheduler::JobKey;
use topology::NodeName;

use crate::cluster::SharedCluster;
use crate::proof::{Masters, Signer};
use crate::training_job::assignments;
use crate::training_job::job_view::JobView;
use crate::training_job::translate::{self, MirroredAttempt, Terms};

/// A gang that may meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Its job.
    pub job: JobKey,
    /// Its current attempt.
    pub attempt: u32,
    /// The attempt's nodes in rank order.
    pub nodes: Vec<NodeName>,
    /// The rule for the others when one is lost.
    pub policy: RecoveryPolicy,
}

/// Why a gang may not meet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct GangRefusal {
    /// In one sentence.
    pub reason: String,
    /// Whether the attempt is over for good. Otherwise another time may be better.
    pub void: bool,
}

impl GangRefusal {
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
    /// The gang that may meet now, one for all its connections; else why not.
    fn gang(&self, job: JobId, attempt: u32) -> Result<Arc<Gang>, GangRefusal>;
}

/// The directory of a cluster: what the mirrors say.
#[derive(Debug)]
pub struct ClusterDirectory {
    cluster: Arc<SharedCluster>,
    masters: Arc<Masters>,
    /// Gangs that somebody holds.
    gangs: Mutex<BTreeMap<(JobId, u32), Weak<Gang>>>,
}

impl ClusterDirectory {
    /// A directory over these mirrors and these master keys.
    pub fn new(cluster: Arc<SharedCluster>, masters: Arc<Masters>) -> Self {
        Self {
            cluster,
            masters,
            gangs: Mutex::default(),
        }
    }

    /// The gang as it is held already, if that is what it is; else this one from now on.
    fn shared(&self, id: JobId, gang: Gang) -> Arc<Gang> {
        let mut gangs = self.gangs.lock().unwrap_or_else(PoisonError::into_inner);
        let held = gangs.get(&(id, gang.attempt)).and_then(Weak::upgrade);
        if let Some(held) = held.filter(|held| **held == gang) {
            return held;
        }
        gangs.retain(|_, held| held.strong_count() > 0);
        let gang = Arc::new(gang);
        gangs.insert((id, gang.attempt), Arc::downgrade(&gang));
        gang
    }

    fn job(&self, id: JobId) -> Option<(JobKey, Arc<JobView>)> {
        let key = self.cluster.job_of(id)?;
        let job = Arc::clone(self.cluster.mirrors().job(&key)?);
        Some((key, job))
    }
}

impl Directory for ClusterDirectory {
    /// Whoever asks has proved nothing yet: for a job that there is not, nothing is hashed, and the
    /// mirrors are not locked.
    fn key(&self, job: JobId, attempt: u32) -> Option<Key> {
        let key = self.cluster.job_of(job)?;
        let name = crds::names::attempt_name(&key.name, attempt);
        let signer = {
            let mirrors = self.cluster.mirrors();
            let mirrored = mirrors.attempts.get(&key.namespace, &name);
            let mirrored = mirrored.filter(|mirrored| mirrored.attempt.job == key);
            mirrored.map_or(Signer::Current, MirroredAttempt::signer)
        };
        Some(self.masters.attempt_key(signer, &key.uid, attempt))
    }

    fn gang(&self, id: JobId, attempt: u32) -> Result<Arc<Gang>, GangRefusal> {
        let gone = || GangRefusal::void("the job is gone".to_owned());
        let (key, job) = self.job(id).ok_or_else(gone)?;
        let status = job.status.clone().unwrap_or_default();
        if attempt < status.attempt {
            return Err(GangRefusal::void(format!(
                "attempt {attempt} is over, the job runs attempt {}",
                status.attempt
            )));
        }
        if !holds_nodes(status.phase) || attempt > status.attempt {
            let reason = format!("the job is {:?} and has no attempt {attempt}", status.phase);
            // An attempt that stopped holding nodes never holds them again. Of a later one this
            // leader has not learned yet.
            let void = attempt == status.attempt;
            return Err(GangRefusal { reason, void });
        }
        let mirrors = self.cluster.mirrors();
        let name = crds::names::attempt_name(&key.name, attempt);
        let mirrored = mirrors.attempts.get(&key.namespace, &name);
        let mirrored = mirrored.filter(|mirrored| mirrored.attempt.job == key);
        let known = mirrored.filter(|mirrored| !mirrored.attempt.nodes.is_empty());
        // What no proof holds for says nothing here; the pods of the gang do.
        let nodes = match known {
            Some(mirrored) => Some(mirrored.attempt.nodes.clone()),
            None => assignments::gang_of_pods(&mirrors, &key, attempt),
        };
        let terms = mirrored.and_then(|mirrored| mirrored.terms);
        drop(mirrors);
        let Some(nodes) = nodes else {
            return Err(GangRefusal::now(format!(
                "the assignment of attempt {attempt} is not known yet"
            )));
        };
        let gang = Gang {
            nodes,
            attempt,
            job: key,
            policy: terms.map_or_else(|| policy(&job.spec.failure_policy), agreed),
        };
        Ok(self.shared(id, gang))
    }
}

/// What the attempt was started with.
fn agreed(terms: Terms) -> RecoveryPolicy {
    let unless_told = RecoveryPolicy::default();
    RecoveryPolicy {
        on_peer_loss: terms.on_peer_loss,
        peer_loss: terms.peer_loss,
        least: terms.min_nodes.unwrap_or(unless_told.least),
    }
}

fn policy(spec: &FailurePolicy) -> RecoveryPolicy {
    let unless_told = RecoveryPolicy::default();
    RecoveryPolicy {
        on_peer_loss: translate::on_peer_loss(spec.on_peer_loss),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_job_costs_no_look_at_the_mirrors() {
        let cluster = Arc::new(SharedCluster::default());
        let known = JobKey {
            kind: scheduler::JobKind::TrainingJob,
            namespace: "team".into(),
            name: "digits".into(),
            uid: "u-1".into(),
        };
        cluster.note_job(&known);
        let directory =
            ClusterDirectory::new(Arc::clone(&cluster), Arc::new(Masters::new([7; 32], None)));
        // The planner looks at the mirrors meanwhile: whoever needs them would wait for ever.
        let planning = cluster.mirrors();
        assert!(directory.key(JobId::new("u-2"), 1).is_none());
        drop(planning);
        assert!(directory.key(JobId::new("u-1"), 1).is_some());
        // Its key is known as long as it is noted; the mirrors say what happens to it.
        let refused = directory.gang(JobId::new("u-1"), 1);
        assert!(refused.is_err_and(|refusal| refusal.void));
    }

    #[test]
    fn all_connections_of_a_gang_hold_the_same() {
        let directory =
            ClusterDirectory::new(Arc::default(), Arc::new(Masters::new([7; 32], None)));
        let gang = |nodes: usize| Gang {
            job: JobKey {
                kind: scheduler::JobKind::TrainingJob,
                namespace: "team".into(),
                name: "digits".into(),
                uid: "u-1".into(),
            },
            attempt: 1,
            nodes: (0..nodes).map(|node| format!("n{node}").into()).collect(),
            policy: RecoveryPolicy::default(),
        };
        let id = JobId::new("u-1");
        let first = directory.shared(id, gang(3));
        assert!(Arc::ptr_eq(&first, &directory.shared(id, gang(3))));
        let other = directory.shared(id, gang(2));
        assert_eq!(*other, gang(2));
        drop((first, other));
        directory.shared(JobId::new("u-2"), gang(1));
        assert_eq!(directory.gangs.lock().unwrap().len(), 1);
    }
}
