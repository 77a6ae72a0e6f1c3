//! Dry runs of the first pods of jobs that want nodes: what the API server said of each job's spec,
//! and when it is asked again. A new leader starts without it, and asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use scheduler::{DryRun, JobKey};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::Observed;
use crate::training_job::apply::{Applier, DryRunAnswer};
use crate::workload::Workload;

/// Dry runs that wait for their turn or for the API server.
const MOST: usize = 256;
/// After a refusal or a missing answer, until the next try: doubled up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// When the API server failed to answer so often, the real creation is to show what it says.
const TRIES: u32 = 3;

/// What is known, and what is on its way.
#[derive(Default)]
pub(super) struct DryRuns {
    asking: FuturesUnordered<BoxFuture<'static, (JobKey, Option<i64>, DryRunAnswer)>>,
    /// At most one for each job.
    known: BTreeMap<JobKey, Known>,
}

/// What is known of one generation of a job's spec.
#[derive(Debug)]
struct Known {
    generation: Option<i64>,
    dry_run: DryRun,
    is_asked: bool,
    /// Requests in a row without an answer.
    failures: u32,
    pause: Duration,
    /// Not asked again before.
    next: Instant,
}

impl DryRuns {
    /// What is known of a job as its spec is now.
    pub(super) fn of(&self, key: &JobKey, job: &Workload) -> DryRun {
        let known = self.known.get(key);
        let known = known.filter(|known| known.generation == job.metadata().generation);
        known.map_or(DryRun::Unknown, |known| known.dry_run.clone())
    }

    /// Forgets jobs that are gone or over.
    pub(super) fn forget_all_but(&mut self, jobs: &BTreeMap<JobKey, Workload>) {
        self.known.retain(|key, _| jobs.contains_key(key));
    }

    /// What was said of a job does not hold any more.
    pub(super) fn forget(&mut self, job: &JobKey) {
        self.known.remove(job);
    }

    /// Begins to ask about jobs, the first ones first. Returns when some may be asked about again.
    pub(super) fn ask(
        &mut self,
        applier: &Arc<Applier>,
        wanted: &[JobKey],
        observed: &Observed,
    ) -> Option<Instant> {
        let now = Instant::now();
        let mut again = None;
        for key in wanted {
            let Some(job) = observed.jobs.get(key) else {
                continue;
            };
            if self.asking.len() >= MOST {
                break; // Whoever is answered makes room, and the next plan.
            }
            let generation = job.metadata().generation;
            let known = self.known.entry(key.clone());
            let known = known.or_insert_with(|| Known::new(generation, now));
            if known.generation != generation {
                *known = Known::new(generation, now);
            }
            if known.is_asked {
                continue;
            }
            if now < known.next {
                again = Some(again.map_or(known.next, |again| known.next.min(again)));
                continue;
            }
            known.is_asked = true;
            let (applier, key, job) = (Arc::clone(applier), key.clone(), job.clone());
            let fabric = Arc::clone(&observed.fabric);
            self.asking.push(Box::pin(async move {
                let answer = applier.dry_run(&job, &fabric).await;
                (key, generation, answer)
            }));
        }
        again
    }

    /// Waits for an answer.
    pub(super) async fn next(&mut self) -> Option<()> {
        let (key, generation, answer) = self.asking.next().await?;
        let known = self.known.get_mut(&key);
        // One about an earlier spec is of no use.
        if let Some(known) = known.filter(|known| known.generation == generation) {
            known.answered(&key, answer, Instant::now());
        }
        Some(())
    }
}

impl Known {
    fn new(generation: Option<i64>, now: Instant) -> Self {
        Self {
            generation,
            dry_run: DryRun::Unknown,
            is_asked: false,
            failures: 0,
            pause: FIRST_PAUSE,
            next: now,
        }
    }

    fn answered(&mut self, job: &JobKey, answer: DryRunAnswer, now: Instant) {
        self.is_asked = false;
        self.next = now + self.pause;
        let longer = (self.pause * 2).min(LONGEST_PAUSE);
        match answer {
            DryRunAnswer::Accepted => self.dry_run = DryRun::Accepted,
            DryRunAnswer::Refused(why) => {
                debug!(%job, why, "the dry run of the first pod was refused");
                self.dry_run = DryRun::Refused(why);
                self.failures = 0;
                self.pause = longer;
            }
            DryRunAnswer::Nothing(why) => {
                warn!(%job, why, "the API server did not answer the dry run of the first pod");
                self.failures += 1;
                self.pause = longer;
                if self.failures >= TRIES && self.dry_run == DryRun::Unknown {
                    self.dry_run = DryRun::Accepted;
                }
            }
            DryRunAnswer::NotAsked => {}
        }
    }
}
