//! One gang as this leader knows it: its membership machine, the way to each sidecar, and since when it is at its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use collective::membership::{Commit, Connection, Membership, Message, OnPeerLoss, Reason, View};
use scheduler::{Heard, Stuck, Timestamp};
use tokio::sync::mpsc;
use tracing::error;
use wire::rendezvous::ToSidecar;

use crate::rendezvous::directory::Gang;

pub(super) struct Meeting {
    pub(super) gang: Gang,
    pub(super) membership: Membership,
    pub(super) outboxes: BTreeMap<Connection, mpsc::Sender<ToSidecar>>,
    /// Why it cannot go on, where it should have.
    pub(super) stuck: Option<Stuck>,
    /// Which nodes are heard, as published last.
    pub(super) heard: Arc<Heard>,
    /// Whether that may have changed since.
    pub(super) is_news: bool,
}

impl Meeting {
    pub(super) fn new(gang: &Gang, last: Option<Commit>, now: Duration) -> Self {
        let nodes = u32::try_from(gang.nodes.len()).unwrap_or(u32::MAX);
        Self {
            membership: Membership::resume(nodes, gang.policy, last, now),
            outboxes: BTreeMap::new(),
            gang: gang.clone(),
            stuck: None,
            heard: Arc::default(),
            is_news: true,
        }
    }

    /// Looks again which nodes are heard. True when that has changed.
    pub(super) fn look_who_is_heard(&mut self) -> bool {
        self.is_news = false;
        let node = |rank: u32| self.gang.nodes.get(usize::try_from(rank).ok()?).cloned();
        let view = self.membership.view();
        // Who is only frozen may come back.
        let gave_up = |reason| matches!(reason, Reason::Dead | Reason::Silent);
        let suspects = view.suspects.iter();
        let given_up = suspects
            .filter(|suspicion| gave_up(suspicion.reason))
            .map(|suspicion| suspicion.rank);
        let heard = Heard {
            heard: self.membership.heard().filter_map(node).collect(),
            quiet: view.quiet.iter().copied().filter_map(node).collect(),
            given_up: given_up.filter_map(node).collect(),
        };
        let news = heard != *self.heard;
        if news {
            self.heard = Arc::new(heard);
        }
        news
    }

    /// How many take part.
    pub(super) fn members(&self) -> usize {
        self.membership.view().members.len()
    }

    /// Notes that those who are left cannot go on. A gang that restarts after a loss needs no word of ours: its
    /// trainers fail by themselves.
    pub(super) fn note_end(&mut self, view: &View, now: Timestamp) {
        let shrinks = self.gang.policy.on_peer_loss == OnPeerLoss::Shrink;
        if let (true, Some(end), None) = (shrinks, &view.broken, &self.stuck) {
            self.stuck = Some(Stuck {
                job: self.gang.job.clone(),
                attempt: self.gang.attempt,
                since: now,
                message: end.to_string(),
            });
        }
    }

    /// Tells all sidecars that are left that the attempt is over: a kubelet that died does not.
    pub(super) fn void(&mut self, reason: &str) {
        for outbox in std::mem::take(&mut self.outboxes).into_values() {
            let refused = ToSidecar::Refused {
                reason: reason.to_owned(),
                void: true,
            };
            // One that does not read dials again, and is told then.
            outbox.try_send(refused).ok();
        }
    }

    pub(super) fn send(&mut self, connection: Connection, message: Message) {
        let refused = matches!(message, Message::Refused(_));
        let outbox = self.outboxes.get(&connection);
        let sent = match rendezvous_codec::to_sidecar(message) {
            Ok(message) => outbox.is_some_and(|outbox| outbox.try_send(message).is_ok()),
            Err(error) => {
                error!(job = %self.gang.job, %error, "a message of ours cannot be said");
                false
            }
        };
        if refused || !sent {
            // Without its outbox the session ends: the sidecar was told, or does not read.
            self.outboxes.remove(&connection);
        }
    }
}
