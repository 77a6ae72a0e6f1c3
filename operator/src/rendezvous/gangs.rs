//! All gangs of this leader: one task owns their membership machines, feeds them what the sidecars
//! say and what the planner sees, sends what they answer, and publishes what the planner must know.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use collective::membership::{Commit, Connection, MembershipEffect, MembershipEvent};
use contract::identity::JobId;
use scheduler::{Gone, JobKey, Stalled, Stuck, Timestamp};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use topology::{NodeName, OnPeerLoss};
use tracing::{debug, info, warn};

use crate::clock;
use crate::leader::Role;
use crate::metrics::Metrics;
use crate::rendezvous::deferred::DeferredInputs;
use crate::rendezvous::directory::{Directory, Gang, GangRefusal};
use crate::rendezvous::gang_session::{GangSession, News, Outbox};
use crate::rendezvous::large::LargeFramePermit;
use crate::rendezvous::store::CommitStore;
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
/// So many times in a row what was committed is found damaged before it counts as lost: another
/// leader may be replacing it.
const DAMAGED: u32 = 10;
/// How often gangs that have ended are forgotten and suspicions run out.
const SWEEP: Duration = Duration::from_secs(5);

/// An attempt of a job.
type Key = (JobKey, u32);

/// What happens to gangs. Sidecars say something each second, so what they say names nothing but
/// their connection.
#[derive(Debug)]
pub(super) enum Input {
    /// A sidecar said hello.
    Connected {
        gang: Arc<Gang>,
        connection: Connection,
        outbox: Outbox,
        hello: MembershipEvent,
    },
    /// A sidecar said something else, or left.
    Event {
        connection: Connection,
        event: MembershipEvent,
        /// Where it came in a large frame.
        large: Option<LargeFramePermit>,
    },
    /// How far training is, for people.
    Progress {
        connection: Connection,
        progress: collective::membership::Progress,
    },
    /// What became of a commit.
    Kept { key: Key, event: MembershipEvent },
    /// What the store held of a gang is damaged: nobody knows who takes part.
    Damaged { key: Key, message: String },
    /// What the store holds of a gang that may go on without lost nodes.
    Learned {
        gang: Arc<Gang>,
        last: Option<Commit>,
    },
}

fn key_of(gang: &Gang) -> Key {
    (gang.job.clone(), gang.attempt)
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
    fn commit(
        &self,
        store: &dyn CommitStore,
        gang: &Arc<Gang>,
        commit: Commit,
        after: Option<u64>,
    ) {
        let (handle, epoch, key) = (self.clone(), commit.epoch, key_of(gang));
        let answer = store.commit(Arc::clone(gang), commit, after);
        tokio::spawn(async move {
            let event = match answer.await {
                Ok(()) => MembershipEvent::Committed { epoch },
                Err(current) => MembershipEvent::CommitFailed { current },
            };
            handle.send(Input::Kept { key, event }).await;
        });
    }

    /// Learns what the store holds of a gang, however long that takes.
    fn learn(&self, store: &Arc<dyn CommitStore>, gang: Arc<Gang>) {
        let (handle, store) = (self.clone(), Arc::clone(store));
        tokio::spawn(async move {
            let mut damaged: u32 = 0;
            while !handle.inputs.is_closed() {
                match store.last(Arc::clone(&gang)).await {
                    Ok(last) => return handle.send(Input::Learned { gang, last }).await,
                    Err(error) => {
                        warn!(job = %gang.job, %error, "failed to read the attempt's members, trying again");
                        damaged = match error.is_damage() {
                            true => damaged.saturating_add(1),
                            false => 0,
                        };
                        if damaged == DAMAGED {
                            let (key, message) = (key_of(&gang), error.to_string());
                            handle.send(Input::Damaged { key, message }).await;
                        }
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
    store: Arc<dyn CommitStore>,
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
        connections: BTreeMap::new(),
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
    /// Gangs whose ranks are to be asked for their stacks.
    pub stalled: watch::Receiver<Vec<Stalled>>,
}

struct Gangs {
    directory: Arc<dyn Directory>,
    store: Arc<dyn CommitStore>,
    /// For what the store answers.
    handle: Handle,
    planner: Planner,
    metrics: Metrics,
    started: Instant,
    gangs: BTreeMap<Key, GangSession>,
    /// Whose connection it is.
    connections: BTreeMap<Connection, Key>,
    /// What was said by gangs of which the store is being asked, but for heartbeats.
    learning: BTreeMap<Key, DeferredInputs>,
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
                Ok(()) = self.planner.stalled.changed() => self.ask_for_stacks(),
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
        self.connections.clear();
        self.learning.clear();
        self.suspects.clear();
        self.metrics.job_step.reset();
        self.metrics.job_loss.reset();
        self.publish(|known| {
            let news = *known != Reports::default();
            *known = Reports::default();
            news
        });
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Connected {
                gang,
                connection,
                outbox,
                hello,
            } => self.connected(gang, connection, outbox, hello),
            Input::Event {
                connection,
                event,
                large,
            } => self.on_event(connection, event, large),
            Input::Progress {
                connection,
                progress,
            } => {
                if let Some((job, _)) = self.connections.get(&connection) {
                    self.show(job, &progress);
                }
            }
            Input::Kept { key, event } => self.handle(&key, event),
            Input::Damaged { key, message } => self.damaged(key, message),
            Input::Learned { gang, last } => self.learned(gang, last),
        }
    }

    fn connected(
        &mut self,
        gang: Arc<Gang>,
        connection: Connection,
        outbox: Outbox,
        hello: MembershipEvent,
    ) {
        let key = key_of(&gang);
        self.connections.insert(connection, key.clone());
        let is_learning = self.learning.contains_key(&key);
        if !self.gangs.contains_key(&key) && !is_learning {
            match gang.policy.on_peer_loss {
                OnPeerLoss::Restart => self.begin(Arc::clone(&gang), None),
                OnPeerLoss::Shrink => {
                    self.handle.learn(&self.store, Arc::clone(&gang));
                    self.learning
                        .insert(key.clone(), DeferredInputs::new(gang.nodes.len()));
                }
            }
        }
        if let Some(held) = self.learning.get_mut(&key) {
            let hello = Input::Connected {
                gang,
                connection,
                outbox,
                hello,
            };
            return held.connected(connection, hello);
        }
        if let Some(session) = self.gangs.get_mut(&key) {
            session.outboxes.insert(connection, outbox);
        }
        self.handle(&key, hello);
    }

    fn on_event(
        &mut self,
        connection: Connection,
        event: MembershipEvent,
        large: Option<LargeFramePermit>,
    ) {
        let is_end = matches!(event, MembershipEvent::Disconnected { .. });
        let Some(key) = self.connections.get(&connection).cloned() else {
            return; // Of a time when we led before.
        };
        if let Some(held) = self.learning.get_mut(&key) {
            if !matches!(event, MembershipEvent::Heartbeat { .. }) {
                let input = Input::Event {
                    connection,
                    event,
                    large,
                };
                held.said(connection, input);
            }
            return;
        }
        self.handle(&key, event);
        if is_end {
            self.connections.remove(&connection);
            if let Some(session) = self.gangs.get_mut(&key) {
                session.outboxes.remove(&connection);
            }
        }
    }

    fn begin(&mut self, gang: Arc<Gang>, last: Option<Commit>) {
        let key = key_of(&gang);
        let session = GangSession::new(gang, last, self.started.elapsed());
        self.gangs.insert(key, session);
    }

    /// What the store holds is known: what was said meanwhile is handled.
    fn learned(&mut self, gang: Arc<Gang>, last: Option<Commit>) {
        let key = key_of(&gang);
        let Some(held) = self.learning.remove(&key) else {
            return; // For a leader that we were before.
        };
        self.publish(|known| known.stuck.remove(&key).is_some());
        self.begin(gang, last);
        for input in held.into_inputs() {
            self.take(input);
        }
        self.tell_gone();
    }

    /// A gang that nobody can lead on has to begin again.
    fn damaged(&mut self, key: Key, message: String) {
        if !self.learning.contains_key(&key) {
            return; // For a leader that we were before.
        }
        let stuck = Stuck {
            job: key.0.clone(),
            attempt: key.1,
            since: clock::now(),
            message,
        };
        self.publish(|known| {
            known.stuck.insert(key, stuck);
            true
        });
    }

    /// Tells gangs who of them is gone: they need not wait for it.
    fn tell_gone(&mut self) {
        let gone = self.planner.gone.borrow_and_update().clone();
        for Gone {
            job,
            attempt,
            ranks,
            completed,
        } in gone
        {
            let key = (job, attempt);
            for rank in completed {
                self.handle(&key, MembershipEvent::Completed { rank });
            }
            for rank in ranks {
                self.handle(&key, MembershipEvent::Gone { rank });
            }
        }
    }

    /// Asks the ranks of gangs without progress where they are.
    fn ask_for_stacks(&mut self) {
        self.publish_progress();
        let stalled = self.planner.stalled.borrow_and_update().clone();
        for one in stalled {
            let Some(session) = self.gangs.get_mut(&(one.job.clone(), one.attempt)) else {
                continue;
            };
            if let Some(asked) = session.ask_for_stacks(&one, clock::now()) {
                let (job, attempt, reason) = (&one.job, one.attempt, &one.message);
                info!(%job, attempt, reason, nodes = asked.nodes, "asked the ranks for their stacks");
            }
        }
        self.publish_progress();
    }

    /// Publishes how far gangs are. A newer sign of progress alone wakes nobody.
    fn publish_progress(&mut self) {
        let began = self.started.into_std();
        let mut changes = Vec::new();
        let mut is_news = false;
        for (key, session) in &mut self.gangs {
            if let Some(news) = session.refresh_progress(|at| clock::at(began + at)) {
                is_news |= news == News::Urgent;
                changes.push((key.clone(), session.progress.clone()));
            }
        }
        if !changes.is_empty() {
            self.publish(|known| {
                known.progress.extend(changes);
                is_news
            });
        }
    }

    fn show(&self, job: &JobKey, progress: &collective::membership::Progress) {
        let labels = [&*job.namespace, &*job.name];
        let step = i64::try_from(progress.step).unwrap_or(i64::MAX);
        self.metrics.job_step.with_label_values(&labels).set(step);
        if let Some(loss) = progress.loss {
            self.metrics.job_loss.with_label_values(&labels).set(loss);
        }
    }

    fn tick(&mut self) {
        let now = self.started.elapsed();
        let due = |session: &GangSession| session.membership.wake_at().is_some_and(|at| at <= now);
        let due: Vec<_> = self
            .gangs
            .iter()
            .filter(|(_, session)| due(session))
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            self.handle(&key, MembershipEvent::Tick);
        }
        self.publish_liveness();
        self.publish_progress();
    }

    /// Only at ticks: while a large gang joins, each hello is a change.
    fn publish_liveness(&mut self) {
        let mut news = Vec::new();
        for (key, session) in &mut self.gangs {
            if session.is_news && session.refresh_liveness() {
                news.push((key.clone(), Arc::clone(&session.liveness)));
            }
        }
        if !news.is_empty() {
            self.publish(|known| {
                known.gangs.extend(news);
                true
            });
        }
    }

    fn handle(&mut self, key: &Key, event: MembershipEvent) {
        let now = self.started.elapsed();
        let Some(session) = self.gangs.get_mut(key) else {
            return;
        };
        let mut effects = Vec::new();
        let is_hello = matches!(event, MembershipEvent::Hello { .. });
        let before =
            matches!(event, MembershipEvent::Committed { .. }).then(|| session.membership.size());
        session.membership.handle(now, event, &mut effects);
        if let Some(before) = before {
            let lost = before.saturating_sub(session.membership.size());
            self.metrics.nodes_lost.inc_by(lost as u64);
        }
        let mut changed = false;
        for effect in effects {
            match effect {
                MembershipEffect::Send {
                    connection,
                    message,
                } => session.send(connection, &message),
                MembershipEffect::Changed => changed = true,
                MembershipEffect::Commit { commit, after } => {
                    info!(
                        job = %key.0, attempt = key.1, epoch = commit.epoch,
                        members = ?commit.members, "committing an epoch"
                    );
                    self.handle
                        .commit(&*self.store, &session.gang, commit, after);
                }
            }
        }
        session.sent();
        session.is_news |= changed || is_hello;
        if changed {
            self.changed(key);
        }
    }

    /// Publishes what has changed of a gang, and nothing else: there may be thousands.
    fn changed(&mut self, key: &Key) {
        let Some(session) = self.gangs.get_mut(key) else {
            return;
        };
        debug!(job = %key.0, attempt = key.1, broken = ?session.membership.broken(), "gang changed");
        let now = clock::now();
        let stuck = session.note_end(now).then(|| session.stuck.clone());
        let report = session.note_report(key.1);
        let until = clock::now() + SUSPICION;
        let mut suspects = Vec::new();
        for suspicion in session.membership.suspects() {
            let rank = usize::try_from(suspicion.rank).ok();
            let Some(node) = rank.and_then(|rank| session.gang.nodes.get(rank)) else {
                continue;
            };
            if self.suspects.insert(node.clone(), until).is_none() {
                info!(%node, reason = ?suspicion.reason, by = suspicion.by, "suspect node");
            }
            suspects.push((node.clone(), until));
        }
        let stuck = stuck.flatten();
        if stuck.is_none() && report.is_none() && suspects.is_empty() {
            return;
        }
        self.publish(|known| {
            if let Some(stuck) = stuck {
                known.stuck.insert(key.clone(), stuck);
            }
            if let Some(report) = report {
                known.checkpoints.insert(key.clone(), report);
            }
            known.suspects.extend(suspects);
            true
        });
    }

    fn sweep(&mut self) {
        let now = clock::now();
        self.suspects.retain(|_, until| now < *until);
        let directory = Arc::clone(&self.directory);
        let mut over = Vec::new();
        self.gangs.retain(|key, session| {
            let (job, attempt) = key;
            let refusal = directory.gang(JobId::new(&job.uid), *attempt).err();
            let stays = match refusal {
                None => true,
                Some(GangRefusal { reason, void: true }) => {
                    session.void(&reason);
                    false
                }
                Some(GangRefusal { void: false, .. }) => !session.outboxes.is_empty(),
            };
            if !stays {
                over.push(key.clone());
            }
            stays
        });
        for (job, _) in &over {
            // A newer attempt shows its progress under the same labels.
            let attempts = (job.clone(), 0)..=(job.clone(), u32::MAX);
            if self.gangs.range(attempts).next().is_none() {
                let labels = [&*job.namespace, &*job.name];
                // That it was never shown is fine.
                let _unknown = self.metrics.job_step.remove_label_values(&labels);
                let _unknown = self.metrics.job_loss.remove_label_values(&labels);
            }
        }
        self.publish(|known| {
            let suspects = known.suspects.len();
            known.suspects.retain(|_, until| now < *until);
            for key in &over {
                known.checkpoints.remove(key);
                known.stuck.remove(key);
                known.gangs.remove(key);
                known.progress.remove(key);
            }
            known.suspects.len() != suspects || !over.is_empty()
        });
    }

    /// Changes what the planner knows; `change` says whether it has.
    fn publish(&self, change: impl FnOnce(&mut Reports) -> bool) {
        self.planner.reports.send_if_modified(change);
    }
}
