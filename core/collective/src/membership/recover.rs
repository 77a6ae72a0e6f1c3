//! Going on after a loss, in the order stop - propose - commit - connect - go. Nobody goes on with fewer members
//! unless the commit succeeded, so of two sides or two leaders one goes on at most. What any leader needs to know is
//! in the store and in what sidecars say again on each new connection.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use topology::OnPeerLoss;

use super::reports::{Reports, Stopped};
use super::survivors::{Reach, is_whole, survivors};
use super::types::{Break, Commit, HelloRefusal, MembershipEffect, MembershipMessage};
use super::{Connection, Membership, Stage};
use crate::recovery::{self, EpochReport, GroupReport, Resume};

/// How long those who do not reach each other may take to say that they do, once all have reported: a sidecar that
/// restarts is asked before it listens.
const SETTLE: Duration = Duration::from_secs(1);
/// How long the members of a new epoch may take to join it before those who have not are asked again whom they reach.
const JOIN: Duration = Duration::from_secs(5);
/// While it waits for somebody, a leader looks at the time this often.
const LOOK: Duration = Duration::from_secs(1);
/// After a gap that no schedule explains this leader was stopped, not everybody else: what was said meanwhile gets this
/// long to connect.
const PAUSE: Duration = Duration::from_secs(3);
/// A member that has failed to join so often although it reaches everybody stays out of the next epoch.
const FAILED_JOINS: u32 = 2;
/// Epochs in a row with the same members that did not bring the first unfinished operation to its end: whatever ends
/// them, another one would not help.
const FRUITLESS: u32 = 10;
/// Before another try when the store did not take a commit and nobody else's is there.
const RETRY: Duration = Duration::from_millis(500);

/// When and with how many the members go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryPolicy {
    /// Whether at all.
    pub on_peer_loss: OnPeerLoss,
    /// How long a member may be gone before it is out.
    pub peer_loss: Duration,
    /// With fewer nodes than this nobody goes on.
    pub least: u32,
}

impl Default for RecoveryPolicy {
    fn default() -> Self {
        Self {
            on_peer_loss: OnPeerLoss::Restart,
            peer_loss: Duration::from_secs(10),
            least: 2,
        }
    }
}

/// What a leader knows about going on.
#[derive(Clone, Debug, Default)]
pub(super) struct Recovery {
    pub(super) policy: RecoveryPolicy,
    /// The last commit that is known.
    pub(super) committed: Option<Commit>,
    /// Ranks that will not come back: their trainer died, their pod is gone, they left.
    out: BTreeSet<u32>,
    /// Members that have lost their memory since the last commit.
    without_memory: BTreeSet<u32>,
    /// Of the epoch at hand; whoever adopts an epoch begins without.
    reports: Reports,
    /// When the last of them came or changed.
    changed: Duration,
    /// When this leader last came back from a pause.
    woke: Duration,
    /// How often in a row a member was waited for in vain.
    failed_joins: BTreeMap<u32, u32>,
    /// Epochs in a row that began as the one before.
    fruitless: u32,
    /// When the stage began.
    pub(super) since: Duration,
    /// What was proposed.
    proposed: Option<Commit>,
}

impl Recovery {
    pub(super) fn new(policy: RecoveryPolicy, committed: Option<Commit>, now: Duration) -> Self {
        Self {
            policy,
            committed,
            since: now,
            ..Self::default()
        }
    }

    /// How many have reported, and how many will not come back.
    pub(super) fn stopped(&self) -> usize {
        self.reports.len()
    }

    pub(super) fn out(&self) -> usize {
        self.out.len()
    }
}

impl Membership {
    /// Notices that this leader was stopped for a while.
    pub(super) fn pass_time(&mut self, now: Duration) {
        if now.saturating_sub(self.now) > PAUSE {
            self.recovery.woke = now;
        }
        self.now = now;
    }

    pub(super) fn shrinks(&self) -> bool {
        self.recovery.policy.on_peer_loss == OnPeerLoss::Shrink
    }

    /// The members of the epoch.
    #[must_use]
    pub(super) fn expected(&self) -> Vec<u32> {
        match &self.recovery.committed {
            Some(commit) => commit.members.clone(),
            None => (0..self.nodes).collect(),
        }
    }

    /// Whether a rank is a member of the epoch.
    pub(super) fn is_member(&self, rank: u32) -> bool {
        match &self.recovery.committed {
            Some(commit) => commit.members.binary_search(&rank).is_ok(),
            None => rank < self.nodes,
        }
    }

    /// Everybody has joined: under Shrink this is written down before anybody goes.
    pub(super) fn go(&mut self, effects: &mut Vec<MembershipEffect>) {
        let committed = self.recovery.committed.as_ref();
        if self.shrinks() && committed.is_none_or(|commit| commit.epoch != self.epoch) {
            let commit = Commit {
                epoch: self.epoch,
                members: self.expected(),
                resume: Vec::new(),
            };
            self.propose(commit, effects);
            return;
        }
        self.stage = Stage::Started;
        self.count_progress_anew();
        self.recovery.since = self.now;
        self.recovery.failed_joins.clear();
        self.send_to_all(MembershipMessage::Go { epoch: self.epoch }, effects);
    }

    fn propose(&mut self, commit: Commit, effects: &mut Vec<MembershipEffect>) {
        self.stage = Stage::Proposing;
        self.recovery.since = self.now;
        self.recovery.proposed = Some(commit.clone());
        let after = self.recovery.committed.as_ref().map(|commit| commit.epoch);
        effects.push(MembershipEffect::Commit { commit, after });
    }

    pub(super) fn committed(&mut self, epoch: u64, effects: &mut Vec<MembershipEffect>) {
        let proposed = self
            .recovery
            .proposed
            .take_if(|commit| commit.epoch == epoch);
        let Some(commit) = proposed else {
            return;
        };
        let goes_on = commit.epoch == self.epoch;
        self.adopt(commit, effects);
        if goes_on {
            self.go(effects);
            return;
        }
        self.stage = Stage::Introduced;
        self.introduce_members(effects);
    }

    /// Takes over what is in the store. Who is not in it is refused.
    fn adopt(&mut self, commit: Commit, effects: &mut Vec<MembershipEffect>) {
        let epoch = commit.epoch;
        self.epoch = epoch;
        self.recovery.committed = Some(commit);
        self.recovery.proposed = None;
        self.recovery.reports.clear();
        self.recovery.since = self.now;
        self.changes += u64::from(!self.suspects.is_empty());
        self.suspects.clear();
        self.stage = Stage::Gathering;
        let ranks = self.members.keys().copied();
        let others: Vec<u32> = ranks.filter(|&rank| !self.is_member(rank)).collect();
        for rank in others {
            let connection = self.members.remove(&rank).and_then(|one| one.connection);
            self.changes += u64::from(self.quiet.remove(&rank));
            if let Some(connection) = connection {
                self.connections.remove(&connection);
                let message = MembershipMessage::Refused(HelloRefusal::Out { rank, epoch });
                effects.push(MembershipEffect::send(connection, message));
            }
        }
        self.count();
    }

    pub(super) fn commit_failed(
        &mut self,
        current: Option<Commit>,
        effects: &mut Vec<MembershipEffect>,
    ) {
        if self.stage != Stage::Proposing {
            return;
        }
        let known = self.recovery.committed.as_ref().map(|commit| commit.epoch);
        let newer = current.filter(|commit| Some(commit.epoch) > known);
        match newer {
            // Another leader was faster; or we were, and do not know it.
            Some(commit) => {
                self.adopt(commit, effects);
                self.introduce_if_all_are_known(effects);
            }
            None => self.recovery.since = self.now, // Once more, after a while.
        }
    }

    /// Sends the members of a committed epoch to those who have not joined it.
    fn introduce_members(&mut self, effects: &mut Vec<MembershipEffect>) {
        let Some(next) = self.next() else {
            return;
        };
        self.recovery.since = self.now;
        self.send_to_all(next, effects);
    }

    fn next(&self) -> Option<MembershipMessage> {
        let commit = self.recovery.committed.as_ref()?;
        let endpoint = |rank: &u32| Some((*rank, self.members.get(rank)?.endpoint));
        Some(MembershipMessage::Next {
            epoch: commit.epoch,
            members: commit.members.iter().filter_map(endpoint).collect(),
            resume: commit.resume.clone(),
        })
    }

    pub(super) fn introduce_if_all_are_known(&mut self, effects: &mut Vec<MembershipEffect>) {
        if self.members.len() < self.size() {
            return;
        }
        self.stage = Stage::Introduced;
        if self.joined == self.members.len() {
            self.start_if_all_are_there(effects);
        } else {
            self.introduce_members(effects);
        }
    }

    /// A member said hello on a new connection, in an epoch that is committed. What was sent to it may not have reached it.
    pub(super) fn answer_member(
        &mut self,
        rank: u32,
        connection: Connection,
        joined: Option<u64>,
        effects: &mut Vec<MembershipEffect>,
    ) {
        if joined.is_none() {
            self.recovery.without_memory.insert(rank);
            self.recovery.reports.remove(rank);
        }
        let message = match self.stage {
            Stage::Stopping => {
                self.revoke_newly(connection, effects);
                return;
            }
            Stage::Gathering => {
                self.introduce_if_all_are_known(effects);
                return;
            }
            Stage::Started if joined == Some(self.epoch) => {
                MembershipMessage::Go { epoch: self.epoch }
            }
            Stage::Introduced if joined == Some(self.epoch) => {
                self.start_if_all_are_there(effects);
                return;
            }
            Stage::Introduced => match self.next() {
                Some(next) => next,
                None => return,
            },
            Stage::Started | Stage::Proposing => return,
        };
        effects.push(MembershipEffect::send(connection, message));
    }

    pub(super) fn mark_out(&mut self, rank: u32) {
        self.recovery.out.insert(rank);
    }

    pub(super) fn stopped(
        &mut self,
        connection: Connection,
        epoch: u64,
        report: EpochReport,
        reach: Reach,
        effects: &mut Vec<MembershipEffect>,
    ) {
        let Some(&rank) = self.connections.get(&connection) else {
            return;
        };
        self.note_alive(connection);
        let sound = report.iter().all(GroupReport::is_sound) && reach.is_sound();
        if !self.shrinks() || epoch != self.epoch || self.recovery.committed.is_none() || !sound {
            return;
        }
        match self.stage {
            Stage::Stopping => {}
            Stage::Gathering | Stage::Introduced | Stage::Started => self.stop(effects),
            Stage::Proposing => return,
        }
        let stopped = Stopped { report, reach };
        self.recovery.reports.insert(rank, stopped);
        self.recovery.changed = self.now;
        self.changes += 1;
    }

    /// Asks all members to stop and to report.
    fn stop(&mut self, effects: &mut Vec<MembershipEffect>) {
        self.stage = Stage::Stopping;
        self.recovery.since = self.now;
        self.recovery.changed = self.now;
        self.send_to_all(self.revoke(), effects);
    }

    fn revoke(&self) -> MembershipMessage {
        let known = self.members.iter();
        MembershipMessage::Revoke {
            epoch: self.epoch,
            members: known
                .map(|(&rank, member)| (rank, member.endpoint))
                .collect(),
        }
    }

    /// Asks a member on a new connection to stop; those who have lost their memory learn of it from this.
    fn revoke_newly(&self, connection: Connection, effects: &mut Vec<MembershipEffect>) {
        let revoke = Arc::new(self.revoke());
        let forgetful = self.recovery.without_memory.iter();
        let connections = forgetful
            .filter_map(|rank| self.members.get(rank)?.connection)
            .filter(|&other| other != connection)
            .chain([connection]);
        effects.extend(connections.map(|connection| MembershipEffect::Send {
            connection,
            message: Arc::clone(&revoke),
        }));
    }

    /// Why the epoch has to end, after it was committed.
    fn is_troubled(&self) -> bool {
        let recovery = &self.recovery;
        let lost = |rank: &u32| self.is_member(*rank) && !self.has_left(*rank);
        let given_up = self
            .suspects
            .iter()
            .any(|suspicion| match suspicion.reason {
                super::SuspicionReason::Dead | super::SuspicionReason::Silent => true,
                super::SuspicionReason::Frozen => false,
            });
        recovery.out.iter().any(lost) || !recovery.without_memory.is_empty() || given_up
    }

    /// Returns true if a rank has nothing left to do: it left in good order, or ended well before this leader began.
    pub(super) fn has_left(&self, rank: u32) -> bool {
        let left = self.members.get(&rank).is_some_and(|member| member.left);
        left || self.completed.contains(&rank)
    }

    /// Whether the gang has been started, or is being, and may go on after a loss.
    fn can_recover(&self) -> bool {
        let begun = self.recovery.committed.is_some() || self.stage == Stage::Proposing;
        self.shrinks() && begun && self.broken.is_none()
    }

    /// Does what time or an event has made possible.
    pub(super) fn recover(&mut self, effects: &mut Vec<MembershipEffect>) {
        if !self.can_recover() {
            return;
        }
        let late = self.now >= self.waits_since().saturating_add(self.patience());
        if late && self.stage == Stage::Introduced {
            self.count_failed_joins();
        }
        match self.stage {
            Stage::Gathering | Stage::Introduced if self.is_troubled() || late => {
                self.stop(effects);
            }
            Stage::Started if self.is_troubled() => self.stop(effects),
            Stage::Proposing if late => {
                if let Some(commit) = self.recovery.proposed.clone() {
                    self.propose(commit, effects);
                }
            }
            Stage::Gathering
            | Stage::Introduced
            | Stage::Started
            | Stage::Stopping
            | Stage::Proposing => {}
        }
        if self.stage == Stage::Stopping {
            self.propose_survivors(effects);
        }
    }

    fn waits_since(&self) -> Duration {
        self.recovery.since.max(self.recovery.woke)
    }

    fn patience(&self) -> Duration {
        match self.stage {
            // Members dial a new leader within some seconds. While all that did are in the epoch, nobody is missed.
            Stage::Gathering if self.joined == self.members.len() => Duration::MAX,
            Stage::Gathering => self.recovery.policy.peer_loss,
            Stage::Introduced => JOIN,
            Stage::Proposing => RETRY,
            Stage::Started | Stage::Stopping => Duration::MAX,
        }
    }

    fn count_failed_joins(&mut self) {
        for rank in self.expected() {
            let member = self.members.get(&rank);
            if !member.is_some_and(|member| self.has_joined(member)) {
                *self.recovery.failed_joins.entry(rank).or_default() += 1;
            }
        }
    }

    /// When a member that has not reported is given up.
    fn deadline(&self, rank: u32) -> Duration {
        let limit = self.recovery.policy.peer_loss;
        let stopping = self.recovery.since + limit;
        // A member that never connected to this leader gets its time from the beginning.
        let last = self
            .members
            .get(&rank)
            .map_or(self.began, |one| one.last_heartbeat);
        let deadline = if self.is_missed(rank) {
            (last + limit).min(stopping)
        } else {
            stopping // Only this leader does not reach it: it will dial again.
        };
        deadline.max(self.recovery.woke + PAUSE)
    }

    /// Whether other members have lost it too.
    fn is_missed(&self, rank: u32) -> bool {
        let mut against = self.suspects.against(rank);
        against.any(|reason| reason != super::SuspicionReason::Frozen)
            || self.recovery.reports.nobody_reaches(rank)
    }

    fn has_reported(&self, rank: u32) -> bool {
        let connected = |rank| {
            let member = self.members.get(&rank);
            member.is_some_and(|member| member.connection.is_some())
        };
        self.recovery.reports.contains(rank) && connected(rank)
    }

    /// Whether a member may still report.
    fn is_awaited(&self, rank: u32) -> bool {
        let out = self.recovery.out.contains(&rank);
        !out && !self.has_reported(rank) && self.now < self.deadline(rank)
    }

    /// Members that may still report.
    pub(super) fn awaited(&self) -> Vec<u32> {
        let mut members = self.expected();
        members.retain(|&rank| self.is_awaited(rank));
        members
    }

    fn propose_survivors(&mut self, effects: &mut Vec<MembershipEffect>) {
        let expected = self.expected();
        if expected.iter().any(|&rank| self.is_awaited(rank)) {
            return;
        }
        let reported: Vec<u32> = expected
            .iter()
            .copied()
            .filter(|&rank| !self.recovery.out.contains(&rank) && self.has_reported(rank))
            .collect();
        let stopped = |&rank: &u32| Some((rank, self.recovery.reports.get(rank)?));
        let reach: BTreeMap<u32, &Reach> = reported
            .iter()
            .filter_map(stopped)
            .map(|(rank, stopped)| (rank, &stopped.reach))
            .collect();
        if reach.is_empty() || !is_whole(&reach) && self.now < self.recovery.changed + SETTLE {
            return;
        }
        let mut members = survivors(&reach);
        let failed = &self.recovery.failed_joins;
        let worst = members
            .iter()
            .filter_map(|rank| Some((*failed.get(rank)?, *rank)))
            .max();
        // One at a time: of two that do not find each other, one is enough.
        if let Some((times, rank)) = worst
            && times >= FAILED_JOINS
        {
            members.remove(&rank);
        }
        let members: Vec<u32> = members.into_iter().collect();
        // Who ended well is missed by nobody.
        let ended = expected
            .iter()
            .filter(|rank| !members.contains(rank) && self.has_left(**rank));
        let left = members.len() + ended.count();
        let is_short = left < expected.len();
        let left = left as u32;
        if is_short && left < self.recovery.policy.least {
            let least = self.recovery.policy.least;
            self.break_with(Break::TooFew { left, least });
            return;
        }
        let reports: BTreeMap<usize, &EpochReport> = members
            .iter()
            .filter_map(stopped)
            .map(|(rank, stopped)| (rank as usize, &stopped.report))
            .collect();
        match recovery::resume(&reports) {
            Ok(resume) if self.count_fruitless(&members, &resume) => {
                let epochs = FRUITLESS;
                self.break_with(Break::Fruitless { epochs });
            }
            Ok(resume) => {
                // Whoever loses its memory from now on has not reported that.
                self.recovery.without_memory.clear();
                let epoch = self.epoch + 1;
                let commit = Commit {
                    epoch,
                    members,
                    resume,
                };
                self.propose(commit, effects);
            }
            Err(forgotten) => {
                self.break_with(Break::Forgotten { op: forgotten.op });
            }
        }
    }

    /// Counts epochs that begin as the one before; whether they were too many.
    fn count_fruitless(&mut self, members: &[u32], resume: &Resume) -> bool {
        let bases = |resume: &Resume| -> Vec<_> {
            let groups = resume.iter();
            groups.map(|group| (group.group, group.base)).collect()
        };
        let committed = self.recovery.committed.as_ref();
        let same = committed.is_some_and(|before| {
            before.members == members && bases(&before.resume) == bases(resume)
        });
        self.recovery.fruitless = if same { self.recovery.fruitless + 1 } else { 0 };
        self.recovery.fruitless >= FRUITLESS
    }

    /// When something becomes possible by the passing of time alone.
    pub(super) fn recovery_wake_at(&self) -> Option<Duration> {
        if !self.can_recover() {
            return None;
        }
        let wake = match self.stage {
            Stage::Started => None,
            Stage::Gathering | Stage::Introduced | Stage::Proposing => {
                self.waits_since().checked_add(self.patience())
            }
            Stage::Stopping => {
                let awaited = self.awaited();
                let deadlines = awaited.iter().map(|&rank| self.deadline(rank));
                let settled = self.recovery.changed + SETTLE;
                deadlines.min().or((self.now < settled).then_some(settled))
            }
        };
        // Often enough to distinguish a pause of this leader from silence.
        wake.map(|wake| wake.min(self.now + LOOK))
    }
}
