//! The leader's loop: wait for a change, look, plan, check, and have the plan written while the
//! next ones are made. A plan is for the whole cluster, because placement is a decision about all
//! jobs; a job whose last plan is still being written gets no new one.

mod discarded;
mod doubts;
mod dry_runs;
mod gauges;
mod notes;
mod pauses;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crds::fabric::FabricSpec;
use daemon::Watchdog;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use scheduler::{
    CollectedPod, Gone, Job, JobKey, JobPhase, JobPlan, Plan, PlanViolation, Policy, Sights,
    Snapshot, Stalled, States, Timestamp,
};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::bootstrap;
use crate::clock;
use crate::cluster::{Mirrors, SharedCluster, key_of, now, version_of};
use crate::fabric::{self, FabricObservation};
use crate::metrics::Metrics;
use crate::training_job::apply::{self, Applier, Stopped, Wait};
use crate::training_job::observe::{self, Reports};
use crate::training_job::write::WritePurpose;
use crate::workload::Workload;
use doubts::Doubts;
use dry_runs::DryRuns;
use gauges::Ended;
use notes::Notes;
use pauses::Pauses;

/// Changes come in bursts (1,250 pods turn Running): planning waits for the rest of a burst.
const DEBOUNCE: Duration = Duration::from_millis(20);
/// Before another try to create the Fabric.
const FABRIC_RETRY: Duration = Duration::from_secs(1);
/// How often the listings of a new leader are looked at, beside news of them.
const LISTING_PERIOD: Duration = Duration::from_secs(1);
/// The longest pause after a pass.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// How often the jobs that are over are looked at, at most.
const SWEEP_PERIOD: Duration = Duration::from_secs(1);
/// Even when nothing happens: expectations expire, gauges are refreshed.
const LONGEST_SLEEP: Duration = Duration::from_secs(30);
/// A loop that has not gone round for so long hangs: it neither leads nor lives.
pub const STALLED: Duration = LONGEST_SLEEP.saturating_mul(2);

/// The loop's state.
#[derive(Debug)]
pub struct Reconciler {
    cluster: Arc<SharedCluster>,
    applier: Arc<Applier>,
    default_fabric: FabricSpec,
    reports: watch::Receiver<Reports>,
    /// What gangs have to know.
    gone: watch::Sender<Vec<Gone>>,
    /// Gangs whose ranks are asked for their stacks.
    stalled: watch::Sender<Vec<Stalled>>,
    metrics: Metrics,
    pauses: Pauses,
    /// Before a listing that answers this request is complete, nothing is planned: what an earlier
    /// leader wrote last may not have arrived yet.
    barrier: u64,
    sweep: Sweep,
    notes: Notes,
    watchdog: Watchdog,
    /// For how long things are as they are, as seen by this leader.
    sights: Sights,
    /// What the last look found, for people.
    seen: watch::Sender<Option<FabricObservation>>,
}

/// What the last look at all jobs that are over has shown: there may be many, so they are looked at
/// once in a while and not in every pass.
#[derive(Debug)]
struct Sweep {
    last: Option<Instant>,
    due: Instant,
    /// How many were over.
    count: usize,
    /// Those whose time is over.
    expired: Vec<JobKey>,
    ended: Ended,
}

/// One look at the cluster.
struct Observed {
    snapshot: Snapshot,
    jobs: BTreeMap<JobKey, Workload>,
    fabric: Arc<FabricSpec>,
}

/// What is being written: at most one plan for each job.
#[derive(Default)]
struct UnderWay {
    plans: BTreeMap<JobKey, Arc<JobPlan>>,
    /// Stops those that give nodes to jobs.
    admissions: BTreeMap<JobKey, CancellationToken>,
    writing: FuturesUnordered<BoxFuture<'static, Written>>,
    doubts: Doubts,
    dry_runs: DryRuns,
}

/// How the writing of a job's plan ended.
struct Written {
    job: JobKey,
    result: Result<(), Stopped>,
    took: Duration,
}

impl Reconciler {
    /// A loop that has not started.
    pub fn new(
        cluster: Arc<SharedCluster>,
        applier: Arc<Applier>,
        default_fabric: FabricSpec,
        reports: watch::Receiver<Reports>,
        gone: watch::Sender<Vec<Gone>>,
        stalled: watch::Sender<Vec<Stalled>>,
        metrics: Metrics,
    ) -> Self {
        Self {
            cluster,
            applier,
            default_fabric,
            reports,
            gone,
            stalled,
            metrics,
            pauses: Pauses::default(),
            barrier: 0,
            sweep: Sweep::new(),
            notes: Notes::new(Instant::now()),
            watchdog: Watchdog::new(STALLED),
            sights: Sights::default(),
            seen: watch::Sender::default(),
        }
    }

    /// What the last look found, for people; none while another replica leads.
    pub fn seen(&self) -> watch::Receiver<Option<FabricObservation>> {
        self.seen.subscribe()
    }

    /// The same, watched by this one.
    #[must_use]
    pub fn watched_by(self, watchdog: Watchdog) -> Self {
        Self { watchdog, ..self }
    }

    /// Plans and writes until the token is cancelled; then it stops at once, also in mid-write.
    pub async fn lead(&mut self, leading: &CancellationToken) {
        let mut under_way = UnderWay::default();
        self.sights = Sights::default();
        let mut due = Instant::now();
        let mut pause = DEBOUNCE;
        self.barrier = self.cluster.list_again();
        self.watchdog.touch();
        loop {
            let news = tokio::select! {
                () = leading.cancelled() => return,
                () = changed(&self.cluster, &mut self.reports) => true,
                Some(written) = under_way.writing.next() => {
                    under_way.plans.remove(&written.job);
                    under_way.admissions.remove(&written.job);
                    if let Some(refused) = self.written(written) {
                        under_way.dry_runs.forget(&refused);
                    }
                    true
                }
                Some(()) = under_way.dry_runs.next() => true,
                Some(()) = under_way.doubts.next() => true,
                () = tokio::time::sleep_until(due) => false,
            };
            due = match news {
                true => due.min(Instant::now() + pause),
                false => {
                    let began = Instant::now();
                    let due = self.cycle(&mut under_way).await;
                    pause = pause_after(began.elapsed());
                    due
                }
            };
            self.watchdog.touch();
        }
    }

    /// Does not lead any more: what was seen then is not for gangs that meet when it leads again.
    pub fn rest(&self) {
        self.gone.send_replace(Vec::new());
        self.stalled.send_replace(Vec::new());
        self.seen.send_replace(None);
        self.watchdog.rest();
    }

    /// Makes one plan and begins to write it. Returns when to make the next if nothing changes.
    async fn cycle(&mut self, under_way: &mut UnderWay) -> Instant {
        let is_listed = self.cluster.mirrors().is_listed(self.barrier, now());
        if !is_listed {
            return Instant::now() + LISTING_PERIOD;
        }
        let Some(mut observed) = self.observe(under_way) else {
            return self.make_fabric().await;
        };
        let now = clock::now();
        let started = Instant::now();
        let policy = observe::policy(&observed.fabric);
        self.sights.fill_in(&mut observed.snapshot, &policy, now);
        let states = States::new(&observed.snapshot, &policy, now);
        let plan = scheduler::plan_with(&observed.snapshot, &states, &policy, now);
        let plan = self.vetted(&observed, &policy, plan, now);
        self.metrics
            .plan_seconds
            .with_label_values::<&str>(&[])
            .observe(started.elapsed().as_secs_f64());
        gauges::show(
            &self.metrics,
            &observed.snapshot,
            &self.sweep.ended,
            &states,
        );
        self.seen
            .send_replace(Some(fabric::seen(&observed.snapshot, &states)));
        drop(states);

        send(&self.gone, &plan.gone);
        send(&self.stalled, &plan.stalled);
        let wake_at = plan.wake_at;
        let read_at = under_way.doubts.ask(&self.applier, &plan.confirm);
        let try_at = under_way
            .dry_runs
            .ask(&self.applier, &plan.dry_runs, &observed);
        under_way.stop_admissions(&observed.snapshot);
        let note_at = self.begin_all(plan.jobs, &observed, under_way);
        let planned = wake_at.map(|at| {
            Instant::now() + Duration::from_millis(at.as_millis().saturating_sub(now.as_millis()))
        });
        let now = Instant::now();
        [
            planned,
            read_at,
            try_at,
            note_at,
            self.pauses.next_end(now),
            Some(self.sweep.due),
        ]
        .into_iter()
        .flatten()
        .fold(now + LONGEST_SLEEP, Instant::min)
    }

    fn observe(&mut self, under_way: &mut UnderWay) -> Option<Observed> {
        let reports = self.reports.borrow_and_update().clone();
        let mut mirrors = self.cluster.mirrors();
        under_way
            .doubts
            .ask_for_created(&self.applier, &mut mirrors);
        self.sweep.look(&mirrors);
        let mut snapshot = observe::snapshot(&mirrors, &reports, &self.sweep.expired)?;
        let now = crate::cluster::now();
        let clock = clock::now().as_millis();
        let planners = |at: std::time::Instant| {
            let ago = now.saturating_duration_since(at).as_millis();
            let ago = u64::try_from(ago).unwrap_or(u64::MAX);
            Timestamp::from_millis(clock.saturating_sub(ago))
        };
        snapshot.pods_as_of = mirrors.pods.complete_until().map(planners);
        let departed = mirrors
            .pods
            .departed(now)
            .map(|(at, mirrored)| CollectedPod {
                job: mirrored.pod.job.clone(),
                attempt: mirrored.pod.attempt,
                rank: mirrored.pod.rank,
                since: planners(at),
            });
        snapshot.departed = departed.collect();
        snapshot.is_stale = mirrors.is_stale(now);
        let fabric = Arc::new(mirrors.fabric()?.spec.clone());
        let jobs: BTreeMap<_, _> = mirrors
            .all_jobs()
            .filter_map(|mirrored| {
                let job = mirrored.whole()?;
                Some((job.key()?, job.clone()))
            })
            .collect();
        drop(mirrors);
        snapshot.under_way = under_way.plans.values().cloned().collect();
        snapshot.absent = under_way.doubts.absent();
        let now = Instant::now();
        self.pauses.forget(|job| jobs.contains_key(job), now);
        under_way.dry_runs.forget_all_but(&jobs);
        for job in &mut snapshot.jobs {
            if let Some(whole) = jobs.get(&job.key) {
                job.dry_run = under_way.dry_runs.of(&job.key, whole);
            }
            let refusal = || self.pauses.refusal(&job.key, now);
            job.problem = job.problem.take().or_else(refusal);
        }
        Some(Observed {
            snapshot,
            jobs,
            fabric,
        })
    }

    async fn make_fabric(&self) -> Instant {
        match bootstrap::create_fabric(&self.applier.writer, &self.default_fabric).await {
            Ok(Some(fabric)) => {
                let (key, version) = (key_of(&fabric), version_of(&fabric));
                let now = std::time::Instant::now();
                self.cluster
                    .mirrors()
                    .fabrics
                    .created(key, version, fabric, now);
                self.cluster.notify();
            }
            Ok(None) => debug!("the Fabric exists, waiting to see it"),
            Err(error) => warn!(%error, "failed to create the default Fabric"),
        }
        Instant::now() + FABRIC_RETRY
    }

    /// The plan without the jobs for which it breaks an invariant: a bug stops one decision, not
    /// everybody's. The job says so in a condition.
    fn vetted(&self, observed: &Observed, policy: &Policy, plan: Plan, now: Timestamp) -> Plan {
        let snapshot = &observed.snapshot;
        let (mut plan, violations) = scheduler::vet(snapshot, policy, now, plan);
        for violation in violations {
            let PlanViolation {
                job,
                invariant,
                detail,
            } = &violation;
            error!(%job, invariant, detail, "discarded a plan that breaks an invariant");
            self.metrics
                .violations
                .with_label_values(&[*invariant])
                .inc();
            plan.jobs
                .extend(discarded::report(snapshot, &violation, now));
        }
        plan
    }

    /// Begins to write plans: what somebody waits for first, then what gives nodes, in the order of
    /// the queue, and last why the others wait. Returns when to look again at notes that wait.
    fn begin_all(
        &mut self,
        plans: Vec<JobPlan>,
        observed: &Observed,
        under_way: &mut UnderWay,
    ) -> Option<Instant> {
        let now = Instant::now();
        let jobs = observed.snapshot.jobs.iter();
        let jobs: BTreeMap<&JobKey, &Job> = jobs.map(|job| (&job.key, job)).collect();
        let mut notes = Vec::new();
        let mut others = Vec::new();
        for plan in self.pauses.allowed(plans, now) {
            let job = jobs.get(&plan.job).copied();
            if notes::is_note(&plan, job) {
                notes.push(plan);
            } else {
                let purpose = match plan.actions.iter().any(apply::creates) {
                    true => WritePurpose::Admission,
                    false => WritePurpose::Urgent,
                };
                let turn = job.map(|job| (job.status.phase == JobPhase::Queued, job.created));
                others.push((purpose, turn, plan));
            }
        }
        others.sort_by_key(|(purpose, turn, _)| (*purpose, *turn));
        for (purpose, _, plan) in others {
            self.begin(plan, purpose, observed, under_way);
        }
        let busy = !under_way.admissions.is_empty();
        let (notes, again) = self.notes.due(notes, busy, now);
        for note in notes {
            self.begin(note, WritePurpose::Note, observed, under_way);
        }
        again
    }

    /// Begins to write a job's plan.
    fn begin(
        &self,
        plan: JobPlan,
        purpose: WritePurpose,
        observed: &Observed,
        under_way: &mut UnderWay,
    ) {
        for action in &plan.actions {
            self.metrics
                .actions
                .with_label_values(&[apply::kind(action)])
                .inc();
        }
        let plan = Arc::new(plan);
        under_way.plans.insert(plan.job.clone(), Arc::clone(&plan));
        let applier = Arc::clone(&self.applier);
        let job = observed.jobs.get(&plan.job).cloned();
        let fabric = Arc::clone(&observed.fabric);
        let cancelled = CancellationToken::new();
        if purpose == WritePurpose::Admission {
            let token = cancelled.clone();
            under_way.admissions.insert(plan.job.clone(), token);
        }
        under_way.writing.push(Box::pin(async move {
            let started = Instant::now();
            let result = applier
                .apply(&plan, purpose, job, &fabric, &cancelled)
                .await;
            Written {
                job: plan.job.clone(),
                result,
                took: started.elapsed(),
            }
        }));
    }

    /// What was written is a change as well: the next plan rests on it. Returns the job if the API
    /// server refuses what it consists of.
    fn written(&mut self, written: Written) -> Option<JobKey> {
        let Written { job, result, took } = written;
        self.metrics
            .apply_seconds
            .with_label_values::<&str>(&[])
            .observe(took.as_secs_f64());
        let Err(Stopped { error, wait }) = result else {
            return None;
        };
        let is_stale = wait == Wait::Look;
        let refused = matches!(wait, Wait::Refused(_)).then(|| job.clone());
        let (reason, length) = self.pauses.begin(job.clone(), wait, Instant::now());
        self.metrics.stopped.with_label_values(&[reason]).inc();
        let retry_seconds = length.as_secs_f64();
        if is_stale {
            debug!(%job, %error, retry_seconds, "failed to apply the plan, trying again");
        } else {
            warn!(%job, %error, retry_seconds, "failed to apply the plan, trying again");
        }
        refused
    }
}

impl UnderWay {
    /// Nothing more is created for jobs that are not to run any more.
    fn stop_admissions(&mut self, snapshot: &Snapshot) {
        if self.admissions.is_empty() {
            return;
        }
        let runs = |job: &&Job| !job.deleting && !job.suspend;
        let wanted = snapshot.jobs.iter().filter(runs);
        let wanted: BTreeSet<&JobKey> = wanted.map(|job| &job.key).collect();
        for (job, cancelled) in &self.admissions {
            if !wanted.contains(job) {
                cancelled.cancel();
            }
        }
    }
}

impl Sweep {
    fn new() -> Self {
        Self {
            last: None,
            due: Instant::now(),
            count: 0,
            expired: Vec::new(),
            ended: Ended::default(),
        }
    }

    fn look(&mut self, mirrors: &Mirrors) {
        let now = Instant::now();
        let count = mirrors.jobs.resting_len() + mirrors.validations.resting_len();
        if count != self.count {
            self.count = count;
            let soon = self.last.map_or(now, |last| last + SWEEP_PERIOD);
            self.due = self.due.min(soon);
        }
        if now < self.due {
            return;
        }
        let clock = clock::now();
        let (expired, next) = observe::expired(mirrors, &Policy::default(), clock);
        let left = next.map(|next| next.as_millis().saturating_sub(clock.as_millis()));
        let left = left.map_or(LONGEST_SLEEP, Duration::from_millis);
        self.last = Some(now);
        self.due = now + left.clamp(SWEEP_PERIOD, LONGEST_SLEEP);
        self.expired = expired;
        self.ended = gauges::ended(mirrors);
    }
}

/// How long to wait after a pass that took so long, so that planning leaves most of a processor to
/// others however large the cluster is.
fn pause_after(pass: Duration) -> Duration {
    (pass * 4).clamp(DEBOUNCE, LONGEST_PAUSE)
}

/// Sends gangs a list, if it is news.
fn send<T: Clone + PartialEq>(to: &watch::Sender<Vec<T>>, what: &[T]) {
    to.send_if_modified(|known| {
        let news = known.as_slice() != what;
        if news {
            *known = what.to_vec();
        }
        news
    });
}

/// Waits for news of the cluster or of the gangs.
async fn changed(cluster: &SharedCluster, reports: &mut watch::Receiver<Reports>) {
    let reported = async {
        if reports.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = cluster.changed() => {}
        () = reported => {}
    }
}

#[cfg(test)]
mod tests;
