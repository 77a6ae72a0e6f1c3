//! Progress of gangs, as the rendezvous of whoever leads hears it: each takes a step a second until
//! its program hangs.

use std::collections::BTreeMap;
use std::time::Duration;

use scheduler::{GangProgress, JobKey, ProgressSign, StacksAsked, Stalled, Timestamp};
use topology::SignKind;

use super::World;

impl World {
    /// The program makes no progress from then on.
    pub(super) fn hang_at(&mut self, job: &JobKey, attempt: u32, millis: u64) {
        let run = self.runs.entry((job.clone(), attempt)).or_default();
        run.hangs_at = Some(millis);
    }

    /// Says if the program makes no progress any more.
    pub(super) fn hangs(&self, job: &JobKey, attempt: u32) -> bool {
        let run = self.runs.get(&(job.clone(), attempt));
        let hangs_at = run.and_then(|run| run.hangs_at);
        hangs_at.is_some_and(|at| at <= self.millis())
    }

    /// Says if it has made no progress for so long that its job wants it ended.
    pub(super) fn has_stalled(&self, job: &JobKey, attempt: u32) -> bool {
        let run = self.runs.get(&(job.clone(), attempt));
        let hung = run.and_then(|run| run.hangs_at).map(Timestamp::from_millis);
        let limit = self.jobs.get(job).and_then(|stored| stored.job.stall);
        // Its last step may be a second older.
        let now = self.now() + Duration::from_secs(1);
        let patience = self.policy.stack_patience;
        hung.zip(limit)
            .is_some_and(|(hung, limit)| hung + limit + patience <= now)
    }

    pub(super) fn progress(&self) -> BTreeMap<(JobKey, u32), GangProgress> {
        let now = self.millis();
        let heard_from = u64::try_from(self.operator.deaf_until.as_millis()).unwrap();
        let runs = self.runs.iter().filter_map(|(key, run)| {
            let started = run.started?;
            let last = run.hangs_at.unwrap_or(now).min(now);
            let step = last.saturating_sub(started) / 1000;
            // A new leader counts from when it hears of a step.
            let at = (started + step * 1000).max(heard_from);
            let at = Timestamp::from_millis(at) + self.clocks.operator;
            let newest = ProgressSign {
                at,
                kind: SignKind::Step,
            };
            let asked = run.asked.filter(|(since, _)| *since == at);
            let progress = GangProgress {
                newest: Some(newest),
                step: Some(step),
                is_heard: !run.broken && !run.saving && now >= heard_from,
                asked: asked.map(|(_, at)| StacksAsked {
                    at,
                    nodes: 1,
                    of: 1,
                }),
            };
            Some((key.clone(), progress))
        });
        if now >= heard_from {
            runs.collect()
        } else {
            BTreeMap::new()
        }
    }

    /// Ranks are asked for their stacks, if what the plan says of them still holds.
    pub(super) fn ask_for_stacks(&mut self, stalled: &[Stalled]) {
        let (known, now) = (self.progress(), self.clock());
        for one in stalled {
            let key = (one.job.clone(), one.attempt);
            let newest = known.get(&key).and_then(|progress| progress.newest);
            let holds = newest.is_some_and(|newest| newest.at == one.since);
            if let Some(run) = self.runs.get_mut(&key).filter(|_| holds) {
                run.asked = Some((one.since, now));
                self.changed();
            }
        }
    }
}
