//! The rendezvous of gangs that go on without lost nodes: it writes down who takes part, or finds
//! that nobody goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use scheduler::{CommittedMembers, JobKey, PodState, Stuck};

use super::{Event, PodId, World};

/// With fewer nobody goes on.
const LEAST: usize = 2;

impl World {
    /// Ranks that an attempt goes on without.
    pub(super) fn out(&self, job: &JobKey, attempt: u32) -> BTreeSet<u32> {
        let stored = self.jobs.get(job);
        let members = stored.and_then(|stored| stored.job.status.membership.as_ref());
        let members = members.filter(|members| members.attempt == attempt);
        members.map_or_else(BTreeSet::new, |members| members.lost.clone())
    }

    /// The pods of those who take part.
    pub(super) fn members(&self, job: &JobKey, attempt: u32) -> Vec<PodId> {
        let out = self.out(job, attempt);
        let mut gang = self.gang(job, attempt);
        gang.retain(|(_, _, rank)| !out.contains(rank));
        gang
    }

    pub(super) fn stuck(&self) -> Vec<Stuck> {
        let stuck = self.runs.iter().filter_map(|((job, attempt), run)| {
            Some(Stuck {
                job: job.clone(),
                attempt: *attempt,
                since: run.stuck?,
                message: "too few nodes are left".to_owned(),
            })
        });
        stuck.collect()
    }

    /// All have joined: of a gang that may lose members this is written down before it starts.
    pub(super) fn write_down(&mut self, job: &JobKey, attempt: u32) {
        let Some(stored) = self.jobs.get_mut(job).filter(|one| one.job.shrinks) else {
            return;
        };
        stored.job.status.membership = Some(CommittedMembers {
            attempt,
            epoch: 1,
            participants: stored.job.nodes,
            ..CommittedMembers::default()
        });
        stored.version += 1;
        self.saw_job(job);
        self.changed();
    }

    /// Something that needs the whole gang waits until it is whole again, as long as the attempt
    /// lasts.
    pub(super) fn later(&mut self, event: Event, job: &JobKey, attempt: u32) {
        let lasts = self.jobs.get(job).is_some_and(|stored| {
            let status = &stored.job.status;
            let members = status.membership.as_ref();
            status.attempt == attempt && status.phase.holds_nodes() && members.is_some()
        });
        if lasts {
            self.queue.after(Duration::from_secs(1), event);
        }
    }

    pub(super) fn regroup(&mut self, job: JobKey, attempt: u32) {
        let Some(stored) = self.jobs.get(&job) else {
            return;
        };
        let status = &stored.job.status;
        let current = status.attempt == attempt && status.phase.holds_nodes();
        let Some(members) = status.membership.clone().filter(|_| current) else {
            return;
        };
        let (nodes, now) = (stored.job.nodes, self.now());
        let ended = self.runs.get(&(job.clone(), attempt)).map(|run| &run.ended);
        let is_lost = |rank: &u32| {
            let id = (job.clone(), attempt, *rank);
            let has_ended = ended.is_some_and(|ended| ended.contains(rank));
            !has_ended
                && self.pods.get(&id).is_none_or(|running| {
                    let pod = &running.pod;
                    let ended = matches!(pod.state, PodState::Failed(_) | PodState::Refused(_));
                    let left = running.pod.terminal;
                    ended || !left && !self.is_alive(&pod.node)
                })
        };
        let lost: BTreeSet<u32> = (0..nodes)
            .filter(|rank| members.lost.contains(rank) || is_lost(rank))
            .collect();
        if lost == members.lost {
            return;
        }
        let left = nodes as usize - lost.len();
        let run = self.runs.entry((job.clone(), attempt)).or_default();
        if run.stuck.is_some() {
            return;
        }
        if left < LEAST {
            run.stuck = Some(now);
            self.changed();
            return;
        }
        if let Some(stored) = self.jobs.get_mut(&job) {
            stored.job.status.membership = Some(CommittedMembers {
                epoch: members.epoch + 1,
                participants: left as u32,
                lost_nodes: lost.iter().map(|rank| format!("of rank {rank}")).collect(),
                lost,
                ..members
            });
            stored.version += 1;
        }
        self.saw_job(&job);
        self.changed();
        // Perhaps only the lost had not started.
        self.train(job, attempt);
    }
}
