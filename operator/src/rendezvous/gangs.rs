//! All gangs of this leader: one task owns their membership machines, feeds them what the sidecars
//! say and what the planner sees, sends what they answer, and publishes what the planner must know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collective::membership::{Commit, Connection, Effect, Event, OnPeerLoss, View};
use scheduler::{Gone, JobKey, Report, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use topology::NodeName;
use tracing::{debug, info, warn};
use wire::handshake::JobId;
use wire::rendezvous::ToSidecar;

use crate::clock;
use crate::leader::Role;
use crate::metrics::Metrics;
use crate::rendezvous::directory::{Directory, Gang, Refusal};
use crate::rendezvous::meeting::Meeting;
use crate::rendezvous::store::Store;
use crate::training_job::observe::Reports;

/// Inputs that wait for their turn: one heartbeat of each of 10,000 nodes, and room.
const INPUTS: usize = 16_384;
/// How long a node that peers gave up gets no new work, unless its Lease runs out before: by then
/// every kubelet that died has been noticed.
const SUSPICION: Duration = Duration::from_secs(60);
/// How often the gangs look at who has fallen silent.
const TICK: Duration = Duration::from_millis(250);
/// Before another try to learn what was committed.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// How often gangs that have ended are forgotten and suspicions run out.
const SWEEP: Duration = Duration::from_secs(5);

/// What happens to gangs.
#[derive(Debug)]
pub(super) enum Input {
    /// A sidecar said hello.
    Connected {
        gang: Gang,
        connection: Connection,
        outbox: mpsc::Sender<ToSidecar>,
        hello: Event,
    },
    /// A sidecar said something else, or left.
    Event { gang: Gang, event: Event },
    /// How far training is, for people.
    Progress {
        gang: Gang,
        progress: wire::run_dir::Progress,
    },
    /// What the store holds of a gang that may go on without lost nodes.
    Learned { gang: Gang, last: Option<Commit> },
}

impl Input {
    fn gang(&self) -> &Gang {
        match self {
            Self::Connected { gang, .. }
            | Self::Event { gang, .. }
            | Self::Progress { gang, .. }
            | Self::Learned { gang, .. } => gang,
        }
    }
}

/// Hands inputs to the gangs. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    inputs: mpsc::Sender<Input>,
    connections: Arc<AtomicU64>,
}

impl Handle {
    /// A number for a new connection.
    pub(super) fn connection(&self) -> Connection {
        Connection(self.connections.fetch_add(1, Ordering::Relaxed))
    }

    /// Asks the store to keep a commit, and hands in what it says.
    fn commit(&self, store: &dyn Store, gang: Gang, commit: Commit, after: Option<u64>) {
        let (handle, epoch) = (self.clone(), commit.epoch);
        let kept = store.commit(gang.clone(), commit, after);
        tokio::spawn(async move {
            let event = match kept.await {
                Ok(()) => Event::Committed { epoch },
                Err(current) => Event::CommitFailed { current },
            };
            handle.send(Input::Event { gang, event }).await;
        });
    }

    /// Learns what the store holds of a gang, however long that takes.
    fn learn(&self, store: &Arc<dyn Store>, gang: Gang) {
        let (handle, store) = (self.clone(), Arc::clone(store));
        tokio::spawn(async move {
            while !handle.inputs.is_closed() {
                match store.last(gang.clone()).await {
                    Ok(last) => return handle.send(Input::Learned { gang, last }).await,
                    Err(error) => {
                        warn!(job = %gang.job, %error, "who takes part is not known yet");
                        tokio::time::sleep(ASK_AGAIN).await;
                    }
                }
            }
        });
    }

    /// Passes an input on. When the gangs are gone the process is ending.
    pub(super) async fn send(&self, input: Input) {
        let _ending = self.inputs.send(input).await;
    }
}

/// Makes the handle and the task behind it.
pub(super) fn start(
    directory: Arc<dyn Directory>,
    store: Arc<dyn Store>,
    role: watch::Receiver<Role>,
    planner: Planner,
    metrics: Metrics,
) -> (Handle, impl Future<Output = ()> + Send) {
    let (sender, inputs) = mpsc::channel(INPUTS);
    let handle = Handle {
        inputs: sender,
        connections: Arc::default(),
    };
    let gangs = Gangs {
        directory,
        store,
        handle: handle.clone(),
        planner,
        metrics,
        started: Instant::now(),
        gangs: BTreeMap::new(),
        learning: BTreeMap::new(),
        suspects: BTreeMap::new(),
    };
    (handle, gangs.run(inputs, role))
}

/// What goes to the planner's loop, and comes from it.
#[derive(Debug)]
pub struct Planner {
    /// What gangs report.
    pub reports: watch::Sender<Reports>,
    /// Members that are known to be gone.
    pub gone: watch::Receiver<Vec<Gone>>,
}

struct Gangs {
    directory: Arc<dyn Directory>,
    store: Arc<dyn Store>,
    /// For what the store answers.
    handle: Handle,
    planner: Planner,
    metrics: Metrics,
    started: Instant,
    gangs: BTreeMap<(JobKey, u32), Meeting>,
    /// What was said by gangs of which the store is being asked, in order. What has to be said again on each
    /// connection, and no heartbeats: so it is bounded by the connections that are made meanwhile.
    learning: BTreeMap<(JobKey, u32), Vec<Input>>,
    suspects: BTreeMap<NodeName, Timestamp>,
}

impl Gangs {
    async fn run(mut self, mut inputs: mpsc::Receiver<Input>, mut role: watch::Receiver<Role>) {
        let every = |period| {
            let mut interval = tokio::time::interval(period);
            interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            interval
        };
        let (mut tick, mut sweep) = (every(TICK), every(SWEEP));
        loop {
            tokio::select! {
                // Inputs last, because there may always be one.
                biased;
                Ok(()) = role.changed() => self.forget(),
                Ok(()) = self.planner.gone.changed() => self.tell_gone(),
                _ = tick.tick() => self.tick(),
                _ = sweep.tick() => self.sweep(),
                input = inputs.recv() => match input {
                    Some(input) => self.take(input),
                    None => return,
                },
            }
        }
    }

    /// Who leads changed. What is known here is of the last time that we led: whoever leads learns
    /// everything from sidecars that dial again.
    fn forget(&mut self) {
        self.gangs.clear();
        self.learning.clear();
        self.suspects.clear();
        self.metrics.job_step.reset();
        self.metrics.job_loss.reset();
        self.publish();
    }

    fn take(&mut self, input: Input) {
        let gang = input.gang();
        let key = (gang.job.clone(), gang.attempt);
        if let Some(held) = self.learning.get_mut(&key) {
            match input {
                Input::Learned { gang, last } => self.learned(&gang, last),
                Input::Event {
                    event: Event::Heartbeat { .. },
                    ..
                }
                | Input::Progress { .. } => {}
                Input::Connected { .. } | Input::Event { .. } => held.push(input),
            }
            return;
        }
        match input {
            Input::Learned { .. } => {} // For a leader that we were before.
            Input::Connected { ref gang, .. } if !self.gangs.contains_key(&key) => {
                match gang.policy.on_peer_loss {
                    OnPeerLoss::Restart => self.begin(gang, None),
                    OnPeerLoss::Shrink => {
                        self.handle.learn(&self.store, gang.clone());
                        self.learning.insert(key, vec![input]);
                        return;
                    }
                }
                self.take(input);
            }
            Input::Connected {
                gang,
                connection,
                outbox,
                hello,
            } => {
                drop(gang);
                if let Some(meeting) = self.gangs.get_mut(&key) {
                    meeting.outboxes.insert(connection, outbox);
                }
                self.handle(&key, hello);
            }
            Input::Event { gang: _, event } => {
                let left = match event {
                    Event::Disconnected { connection } => Some(connection),
                    Event::Hello { .. }
                    | Event::Joined { .. }
                    | Event::Heartbeat { .. }
                    | Event::Suspect { .. }
                    | Event::Recovered { .. }
                    | Event::Stopped { .. }
                    | Event::RankLost { .. }
                    | Event::Gone { .. }
                    | Event::Committed { .. }
                    | Event::CommitFailed { .. }
                    | Event::Bye { .. }
                    | Event::Tick => None,
                };
                self.handle(&key, event);
                if let (Some(connection), Some(meeting)) = (left, self.gangs.get_mut(&key)) {
                    meeting.outboxes.remove(&connection);
                }
            }
            Input::Progress { gang, progress } => self.show(&gang, &progress),
        }
    }

    fn begin(&mut self, gang: &Gang, last: Option<Commit>) {
        let meeting = Meeting::new(gang, last, self.started.elapsed());
        self.gangs.insert((gang.job.clone(), gang.attempt), meeting);
    }

    /// What the store holds is known: what was said meanwhile is heard.
    fn learned(&mut self, gang: &Gang, last: Option<Commit>) {
        let held = self.learning.remove(&(gang.job.clone(), gang.attempt));
        self.begin(gang, last);
        for input in held.into_iter().flatten() {
            self.take(input);
        }
        self.tell_gone();
    }

    /// Tells gangs who of them is gone: they need not wait for it.
    fn tell_gone(&mut self) {
        let gone = self.planner.gone.borrow_and_update().clone();
        for Gone {
            job,
            attempt,
            ranks,
        } in gone
        {
            let key = (job, attempt);
            for rank in ranks {
                self.handle(&key, Event::Gone { rank });
            }
        }
    }

    fn show(&self, gang: &Gang, progress: &wire::run_dir::Progress) {
        let labels = [&*gang.job.namespace, &*gang.job.name];
        let step = i64::try_from(progress.step).unwrap_or(i64::MAX);
        self.metrics.job_step.with_label_values(&labels).set(step);
        if let Some(loss) = progress.loss {
            self.metrics.job_loss.with_label_values(&labels).set(loss);
        }
    }

    fn tick(&mut self) {
        let now = self.started.elapsed();
        let due = |meeting: &Meeting| meeting.membership.wake_at().is_some_and(|at| at <= now);
        let due: Vec<_> = self
            .gangs
            .iter()
            .filter(|(_, meeting)| due(meeting))
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            self.handle(&key, Event::Tick);
        }
        self.publish_who_is_heard();
    }

    /// Only at ticks: while a large gang joins, each hello is a change.
    fn publish_who_is_heard(&mut self) {
        let mut news = Vec::new();
        for (key, meeting) in &mut self.gangs {
            if meeting.is_news && meeting.look_who_is_heard() {
                news.push((key.clone(), Arc::clone(&meeting.heard)));
            }
        }
        if !news.is_empty() {
            self.planner
                .reports
                .send_modify(|known| known.gangs.extend(news));
        }
    }

    fn handle(&mut self, key: &(JobKey, u32), event: Event) {
        let now = self.started.elapsed();
        let Some(meeting) = self.gangs.get_mut(key) else {
            return;
        };
        let mut effects = Vec::new();
        let is_hello = matches!(event, Event::Hello { .. });
        let before = matches!(event, Event::Committed { .. }).then(|| meeting.members());
        meeting.membership.handle(now, event, &mut effects);
        if let Some(before) = before {
            let lost = before.saturating_sub(meeting.members());
            self.metrics.nodes_lost.inc_by(lost as u64);
        }
        let mut changed = false;
        for effect in effects {
            match effect {
                Effect::Send {
                    connection,
                    message,
                } => meeting.send(connection, message),
                Effect::Changed => changed = true,
                Effect::Commit { commit, after } => {
                    info!(
                        job = %key.0, attempt = key.1, epoch = commit.epoch,
                        members = ?commit.members, "committing an epoch"
                    );
                    self.handle
                        .commit(&*self.store, meeting.gang.clone(), commit, after);
                }
            }
        }
        meeting.is_news |= changed || is_hello;
        if changed {
            let view = meeting.membership.view().clone();
            debug!(job = %key.0, attempt = key.1, phase = ?view.phase, broken = ?view.broken, "gang");
            meeting.note_end(&view, clock::now());
            let nodes = meeting.gang.nodes.clone();
            self.note_suspects(&view, &nodes);
            self.publish();
        }
    }

    fn note_suspects(&mut self, view: &View, nodes: &[NodeName]) {
        let until = clock::now() + SUSPICION;
        for suspicion in &view.suspects {
            let Some(node) = usize::try_from(suspicion.rank)
                .ok()
                .and_then(|rank| nodes.get(rank))
            else {
                continue;
            };
            if self.suspects.insert(node.clone(), until).is_none() {
                info!(%node, reason = ?suspicion.reason, by = suspicion.by, "suspect node");
            }
        }
    }

    fn sweep(&mut self) {
        let now = clock::now();
        self.suspects.retain(|_, until| now < *until);
        let directory = Arc::clone(&self.directory);
        let mut over = Vec::new();
        self.gangs.retain(|(job, attempt), meeting| {
            let refusal = directory.gang(JobId::new(&job.uid), *attempt).err();
            let stays = match refusal {
                None => true,
                Some(Refusal { reason, void: true }) => {
                    meeting.void(&reason);
                    false
                }
                Some(Refusal { void: false, .. }) => !meeting.outboxes.is_empty(),
            };
            if !stays {
                over.push(job.clone());
            }
            stays
        });
        for job in over {
            // A newer attempt shows its progress under the same labels.
            let goes_on = self.gangs.keys().any(|(other, _)| *other == job);
            if !goes_on {
                let labels = [&*job.namespace, &*job.name];
                // That it was never shown is fine.
                let _unknown = self.metrics.job_step.remove_label_values(&labels);
                let _unknown = self.metrics.job_loss.remove_label_values(&labels);
            }
        }
        self.publish();
    }

    fn publish(&self) {
        let checkpoints = self.gangs.iter().filter_map(|((job, attempt), meeting)| {
            let progress = &meeting.membership.view().progress;
            let checkpoint = progress.checkpoint.clone()?;
            let checkpoint = scheduler::Checkpoint {
                attempt: checkpoint.attempt,
                step: checkpoint.step,
                digest: checkpoint.digest,
            };
            Some(Report {
                job: job.clone(),
                attempt: *attempt,
                checkpoint,
                passed_over: progress.passed_over.clone(),
            })
        });
        let stuck = self
            .gangs
            .values()
            .filter_map(|meeting| meeting.stuck.clone());
        let known =
            |(key, meeting): (&_, &Meeting)| (Clone::clone(key), Arc::clone(&meeting.heard));
        let reports = Reports {
            gangs: self.gangs.iter().map(known).collect(),
            checkpoints: checkpoints.collect(),
            suspects: self.suspects.clone(),
            stuck: stuck.collect(),
        };
        self.planner.reports.send_if_modified(|known| {
            let news = *known != reports;
            if news {
                *known = reports;
            }
            news
        });
    }
}
