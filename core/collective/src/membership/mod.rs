//! The rendezvous of one attempt, as a step function: who is there, where, and when all may start. Owns the
//! order hello - roster - joined - go, its reconstruction by a new leader, and the collection of suspicions.
//! Leaves connections, encoding and authentication to the operator, and every decision about a broken gang to
//! the scheduler. The in-memory form for benches without a cluster is the same code.
//!
//! A new leader starts with an empty memory. Sidecars dial again and say which epoch they joined, so it learns
//! that the gang runs without disturbing it.
//!
//! Epochs start at 1. Links of one epoch are made once, so whoever comes back without having joined (its sidecar
//! restarted, or lost its connection while it was connecting) makes everybody begin a new epoch, with a new
//! roster. After the start a loss breaks the gang, or, where the policy is to shrink, leads to an epoch of the
//! survivors: see `recover`.

pub mod encoding;
mod presence;
mod progress;
mod recover;
mod reports;
mod survivors;
mod suspicions;
mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use presence::Summary;
pub use progress::HeardSign;
use recover::Recovery;
pub use recover::RecoveryPolicy;
pub use survivors::{MOST_ASKED, Reach, probes, survivors};
use suspicions::Suspicions;
pub use topology::Progress;
pub use types::{
    Break, Commit, Connection, Endpoint, GangPhase, GangView, HelloRefusal, MembershipEffect,
    MembershipEvent, MembershipMessage, Suspicion, SuspicionReason,
};

/// The first epoch of every attempt.
pub const FIRST_EPOCH: u64 = 1;
/// Silence after which a rank counts as quiet: three heartbeats of one second, and some way to go.
pub const QUIET: Duration = Duration::from_millis(3500);

/// A rank that this leader knows.
#[derive(Clone, Debug)]
struct Member {
    endpoint: Endpoint,
    connection: Option<Connection>,
    /// The last epoch that it joined.
    joined: Option<u64>,
    left: bool,
    last_heartbeat: Duration,
    /// Number of operations that its ranks had finished, as it said last.
    operations: u64,
}

/// How far this leader has brought the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It waits for the members to connect, and has sent them nothing about it.
    Gathering,
    /// The roster was sent to everybody.
    Introduced,
    /// Everybody was sent the start.
    Started,
    /// Everybody was sent the stop.
    Stopping,
    /// The store was asked to take the next epoch.
    Proposing,
}

/// The rendezvous of one attempt. What an event costs does not depend on how many members there are, unless all of them
/// are sent something or time has run out for somebody.
#[derive(Clone, Debug)]
pub struct Membership {
    nodes: u32,
    epoch: u64,
    stage: Stage,
    now: Duration,
    members: BTreeMap<u32, Member>,
    /// Members that have joined the epoch, and those of them that are connected.
    joined: usize,
    there: usize,
    /// Members that left in good order.
    left: usize,
    /// Ranks that ended well. A leader that began after that hears of them from others alone.
    completed: BTreeSet<u32>,
    /// Members that sent nothing for [`QUIET`] and have not left, as of the last [`MembershipEvent::Tick`].
    quiet: BTreeSet<u32>,
    /// How often suspicions, quiet members or the newest checkpoint have changed.
    changes: u64,
    /// The rank behind each live connection.
    connections: BTreeMap<Connection, u32>,
    /// By (suspect, accuser), so at most nodes x nodes, in practice neighbours.
    suspects: Suspicions,
    broken: Option<Break>,
    progress: Progress,
    /// The same as it was reported last.
    reported: Option<Progress>,
    newest_sign: Option<HeardSign>,
    recovery: Recovery,
    /// When this leader began.
    began: Duration,
    /// What [`Effect::Changed`] last announced.
    announced: Summary,
}

impl Membership {
    /// An attempt over nodes `0..nodes` of which nothing is known yet.
    #[must_use]
    pub fn new(nodes: u32) -> Self {
        Self::resume(nodes, RecoveryPolicy::default(), None, Duration::ZERO)
    }

    /// An attempt of which the store may hold what earlier leaders have committed.
    #[must_use]
    pub fn resume(
        nodes: u32,
        policy: RecoveryPolicy,
        committed: Option<Commit>,
        now: Duration,
    ) -> Self {
        let recovery = Recovery::new(policy, committed, now);
        let committed = recovery.committed.as_ref();
        let epoch = committed.map_or(FIRST_EPOCH, |commit| commit.epoch);
        let mut membership = Self {
            nodes,
            epoch,
            stage: Stage::Gathering,
            now,
            began: now,
            recovery,
            members: BTreeMap::new(),
            joined: 0,
            there: 0,
            left: 0,
            completed: BTreeSet::new(),
            quiet: BTreeSet::new(),
            changes: 0,
            connections: BTreeMap::new(),
            suspects: Suspicions::default(),
            broken: None,
            progress: Progress::default(),
            reported: None,
            newest_sign: None,
            announced: Summary::default(),
        };
        membership.announced = membership.summary();
        membership
    }

    /// Takes one event and appends what has to be done. `now` is any monotonic time.
    pub fn handle(
        &mut self,
        now: Duration,
        event: MembershipEvent,
        effects: &mut Vec<MembershipEffect>,
    ) {
        self.pass_time(now);
        match event {
            MembershipEvent::Hello {
                connection,
                rank,
                endpoint,
                joined,
            } => {
                self.hello(connection, rank, endpoint, joined, effects);
            }
            MembershipEvent::Joined { connection, epoch } => {
                self.joined(connection, epoch, effects);
            }
            MembershipEvent::Heartbeat {
                connection,
                progress,
                operations,
            } => {
                self.note_progress(connection, progress.as_ref(), operations);
                if !self.heartbeat(connection, progress) {
                    return;
                }
            }
            MembershipEvent::Suspect {
                connection,
                epoch,
                rank,
                reason,
            } => {
                self.suspect(connection, epoch, rank, reason);
            }
            MembershipEvent::Recovered {
                connection,
                epoch,
                rank,
            } => {
                self.recovered(connection, epoch, rank);
            }
            MembershipEvent::Leaving { connection } => {
                self.note_alive(connection);
                if let Some(&rank) = self.connections.get(&connection) {
                    self.change(rank, |member| member.left = true);
                    self.mark_out(rank);
                }
            }
            MembershipEvent::Stopped {
                connection,
                epoch,
                report,
                reach,
            } => self.stopped(connection, epoch, report, reach, effects),
            MembershipEvent::RankLost { connection } => {
                self.note_alive(connection);
                if let Some(&rank) = self.connections.get(&connection) {
                    self.mark_out(rank);
                }
            }
            MembershipEvent::Gone { rank } => self.mark_out(rank),
            MembershipEvent::Completed { rank } if rank < self.nodes => {
                self.changes += u64::from(self.completed.insert(rank));
                self.mark_out(rank);
            }
            MembershipEvent::Completed { .. } => {}
            MembershipEvent::Committed { epoch } => self.committed(epoch, effects),
            MembershipEvent::CommitFailed { current } => self.commit_failed(current, effects),
            MembershipEvent::Disconnected { connection } => self.disconnected(connection),
            MembershipEvent::Tick => self.look_who_is_quiet(),
        }
        self.recover(effects);
        let summary = self.summary();
        if summary != self.announced {
            self.announced = summary;
            effects.push(MembershipEffect::Changed);
        }
    }

    /// When the view changes if nothing happens until then.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let loud = self
            .members
            .iter()
            .filter(|&(rank, member)| !member.left && !self.quiet.contains(rank));
        let quiet = loud.map(|(_, member)| member.last_heartbeat + QUIET).min();
        quiet.into_iter().chain(self.recovery_wake_at()).min()
    }

    /// Why the gang cannot go on, if so.
    #[must_use]
    pub const fn broken(&self) -> Option<&Break> {
        self.broken.as_ref()
    }

    /// Who suspects whom, ordered by suspect.
    pub fn suspects(&self) -> impl Iterator<Item = Suspicion> {
        self.suspects.iter()
    }

    /// How far training is.
    #[must_use]
    pub const fn progress(&self) -> &Progress {
        &self.progress
    }

    /// How many members the epoch has.
    #[must_use]
    pub fn size(&self) -> usize {
        match &self.recovery.committed {
            Some(commit) => commit.members.len(),
            None => self.nodes as usize,
        }
    }

    /// Ranks that have dialled this leader and that sent nothing for [`QUIET`], as of the last tick.
    pub fn quiet(&self) -> impl Iterator<Item = u32> {
        self.quiet.iter().copied()
    }

    /// Ranks that send to this leader: they have dialled, have not left, and are not quiet.
    pub fn speaking(&self) -> impl Iterator<Item = u32> {
        let speaks = |&(rank, member): &(&u32, &Member)| !member.left && !self.quiet.contains(rank);
        self.members.iter().filter(speaks).map(|(&rank, _)| rank)
    }

    /// All that is known, by name: it costs as much as there are members.
    #[must_use]
    pub fn view(&self) -> GangView {
        // Nobody waits for who ended well before this leader began.
        let is_missed = |rank: &&u32| self.is_member(**rank) && !self.members.contains_key(rank);
        let ended = self.completed.iter().filter(is_missed).count();
        let (expected, known) = (self.size() - ended, self.members.len());
        GangView {
            epoch: self.epoch,
            members: self.expected(),
            phase: match (self.stage, known == expected, self.joined == expected) {
                (Stage::Stopping, ..) => GangPhase::Stopping {
                    missing: self.awaited(),
                },
                (Stage::Proposing, ..) => GangPhase::Proposing,
                (Stage::Gathering | Stage::Introduced | Stage::Started, _, true) => {
                    GangPhase::Running
                }
                (Stage::Gathering | Stage::Introduced | Stage::Started, true, false) => {
                    GangPhase::Connecting {
                        missing: self
                            .missing(|member| member.is_none_or(|member| !self.has_joined(member))),
                    }
                }
                (Stage::Gathering | Stage::Introduced | Stage::Started, false, false) => {
                    GangPhase::Gathering {
                        missing: self.missing(|member| member.is_none()),
                    }
                }
            },
            suspects: self.suspects().collect(),
            broken: self.broken,
            left: self.ranks_where(|member| member.is_some_and(|member| member.left)),
            quiet: self.quiet().collect(),
            progress: self.progress.clone(),
        }
    }

    /// Returns the ranks that are waited for: not those that have ended well.
    fn missing(&self, lacks: impl Fn(Option<&Member>) -> bool) -> Vec<u32> {
        let mut ranks = self.ranks_where(lacks);
        ranks.retain(|rank| !self.completed.contains(rank));
        ranks
    }

    fn ranks_where(&self, holds: impl Fn(Option<&Member>) -> bool) -> Vec<u32> {
        self.expected()
            .into_iter()
            .filter(|rank| holds(self.members.get(rank)))
            .collect()
    }

    fn hello(
        &mut self,
        connection: Connection,
        rank: u32,
        endpoint: Endpoint,
        joined: Option<u64>,
        effects: &mut Vec<MembershipEffect>,
    ) {
        let refuse =
            |refusal| MembershipEffect::send(connection, MembershipMessage::Refused(refusal));
        if rank >= self.nodes {
            effects.push(refuse(HelloRefusal::Rank {
                rank,
                nodes: self.nodes,
            }));
            return;
        }
        if let Some(held) = self.connection_of(rank)
            && held != connection
        {
            effects.push(refuse(HelloRefusal::Connected { rank }));
            return;
        }
        let committed = self.recovery.committed.is_some() || self.stage == Stage::Proposing;
        if committed && !self.is_member(rank) {
            let epoch = self.epoch;
            effects.push(refuse(HelloRefusal::Out { rank, epoch }));
            return;
        }
        match joined {
            // What it has missed is said to it again.
            Some(theirs) if committed && theirs <= self.epoch => {}
            None if committed => {}
            // It does not know yet that its epoch was given up before the start.
            Some(theirs) if theirs < self.epoch && self.stage == Stage::Introduced => {}
            Some(theirs) if theirs < self.epoch => {
                effects.push(refuse(HelloRefusal::Epoch {
                    theirs,
                    ours: self.epoch,
                }));
                return;
            }
            Some(theirs) if committed => {
                // Another leads by now.
                effects.push(refuse(HelloRefusal::Epoch {
                    theirs,
                    ours: self.epoch,
                }));
                return;
            }
            Some(theirs) if theirs > self.epoch => {
                // An earlier leader got further than this one knows.
                self.epoch = theirs;
                self.stage = Stage::Gathering;
                self.count();
            }
            Some(_ours) => {}
            None if self.stage == Stage::Started => {
                let reason = self.break_with(Break::Restarted { rank });
                effects.push(refuse(HelloRefusal::Broken(reason)));
                return;
            }
            None => {}
        }
        let member = Member {
            endpoint,
            connection: Some(connection),
            joined,
            left: false,
            last_heartbeat: self.now,
            operations: self.members.get(&rank).map_or(0, |known| known.operations),
        };
        let earlier = self.insert(rank, member);
        self.connections.insert(connection, rank);
        // It reports again whom it still finds frozen; of a recovery in between it knows nothing.
        self.changes += u64::from(self.suspects.thaw_all(rank));
        if let Some(old) = earlier.and_then(|earlier| earlier.connection)
            && old != connection
        {
            self.connections.remove(&old);
            let message = MembershipMessage::Refused(HelloRefusal::Replaced { rank });
            effects.push(MembershipEffect::send(old, message));
        }
        if committed {
            self.answer_member(rank, connection, joined, effects);
            return;
        }
        self.answer_hello(connection, joined == Some(self.epoch), effects);
    }

    /// Those who have joined may have missed the go; the others need a roster that nobody has used yet.
    fn answer_hello(
        &mut self,
        connection: Connection,
        joined: bool,
        effects: &mut Vec<MembershipEffect>,
    ) {
        if self.members.len() < self.nodes as usize {
            return;
        }
        if self.stage == Stage::Started {
            let message = MembershipMessage::Go { epoch: self.epoch };
            effects.push(MembershipEffect::send(connection, message));
            return;
        }
        if self.joined == self.members.len() || joined && self.stage == Stage::Introduced {
            self.start_if_all_are_there(effects);
            return;
        }
        let used = self.members.values().any(|member| member.joined.is_some());
        if used || self.stage == Stage::Introduced {
            self.epoch += 1;
            self.count();
        }
        self.stage = Stage::Introduced;
        let endpoints = self.members.values().map(|member| member.endpoint);
        let roster = MembershipMessage::Roster {
            epoch: self.epoch,
            endpoints: endpoints.collect(),
        };
        self.send_to_all(roster, effects);
    }

    fn joined(&mut self, connection: Connection, epoch: u64, effects: &mut Vec<MembershipEffect>) {
        let (ours, stage) = (self.epoch, self.stage);
        let committed = self.recovery.committed.is_some();
        let Some(rank) = self.note_alive(connection) else {
            return;
        };
        if epoch < ours && (committed || stage == Stage::Introduced) {
            return; // Sent before it got the new roster.
        }
        if epoch != ours {
            let message = MembershipMessage::Refused(HelloRefusal::Epoch {
                theirs: epoch,
                ours,
            });
            effects.push(MembershipEffect::send(connection, message));
            return;
        }
        self.change(rank, |member| member.joined = Some(epoch));
        self.start_if_all_are_there(effects);
    }

    /// Who has joined and lost its connection is waited for: it may have restarted.
    fn start_if_all_are_there(&mut self, effects: &mut Vec<MembershipEffect>) {
        let all = self.there == self.size();
        let before = match self.stage {
            Stage::Gathering | Stage::Introduced => true,
            Stage::Started | Stage::Stopping | Stage::Proposing => false,
        };
        if all && self.broken.is_none() && before {
            self.go(effects);
        }
    }

    /// Takes a heartbeat; false when it changes nothing that is looked at, which has to cost next to nothing:
    /// every node sends one a second.
    fn heartbeat(&mut self, connection: Connection, progress: Option<Progress>) -> bool {
        let before = self.changes;
        if self.note_alive(connection).is_none() {
            return false;
        }
        if let Some(progress) = progress {
            self.record(progress);
        }
        self.changes != before
    }

    fn suspect(&mut self, connection: Connection, epoch: u64, rank: u32, reason: SuspicionReason) {
        let Some(&by) = self.connections.get(&connection) else {
            return;
        };
        self.note_alive(connection);
        if epoch != self.epoch || rank >= self.nodes || rank == by {
            return;
        }
        self.changes += u64::from(self.suspects.note(rank, by, reason));
        match reason {
            SuspicionReason::Dead | SuspicionReason::Silent if !self.shrinks() => {
                self.break_with(Break::Lost { rank, by });
            }
            SuspicionReason::Dead | SuspicionReason::Silent | SuspicionReason::Frozen => {}
        }
    }

    /// Only who is frozen comes back: the epoch is over for those who saw a peer dead or silent.
    fn recovered(&mut self, connection: Connection, epoch: u64, rank: u32) {
        let Some(&by) = self.connections.get(&connection) else {
            return;
        };
        self.note_alive(connection);
        if epoch == self.epoch {
            self.changes += u64::from(self.suspects.thaw(rank, by));
        }
    }

    fn disconnected(&mut self, connection: Connection) {
        if let Some(rank) = self.connections.remove(&connection) {
            self.change(rank, |member| member.connection = None);
        }
    }

    /// Keeps the newest: reports of different connections may come out of order.
    fn record(&mut self, progress: Progress) {
        let order = |checkpoint: &topology::CheckpointRef| (checkpoint.attempt, checkpoint.step);
        self.progress.step = self.progress.step.max(progress.step);
        if progress.checkpoint.as_ref().map(order) > self.progress.checkpoint.as_ref().map(order) {
            self.progress.checkpoint = progress.checkpoint;
            self.changes += 1;
        }
        if progress.passed_over.is_some() && progress.passed_over != self.progress.passed_over {
            self.progress.passed_over = progress.passed_over;
            self.changes += 1;
        }
    }

    fn break_with(&mut self, reason: Break) -> Break {
        *self.broken.get_or_insert(reason)
    }

    fn has_joined(&self, member: &Member) -> bool {
        member.joined == Some(self.epoch)
    }

    fn send_to_all(&self, message: MembershipMessage, effects: &mut Vec<MembershipEffect>) {
        let message = Arc::new(message);
        let connections = self.members.values().filter_map(|member| member.connection);
        effects.extend(connections.map(|connection| MembershipEffect::Send {
            connection,
            message: Arc::clone(&message),
        }));
    }
}

#[cfg(test)]
mod recover_tests;
#[cfg(test)]
mod report_tests;
#[cfg(test)]
mod tests;
