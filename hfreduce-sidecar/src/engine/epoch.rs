//! The engine from one epoch to the next: it stops, says how far it is, and goes on with those who are left. Its
//! processes notice nothing but the time it takes: their calls, inputs and results stay where they are.

use collective::machine::{Config, FORWARDING, GroupId, Input, WORLD};
use collective::recovery::{EpochReport, Resume, Retained};
use collective::session::Begun;
use hfreduce_client::entry::FailureKind;
use std::collections::BTreeMap;
use std::time::Duration;
use tracing::{info, warn};

use super::driver::Driver;
use super::links::Links;
use super::{Engine, Error};
use crate::frame::Link;
use crate::linker::Linker;
use crate::memory::Sizes;

/// How long what is said at the end of an epoch may take to leave.
const DRAIN_BYTES: Duration = Duration::from_millis(100);

/// What an epoch needs.
#[derive(Debug)]
pub struct Epoch {
    /// This node among the members, their layout and trees, limits.
    pub config: Config,
    /// The rank in the attempt of each member.
    pub members: Vec<u32>,
    /// Authenticated connections to all neighbours, by their place among the members.
    pub links: BTreeMap<usize, Link>,
    /// Makes further ones, for groups.
    pub linker: Option<Linker>,
    /// What it begins with, if it is not the first.
    pub resume: Option<Resume>,
}

/// A command to the running engine.
#[derive(Debug)]
pub enum EngineCommand {
    /// Stop in this epoch.
    Stop,
    /// Go on in this one.
    Enter(Box<Epoch>),
    /// There will be no other: everything fails, for this reason.
    GiveUp(String),
    /// The same, and also if the epoch is not over.
    Void(String),
}

/// What the engine reports.
#[derive(Debug)]
pub enum Notice {
    /// It has stopped, and is so far.
    Stopped {
        /// In which epoch.
        epoch: u32,
        /// How far.
        report: EpochReport,
    },
    /// A process of the trainer is gone.
    RankLost,
}

/// The edges of a group as memory.
pub(super) fn sizes(driver: &Driver, group: GroupId, links: &Links) -> Sizes {
    let (machine, config) = (driver.machine(), driver.config());
    let (borrows, receives) = machine
        .receives(group)
        .into_iter()
        .partition(|(peer, tree)| *tree != FORWARDING && links.receives_in_place(*peer));
    Sizes {
        receives,
        borrows,
        sends: machine.sends(group),
        slots: config.slots,
        chunk_bytes: config.chunk_bytes,
    }
}

impl Engine {
    /// Carries out the commands.
    pub(super) fn on_command(&mut self) -> Result<(), Error> {
        while let Some(command) = self.control.next() {
            match command {
                EngineCommand::Stop => self.handle(Input::Revoke),
                EngineCommand::Enter(epoch) => self.enter(*epoch)?,
                EngineCommand::GiveUp(reason) => self.give_up(&reason),
                EngineCommand::Void(reason) => {
                    self.give_up(&reason);
                    self.handle(Input::Revoke);
                }
            }
        }
        self.take_links();
        self.finish_stop();
        Ok(())
    }

    fn finish_stop(&mut self) {
        let Some((since, _)) = self.control.stopping() else {
            return;
        };
        if !self.has_said_all() && since < DRAIN_BYTES {
            return;
        }
        // Nothing of this epoch is read or written from here on.
        for peer in self.links.peers() {
            self.drop_link(peer);
        }
        self.inbound.forget_frames();
        while self.carry_out() {}
        if !self.driver.machine().is_idle() || !self.inbound.is_empty() {
            return; // Nobody may be given bytes that workers still write.
        }
        let stopped = self.control.stopping();
        let Some(report) = stopped.and_then(|(_, own)| self.local.ranks_mut().report(own)) else {
            return; // What its processes say is what this node reports.
        };
        self.control.stopped();
        let epoch = self.driver.config().fence.epoch;
        info!(epoch, ?report, "stopped; waiting for the next epoch");
        self.control.notify(Notice::Stopped { epoch, report });
    }

    /// Goes on with the members of an epoch.
    fn enter(&mut self, epoch: Epoch) -> Result<(), Error> {
        let Epoch {
            config,
            members,
            links,
            linker,
            resume,
        } = epoch;
        config.check()?;
        info!(
            epoch = config.fence.epoch,
            ?members,
            "going on in a new epoch"
        );
        let ranks: Vec<usize> = members.iter().map(|rank| *rank as usize).collect();
        let has_lost_memory = self.local.ranks().has_lost_memory();
        let Begun { over, starts } = self.local.ranks_mut().begin(resume.as_ref(), &ranks);
        for group in over {
            self.memory.drop_results(group);
            self.forget_group(group);
        }
        let now = self.now();
        let served: Vec<(GroupId, Retained)> = starts
            .iter()
            .flatten()
            .flat_map(|start| {
                let group = start.resume.group;
                let served = start.resume.served.iter();
                served.map(move |served| (group, served.retained))
            })
            .collect();
        self.driver.enter(config, starts, now);
        self.links = Links::new(links, linker);
        self.memory
            .set_edges(&sizes(&self.driver, WORLD, &self.links))?;
        let now = self.now();
        let epoch = self.driver.config().fence.epoch;
        self.telemetry.enter(now, epoch, &members);
        self.members.enter(members);
        if has_lost_memory {
            self.choose_wait()?;
        }
        for rank in self.local.attached() {
            self.send_members(rank);
        }
        self.watch_links()
            .map_err(|source| Error::Poll(source.into()))?;
        for (group, held) in served {
            if let Err(error) = self.memory.serve((group, held.op), held.bytes) {
                warn!(%error, operation = held.op, "no memory for a result that others have");
                self.handle(Input::Revoke);
            }
        }
        let inputs = self.local.ranks_mut().go_on();
        self.hand_in(inputs);
        self.handle(Input::Tick);
        Ok(())
    }

    /// Everything fails from here on.
    fn give_up(&mut self, reason: &str) {
        warn!(reason, "this node does not go on");
        for (rank, answer) in self.local.ranks_mut().give_up(reason.to_owned()) {
            self.deliver_failure(rank, FailureKind::Broken, reason, answer);
        }
    }
}
