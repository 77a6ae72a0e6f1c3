//! The processes of this node: who may attach, who is attached, what each has called, and the memory for their inputs.

use std::collections::BTreeMap;

use collective::machine::{GroupId, Input, OpId};
use collective::session::Presence;
use hfreduce_client::attach::{
    self, AttachChannel, ClientMessage, Members, SidecarAnswer, Standing,
};
use link::memory_policy::MemoryPolicy;
use link::ring::{WaitOn, WaitSlot, WakeFor};
use tracing::{info, warn};

use super::poller::Poller;
use super::{CLIENT, CLIENT_WAKE_FD};
use crate::attached_ranks::{AttachedBefore, AttachedRanks};
use crate::background::Background;
use crate::metrics::Metrics;
use crate::session::{Begin, Error, Ranks, Room, Session, SessionEvent, Taken};

#[derive(Debug)]
pub(super) struct Local {
    sessions: BTreeMap<usize, Session>,
    /// What they have called, and those before them.
    ranks: Ranks,
    /// Of the first of them.
    standing: Standing,
    /// Where memory for inputs is made.
    inputs: Background,
    /// Bytes of inputs of each, at most, and where they lie.
    limit_bytes: usize,
    home: MemoryPolicy,
    /// Memory of processes that have left each place, which they may have kept.
    kept_bytes: Vec<usize>,
    /// Where it is noted who is attached and who has left, if operations wait for a sidecar that takes this one's place.
    record: Option<AttachedRanks>,
}

impl Local {
    /// None is attached. `found`: what a sidecar that has ended has noted of them.
    pub(super) fn new(
        standing: Standing,
        inputs: Background,
        (limit_bytes, home): (usize, MemoryPolicy),
        record: Option<AttachedRanks>,
        found: Option<AttachedBefore>,
    ) -> Self {
        let own = standing.rank..standing.rank + standing.local_world;
        let mut ranks = Ranks::new(own, standing.world);
        if let Some(found) = found {
            ranks.expect(found.awaited);
            for (rank, left) in found.left {
                if let Err(error) = ranks.restore(rank, left) {
                    let text = "the record of a process that left cannot be true: waiting for it";
                    warn!(%error, local_rank = rank, "{text}");
                }
            }
        }
        Self {
            sessions: BTreeMap::new(),
            kept_bytes: vec![0; ranks.local()],
            ranks,
            standing,
            inputs,
            limit_bytes,
            home,
            record,
        }
    }

    /// What the processes have called.
    pub(super) fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    pub(super) fn ranks_mut(&mut self) -> &mut Ranks {
        &mut self.ranks
    }

    /// The rank in the attempt of a local one.
    pub(super) fn global(&self, rank: usize) -> u32 {
        self.standing.rank + rank as u32
    }

    /// How many processes each node has.
    pub(super) fn each(&self) -> u32 {
        self.standing.local_world
    }

    /// The attached ones.
    pub(super) fn attached(&self) -> Vec<usize> {
        self.sessions.keys().copied().collect()
    }

    pub(super) fn is_attached(&self, rank: usize) -> bool {
        self.sessions.contains_key(&rank)
    }

    pub(super) fn session(&mut self, rank: usize) -> Option<&mut Session> {
        self.sessions.get_mut(&rank)
    }

    /// Attaches the process at the other end of a connection, if its first message says that it may be: its rank.
    pub(super) fn admit(
        &mut self,
        channel: AttachChannel,
        message: &ClientMessage,
        poller: &Poller,
        metrics: &Metrics,
    ) -> Option<usize> {
        let admitted = self.check(message).and_then(|(rank, begin)| {
            // The next sidecar would not wait for it, and might contradict what was delivered.
            let noted = self
                .record
                .as_ref()
                .map_or(Ok(()), |record| record.note(rank));
            let text = "failed to note it in the run directory";
            noted.map_err(|error| format!("{text}: {error}"))?;
            Ok((rank, begin))
        });
        let (rank, begin) = match admitted {
            Ok(admitted) => admitted,
            Err(reason) => {
                warn!(reason, "refused a local process");
                channel.send(&SidecarAnswer::Refused { reason }, &[]).ok();
                return None;
            }
        };
        let standing = Standing {
            local_rank: rank as u32,
            rank: self.global(rank),
            ..self.standing
        };
        let room = Room {
            limit_bytes: self.limit_bytes,
            kept_bytes: self.kept_bytes[rank],
            home: self.home.clone(),
        };
        let lasts = self.record.is_some();
        let session = match Session::attach(channel, standing, room, begin, lasts) {
            Ok(session) => session,
            Err(error) => {
                warn!(%error, rank, "failed to attach a local process");
                return None;
            }
        };
        let watched = poller
            .watch(session.channel(), CLIENT | rank as u64)
            .and_then(|()| poller.watch(&session.wake_fd, CLIENT_WAKE_FD | rank as u64));
        if let Err(error) = watched {
            warn!(%error, rank, "failed to poll a local process");
            return None;
        }
        let (delivered, rank_of_all) = (begin.delivered(), standing.rank);
        info!(
            local_rank = rank,
            rank = rank_of_all,
            delivered,
            "process attached"
        );
        self.ranks.attach(rank, delivered);
        self.sessions.insert(rank, session);
        metrics.clients.set(self.sessions.len() as i64);
        Some(rank)
    }

    /// Whether the sender of a first message may attach: as which rank, and where it begins.
    fn check(&self, message: &ClientMessage) -> Result<(usize, Begin), String> {
        let &ClientMessage::Attach {
            version,
            local_rank,
            again,
            groups,
        } = message
        else {
            return Err("the first message must be `attach`".to_owned());
        };
        if version != attach::VERSION {
            return Err(format!(
                "the client speaks version {version}, this sidecar {}: use the wheel and the sidecar \
                 of one release",
                attach::VERSION
            ));
        }
        let rank = local_rank as usize;
        match self.ranks.presence(rank) {
            Some(Presence::Absent) => {}
            Some(Presence::Attached) => {
                return Err(format!("local rank {rank} is attached already"));
            }
            Some(Presence::Departed | Presence::Lost) => {
                return Err(format!(
                    "local rank {rank} has attached and left before; the attempt has to start again"
                ));
            }
            None => {
                return Err(format!(
                    "there is no local rank {rank}: this node has {} processes",
                    self.ranks.local()
                ));
            }
        }
        match again {
            None => Ok((rank, Begin::Afresh)),
            Some(_) if groups as usize > attach::GROUP_LIMIT => Err(format!(
                "local rank {rank} would reopen {groups} groups; {} are the most",
                attach::GROUP_LIMIT
            )),
            Some(delivered) if delivered < attach::OPERATION_LIMIT && self.ranks.expects(rank) => {
                Ok((rank, Begin::Again { delivered, groups }))
            }
            Some(delivered) => Err(format!(
                "local rank {rank} says that it has the outcomes of {delivered} operations before, which this \
                 sidecar knows nothing of; the attempt has to start again"
            )),
        }
    }

    /// Sends a process the members of an epoch of these nodes.
    pub(super) fn send_members(
        &self,
        rank: usize,
        epoch: u32,
        members: &[u32],
    ) -> Result<(), Error> {
        let members = Members::new(epoch.into(), members, self.standing.local_world);
        let session = self.sessions.get(&rank);
        session.map_or(Ok(()), |session| session.send_members(members))
    }

    /// Says to a process whom its operation waits for.
    pub(super) fn send_whom(&self, rank: usize, whom: String) -> Result<(), Error> {
        let session = self.sessions.get(&rank);
        session.map_or(Ok(()), |session| session.send_whom(whom))
    }

    /// Answers what came over the socket of a process.
    pub(super) fn read_socket(&mut self, rank: usize) -> Result<SessionEvent, Error> {
        let session = self.sessions.get_mut(&rank);
        let event = session.map(|session| session.read_socket(&mut self.ranks, &mut self.inputs));
        let event = event.unwrap_or(Ok(SessionEvent::Nothing))?;
        self.note_returned(rank);
        Ok(event)
    }

    /// A process has perhaps said all that it remembers.
    pub(super) fn note_returned(&mut self, rank: usize) {
        if self.sessions.get(&rank).is_some_and(Session::is_restored) {
            self.ranks.returned(rank);
        }
    }

    /// The next entry of a process's ring.
    pub(super) fn take(&mut self, rank: usize) -> Result<Option<Taken>, Error> {
        let session = self.sessions.get_mut(&rank);
        session.map_or(Ok(None), |session| session.take(&mut self.ranks))
    }

    /// Answers processes whose segments have been made since: those that are lost.
    pub(super) fn answer_requests(&mut self) -> Vec<(usize, Error)> {
        self.each_failed(Session::answer_requests)
    }

    /// These segments of results are gone: processes that are lost.
    pub(super) fn forget_segments(&mut self, gone: &[u32]) -> Vec<(usize, Error)> {
        self.each_failed(|session| gone.iter().try_for_each(|number| session.forget(*number)))
    }

    fn each_failed(
        &mut self,
        act: impl Fn(&mut Session) -> Result<(), Error>,
    ) -> Vec<(usize, Error)> {
        let sessions = self.sessions.iter_mut();
        let failed = sessions.filter_map(|(&rank, session)| Some((rank, act(session).err()?)));
        failed.collect()
    }

    /// A process has notified the engine.
    pub(super) fn wake(&self, rank: usize, poller: &Poller) {
        if let Some(session) = self.sessions.get(&rank)
            && !session.wake_fd.clear()
        {
            // Closed, so it can be read for ever. Whether it has left, and how, is said over its socket.
            poller.forget(&session.wake_fd);
        }
    }

    /// A process is not there any more: the operations whose results it held.
    pub(super) fn close(
        &mut self,
        rank: usize,
        poller: &Poller,
        metrics: &Metrics,
    ) -> Vec<(GroupId, OpId)> {
        let Some(mut session) = self.sessions.remove(&rank) else {
            return Vec::new();
        };
        self.kept_bytes[rank] += session.input_bytes();
        // A model's worth of it takes long to unmap.
        self.inputs.drop_there(session.take_inputs());
        poller.forget(session.channel());
        poller.forget(&session.wake_fd);
        metrics.clients.set(self.sessions.len() as i64);
        session.holds().collect()
    }

    /// A process leaves in good order, and is noted; it is closed next. What the machine has to know.
    pub(super) fn detach(&mut self, rank: usize) -> Option<Input> {
        let record = self.record.as_ref();
        let text = "the next sidecar will wait for a process that left";
        let Some((departed, left)) = self.ranks.detach(rank) else {
            if let Some(Err(error)) = record.map(|record| record.strike(rank)) {
                warn!(%error, local_rank = rank, "{text}");
            }
            return None;
        };
        if let Some(Err(error)) = record.map(|record| record.note_left(rank, departed)) {
            warn!(%error, local_rank = rank, "{text}");
        }
        left
    }

    /// For each rank: how many calls wait for their turn, and whether one waits for memory.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (usize, usize, bool)> {
        let ranks = 0..self.ranks.local();
        ranks.map(|rank| (rank, self.ranks.waiting(rank), self.ranks.is_stalled(rank)))
    }

    /// Whether some ring holds something.
    pub(super) fn have_entries(&self) -> bool {
        self.sessions.values().any(Session::has_entry)
    }

    /// Announces that the engine is about to sleep. False when there is an entry; an error is that of a rank.
    pub(super) fn sleep(&self, how: WaitOn, depth: WakeFor) -> Result<bool, (usize, Error)> {
        for (&rank, session) in &self.sessions {
            if !session.sleep(how, depth).map_err(|error| (rank, error))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where the engine sleeps until one of them calls.
    pub(super) fn wait_slots(&self) -> impl Iterator<Item = WaitSlot> {
        self.sessions.values().map(Session::wait_slot)
    }

    /// Announces that the engine looks at the rings again.
    pub(super) fn awake(&self) {
        self.sessions.values().for_each(Session::awake);
    }
}
