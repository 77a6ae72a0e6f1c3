//! The fleet: nodes that break, are repaired, start anew and are replaced, validations of them, and
//! people who interfere. It checks each write of the operator against all that ever happened.

use std::collections::{BTreeMap, BTreeSet};

use health::{
    Check, DueNode, DuePolicy, DueRun, Findings, Level, Quarantine, QuarantineLimits, Verdict,
};
use sim::Rng;

const NODES: usize = 8;
const PERCENT: u32 = 40;
const PER_LEAF: usize = 2;
const CHECKS: [(Check, &str); 4] = [
    (Check::CpuFrequency, ""),
    (Check::MemoryBandwidth, "numa 0"),
    (Check::MemoryBandwidth, "numa 1"),
    (Check::Disk, "read"),
];

struct Node {
    view: DueNode,
    broken: BTreeSet<usize>,
    boots: u64,
}

/// How often the operator did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) begun: u64,
    pub(super) ended: u64,
    answered: u64,
    refused: u64,
    held: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: Self) {
        self.begun += other.begun;
        self.ended += other.ended;
        self.answered += other.answered;
        self.refused += other.refused;
        self.held += other.held;
    }

    /// Whether everything happened often.
    pub(super) fn is_worth_it(&self) -> bool {
        let all = [
            self.begun,
            self.ended,
            self.answered,
            self.refused,
            self.held,
        ];
        all.iter().all(|count| *count > 100)
    }
}

pub(super) struct World {
    rng: Rng,
    now: i64,
    nodes: Vec<Node>,
    /// What the API server has.
    runs: BTreeMap<String, DueRun>,
    /// All that ever were, deleted ones too.
    history: BTreeMap<String, DueRun>,
    counts: Counts,
}

/// The only policy, of all nodes.
pub(super) fn policy(world: &World, enforces: bool) -> DuePolicy {
    DuePolicy {
        name: "weekly".to_owned(),
        created: 0,
        uid: "uid".to_owned(),
        interval: 1000,
        level: Level::Standard,
        new_nodes: true,
        suspect_nodes: true,
        max_idle_nodes: 1,
        interrupt_after: None,
        suspend: true,
        quarantine: enforces.then_some(QuarantineLimits {
            percent: PERCENT,
            per_leaf: PER_LEAF,
        }),
        nodes: world
            .nodes
            .iter()
            .map(|node| node.view.name.clone())
            .collect(),
    }
}

impl World {
    pub(super) fn new(rng: Rng) -> Self {
        let node = |at: usize| Node {
            view: DueNode {
                name: format!("node-{at}"),
                created: 0,
                idle: true,
                can_start: true,
                suspect: false,
                job: None,
                leaf: format!("leaf-{}", at / 3),
                group: String::new(),
                boot: "1".to_owned(),
                quarantine: None,
            },
            broken: BTreeSet::new(),
            boots: 1,
        };
        Self {
            rng,
            now: 1,
            nodes: (0..NODES).map(node).collect(),
            runs: BTreeMap::new(),
            history: BTreeMap::new(),
            counts: Counts::default(),
        }
    }

    pub(super) fn now(&self) -> i64 {
        self.now
    }

    pub(super) fn nodes(&self) -> Vec<DueNode> {
        self.nodes.iter().map(|node| node.view.clone()).collect()
    }

    pub(super) fn runs(&self) -> Vec<DueRun> {
        self.runs.values().cloned().collect()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    /// Something.
    pub(super) fn happens(&mut self) {
        self.now += self.rng.range(0..5) as i64;
        let at = self.rng.below(NODES);
        let check = self.rng.below(CHECKS.len());
        match self.rng.range(0..20) {
            0..=2 => drop(self.nodes[at].broken.insert(check)),
            3..=4 => self.nodes[at].broken.clear(),
            5..=6 => self.restart(at),
            7 => self.replace(at),
            8 => self.interfere(at),
            _ => self.validate(at),
        }
    }

    fn restart(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.boots += 1;
        node.view.boot = node.boots.to_string();
    }

    /// Another machine, or the same with a new Node object.
    fn replace(&mut self, at: usize) {
        self.restart(at);
        self.now += 1;
        let view = &mut self.nodes[at].view;
        (view.created, view.quarantine) = (self.now, None);
    }

    /// A person lets a node out, puts it in, or deletes a run.
    fn interfere(&mut self, at: usize) {
        let view = &mut self.nodes[at].view;
        match self.rng.range(0..3) {
            0 => view.quarantine = None,
            1 => view.quarantine = Some("by hand".to_owned()),
            _ => {
                let names: Vec<String> = self.runs.keys().cloned().collect();
                if !names.is_empty() {
                    self.runs.remove(self.rng.pick(&names));
                }
            }
        }
    }

    /// A whole run, during which the node may start anew, break or be repaired.
    fn validate(&mut self, at: usize) {
        let mut findings = Findings {
            started: Some(self.now),
            ..Findings::default()
        };
        let wanted = self.rng.range(1..16);
        let mut results = Vec::new();
        for (index, &(check, device)) in CHECKS.iter().enumerate() {
            if wanted & (1 << index) != 0 {
                let verdict = match (
                    self.nodes[at].broken.contains(&index),
                    self.rng.range(0..30),
                ) {
                    (_, 0) => Verdict::Error,
                    (_, 1) => Verdict::Skipped,
                    (_, 2) => Verdict::Warn,
                    (true, _) => Verdict::Fail,
                    (false, _) => Verdict::Pass,
                };
                results.push((check, device, verdict));
            }
            self.now += self.rng.range(0..2) as i64;
        }
        let mut verdict = results.iter().map(|(_, _, verdict)| *verdict).max();
        if self.rng.chance(1, 10) {
            self.restart(at);
            verdict = Some(Verdict::Error);
        } else {
            findings.boot.clone_from(&self.nodes[at].view.boot);
            findings.sort(results);
        }
        let by_policy = self.rng.chance(1, 2);
        let name = format!("run-{:04}", self.history.len());
        let run = DueRun {
            name: name.clone(),
            node: self.nodes[at].view.name.clone(),
            level: (wanted == 15).then_some(Level::Standard),
            policy: by_policy.then(|| "weekly".to_owned()),
            is_next: false,
            interrupts: false,
            created: self.now,
            finished: Some(self.now),
            verdict,
            findings,
            link: None,
        };
        self.history.insert(name.clone(), run.clone());
        self.runs.insert(name, run);
    }

    /// The node, if it is as the operator saw it: the write is refused otherwise.
    fn as_seen(&mut self, change: &Quarantine, by: Option<&str>) -> Option<usize> {
        let is_it = |node: &Node| {
            let view = &node.view;
            (view.name.as_str(), view.boot.as_str()) == (change.node.as_str(), change.boot.as_str())
                && view.quarantine.as_deref() == by
        };
        let found = self.nodes.iter().position(is_it);
        self.counts.refused += u64::from(found.is_none());
        found
    }

    /// The operator puts a node into quarantine.
    pub(super) fn begin(&mut self, change: &Quarantine) -> bool {
        let Some(at) = self.as_seen(change, None) else {
            return false;
        };
        let run = &self.history[&change.run];
        assert_eq!(run.node, change.node);
        assert_eq!(run.verdict, Some(Verdict::Fail), "by {}", change.run);
        let ours = |node: &&Node| {
            let by = node.view.quarantine.as_deref();
            by.is_some_and(|by| by != "by hand")
        };
        let leaf = self.nodes[at].view.leaf.clone();
        let ours: Vec<&Node> = self.nodes.iter().filter(ours).collect();
        let in_leaf = ours.iter().filter(|node| node.view.leaf == leaf).count();
        assert!(in_leaf < PER_LEAF);
        assert!(ours.len() < NODES * PERCENT as usize / 100);
        self.nodes[at].view.quarantine = Some(change.run.clone());
        self.counts.begun += 1;
        true
    }

    /// The operator lets a node out: VALID-2.
    pub(super) fn end(&mut self, change: &Quarantine) -> bool {
        let Some(at) = self.as_seen(change, Some(&change.run)) else {
            return false;
        };
        assert!(
            self.is_passed(at, &change.run),
            "{} of {}",
            change.run,
            change.node
        );
        self.nodes[at].view.quarantine = None;
        self.counts.ended += 1;
        true
    }

    /// Whether a run passed, since that one failed, all that it found, on the present boot.
    fn is_passed(&self, at: usize, failed: &str) -> bool {
        let Some(failed) = self.history.get(failed) else {
            return false;
        };
        let view = &self.nodes[at].view;
        let passes = |run: &DueRun| {
            let found = &run.findings;
            run.node == failed.node
                && found.boot == view.boot
                && found.started >= failed.finished
                && found.failed.is_disjoint(&failed.findings.failed)
                && failed
                    .findings
                    .failed
                    .iter()
                    .all(|place| found.passed.contains(place))
        };
        self.history.values().any(passes)
    }

    pub(super) fn answer(&mut self, name: &str) {
        if let Some(run) = self.runs.get_mut(name) {
            self.counts.answered += u64::from(!run.findings.answered);
            run.findings.answered = true;
        }
    }

    /// The operator deletes what it takes for superseded.
    pub(super) fn delete_old(&mut self, name: &str) {
        let causes = |node: &Node| node.view.quarantine.as_deref() == Some(name);
        assert!(
            !self.nodes.iter().any(causes),
            "{name} says what has to pass"
        );
        if let Some(run) = self.runs.remove(name) {
            assert!(run.policy.is_some(), "a person's");
        }
    }

    /// When all is done, who should be in quarantine is, as far as there is room.
    pub(super) fn check_settled(&mut self) {
        for at in 0..NODES {
            let view = &self.nodes[at].view;
            let runs = self.runs.values();
            let of_node =
                runs.filter(|run| run.node == view.name && run.finished >= Some(view.created));
            let mut failed = of_node.filter(|run| run.verdict == Some(Verdict::Fail));
            match &view.quarantine {
                Some(by) => {
                    let cause = failed.clone().find(|run| run.name == *by);
                    let since =
                        |run: &&DueRun| cause.is_some_and(|cause| run.finished >= cause.finished);
                    let kept = failed.clone().filter(since);
                    let mut open = kept.filter(|run| !self.passes_here(at, run));
                    assert!(
                        cause.is_none() || open.next().is_some(),
                        "{} stays for nothing",
                        view.name
                    );
                }
                None => {
                    let belongs =
                        failed.any(|run| !run.findings.answered && !self.passes_here(at, run));
                    if belongs {
                        assert!(!self.has_room(at), "{} is out", view.name);
                        self.counts.held += 1;
                    }
                }
            }
        }
    }

    /// Whether what still exists shows that.
    fn passes_here(&self, at: usize, failed: &DueRun) -> bool {
        let wanted = &failed.findings.failed;
        let boot = &self.nodes[at].view.boot;
        let mut runs = self.runs.values();
        runs.any(|run| {
            run.node == failed.node
                && run.findings.boot == *boot
                && run.findings.started >= failed.finished
                && wanted.is_subset(&run.findings.passed)
        })
    }

    fn has_room(&self, at: usize) -> bool {
        let quarantined = || {
            self.nodes
                .iter()
                .filter(|node| node.view.quarantine.is_some())
        };
        let leaf = &self.nodes[at].view.leaf;
        let in_leaf = quarantined().filter(|node| node.view.leaf == *leaf).count();
        in_leaf < PER_LEAF && quarantined().count() < NODES * PERCENT as usize / 100
    }
}
