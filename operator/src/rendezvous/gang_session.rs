//! One gang as this leader knows it: its membership machine, the way to each sidecar, and since
//! when it is at its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use collective::membership::encoding::{Features, ToSidecar, encode, text, to_sidecar};
use collective::membership::{
    Commit, Connection, HelloRefusal, Membership, MembershipMessage, Progress, SuspicionReason,
};
use scheduler::{
    CheckpointReport, GangLiveness, GangProgress, ProgressSign, StacksAsked, Stalled, Stuck,
    Timestamp,
};
use tokio::sync::mpsc;
use topology::OnPeerLoss;
use tracing::error;

use crate::rendezvous::directory::Gang;

/// A message as it travels. Of what goes to many sidecars there is one.
pub(super) type Frame = Arc<[u8]>;

/// The way to a sidecar.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    pub(super) frames: mpsc::Sender<Frame>,
    /// What it understands beyond what every sidecar does.
    pub(super) features: Features,
}

/// Urgency of news for the planner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Somebody waits for it: the planner looks at once.
    Urgent,
    /// The planner learns of it when it looks.
    Quiet,
}

pub(super) struct GangSession {
    pub(super) gang: Arc<Gang>,
    pub(super) membership: Membership,
    pub(super) outboxes: BTreeMap<Connection, Outbox>,
    /// Why it cannot go on, where it should have.
    pub(super) stuck: Option<Stuck>,
    /// The newest checkpoint, as published last.
    report: Option<CheckpointReport>,
    /// Which nodes are alive, as published last.
    pub(super) liveness: Arc<GangLiveness>,
    /// Whether that may have changed since.
    pub(super) is_news: bool,
    /// Its progress, as published last.
    pub(super) progress: GangProgress,
    /// When the sign was heard after which its ranks were asked for their stacks, and when and on
    /// how many nodes they were.
    asked: Option<(Timestamp, StacksAsked)>,
    /// What was encoded last, while it goes to one sidecar after the other.
    encoded: Option<(Arc<MembershipMessage>, Frame)>,
}

impl GangSession {
    pub(super) fn new(gang: Arc<Gang>, last: Option<Commit>, now: Duration) -> Self {
        let nodes = u32::try_from(gang.nodes.len()).unwrap_or(u32::MAX);
        Self {
            membership: Membership::resume(nodes, gang.policy, last, now),
            outboxes: BTreeMap::new(),
            gang,
            stuck: None,
            report: None,
            liveness: Arc::default(),
            is_news: true,
            progress: GangProgress::default(),
            asked: None,
            encoded: None,
        }
    }

    /// Looks again which nodes are alive. True when that has changed.
    pub(super) fn refresh_liveness(&mut self) -> bool {
        self.is_news = false;
        let node = |rank: u32| self.gang.nodes.get(usize::try_from(rank).ok()?).cloned();
        let membership = &self.membership;
        // Who is only frozen may come back.
        let gave_up = |reason| matches!(reason, SuspicionReason::Dead | SuspicionReason::Silent);
        let given_up = membership
            .suspects()
            .filter(|suspicion| gave_up(suspicion.reason))
            .map(|suspicion| suspicion.rank);
        let liveness = GangLiveness {
            alive: membership.speaking().filter_map(node).collect(),
            quiet: membership.quiet().filter_map(node).collect(),
            given_up: given_up.filter_map(node).collect(),
        };
        let news = liveness != *self.liveness;
        if news {
            self.liveness = Arc::new(liveness);
        }
        news
    }

    /// Looks again how far the gang is, with `clock` for what time it was when something was heard.
    /// None when nothing has changed.
    pub(super) fn refresh_progress(
        &mut self,
        clock: impl Fn(Duration) -> Timestamp,
    ) -> Option<News> {
        let old = &self.progress;
        let newest = self.membership.newest_sign().map(|sign| ProgressSign {
            at: clock(sign.at),
            kind: sign.kind,
        });
        let progress = GangProgress {
            newest,
            step: self.membership.reported_step(),
            is_heard: self.membership.is_heard(),
            asked: self.asked_after(newest),
        };
        if progress == *old {
            return None;
        }
        let is_urgent = progress.is_heard != old.is_heard
            || progress.asked != old.asked
            || progress.newest.is_some() != old.newest.is_some();
        self.progress = progress;
        Some(if is_urgent { News::Urgent } else { News::Quiet })
    }

    /// Asks the ranks of all nodes where they are, unless they were asked already or have moved
    /// since.
    pub(super) fn ask_for_stacks(&mut self, why: &Stalled, now: Timestamp) -> Option<StacksAsked> {
        let newest = self.progress.newest.filter(|sign| sign.at == why.since);
        if newest.is_none() || self.asked_after(newest).is_some() {
            return None;
        }
        let reason = text(&why.message);
        let frame: Frame = match encode(&ToSidecar::Stacks { reason }) {
            Ok(frame) => frame.into(),
            Err(error) => {
                error!(job = %self.gang.job, %error, "failed to encode a message to the sidecars");
                return None;
            }
        };
        // An older one would skip the message.
        let outboxes = self.outboxes.values();
        let able = outboxes.filter(|outbox| outbox.features.stacks);
        let sent = able.filter(|outbox| outbox.frames.try_send(Arc::clone(&frame)).is_ok());
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let asked = StacksAsked {
            at: now,
            nodes: count(sent.count()),
            of: count(self.membership.size()),
        };
        self.asked = Some((why.since, asked));
        Some(asked)
    }

    /// Returns that its ranks were asked for their stacks, if they gave no sign since.
    fn asked_after(&self, newest: Option<ProgressSign>) -> Option<StacksAsked> {
        let (since, asked) = self.asked?;
        newest.filter(|sign| sign.at == since).map(|_| asked)
    }

    /// Notes that those who are left cannot go on; true when that is new. A gang that restarts
    /// after a loss needs no word of ours: its trainers fail by themselves.
    pub(super) fn note_end(&mut self, now: Timestamp) -> bool {
        let shrinks = self.gang.policy.on_peer_loss == OnPeerLoss::Shrink;
        let (true, Some(end), None) = (shrinks, self.membership.broken(), &self.stuck) else {
            return false;
        };
        self.stuck = Some(Stuck {
            job: self.gang.job.clone(),
            attempt: self.gang.attempt,
            since: now,
            message: end.to_string(),
        });
        true
    }

    /// Notes the newest checkpoint of this attempt; none when that is the same as before.
    pub(super) fn note_report(&mut self, attempt: u32) -> Option<CheckpointReport> {
        let Progress {
            step: _,
            loss: _,
            checkpoint,
            passed_over,
        } = self.membership.progress();
        let checkpoint = checkpoint.as_ref()?;
        let report = CheckpointReport {
            job: self.gang.job.clone(),
            attempt,
            checkpoint: checkpoint.clone(),
            passed_over: passed_over.clone(),
        };
        if self.report.as_ref() == Some(&report) {
            return None;
        }
        self.report = Some(report.clone());
        Some(report)
    }

    /// Tells all sidecars that are left that the attempt is over: a kubelet that died does not.
    pub(super) fn void(&mut self, reason: &str) {
        let refused = ToSidecar::Refused {
            reason: reason.to_owned(),
            void: true,
        };
        let outboxes = std::mem::take(&mut self.outboxes).into_values();
        let frame: Frame = match encode(&refused) {
            Ok(frame) => frame.into(),
            Err(error) => {
                error!(job = %self.gang.job, %error, "failed to encode a message to the sidecars");
                return;
            }
        };
        for outbox in outboxes {
            // One that does not read dials again, and gets it then.
            outbox.frames.try_send(Arc::clone(&frame)).ok();
        }
    }

    pub(super) fn send(&mut self, connection: Connection, message: &Arc<MembershipMessage>) {
        let ends = matches!(**message, MembershipMessage::Refused(_));
        let retries = matches!(
            **message,
            MembershipMessage::Refused(HelloRefusal::Connected { .. })
        );
        let sent = match self.outboxes.get(&connection) {
            // One that does not know the word finds out by the end of its connection.
            Some(outbox) if retries && !outbox.features.retry => false,
            Some(outbox) => {
                let frames = outbox.frames.clone();
                let frame = self.encode(message);
                frame.is_some_and(|frame| frames.try_send(frame).is_ok())
            }
            None => false,
        };
        if ends || !sent {
            // Without its outbox the session ends: the sidecar has got the reason, or does not
            // read.
            self.outboxes.remove(&connection);
        }
    }

    /// What was sent is encoded no more.
    pub(super) fn sent(&mut self) {
        self.encoded = None;
    }

    fn encode(&mut self, message: &Arc<MembershipMessage>) -> Option<Frame> {
        if let Some((encoded, frame)) = &self.encoded
            && Arc::ptr_eq(encoded, message)
        {
            return Some(Arc::clone(frame));
        }
        let encoded = encode(&to_sidecar(message));
        match encoded {
            Ok(frame) => {
                let frame: Frame = frame.into();
                self.encoded = Some((Arc::clone(message), Arc::clone(&frame)));
                Some(frame)
            }
            Err(error) => {
                error!(job = %self.gang.job, %error, "failed to encode a message to the sidecars");
                None
            }
        }
    }
}
