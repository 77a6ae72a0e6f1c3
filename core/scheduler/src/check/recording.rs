//! What a record may say, given the one before it.

use std::collections::BTreeSet;

use super::{Facts, NO_LOST_SAVE, ONE_END, Outcome, RECORD_FIRST, Replay, ensure, is_lost_member};
use crate::snapshot::{Job, PodState};
use crate::status::{ConditionKind, JobPhase, JobStatus};

/// Whether nothing changes but what is known of a checkpoint.
fn learns_at_most(old: &JobStatus, new: &JobStatus) -> bool {
    let mut known = new.clone();
    known.last_checkpoint.clone_from(&old.last_checkpoint);
    known.checkpoint_at = old.checkpoint_at;
    let durable = ConditionKind::CheckpointDurable;
    match old.conditions.get(&durable) {
        Some(before) => known.conditions.insert(durable, before.clone()),
        None => known.conditions.remove(&durable),
    };
    known == *old
}

/// Returns the ranks that have ended well in an attempt, as a status says.
fn completed(status: &JobStatus, attempt: u32) -> Option<&BTreeSet<u32>> {
    let completed = status.completed.as_ref();
    let completed = completed.filter(|completed| completed.attempt == attempt);
    completed.map(|completed| &completed.ranks)
}

impl<'a> Facts<'a> {
    pub(super) fn record(&self, replay: &Replay<'a>, new: &JobStatus) -> Outcome {
        let old = replay.status;
        let end = |status: &JobStatus| match status.phase {
            JobPhase::Succeeded => (true, false),
            JobPhase::Failed => (false, true),
            JobPhase::Queued
            | JobPhase::Assigned
            | JobPhase::Starting
            | JobPhase::Running
            | JobPhase::Interrupting
            | JobPhase::Restarting
            | JobPhase::Suspended => (false, false),
        };
        let said = (
            new.is(ConditionKind::Complete),
            new.is(ConditionKind::Failed),
        );
        ensure(said == end(new), ONE_END, || {
            format!("phase {:?} with (Complete, Failed) = {said:?}", new.phase)
        })?;
        let ended = old.phase.is_terminal();
        ensure(!ended || learns_at_most(old, new), ONE_END, || {
            "a finished job changes".to_owned()
        })?;
        ensure(!replay.job.deleting, ONE_END, || {
            "a job being deleted changes".to_owned()
        })?;
        let grows = new.attempt >= old.attempt
            && new.attempt <= old.attempt + 1
            && new.restarts <= old.restarts + 1
            && new.restarts + self.forgiven(old) >= old.restarts
            && new.restarts <= replay.job.max_restarts.max(old.restarts);
        ensure(grows, ONE_END, || "attempt or restarts jump".to_owned())?;
        let order = |status: &JobStatus| {
            status
                .last_checkpoint
                .as_ref()
                .map(|last| (last.attempt, last.step))
        };
        ensure(order(new) >= order(old), NO_LOST_SAVE, || {
            "the checkpoint goes back".to_owned()
        })?;
        Self::promises_little(replay, new)?;
        self.promises_as_long(replay, new)?;
        let fresh = new.attempt > old.attempt;
        let legal = if fresh {
            new.phase == JobPhase::Assigned && !old.phase.holds_nodes()
        } else {
            old.phase.holds_nodes() || !new.phase.holds_nodes()
        };
        ensure(legal, RECORD_FIRST, || {
            format!(
                "{:?} {} to {:?} {}",
                old.phase, old.attempt, new.phase, new.attempt
            )
        })?;
        // Only the rendezvous says who takes part, and only a new attempt begins with all.
        let same = new.membership == old.membership || fresh && new.membership.is_none();
        ensure(same, RECORD_FIRST, || "the members change".to_owned())?;
        let well = self.ended_well(replay.job, new.attempt);
        Self::remembers_ends(old, new, &well)?;
        if new.phase != JobPhase::Succeeded || ended {
            return Ok(());
        }
        let member = |rank: &u32| !is_lost_member(new, new.attempt, *rank);
        let mut members = (0..replay.job.nodes).filter(member);
        ensure(members.all(|rank| well.contains(&rank)), ONE_END, || {
            format!("Succeeded with {} ranks that did", well.len())
        })
    }

    /// Ranks of an attempt that ended well: as their pods say, also those that are gone, or the
    /// status as it was read.
    fn ended_well(&self, job: &Job, attempt: u32) -> BTreeSet<u32> {
        let pods = self.gang(job, attempt);
        let pods = pods.filter(|pod| pod.state == PodState::Succeeded);
        let gone = (&job.key, attempt, 0)..=(&job.key, attempt, u32::MAX);
        let gone = self.departed.range(gone).map(|(_, _, rank)| *rank);
        let known = completed(&job.status, attempt).into_iter().flatten();
        pods.map(|pod| pod.rank)
            .chain(gone)
            .chain(known.copied())
            .collect()
    }

    /// Checks that the ranks that have ended well stay on record while the attempt holds nodes, and
    /// that no other rank is on record.
    fn remembers_ends(old: &JobStatus, new: &JobStatus, well: &BTreeSet<u32>) -> Outcome {
        if new.completed == old.completed {
            return Ok(());
        }
        let before = completed(old, new.attempt);
        let after = completed(new, new.attempt);
        let kept = match (before, after) {
            (None, _) => true,
            (Some(before), Some(after)) => before.is_subset(after),
            (Some(_), None) => !new.phase.holds_nodes(),
        };
        ensure(kept, ONE_END, || {
            "it is forgotten who ended well".to_owned()
        })?;
        let seen = after.is_none_or(|after| after.is_subset(well));
        let of_this = new.completed.is_none() || after.is_some();
        ensure(seen && of_this, ONE_END, || {
            format!("{:?} are said to have ended well", new.completed)
        })
    }

    /// How many failures are outside the window.
    fn forgiven(&self, status: &JobStatus) -> u32 {
        let window = self.policy.restart_window;
        let old = status.restart_times.iter();
        let old = old.filter(|when| **when + window <= self.now).count();
        u32::try_from(old).unwrap_or(u32::MAX)
    }
}
