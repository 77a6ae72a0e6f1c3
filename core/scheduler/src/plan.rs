//! What the planner decides: per job an ordered list of writes, and when to look again.
//!
//! How to apply it: jobs independently of each other, and while later plans are made: the planner
//! learns what is still under way ([`Snapshot::under_way`]). Inside a job in order, stopping at the
//! first write that fails. Adjacent actions of the same kind on pods may go out together. Every
//! write to the job object itself is conditional on the resourceVersion that the snapshot was made
//! from (and then on that of the last own write), and creations never overwrite: so everything that
//! a deposed leader still sends either collides or follows from a status that was really recorded.

use std::time::Duration;

use topology::{CheckpointRef, Leaf, NodeName, Zone};

#[cfg(doc)]
use crate::snapshot::Snapshot;
use crate::snapshot::{Absent, JobKey};
use crate::status::JobStatus;
use crate::time::Timestamp;

/// What to write now. Empty in a steady state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Jobs with something to do; each at most once. May name jobs that no longer exist: then
    /// only their leftover pods are touched.
    pub jobs: Vec<JobPlan>,
    /// When the passing of time alone will change the plan.
    pub wake_at: Option<Timestamp>,
    /// What is to be read from the API server before its absence may count.
    pub confirm: Vec<Absent>,
    /// Jobs that want nodes and whose first pod the API server is not known to take, in the order
    /// of the queue: it is to be asked by a dry run.
    pub dry_runs: Vec<JobKey>,
    /// What gangs that may go on without lost nodes have to know. Stays until they have.
    pub gone: Vec<Gone>,
    /// Gangs whose ranks are to be asked where they are, because they make no progress. Stays until
    /// that is answered, or they do.
    pub stalled: Vec<Stalled>,
}

/// A gang that makes no progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// The job.
    pub job: JobKey,
    /// The attempt.
    pub attempt: u32,
    /// When its newest sign of progress was heard.
    pub since: Timestamp,
    /// Sentence that says how long nothing has moved, and what moved last.
    pub message: String,
}

/// Members of a gang for which the others need not wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The job.
    pub job: JobKey,
    /// The attempt.
    pub attempt: u32,
    /// Node ranks that are known to be gone, ascending.
    pub ranks: Vec<u32>,
    /// Node ranks that ended well, ascending.
    pub completed: Vec<u32>,
}

/// The writes for one job, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlan {
    /// The job.
    pub job: JobKey,
    /// At least one.
    pub actions: Vec<Action>,
}

/// One write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Put our finalizer on the job. Always before anything is held.
    AddFinalizer,
    /// Take our finalizer off the job. Only when it holds nothing.
    RemoveFinalizer,
    /// Replace the job's status; publish the Event if there is one.
    Record {
        /// The whole new status.
        status: Box<JobStatus>,
        /// For people; on transitions only.
        event: Option<JobEvent>,
    },
    /// Create the ConfigMap of an attempt. It is what decides: if it exists already, somebody else
    /// decided, so stop applying this job and look again.
    CreateAttempt(NewAttempt),
    /// Create the Secret with the attempt's key. After the ConfigMap, so that wherever there is a
    /// Secret there is something to remember it by. If it exists already, that is fine.
    CreateKey {
        /// Attempt.
        attempt: u32,
    },
    /// Create the pod of a rank. If it exists already with the same job uid, that is fine.
    CreatePod {
        /// Attempt.
        attempt: u32,
        /// Node rank.
        rank: u32,
        /// Node it is pinned to.
        node: NodeName,
        /// Whether it gets our finalizer, because it may acknowledge for its gang.
        finalizer: bool,
    },
    /// Delete a pod. Not found is fine.
    DeletePod {
        /// Attempt.
        attempt: u32,
        /// Node rank.
        rank: u32,
        /// gracePeriodSeconds.
        grace: Duration,
    },
    /// Take our finalizer off a pod. Not found is fine.
    StripPod {
        /// Attempt.
        attempt: u32,
        /// Node rank.
        rank: u32,
    },
    /// Delete Secret and then ConfigMap of a voided attempt. Not found is fine.
    DeleteAttempt {
        /// Attempt.
        attempt: u32,
    },
    /// Delete the job itself: its time to live is over.
    DeleteJob,
}

/// Which nodes an attempt gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewAttempt {
    /// Its number.
    pub number: u32,
    /// Its nodes in rank order: contiguous by zone, and by leaf inside a zone.
    pub nodes: Vec<PlacedNode>,
    /// Whether they are in two zones.
    pub crossing: bool,
    /// The checkpoint to resume from, when the last attempt acknowledged it at its end. Otherwise
    /// absent: then the newest that verifies.
    pub resume: Option<CheckpointRef>,
}

/// One node of an attempt and where it hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedNode {
    /// Name of the node.
    pub node: NodeName,
    /// Its zone.
    pub zone: Zone,
    /// Its leaf.
    pub leaf: Leaf,
}

/// A Kubernetes Event on the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent {
    /// Whether somebody should look.
    pub warning: bool,
    /// CamelCase word.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

impl JobPlan {
    /// The attempt that it decides, if it does.
    pub fn attempt(&self) -> Option<&NewAttempt> {
        self.actions.iter().find_map(|action| match action {
            Action::CreateAttempt(new) => Some(new),
            Action::AddFinalizer
            | Action::RemoveFinalizer
            | Action::Record { .. }
            | Action::CreateKey { .. }
            | Action::CreatePod { .. }
            | Action::DeletePod { .. }
            | Action::StripPod { .. }
            | Action::DeleteAttempt { .. }
            | Action::DeleteJob => None,
        })
    }

    /// The nodes that it takes: those of its attempt, and those on which it creates pods.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        let pods = self.actions.iter().filter_map(|action| match action {
            Action::CreatePod { node, .. } => Some(node),
            Action::AddFinalizer
            | Action::RemoveFinalizer
            | Action::Record { .. }
            | Action::CreateAttempt(_)
            | Action::CreateKey { .. }
            | Action::DeletePod { .. }
            | Action::StripPod { .. }
            | Action::DeleteAttempt { .. }
            | Action::DeleteJob => None,
        });
        let places = self.attempt().into_iter().flat_map(|new| &new.nodes);
        pods.chain(places.map(|place| &place.node))
    }
}

impl Plan {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}
