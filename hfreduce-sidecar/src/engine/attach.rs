//! Processes that come and go: who may attach, and what becomes of one that leaves or is lost. Every process is lost or
//! leaves alone; what that means for the others is asked of the machine.

use std::time::Duration;

use collective::machine::{GroupId, Input, OpId};
use collective::session::Presence;
use tracing::{debug, info, warn};
use wire::attach::{self, Channel, Standing, ToClient, ToSidecar};

use super::{CLIENT, CLIENT_BELL, Engine, KIND, LISTENER, Notice, VISITOR};
use crate::session::{self, Begin, Heard, Room, Session};

/// Connections of processes that have not said who they are: twice a node's processes.
const VISITOR_LIMIT: usize = 128;
/// How long nobody is let in after one could not be: descriptors may come back.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    pub(super) fn accept(&mut self) {
        match self.listener.accept() {
            Ok(None) => {}
            Ok(Some(_)) if self.visitors.len() >= VISITOR_LIMIT => {
                warn!("too many local connections that do not attach");
            }
            Ok(Some(channel)) => {
                let visitor = self.next_visitor;
                self.next_visitor = (visitor + 1) & !KIND;
                if self.park.watch(&channel, VISITOR | visitor).is_ok() {
                    self.visitors.insert(visitor, channel);
                }
            }
            Err(error) => {
                // Whoever knocks would wake the engine for nothing, without end.
                warn!(%error, "failed to accept a local process, which has to wait");
                self.park.forget(&self.listener);
                self.shut_until = Some(self.now() + ACCEPT_PAUSE);
            }
        }
    }

    /// Lets processes in again, some time after one could not be.
    pub(super) fn reopen(&mut self) {
        if self.shut_until.is_some_and(|until| self.now() >= until)
            && self.park.watch(&self.listener, LISTENER).is_ok()
        {
            self.shut_until = None;
        }
    }

    pub(super) fn greet(&mut self, visitor: u64) {
        let Some(channel) = self.visitors.get(&visitor) else {
            return;
        };
        let message = match channel.receive::<ToSidecar>() {
            Ok(None) => return,
            Ok(Some(message)) => message,
            Err(error) => {
                debug!(%error, "a local connection ended before it attached");
                self.visitors.remove(&visitor);
                return;
            }
        };
        let Some(channel) = self.visitors.remove(&visitor) else {
            return;
        };
        self.park.forget(&channel);
        let reason = match message {
            ToSidecar::Attach {
                version,
                local_rank,
                again,
                groups,
            } if version == attach::VERSION => {
                match self.seat(local_rank as usize, again, groups) {
                    Ok((rank, begin)) => return self.welcome(channel, rank, begin),
                    Err(reason) => reason,
                }
            }
            ToSidecar::Attach { version, .. } => format!(
                "the client speaks version {version}, this sidecar {}: use the wheel and the sidecar \
                 of one release",
                attach::VERSION
            ),
            ToSidecar::Ranks { .. }
            | ToSidecar::Group(_)
            | ToSidecar::Lend { .. }
            | ToSidecar::Allocate { .. }
            | ToSidecar::Free { .. }
            | ToSidecar::Detach => "the first message must be `attach`".to_owned(),
        };
        warn!(reason, "refused a local process");
        channel.send(&ToClient::Refused { reason }, &[]).ok();
    }

    /// Whether a process may attach, and where it begins. `again`: what it says it was told before; `groups`: of how many
    /// it will tell.
    fn seat(
        &self,
        rank: usize,
        again: Option<OpId>,
        groups: u32,
    ) -> Result<(usize, Begin), String> {
        match self.ranks.presence(rank) {
            Some(Presence::Absent) => {
                let begin = match again {
                    None => Begin::Afresh,
                    Some(_) if groups as usize > attach::GROUP_LIMIT => {
                        return Err(format!(
                            "local rank {rank} would tell of {groups} groups; {} are the most",
                            attach::GROUP_LIMIT
                        ));
                    }
                    Some(told) if told < attach::OPERATION_LIMIT && self.ranks.expects(rank) => {
                        Begin::Again { told, groups }
                    }
                    Some(told) => {
                        return Err(format!(
                            "local rank {rank} says that it was told the ends of {told} operations before, which this \
                             sidecar knows nothing of; the attempt has to start again"
                        ));
                    }
                };
                Ok((rank, begin))
            }
            Some(Presence::Attached) => Err(format!("local rank {rank} is attached already")),
            Some(Presence::Departed | Presence::Lost) => Err(format!(
                "local rank {rank} has attached and left before; the attempt has to start again"
            )),
            None => Err(format!(
                "there is no local rank {rank}: this node has {} processes",
                self.ranks.local()
            )),
        }
    }

    fn welcome(&mut self, channel: Channel, rank: usize, begin: Begin) {
        let standing = Standing {
            local_rank: rank as u32,
            rank: self.standing.rank + rank as u32,
            ..self.standing
        };
        let noted = self.welcomed.as_ref().map(|record| record.note(rank));
        if let Some(Err(error)) = noted {
            // The next sidecar would not wait for it, and might contradict what it was told.
            let reason = format!("failed to note it in the run directory: {error}");
            warn!(rank, reason, "refused a local process");
            channel.send(&ToClient::Refused { reason }, &[]).ok();
            return;
        }
        let lasts = self.welcomed.is_some();
        let room = Room {
            limit_bytes: self.limit_bytes,
            kept_bytes: self.kept_bytes[rank],
            home: self.places.inputs.clone(),
        };
        let session = Session::welcome(channel, standing, room, begin, lasts);
        let session = match session {
            Ok(session) => session,
            Err(error) => {
                warn!(%error, rank, "failed to welcome a local process");
                return;
            }
        };
        let watched = self
            .park
            .watch(session.channel(), CLIENT | rank as u64)
            .and_then(|()| self.park.watch(&session.bell, CLIENT_BELL | rank as u64));
        if let Err(error) = watched {
            warn!(%error, rank, "failed to poll a local process");
            return;
        }
        let delivered = begin.delivered();
        info!(
            local_rank = rank,
            rank = standing.rank,
            delivered,
            "process attached"
        );
        self.ranks.attach(rank, delivered);
        self.sessions.insert(rank, session);
        self.metrics.clients.set(self.sessions.len() as i64);
        if !self.ranks.has_lost_memory() {
            self.tell_members(rank);
        }
        self.note_told(rank);
    }

    pub(super) fn hear(&mut self, rank: usize) {
        let Some(session) = self.sessions.get_mut(&rank) else {
            return;
        };
        match session.hear(&mut self.ranks, &mut self.inputs) {
            Ok(Heard::Nothing) => self.note_told(rank),
            Ok(Heard::Detached) => {
                // What it wrote before it left counts.
                self.hurries = true;
                self.take_entries(rank);
                self.hurries = false;
                info!(local_rank = rank, "process detached");
                self.depart(rank);
            }
            Err(error) => self.lose_session(rank, &error),
        }
    }

    /// Answers processes whose segments have been made since.
    pub(super) fn answer_requests(&mut self) {
        let answer = |(rank, session): (&usize, &mut Session)| {
            Some((*rank, session.answer_requests().err()?))
        };
        let failed: Vec<_> = self.sessions.iter_mut().filter_map(answer).collect();
        for (rank, error) in failed {
            self.lose_session(rank, &error);
        }
    }

    pub(super) fn wake(&mut self, rank: usize) {
        if let Some(session) = self.sessions.get(&rank)
            && !session.bell.clear()
        {
            // Closed, so it rings without end. Whether it has left, and how, is said over its socket.
            self.park.forget(&session.bell);
        }
    }

    pub(super) fn lose_session(&mut self, rank: usize, error: &session::Error) {
        if self.sessions.contains_key(&rank) {
            warn!(%error, local_rank = rank, "process lost");
            self.close_session(rank);
            self.ranks.lose(rank);
            self.notices.send(Notice::RankLost).ok();
            self.handle(Input::RankLost { rank });
        }
    }

    fn close_session(&mut self, rank: usize) {
        let Some(mut session) = self.sessions.remove(&rank) else {
            return;
        };
        // A model's worth of it takes long to unmap.
        self.inputs.drop_there(session.take_inputs());
        // Dropping does not remove them: the client holds the same open files.
        self.park.forget(session.channel());
        self.park.forget(&session.bell);
        let held: Vec<(GroupId, OpId)> = session.holds().collect();
        for op in held {
            self.let_go(op);
        }
        self.metrics.clients.set(self.sessions.len() as i64);
    }

    /// A process leaves in good order. One that never called anything may come again.
    fn depart(&mut self, rank: usize) {
        if let Some(session) = self.sessions.get(&rank) {
            self.kept_bytes[rank] += session.lent_bytes();
        }
        self.close_session(rank);
        let record = self.welcomed.as_ref();
        let text = "the next sidecar will wait for a process that left";
        let Some((departed, left)) = self.ranks.detach(rank) else {
            if let Some(Err(error)) = record.map(|record| record.strike(rank)) {
                warn!(%error, local_rank = rank, text);
            }
            return;
        };
        if let Some(Err(error)) = record.map(|record| record.note_left(rank, departed)) {
            warn!(%error, local_rank = rank, text);
        }
        self.hand_in(left);
    }
}
