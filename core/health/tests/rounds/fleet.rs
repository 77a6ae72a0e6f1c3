//! The fleet: jobs that pause once a week or never, nodes that turn suspect, vanish and come back, people
//! who validate a node now and then, and runs that take minutes. Leaves to the planner what is
//! created and deleted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use health::{DueNode, DueRun, Findings, Level, LinkResult, NewRun, NodeUse, Verdict};
use sim::Rng;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;
/// What a run of the level takes: it measures for two minutes, a pod starts and ends, and what looks
/// bad is measured again.
const RUN_MINUTES: Range<u64> = 2..6;
/// How much longer it takes if its partner does not come.
const PARTNER_MINUTES: i64 = 2;
/// The zones of the nodes.
const ZONES: usize = 2;
/// Between two plans.
pub(super) const TICK: i64 = 10 * MINUTE;
/// What the policies check.
pub(super) const LEVEL: Level = Level::Full;
/// Jobs ask for so many of a hundred nodes.
const DEMAND: usize = 95;

/// A place in the racks.
struct Slot {
    name: String,
    node: Option<Node>,
    /// When it comes back.
    back: i64,
}

pub(super) struct Node {
    created: i64,
    /// The job that uses it, and since when.
    job: Option<(usize, i64)>,
    /// The run that has it.
    run: Option<String>,
    suspect_until: i64,
    /// When its newest run of the level ended, or it appeared.
    pub(super) validated: i64,
}

struct Job {
    number: usize,
    wants: usize,
    /// Seconds of work.
    left: i64,
    slots: Vec<usize>,
    started: i64,
    /// When it pauses or ends.
    until: i64,
    /// When a validation interrupted it last.
    interrupted: i64,
}

struct Run {
    slot: usize,
    view: DueRun,
    /// When it is looked at, then when it ends.
    at: i64,
    has_node: bool,
    partner: Option<String>,
}

/// Node-seconds.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) existed: i64,
    pub(super) worked: i64,
    pub(super) validated: i64,
    /// Of gangs that wait for nobody but validations.
    pub(super) waited: i64,
    pub(super) interruptions: i64,
    /// Runs of policies that ended, and those that met their partner.
    pub(super) ended: i64,
    pub(super) met: i64,
}

pub(super) struct Fleet {
    pub(super) rng: Rng,
    pub(super) now: i64,
    slots: Vec<Slot>,
    running: Vec<Job>,
    /// From when, and what.
    waiting: VecDeque<(i64, Job)>,
    runs: BTreeMap<String, Run>,
    pub(super) total: Totals,
    /// Of names.
    count: usize,
    /// Of jobs.
    jobs: usize,
    /// Whether jobs pause once a week of themselves.
    pauses: bool,
}

impl Fleet {
    pub(super) fn new(rng: Rng, nodes: usize, pauses: bool) -> Self {
        let now = 20_000 * DAY;
        let slot = |number| Slot {
            name: format!("gpu-{number:04}.cluster.local"),
            node: Some(Node::new(now)),
            back: 0,
        };
        let mut fleet = Self {
            rng,
            now,
            slots: (0..nodes).map(slot).collect(),
            running: Vec::new(),
            waiting: VecDeque::new(),
            runs: BTreeMap::new(),
            total: Totals::default(),
            count: nodes,
            jobs: 0,
            pauses,
        };
        fleet.start_jobs();
        // They did not all start today.
        for at in 0..fleet.running.len() {
            let length = fleet.running[at].until - now;
            fleet.running[at].until = now + fleet.draw(0, length);
        }
        fleet
    }

    fn draw(&mut self, from: i64, to: i64) -> i64 {
        from + self.rng.range(0..(to - from).max(1) as u64) as i64
    }

    pub(super) fn names(&self, of: &dyn Fn(usize) -> bool) -> impl Iterator<Item = String> {
        let slots = self.slots.iter().enumerate();
        let there = slots.filter(move |(at, slot)| slot.node.is_some() && of(*at));
        there.map(|(_, slot)| slot.name.clone())
    }

    pub(super) fn present(&self) -> impl Iterator<Item = (&str, &Node)> {
        let slots = self.slots.iter();
        slots.filter_map(|slot| Some((slot.name.as_str(), slot.node.as_ref()?)))
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &DueRun> {
        self.runs.values().map(|run| &run.view)
    }

    /// The nodes as the planner sees them now.
    pub(super) fn nodes(&mut self) -> Vec<DueNode> {
        let open = self.runs.values().filter(|run| run.view.finished.is_none());
        let open: BTreeSet<&str> = open.map(|run| run.view.node.as_str()).collect();
        let now = self.now;
        let view = |(at, slot): (usize, &mut Slot)| {
            let node = slot.node.as_mut()?;
            let idle = node.job.is_none() && !open.contains(slot.name.as_str());
            Some(DueNode {
                name: slot.name.clone(),
                created: node.created,
                idle,
                can_start: true,
                job: node.job.map(|(job, since)| NodeUse {
                    job: job.to_string(),
                    since,
                }),
                suspect: node.suspect_until > now,
                leaf: String::new(),
                group: format!("zone-{}", at % ZONES),
                boot: String::new(),
                quarantine: None,
            })
        };
        self.slots.iter_mut().enumerate().filter_map(view).collect()
    }

    /// A policy's run. In one case of a hundred a job is quicker: the node was not idle any more.
    pub(super) fn create(&mut self, new: &NewRun) {
        let slot = self.slots.iter().position(|slot| slot.name == new.node);
        let slot = slot.expect("the node exists");
        let late = !new.is_next && self.rng.chance(1, 100);
        let node = self.slots[slot].node.as_ref().expect("the node exists");
        assert_eq!(
            (node.job.is_some(), node.run.is_none()),
            (new.is_next, true)
        );
        let at = self.now + if late { 5 * MINUTE } else { 0 };
        let policy = Some(new.policy.as_str());
        self.add_run(slot, at, new.name.clone(), Some(new.level), policy);
        self.run_of(&new.name).is_next = new.is_next;
        let run = self.runs.get_mut(&new.name).expect("the run exists");
        run.partner.clone_from(&new.partner);
        self.move_runs();
    }

    fn run_of(&mut self, name: &str) -> &mut DueRun {
        &mut self.runs.get_mut(name).expect("the run exists").view
    }

    /// The job is asked; it saves, leaves within minutes, and waits for nodes.
    pub(super) fn interrupt(&mut self, run: &str) {
        self.run_of(run).interrupts = true;
        let now = self.now;
        let until = now + self.draw(MINUTE, 10 * MINUTE);
        let slot = self.runs[run].slot;
        let job = self
            .running
            .iter_mut()
            .find(|job| job.slots.contains(&slot));
        let job = job.expect("the job runs");
        assert!(now - job.interrupted >= 7 * DAY, "asked twice in a week");
        (job.interrupted, job.until) = (now, job.until.min(until));
        self.total.interruptions += 1;
    }

    fn add_run(
        &mut self,
        slot: usize,
        at: i64,
        name: String,
        level: Option<Level>,
        policy: Option<&str>,
    ) {
        let view = DueRun {
            name: name.clone(),
            node: self.slots[slot].name.clone(),
            level,
            policy: policy.map(str::to_owned),
            is_next: false,
            interrupts: false,
            created: self.now,
            finished: None,
            verdict: None,
            findings: Findings::default(),
            link: None,
        };
        let run = Run {
            slot,
            view,
            at,
            has_node: false,
            partner: None,
        };
        assert!(
            self.runs.insert(name, run).is_none(),
            "names are not used twice"
        );
    }

    /// A policy's run goes. While it is open, only because its node did.
    pub(super) fn delete(&mut self, name: &str) {
        let run = self.runs.remove(name).expect("what is deleted exists");
        assert!(run.view.policy.is_some(), "a person's run");
        let slot = &self.slots[run.slot];
        let is_there = slot.node.is_some() && slot.name == run.view.node;
        assert!(run.view.finished.is_some() || !is_there, "{name} is open");
    }

    /// A policy's run goes that did not start, as a job was quicker.
    pub(super) fn withdraw(&mut self, name: &str) {
        let run = self.runs.remove(name).expect("what is withdrawn exists");
        assert!(run.view.policy.is_some(), "a person's run");
        assert!(!run.has_node, "{name} has its node");
    }

    pub(super) fn pass(&mut self, time: i64) {
        let end = self.now + time;
        while self.now < end {
            self.now += MINUTE;
            self.end_jobs();
            self.move_runs();
            self.start_jobs();
            self.disturb();
            self.count_minute();
        }
    }

    fn move_runs(&mut self) {
        let now = self.now;
        // A person's run goes a day after its end.
        let stays = |run: &Run| run.view.finished.is_none_or(|end| end > now - DAY);
        self.runs
            .retain(|_, run| run.view.policy.is_some() || stays(run));
        let started: BTreeMap<String, i64> = self
            .runs
            .values()
            .filter_map(|run| Some((run.view.node.clone(), run.view.findings.started?)))
            .fold(BTreeMap::new(), |mut newest, (node, at)| {
                let known = newest.entry(node).or_insert(at);
                *known = at.max(*known);
                newest
            });
        for run in self.runs.values_mut() {
            let slot = &mut self.slots[run.slot];
            let is_there = slot.name == run.view.node;
            let node = slot.node.as_mut().filter(|_| is_there);
            if run.view.finished.is_some() || run.at > now {
                continue;
            }
            let Some(node) = node else {
                if run.view.policy.is_none() {
                    (run.view.finished, run.view.verdict) = (Some(now), Some(Verdict::Error));
                }
                continue;
            };
            if run.has_node {
                let began = run.view.findings.started.expect("it has its node");
                let met = |partner: &String| {
                    let other = started.get(partner);
                    other.is_some_and(|at| (at - began).abs() <= PARTNER_MINUTES * MINUTE)
                };
                let partner = run.partner.take();
                let with = partner.as_ref().filter(|partner| met(partner));
                if partner.is_some() && with.is_none() {
                    run.at = now + PARTNER_MINUTES * MINUTE;
                    continue;
                }
                if run.view.policy.is_some() {
                    self.total.ended += 1;
                    self.total.met += i64::from(with.is_some());
                }
                run.view.link = with.map(|partner| LinkResult {
                    partner: partner.clone(),
                    is_good: !self.rng.chance(1, 100),
                });
                let verdict = match self.rng.range(0..100) {
                    0 | 1 => Verdict::Error,
                    2 => Verdict::Skipped,
                    3 | 4 => Verdict::Fail,
                    5 => Verdict::Warn,
                    _ => Verdict::Pass,
                };
                (run.view.finished, run.view.verdict) = (Some(now), Some(verdict));
                node.run = None;
                if run.view.level >= Some(LEVEL) {
                    node.validated = now;
                }
            } else if node.job.is_none() && node.run.is_none() {
                run.has_node = true;
                run.view.findings.started = Some(now);
                run.at = now + MINUTE * self.rng.range(RUN_MINUTES) as i64;
                node.run = Some(run.view.name.clone());
            }
        }
    }

    fn end_jobs(&mut self) {
        let now = self.now;
        let ended = self.running.extract_if(.., |job| job.until <= now);
        for job in ended.collect::<Vec<_>>() {
            let pause = match job.interrupted < now - HOUR {
                true => self.draw(30 * MINUTE, 3 * HOUR),
                false => 0,
            };
            self.release(job, pause);
        }
    }

    /// Gives back a job's nodes, and lets it wait if it is not done.
    fn release(&mut self, mut job: Job, pause: i64) {
        for slot in std::mem::take(&mut job.slots) {
            if let Some(node) = &mut self.slots[slot].node {
                node.job = None;
            }
        }
        job.left -= self.now - job.started;
        if job.left > 0 {
            self.waiting.push_back((self.now + pause, job));
        }
    }

    fn start_jobs(&mut self) {
        let running = self.running.iter().map(|job| job.wants);
        let mut demand: usize = running
            .chain(self.waiting.iter().map(|(_, job)| job.wants))
            .sum();
        while demand * 100 < self.slots.len() * DEMAND {
            let wants = *self.rng.pick(&[1, 1, 2, 4, 8, 16, 32]);
            let left = match self.rng.chance(1, 2) {
                true => self.draw(HOUR, DAY),
                false => self.draw(DAY, 20 * DAY),
            };
            demand += wants;
            self.jobs += 1;
            let job = Job {
                number: self.jobs,
                interrupted: 0,
                wants,
                left,
                slots: Vec::new(),
                started: 0,
                until: 0,
            };
            self.waiting.push_back((self.now, job));
        }
        let now = self.now;
        let usable = |node: &Node| node.job.is_none() && node.suspect_until <= now;
        let nodes = self.slots.iter().enumerate();
        let nodes = nodes
            .filter_map(|(at, slot)| Some((at, slot.node.as_ref().filter(|node| usable(node))?)));
        let (free, validating): (Vec<_>, Vec<_>) = nodes.partition(|(_, node)| node.run.is_none());
        let validating = validating.len();
        let mut free: Vec<usize> = free.into_iter().map(|(at, _)| at).collect();
        self.rng.shuffle(&mut free);
        for (from, mut job) in std::mem::take(&mut self.waiting) {
            if from > now || free.len() < job.wants {
                if from <= now && free.len() + validating >= job.wants {
                    self.total.waited += job.wants as i64 * MINUTE;
                }
                self.waiting.push_back((from, job));
                continue;
            }
            job.slots = free.split_off(free.len() - job.wants);
            for &slot in &job.slots {
                let node = self.slots[slot].node.as_mut();
                node.expect("free nodes exist").job = Some((job.number, now));
            }
            let most = if self.pauses { 7 * DAY } else { job.left };
            (job.started, job.until) = (now, now + job.left.min(most));
            self.running.push(job);
        }
    }

    /// Once in two months a node turns suspect, once in three it vanishes, and twice a day a person
    /// validates one.
    fn disturb(&mut self) {
        let (nodes, day) = (self.slots.len() as u64, (DAY / MINUTE) as u64);
        if self.rng.chance(nodes, 60 * day) {
            let (slot, until) = (self.rng.below(self.slots.len()), self.draw(HOUR, 12 * HOUR));
            if let Some(node) = &mut self.slots[slot].node {
                node.suspect_until = self.now + until;
            }
            if self.rng.chance(1, 2) {
                self.stop_job_on(slot);
            }
        }
        if self.rng.chance(nodes, 90 * day) {
            let slot = self.rng.below(self.slots.len());
            self.stop_job_on(slot);
            self.slots[slot].back = self.now + self.draw(HOUR, 3 * DAY);
            self.slots[slot].node = None;
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.node.is_none()) {
            if slot.back <= self.now {
                slot.node = Some(Node::new(self.now));
                if self.rng.chance(1, 2) {
                    slot.name = format!("gpu-{:04}.cluster.local", self.count);
                    self.count += 1;
                }
            }
        }
        if self.rng.chance(2, day) {
            let slot = self.rng.below(self.slots.len());
            let name = &self.slots[slot].name;
            let is_open = |run: &Run| run.view.finished.is_none() && run.view.node == *name;
            let is_there = self.slots[slot].node.is_some();
            if is_there && !self.runs.values().any(is_open) {
                let level = *self.rng.pick(&[None, Some(Level::Quick), Some(LEVEL)]);
                self.add_run(slot, self.now, format!("by-hand-{}", self.now), level, None);
            }
        }
    }

    fn stop_job_on(&mut self, slot: usize) {
        let has = |job: &Job| job.slots.contains(&slot);
        if let Some(at) = self.running.iter().position(has) {
            let job = self.running.swap_remove(at);
            self.release(job, 0);
        }
    }

    fn count_minute(&mut self) {
        for node in self.slots.iter().filter_map(|slot| slot.node.as_ref()) {
            self.total.existed += MINUTE;
            self.total.worked += MINUTE * i64::from(node.job.is_some());
            self.total.validated += MINUTE * i64::from(node.run.is_some());
        }
    }
}

impl Node {
    fn new(now: i64) -> Self {
        Self {
            created: now,
            job: None,
            run: None,
            suspect_until: 0,
            validated: now,
        }
    }
}
