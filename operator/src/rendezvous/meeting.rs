//! One gang as this leader knows it: its membership machine, the way to each sidecar, and since when it is at its end.

use std::collections::BTreeMap;
use std::time::Duration;

use collective::membership::{Commit, Connection, Endpoint, Membership, Message, OnPeerLoss, View};
use scheduler::{Stuck, Timestamp};
use tokio::sync::mpsc;
use wire::rendezvous::{Peer, ToSidecar};

use crate::rendezvous::directory::Gang;

pub(super) struct Meeting {
    pub(super) gang: Gang,
    pub(super) membership: Membership,
    pub(super) outboxes: BTreeMap<Connection, mpsc::Sender<ToSidecar>>,
    /// Why it cannot go on, where it should have.
    pub(super) stuck: Option<Stuck>,
}

impl Meeting {
    pub(super) fn new(gang: &Gang, last: Option<Commit>, now: Duration) -> Self {
        let nodes = u32::try_from(gang.nodes.len()).unwrap_or(u32::MAX);
        Self {
            membership: Membership::resume(nodes, gang.policy, last, now),
            outboxes: BTreeMap::new(),
            gang: gang.clone(),
            stuck: None,
        }
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

    pub(super) fn send(&mut self, connection: Connection, message: Message) {
        let refused = matches!(message, Message::Refused(_));
        let message = match message {
            Message::Roster { epoch, endpoints } => {
                let nodes = endpoints.into_iter().zip(0..);
                let nodes = nodes.map(|(endpoint, rank)| peer(&(rank, endpoint)));
                ToSidecar::Roster {
                    epoch,
                    nodes: nodes.collect(),
                }
            }
            Message::Go { epoch } => ToSidecar::Go { epoch },
            Message::Revoke { epoch, members } => ToSidecar::Revoke {
                epoch,
                members: members.iter().map(peer).collect(),
            },
            Message::Next {
                epoch,
                members,
                resume,
            } => ToSidecar::Next {
                epoch,
                members: members.iter().map(peer).collect(),
                resume: serde_json::to_value(resume).unwrap_or_default(),
            },
            Message::Refused(refusal) => ToSidecar::Refused {
                reason: refusal.to_string(),
            },
        };
        let sent = self
            .outboxes
            .get(&connection)
            .is_some_and(|outbox| outbox.try_send(message).is_ok());
        if refused || !sent {
            // Without its outbox the session ends: the sidecar was told, or does not read.
            self.outboxes.remove(&connection);
        }
    }
}

fn peer((rank, endpoint): &(u32, Endpoint)) -> Peer {
    Peer {
        rank: *rank,
        address: endpoint.address,
        port: endpoint.port,
    }
}
