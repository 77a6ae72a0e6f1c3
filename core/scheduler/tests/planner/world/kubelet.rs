//! The stock scheduler, the kubelets, and the programs in the pods.

use std::sync::Arc;
use std::time::Duration;

use scheduler::{Exit, JobKey, PodState, Preparation, Problem, ProgramCause, Ready};
use topology::{CheckpointRef, NodeName};

use super::{Event, PodId, Run, Running, World};

impl Running {
    /// Whether it occupies its node as far as the kubelet is concerned.
    pub(crate) fn is_bound(&self) -> bool {
        self.pod.state != PodState::Unbound && !self.pod.terminal
    }

    pub(crate) fn trains(&self) -> bool {
        self.pod.state == PodState::Running && !self.pod.terminal
    }
}

impl World {
    pub(super) fn is_alive(&self, node: &NodeName) -> bool {
        self.machines.get(node).is_some_and(|machine| machine.alive)
    }

    pub(super) fn gang(&self, job: &JobKey, attempt: u32) -> Vec<PodId> {
        let from = (job.clone(), attempt, 0);
        let to = (job.clone(), attempt, u32::MAX);
        self.pods
            .range(from..=to)
            .map(|(id, _)| id.clone())
            .collect()
    }

    pub(super) fn run(&mut self, id: &PodId) -> &mut Run {
        self.runs.entry((id.0.clone(), id.1)).or_default()
    }

    /// The pod ends; its node is free of it.
    pub(super) fn end(&mut self, id: &PodId, state: PodState) {
        if let Some(running) = self.pods.get_mut(id) {
            running.pod.state = state;
            running.pod.terminal = true;
            self.reap(id);
            self.changed();
        }
    }

    pub(crate) fn bind(&mut self, id: PodId) {
        let Some(running) = self.pods.get(&id) else {
            return;
        };
        if running.pod.state != PodState::Unbound || running.pod.delete_by.is_some() {
            return;
        }
        let name = running.pod.node.clone();
        let busy = self
            .pods
            .values()
            .any(|other| other.pod.node == name && other.is_bound());
        let machine = self.machines.get_mut(&name);
        // Pods that validate a node tolerate every taint.
        let tolerates = self
            .jobs
            .get(&id.0)
            .is_some_and(|one| one.job.pin.is_some());
        let open = machine.filter(|machine| {
            if tolerates {
                machine.node.ready == Ready::True && machine.has_agent()
            } else {
                machine.is_open()
            }
        });
        let Some(machine) = open.filter(|_| !busy) else {
            self.queue.after(Duration::from_secs(1), Event::Bind(id));
            return;
        };
        if machine.alive && machine.refuses > 0 {
            machine.refuses -= 1;
            self.end(
                &id,
                PodState::Refused("UnexpectedAdmissionError".to_owned()),
            );
            return;
        }
        let stored = self.jobs.get(&id.0);
        let blocked = stored.is_some_and(|stored| stored.program.blocked);
        if let Some(running) = self.pods.get_mut(&id) {
            running.pod.state = match blocked {
                true => PodState::Blocked(Problem {
                    reason: "ImageError",
                    message: "image nowhere/none:1 of container trainer cannot be pulled"
                        .to_owned(),
                }),
                false => PodState::Starting,
            };
        }
        self.at(&id, 0, false);
        let delay = self.delay(300, 3000);
        self.queue.after(delay, Event::Dial(id));
        self.changed();
    }

    /// The sidecar dials; when the last one of a gang does, all trainers start.
    pub(crate) fn dial(&mut self, id: PodId) {
        let Some(running) = self.pods.get(&id) else {
            return;
        };
        let node = running.pod.node.clone();
        if running.pod.state != PodState::Starting || !self.is_alive(&node) {
            return;
        }
        if let Some(running) = self.pods.get_mut(&id) {
            running.dialled = true;
        }
        self.at(&id, 1, true);
        let (job, attempt, _) = id.clone();
        // The rendezvous service turns void attempts away.
        let size = match (
            self.attempts.get(&(job.clone(), attempt)),
            self.jobs.get(&job),
        ) {
            (Some(found), Some(stored))
                if stored.job.status.attempt == attempt
                    && stored.job.status.phase.holds_nodes() =>
            {
                found.nodes.len()
            }
            _ => return,
        };
        let gang = self.gang(&job, attempt);
        let ready = gang.iter().filter(|id| {
            let running = &self.pods[*id];
            let here = running.dialled && running.pod.state == PodState::Starting;
            here && self.is_alive(&running.pod.node)
        });
        if ready.count() == size {
            let now = self.queue.now();
            let run = self.run(&id);
            (run.joined, run.joined_at) = (true, now);
            self.write_down(&job, attempt);
            for id in gang {
                let delay = self.delay(0, 1000);
                self.queue.after(delay, Event::Prepare(id, 0));
            }
        }
    }

    /// The pod object shows what its pod is at.
    fn at(&mut self, id: &PodId, steps: u32, joins: bool) {
        if let Some(running) = self.pods.get_mut(id) {
            running.pod.preparation = Some(Arc::new(Preparation {
                steps,
                joins,
                backs_off: false,
                at: format!("step {steps}"),
            }));
            self.changed();
        }
    }

    /// The next init container runs; after the last one the trainer's image comes, if the machine
    /// does not have it.
    pub(crate) fn prepare(&mut self, id: PodId, index: usize) {
        let Some(running) = self.pods.get(&id) else {
            return;
        };
        let node = running.pod.node.clone();
        let leaves = running.pod.delete_by.is_some();
        if running.pod.state != PodState::Starting || leaves || !self.is_alive(&node) {
            return;
        }
        let program = self.jobs.get(&id.0).map(|stored| &stored.program);
        let length = program.and_then(|program| program.init.get(index).copied());
        let pull = self.machines.get_mut(&node).map_or(0, |machine| {
            let missing = machine.pull;
            if length.is_none() {
                machine.pull = 0;
            }
            missing
        });
        let (length, next) = match length {
            Some(length) => (length, Event::Prepare(id.clone(), index + 1)),
            None => (pull, Event::Start(id.clone())),
        };
        if length > 0 {
            self.at(&id, 2 + u32::try_from(index).unwrap(), false);
        }
        self.queue.after(Duration::from_millis(length), next);
    }

    /// Returns true if a gang has joined and is on its way: whoever does not train yet moves on by
    /// itself.
    pub(super) fn prepares_as_a_whole(&self, job: &JobKey, attempt: u32) -> bool {
        let run = self.runs.get(&(job.clone(), attempt));
        // What a leader has decided just before, it could not know better.
        let heard = |at| at + Duration::from_secs(1) < self.queue.now();
        let joined = run.is_some_and(|run| {
            run.joined && !run.broken && run.started.is_none() && heard(run.joined_at)
        });
        let gang = self.members(job, attempt);
        let size = self
            .attempts
            .get(&(job.clone(), attempt))
            .map(|found| found.nodes.len() - self.out(job, attempt).len());
        joined
            && Some(gang.len()) == size
            && gang.iter().all(|id| {
                let pod = &self.pods[id].pod;
                let moves = matches!(pod.state, PodState::Starting | PodState::Running);
                moves && !pod.terminal && pod.delete_by.is_none() && self.is_alive(&pod.node)
            })
    }

    pub(crate) fn start(&mut self, id: PodId) {
        let Some(running) = self.pods.get(&id) else {
            return;
        };
        let node = running.pod.node.clone();
        if running.pod.state != PodState::Starting
            || running.pod.delete_by.is_some()
            || !self.is_alive(&node)
        {
            return;
        }
        if let Some(running) = self.pods.get_mut(&id) {
            running.pod.state = PodState::Running;
        }
        self.changed();
        let (job, attempt, _) = id;
        self.train(job, attempt);
    }

    /// All members' trainers run.
    pub(super) fn train(&mut self, job: JobKey, attempt: u32) {
        let members = self.members(&job, attempt);
        let now = self.millis();
        let all = members.iter().all(|id| self.pods[id].trains());
        let run = self.runs.entry((job.clone(), attempt)).or_default();
        if !all || run.broken || run.started.is_some() {
            return;
        }
        run.started = Some(now);
        let away = self.storage_away;
        let Some(stored) = self.jobs.get_mut(&job) else {
            return;
        };
        if away && stored.saved > 0 {
            let delay = self.delay(200, 20_000);
            self.queue.after(delay, Event::Unreadable(job, attempt));
            return;
        }
        let left = stored.program.work.saturating_sub(stored.saved);
        let fault = stored.program.faults.pop_front();
        match stored.program.hangs.pop_front() {
            Some(after) => self.hang_at(&job, attempt, now + after),
            None => self.queue.after(
                Duration::from_millis(left),
                Event::Finish(job.clone(), attempt),
            ),
        }
        if let Some((after, rank)) = fault {
            self.queue.after(
                Duration::from_millis(after),
                Event::Fail((job, attempt, rank)),
            );
        }
    }

    pub(super) fn is_whole(&self, job: &JobKey, attempt: u32) -> bool {
        let run = self.runs.get(&(job.clone(), attempt));
        let gang = self.members(job, attempt);
        let size = self
            .attempts
            .get(&(job.clone(), attempt))
            .map(|found| found.nodes.len() - self.out(job, attempt).len());
        run.is_some_and(|run| run.started.is_some() && !run.broken)
            && Some(gang.len()) == size
            && gang.iter().all(|id| {
                let running = &self.pods[id];
                running.trains() && self.is_alive(&running.pod.node)
            })
    }

    pub(crate) fn finish(&mut self, job: JobKey, attempt: u32) {
        if !self.is_whole(&job, attempt) {
            self.later(Event::Finish(job.clone(), attempt), &job, attempt);
            return;
        }
        let Some(stored) = self.jobs.get_mut(&job) else {
            return;
        };
        stored.saved = stored.program.work;
        let straggles = stored.program.straggles;
        let members = self.members(&job, attempt);
        self.runs.entry((job, attempt)).or_default().finishing = true;
        for id in members {
            // Ranks end one after the other; some may be asked to stop in between.
            if straggles == 0 {
                self.end_well(&id);
            } else {
                let delay = self.delay(0, straggles);
                self.queue.after(delay, Event::End(id));
            }
        }
    }

    pub(super) fn end_well(&mut self, id: &PodId) {
        let lives = |one: &Running| one.trains() && self.is_alive(&one.pod.node);
        if self.pods.get(id).is_some_and(lives) {
            self.run(id).ended.insert(id.2);
            self.end(id, PodState::Succeeded);
        }
    }

    /// Returns true if each rank can end without help from anybody but the ranks themselves.
    pub(super) fn ends_well(&self, job: &JobKey, attempt: u32) -> bool {
        let Some(run) = self.runs.get(&(job.clone(), attempt)) else {
            return false;
        };
        let (Some(stored), out) = (self.jobs.get(job), self.out(job, attempt)) else {
            return false;
        };
        let mut members = (0..stored.job.nodes).filter(|rank| !out.contains(rank));
        // One that was asked while its ranks ended resumes at its end.
        run.finishing
            && !run.is_asked
            && !run.unseen
            && members.all(|rank| {
                let pod = self.pods.get(&(job.clone(), attempt, rank));
                let lives = |one: &Running| one.trains() && self.is_alive(&one.pod.node);
                run.ended.contains(&rank) || pod.is_some_and(lives)
            })
    }

    /// Every rank says that storage is away.
    pub(super) fn unreadable(&mut self, job: JobKey, attempt: u32) {
        let run = self.runs.entry((job.clone(), attempt)).or_default();
        run.broken = true;
        for id in self.members(&job, attempt) {
            let running = &self.pods[&id];
            if !running.trains() || !self.is_alive(&running.pod.node) {
                continue;
            }
            let exit = Exit {
                code: Some(1),
                cause: Some(ProgramCause::CheckpointUnavailable("EIO".to_owned())),
                finished: Some(self.stamp()),
                ..Exit::default()
            };
            self.end(&id, PodState::Failed(exit));
        }
    }

    pub(crate) fn fail(&mut self, id: PodId) {
        let node = match self.pods.get(&id) {
            Some(running) if running.trains() => running.pod.node.clone(),
            Some(_) | None => return,
        };
        if !self.is_alive(&node) {
            return;
        }
        let exit = Exit {
            rank: Some(id.2),
            code: Some(1),
            log: Some("ValueError: loss is not a number".to_owned()),
            finished: Some(self.stamp()),
            ..Exit::default()
        };
        self.end(&id, PodState::Failed(exit));
        self.break_gang(&id.0, id.1);
    }

    /// The gang has lost a member: the others notice, unless their program hangs.
    pub(super) fn break_gang(&mut self, job: &JobKey, attempt: u32) {
        let run = self.runs.entry((job.clone(), attempt)).or_default();
        // Before it has joined, another pod may take the place.
        if !run.joined || run.broken {
            return;
        }
        if self.jobs.get(job).is_some_and(|stored| stored.job.shrinks) {
            let delay = self.delay(10, 12_000);
            let regroup = Event::Regroup(job.clone(), attempt);
            self.queue.after(delay, regroup);
            return;
        }
        if run.finishing {
            return;
        }
        run.broken = true;
        if run.started.is_none() {
            return;
        }
        let hang = self
            .jobs
            .get(job)
            .is_none_or(|stored| stored.program.survivors_hang);
        if hang {
            return;
        }
        for id in self.gang(job, attempt) {
            let delay = self.delay(500, 2500);
            self.queue.after(delay, Event::Fail(id));
        }
    }

    /// SIGTERM.
    pub(crate) fn stop(&mut self, id: &PodId, grace: Duration) {
        let (job, attempt, _) = id.clone();
        let whole = self.is_whole(&job, attempt);
        let Some(running) = self.pods.get_mut(id) else {
            return;
        };
        running.stopping = true;
        let node = running.pod.node.clone();
        if !self.is_alive(&node) {
            return;
        }
        if !self.pods[id].trains() {
            let delay = self.delay(50, 300);
            self.queue.after(delay, Event::Kill(id.clone()));
            return;
        }
        self.queue.after(grace, Event::Kill(id.clone()));
        let stored = self.jobs.get(&job);
        let saves = stored.is_some_and(|stored| stored.program.saves);
        // Or will be whole again, without those whom it has lost.
        let whole = whole || stored.is_some_and(|stored| stored.job.shrinks);
        let hangs = self.hangs(&job, attempt);
        if whole && saves && !hangs && !self.run(id).saving {
            self.run(id).saving = true;
            let delay = self.delay(200, 12_000);
            self.queue.after(delay, Event::Saved(job, attempt));
        }
    }

    /// Every rank saved the same step and leaves: with Interrupted where SIGTERM arrived, with code
    /// 0 elsewhere.
    pub(crate) fn saved(&mut self, job: JobKey, attempt: u32) {
        if !self.is_whole(&job, attempt) {
            self.later(Event::Saved(job.clone(), attempt), &job, attempt);
            return;
        }
        let now = self.millis();
        let started = self.runs[&(job.clone(), attempt)].started.unwrap();
        let members = self.members(&job, attempt);
        // The lowest that is left acknowledges.
        let first = &self.pods[&members[0]];
        let away = self.storage_away;
        let acknowledged = first.stopping && first.trains() && !away;
        let Some(stored) = self.jobs.get_mut(&job) else {
            return;
        };
        if !away {
            stored.saved = (stored.saved + now - started).min(stored.program.work);
        }
        let ack = CheckpointRef {
            attempt,
            step: stored.saved,
            digest: "d".to_owned(),
        };
        if acknowledged {
            stored.acked = Some((attempt, stored.saved));
        }
        for id in &members {
            let ack = (*id == members[0] && !away).then(|| ack.clone());
            let state = match self.pods[id].stopping {
                true => PodState::Interrupted { ack },
                false => PodState::Succeeded,
            };
            self.end(id, state);
        }
    }

    pub(crate) fn kill(&mut self, id: PodId) {
        let Some(running) = self.pods.get(&id) else {
            return;
        };
        let due = running.pod.delete_by.is_some_and(|by| by <= self.stamp());
        if running.pod.terminal || !self.is_alive(&running.pod.node) || running.trains() && !due {
            return;
        }
        let killed = Exit {
            signal: Some(9),
            finished: Some(self.stamp()),
            ..Exit::default()
        };
        self.end(&id, PodState::Failed(killed));
        self.break_gang(&id.0, id.1);
    }
}
