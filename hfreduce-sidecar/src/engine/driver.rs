//! The machine of an epoch, with what it has asked for and is not carried out yet.

use std::time::Duration;

use collective::machine::{Config, Effect, GroupId, Input, Machine, Start};
use collective::work_queue::WorkQueue;

use super::flight_recorder::FlightRecorder;
use super::members::Members;

#[derive(Debug)]
pub(super) struct Driver {
    machine: Machine,
    config: Config,
    agenda: WorkQueue,
    scratch: Vec<Effect>,
}

impl Driver {
    pub(super) fn new(config: Config, now: Duration) -> Self {
        Self {
            machine: Machine::new(config.clone(), now),
            config,
            agenda: WorkQueue::default(),
            scratch: Vec::new(),
        }
    }

    /// A machine for the next epoch. `starts`: where its groups begin, if it is not the first.
    pub(super) fn enter(&mut self, config: Config, starts: Option<Vec<Start>>, now: Duration) {
        self.machine = Machine::resume(config.clone(), starts.unwrap_or_default(), now);
        self.config = config;
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn handle(
        &mut self,
        now: Duration,
        input: Input,
        members: &Members,
        flight_recorder: &mut FlightRecorder,
    ) {
        flight_recorder.take(now, &input, |node| members.rank_of(node));
        self.machine.handle(now, input, &mut self.scratch);
        self.take_up(now, members, flight_recorder);
    }

    /// Part of a frame has come from a neighbour.
    pub(super) fn on_alive(
        &mut self,
        now: Duration,
        peer: usize,
        members: &Members,
        flight_recorder: &mut FlightRecorder,
    ) {
        self.machine.on_alive(now, peer, &mut self.scratch);
        self.take_up(now, members, flight_recorder);
    }

    fn take_up(&mut self, now: Duration, members: &Members, recorder: &mut FlightRecorder) {
        for effect in self.scratch.drain(..) {
            recorder.give(now, &effect, |node| members.rank_of(node));
            self.agenda.push(effect);
        }
    }

    /// What is to be carried out next, and whether others get their turn after it.
    pub(super) fn next(&mut self) -> Option<(Effect, bool)> {
        let effect = self.agenda.pop()?;
        let yields = self.agenda.yields(&effect);
        Some((effect, yields))
    }

    /// Whether nothing is to be carried out.
    pub(super) fn is_done(&self) -> bool {
        self.agenda.is_empty()
    }

    /// Whether nothing waits to be sent.
    pub(super) fn has_said_all(&self) -> bool {
        self.agenda.has_said_all()
    }

    /// How much waits to be sent.
    pub(super) fn unsaid(&self) -> usize {
        self.agenda.unsaid()
    }

    /// What is computed for a group goes before what is for groups of a lower priority.
    pub(super) fn prefer(&mut self, group: GroupId, priority: i8) {
        self.agenda.prefer(group, priority);
    }

    pub(super) fn forget_group(&mut self, group: GroupId) {
        self.agenda.forget(group);
    }
}
