//! Giving nodes: which ones an attempt may have, and that its pods are whole and where it says.

use std::collections::{BTreeMap, BTreeSet};

use topology::{NodeName, Zone};

use super::{
    CROSSING_LIMIT, FINALIZER_WHILE_HELD, Facts, GANG_WHOLE, HEALTHY_NODES, NO_LOST_SAVE,
    ONE_GANG_PER_NODE, Outcome, POD_ACCEPTED, RECORD_FIRST, Replay, ensure,
};
use crate::node::{Ready, Wish};
use crate::plan::NewAttempt;
use crate::snapshot::{DryRun, Job, Node, ZonePolicy};
use crate::status::JobPhase;

impl<'a> Facts<'a> {
    pub(super) fn create_attempt(
        &mut self,
        replay: &mut Replay<'a>,
        attempt: &'a NewAttempt,
    ) -> Outcome {
        let job = replay.job;
        let recorded = replay.status.phase == JobPhase::Assigned
            && replay.status.attempt == attempt.number
            && !self.held.contains_key(&job.key);
        ensure(recorded, RECORD_FIRST, || {
            format!("attempt {} is not recorded", attempt.number)
        })?;
        ensure(replay.finalizer, FINALIZER_WHILE_HELD, || {
            "no finalizer".to_owned()
        })?;
        ensure(job.dry_run == DryRun::Accepted, POD_ACCEPTED, || {
            format!("the dry run of the first pod: {:?}", job.dry_run)
        })?;
        let count = attempt.nodes.len();
        ensure(count == job.nodes as usize, GANG_WHOLE, || {
            format!("{count} nodes for a job of {}", job.nodes)
        })?;
        for place in &attempt.nodes {
            let known = self.nodes.get(&place.node).filter(|node| {
                let here = node.zone == place.zone && node.leaf == place.leaf;
                here && self.is_sound(node, job)
            });
            ensure(known.is_some(), HEALTHY_NODES, || {
                format!("node {}", place.node)
            })?;
            ensure(self.taken.insert(&place.node), ONE_GANG_PER_NODE, || {
                format!("node {} is taken", place.node)
            })?;
        }
        self.keeps_promises(job, attempt)?;
        self.crossing(job, attempt)?;
        replay.created = Some(attempt);
        Ok(())
    }

    /// Whether the job could be placed on the node, now or once it is free.
    pub(super) fn is_sound(&self, node: &Node, job: &Job) -> bool {
        match &job.pin {
            None => self.states.is_usable(&node.name) && node.class == job.class,
            Some(pin) => *pin == node.name && self.is_there(node),
        }
    }

    /// Whether something can run on the node at all.
    fn is_there(&self, node: &Node) -> bool {
        let goes = node.wishes.contains_key(&Wish::Deleted);
        let is_open = node.ready == Ready::True && node.taint.is_none();
        is_open && !goes && !self.states.is_lost(&node.name)
    }

    /// The nodes of the job's class in the zone that has most of them, busy or not: how many are
    /// healthy, and how many there are.
    fn largest_zone(&self, job: &Job) -> (usize, usize) {
        let mut zones: BTreeMap<&Zone, (usize, usize)> = BTreeMap::new();
        for node in self.nodes.values().filter(|node| node.class == job.class) {
            let (sound, all) = zones.entry(&node.zone).or_default();
            *sound += usize::from(self.is_sound(node, job));
            *all += 1;
        }
        let healthy = zones.values().map(|(sound, _)| *sound).max();
        let total = zones.values().map(|(_, all)| *all).max();
        (healthy.unwrap_or(0), total.unwrap_or(0))
    }

    /// Zones are contiguous, at most two, one if it would do, and the limit is kept.
    fn crossing(&mut self, job: &'a Job, attempt: &NewAttempt) -> Outcome {
        let borders = attempt
            .nodes
            .windows(2)
            .filter(|pair| pair[0].zone != pair[1].zone)
            .count();
        ensure(attempt.crossing == (borders > 0), CROSSING_LIMIT, || {
            format!(
                "{borders} borders in an attempt with crossing = {}",
                attempt.crossing
            )
        })?;
        if borders == 0 {
            return Ok(());
        }
        let (largest, total) = self.largest_zone(job);
        ensure(largest < job.nodes as usize, CROSSING_LIMIT, || {
            format!("one zone has {largest} healthy nodes")
        })?;
        let since = job.status.no_zone_since;
        let patient = since.is_some_and(|since| since + self.policy.crossing_patience <= self.now);
        ensure(
            patient || total < job.nodes as usize,
            CROSSING_LIMIT,
            || format!("one zone has {total} nodes, and may soon have that many healthy ones"),
        )?;
        self.crossing.insert(&job.key);
        let crossing = self.crossing.union(self.promises.crossing()).count();
        let allowed = borders == 1
            && job.zone_policy != ZonePolicy::Single
            && crossing <= self.policy.max_cross_zone_jobs as usize;
        ensure(allowed, CROSSING_LIMIT, || {
            format!("{borders} borders, {crossing} jobs cross or may")
        })
    }

    /// A key belongs to an attempt that is decided.
    pub(super) fn create_key(&self, replay: &mut Replay<'a>, attempt: u32) -> Outcome {
        let new = replay.created.map(|new| new.number);
        let old = self.held.get(&replay.job.key).map(|old| old.number);
        ensure(new.or(old) == Some(attempt), RECORD_FIRST, || {
            format!("the key of attempt {attempt}, which is not decided")
        })?;
        replay.key = Some(attempt);
        Ok(())
    }

    pub(super) fn create_pod(
        &self,
        replay: &mut Replay<'a>,
        attempt: u32,
        rank: u32,
        node: &NodeName,
        finalizer: bool,
    ) -> Outcome {
        let status = replay.status;
        let current = status.attempt == attempt && status.phase == JobPhase::Assigned;
        ensure(current && !replay.job.deleting, RECORD_FIRST, || {
            format!(
                "pod of attempt {attempt} in phase {:?} {}",
                status.phase, status.attempt
            )
        })?;
        // One that is created in this plan is not there yet, or the plan ends where it turns out to
        // be.
        let known = replay.created.is_none();
        let sure = !known || !self.doubtful.contains(&(&replay.job.key, attempt));
        ensure(sure, RECORD_FIRST, || {
            format!("pod of attempt {attempt}, whose assignment is in doubt")
        })?;
        let has_key = replay.key == Some(attempt) || replay.job.pin.is_some();
        ensure(has_key, RECORD_FIRST, || {
            format!("pod of attempt {attempt} before its key")
        })?;
        let decided = match replay.created {
            Some(new) => new.nodes.get(rank as usize).map(|place| &place.node),
            None => self
                .held
                .get(&replay.job.key)
                .and_then(|old| old.nodes.get(rank as usize)),
        };
        ensure(decided == Some(node), GANG_WHOLE, || {
            format!("rank {rank} is not on {node}")
        })?;
        ensure(!self.occupied.contains(node), ONE_GANG_PER_NODE, || {
            format!("node {node} is occupied")
        })?;
        let last_word = rank == 0 || replay.job.shrinks;
        ensure(finalizer || !last_word, NO_LOST_SAVE, || {
            format!("rank {rank} may acknowledge, and its pod would not wait for the record")
        })?;
        let fresh = replay.ranks.insert((attempt, rank));
        ensure(fresh, GANG_WHOLE, || format!("rank {rank} twice"))
    }

    /// A job that gets pods gets all of them. One that is held back gets them later.
    pub(super) fn gang_is_whole(&self, replay: &Replay<'a>) -> Outcome {
        let needs_none = replay.created.is_none() || replay.job.hold.is_some();
        if needs_none && replay.ranks.is_empty() {
            return Ok(());
        }
        let attempt = replay.status.attempt;
        let mut ranks: BTreeSet<u32> = replay.ranks.iter().map(|(_, rank)| *rank).collect();
        ranks.extend(self.gang(replay.job, attempt).map(|pod| pod.rank));
        ensure(
            ranks.into_iter().eq(0..replay.job.nodes),
            GANG_WHOLE,
            || format!("attempt {attempt} does not get all its pods"),
        )
    }
}
