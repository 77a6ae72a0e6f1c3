//! Reads from the API server what the mirrors leave in doubt: what a plan misses, and what we
//! created and the watch never delivered. What a read finds goes into the mirrors; what it does not
//! find, the next plan may act upon.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::names;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use scheduler::Absent;
use tokio::time::Instant;

use crate::cluster::Mirrors;
use crate::mirror::ObjectKey;
use crate::training_job::apply::Applier;

/// Reads in flight.
const READS: usize = 64;
/// What exists and is still missed, or could not be read, is read again after so long.
const AGAIN: Duration = Duration::from_secs(2);

/// What is read, and what was not found.
#[derive(Default)]
pub(super) struct Doubts {
    reading: FuturesUnordered<BoxFuture<'static, Option<Absent>>>,
    /// When each was read last, and whether it was not found.
    read: BTreeMap<Absent, (Instant, bool)>,
}

impl Doubts {
    /// What was not found, of what the last plan missed.
    pub(super) fn absent(&self) -> BTreeSet<Absent> {
        let absent = self.read.iter().filter(|(_, (_, absent))| *absent);
        absent.map(|(object, _)| object.clone()).collect()
    }

    /// Waits for a read that changes what is known.
    pub(super) async fn next(&mut self) -> Option<()> {
        let absent = self.reading.next().await?;
        if let Some(absent) = absent
            && let Some(read) = self.read.get_mut(&absent)
        {
            read.1 = true;
        }
        Some(())
    }

    /// Begins to read what a plan misses. Returns when to look again, if not all is known.
    pub(super) fn ask(&mut self, applier: &Arc<Applier>, missed: &[Absent]) -> Option<Instant> {
        let now = Instant::now();
        let wanted: BTreeSet<&Absent> = missed.iter().collect();
        self.read.retain(|object, _| wanted.contains(object));
        let mut again = None;
        for object in wanted {
            match self.read.get(object) {
                Some((_, true)) => continue,
                Some((at, false)) if *at + AGAIN > now => {}
                _ if self.reading.len() >= READS => {}
                Some(_) | None => {
                    self.read.insert(object.clone(), (now, false));
                    let (applier, object) = (Arc::clone(applier), object.clone());
                    let read = async move { is_absent(&applier, &object).await.then_some(object) };
                    self.reading.push(Box::pin(read));
                }
            }
            again = Some(now + AGAIN);
        }
        again
    }

    /// Begins to read what we created and the watch never delivered.
    pub(super) fn ask_for_created(&mut self, applier: &Arc<Applier>, mirrors: &mut Mirrors) {
        let now = crate::cluster::now();
        for (namespace, name) in mirrors.pods.overdue(now) {
            let applier = Arc::clone(applier);
            self.reading.push(Box::pin(async move {
                applier.pod_is_absent(&namespace, &name).await;
                None
            }));
        }
        let attempts: Vec<ObjectKey> = mirrors.attempts.overdue(now);
        for (namespace, name) in attempts {
            let applier = Arc::clone(applier);
            self.reading.push(Box::pin(async move {
                applier.attempt_is_absent(&namespace, &name).await;
                None
            }));
        }
    }
}

async fn is_absent(applier: &Applier, object: &Absent) -> bool {
    match object {
        Absent::Node(node) => applier.node_is_absent(node.as_str()).await,
        Absent::Job(job) => applier.job_is_absent(job).await,
        Absent::Attempt { job, number } => {
            let name = names::attempt_name(&job.name, *number);
            applier.attempt_is_absent(&job.namespace, &name).await
        }
        Absent::Pod { job, attempt, rank } => {
            let name = names::pod_name(&job.name, *attempt, *rank);
            applier.pod_is_absent(&job.namespace, &name).await
        }
    }
}
