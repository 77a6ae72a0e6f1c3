//! The rendezvous of one attempt, as a step function: who is there, where, and when all may start. Owns the
//! order hello - roster - joined - go, its reconstruction by a new leader, and the collection of suspicions.
//! Leaves connections, encoding and authentication to the operator, and every decision about a broken gang to
//! the scheduler. The in-memory form for benches without a cluster is the same code.
//!
//! A new leader starts with an empty memory. Sidecars dial again and say which epoch they joined, so it learns
//! that the gang runs without disturbing it. Epochs start at 1; a commit of the next one starts a new roster
//! and is the next capability to be added here.

mod types;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub use types::{
    Break, Checkpoint, Connection, Effect, Endpoint, Event, Message, Phase, Progress, Reason,
    Refusal, Suspicion, View,
};

/// The first epoch of every attempt.
pub const FIRST_EPOCH: u64 = 1;
/// Silence after which a rank counts as quiet: three heartbeats of one second, and some way to go.
pub const QUIET: Duration = Duration::from_millis(3500);

/// A rank this leader has heard of.
#[derive(Clone, Debug)]
struct Member {
    endpoint: Endpoint,
    connection: Option<Connection>,
    joined: bool,
    left: bool,
    heard: Duration,
}

/// The rendezvous of one attempt.
#[derive(Clone, Debug)]
pub struct Membership {
    nodes: u32,
    epoch: u64,
    now: Duration,
    members: BTreeMap<u32, Member>,
    /// The rank behind each live connection.
    connections: BTreeMap<Connection, u32>,
    /// By (suspect, accuser), so at most nodes x nodes, in practice neighbours.
    suspects: BTreeMap<(u32, u32), Reason>,
    broken: Option<Break>,
    progress: Progress,
    /// What [`Effect::Changed`] last announced.
    announced: View,
}

impl Membership {
    /// An attempt over nodes `0..nodes` of which nothing is known yet.
    #[must_use]
    pub fn new(nodes: u32) -> Self {
        let announced = View {
            epoch: FIRST_EPOCH,
            phase: Phase::Gathering {
                missing: (0..nodes).collect(),
            },
            suspects: Vec::new(),
            broken: None,
            left: Vec::new(),
            quiet: Vec::new(),
            progress: Progress::default(),
        };
        Self {
            nodes,
            epoch: FIRST_EPOCH,
            now: Duration::ZERO,
            members: BTreeMap::new(),
            connections: BTreeMap::new(),
            suspects: BTreeMap::new(),
            broken: None,
            progress: Progress::default(),
            announced,
        }
    }

    /// Takes one event and appends what has to be done. `now` is any monotonic time.
    pub fn handle(&mut self, now: Duration, event: Event, effects: &mut Vec<Effect>) {
        self.now = now;
        match event {
            Event::Hello {
                connection,
                rank,
                endpoint,
                joined,
            } => {
                self.hello(connection, rank, endpoint, joined, effects);
            }
            Event::Joined { connection, epoch } => self.joined(connection, epoch, effects),
            Event::Heartbeat {
                connection,
                progress,
            } => {
                if !self.heartbeat(connection, progress) {
                    return;
                }
            }
            Event::Suspect {
                connection,
                epoch,
                rank,
                reason,
            } => {
                self.suspect(connection, epoch, rank, reason);
            }
            Event::Bye { connection } => {
                if let Some(member) = self.hear(connection) {
                    member.left = true;
                }
            }
            Event::Disconnected { connection } => self.disconnected(connection),
            Event::Tick => {}
        }
        let view = self.view();
        if view != self.announced {
            self.announced = view;
            effects.push(Effect::Changed);
        }
    }

    /// When the view changes if nothing happens until then.
    #[must_use]
    pub fn wake_at(&self) -> Option<Duration> {
        let loud = self
            .members
            .iter()
            .filter(|&(rank, member)| !member.left && !self.is_quiet(*rank));
        loud.map(|(_, member)| member.heard + QUIET).min()
    }

    /// What is known.
    #[must_use]
    pub fn view(&self) -> View {
        let unknown = self.ranks_where(|member| member.is_none());
        let apart = self.ranks_where(|member| member.is_none_or(|member| !member.joined));
        let suspects = self
            .suspects
            .iter()
            .map(|(&(rank, by), &reason)| Suspicion { rank, by, reason });
        View {
            epoch: self.epoch,
            phase: match (unknown.is_empty(), apart.is_empty()) {
                (_, true) => Phase::Running,
                (true, false) => Phase::Connecting { missing: apart },
                (false, false) => Phase::Gathering { missing: unknown },
            },
            suspects: suspects.collect(),
            broken: self.broken,
            left: self.ranks_where(|member| member.is_some_and(|member| member.left)),
            quiet: self.ranks_where(|member| {
                member.is_some_and(|member| !member.left && self.now >= member.heard + QUIET)
            }),
            progress: self.progress.clone(),
        }
    }

    fn ranks_where(&self, holds: impl Fn(Option<&Member>) -> bool) -> Vec<u32> {
        (0..self.nodes)
            .filter(|rank| holds(self.members.get(rank)))
            .collect()
    }

    fn hello(
        &mut self,
        connection: Connection,
        rank: u32,
        endpoint: Endpoint,
        joined: Option<u64>,
        effects: &mut Vec<Effect>,
    ) {
        let refuse = |refusal| Effect::Send {
            connection,
            message: Message::Refused(refusal),
        };
        if rank >= self.nodes {
            effects.push(refuse(Refusal::Rank {
                rank,
                nodes: self.nodes,
            }));
            return;
        }
        match joined {
            Some(theirs) if theirs < self.epoch => {
                effects.push(refuse(Refusal::Epoch {
                    theirs,
                    ours: self.epoch,
                }));
                return;
            }
            // An earlier leader got further than this one knows.
            Some(theirs) => self.epoch = theirs,
            None if self.members.get(&rank).is_some_and(|member| member.joined) => {
                let reason = self.break_with(Break::Restarted { rank });
                effects.push(refuse(Refusal::Broken(reason)));
                return;
            }
            None => {}
        }
        let joined = joined.is_some();
        let member = Member {
            endpoint,
            connection: Some(connection),
            joined,
            left: false,
            heard: self.now,
        };
        let earlier = self.members.insert(rank, member);
        self.connections.insert(connection, rank);
        let moved = earlier
            .as_ref()
            .is_none_or(|earlier| earlier.endpoint != endpoint);
        if let Some(old) = earlier.and_then(|earlier| earlier.connection)
            && old != connection
        {
            self.connections.remove(&old);
            let message = Message::Refused(Refusal::Replaced { rank });
            effects.push(Effect::Send {
                connection: old,
                message,
            });
        }
        self.answer_hello(connection, joined, moved, effects);
    }

    /// Those who have not joined need the roster, all of them again when an endpoint is new; those who have
    /// may have missed the go.
    fn answer_hello(
        &self,
        connection: Connection,
        joined: bool,
        moved: bool,
        effects: &mut Vec<Effect>,
    ) {
        if self.members.len() < self.nodes as usize {
            return;
        }
        let endpoints: Vec<Endpoint> = self
            .members
            .values()
            .map(|member| member.endpoint)
            .collect();
        let roster = Message::Roster {
            epoch: self.epoch,
            endpoints,
        };
        if moved {
            self.send_to(|member| !member.joined, &roster, effects);
        } else if !joined {
            effects.push(Effect::Send {
                connection,
                message: roster,
            });
        }
        if self.all_joined() {
            let go = Message::Go { epoch: self.epoch };
            if moved {
                self.send_to(|_| true, &go, effects);
            } else {
                effects.push(Effect::Send {
                    connection,
                    message: go,
                });
            }
        }
    }

    fn joined(&mut self, connection: Connection, epoch: u64, effects: &mut Vec<Effect>) {
        let ours = self.epoch;
        let Some(member) = self.hear(connection) else {
            return;
        };
        if epoch != ours {
            let message = Message::Refused(Refusal::Epoch {
                theirs: epoch,
                ours,
            });
            effects.push(Effect::Send {
                connection,
                message,
            });
            return;
        }
        let again = std::mem::replace(&mut member.joined, true);
        if self.all_joined() && !again {
            self.send_to(|_| true, &Message::Go { epoch }, effects);
        }
    }

    /// Takes a heartbeat; false when it changes nothing that is looked at, which has to cost next to nothing:
    /// every node sends one a second.
    fn heartbeat(&mut self, connection: Connection, progress: Option<Progress>) -> bool {
        let Some(&rank) = self.connections.get(&connection) else {
            return false;
        };
        self.hear(connection);
        let news = progress.is_some();
        if let Some(progress) = progress {
            self.record(progress);
        }
        news || self.is_quiet(rank)
    }

    fn is_quiet(&self, rank: u32) -> bool {
        self.announced.quiet.binary_search(&rank).is_ok()
    }

    fn suspect(&mut self, connection: Connection, epoch: u64, rank: u32, reason: Reason) {
        let Some(&by) = self.connections.get(&connection) else {
            return;
        };
        self.hear(connection);
        if epoch != self.epoch || rank >= self.nodes || rank == by {
            return;
        }
        let known = self.suspects.entry((rank, by)).or_insert(reason);
        *known = reason.min(*known);
        match reason {
            Reason::Dead | Reason::Silent => {
                self.break_with(Break::Lost { rank, by });
            }
            Reason::Frozen => {}
        }
    }

    fn disconnected(&mut self, connection: Connection) {
        if let Some(rank) = self.connections.remove(&connection)
            && let Some(member) = self.members.get_mut(&rank)
        {
            member.connection = None;
        }
    }

    /// Notes a sign of life; `None` for a connection that was replaced or never said hello.
    fn hear(&mut self, connection: Connection) -> Option<&mut Member> {
        let rank = self.connections.get(&connection)?;
        let member = self.members.get_mut(rank)?;
        member.heard = self.now;
        Some(member)
    }

    /// Keeps the newest: reports of different connections may come out of order.
    fn record(&mut self, progress: Progress) {
        let order = |checkpoint: &Checkpoint| (checkpoint.attempt, checkpoint.step);
        self.progress.step = self.progress.step.max(progress.step);
        if progress.checkpoint.as_ref().map(order) > self.progress.checkpoint.as_ref().map(order) {
            self.progress.checkpoint = progress.checkpoint;
        }
    }

    fn break_with(&mut self, reason: Break) -> Break {
        *self.broken.get_or_insert(reason)
    }

    fn all_joined(&self) -> bool {
        let joined: BTreeSet<u32> = self
            .members
            .iter()
            .filter(|(_, member)| member.joined)
            .map(|(&rank, _)| rank)
            .collect();
        self.broken.is_none() && joined.len() == self.nodes as usize
    }

    fn send_to(&self, to: impl Fn(&Member) -> bool, message: &Message, effects: &mut Vec<Effect>) {
        for connection in self
            .members
            .values()
            .filter(|member| to(member))
            .filter_map(|m| m.connection)
        {
            effects.push(Effect::Send {
                connection,
                message: message.clone(),
            });
        }
    }
}

#[cfg(test)]
mod tests;
