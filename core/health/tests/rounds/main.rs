//! Weeks of a simulated fleet that `plan` is asked about every ten minutes: every node that is idle
//! when it is due has its turn, at almost no cost. Leaves what happens to nodes and jobs to
//! `fleet`.

use std::collections::BTreeMap;

use health::limits::MOST_KEPT;
use health::{DueNode, DuePlan, DuePolicy, DueRun, Waits, plan};
use sim::{Rng, for_each_seed};

use fleet::{DAY, Fleet, LEVEL, TICK};

mod fleet;

/// The oldest that a node's newest validation may be.
const LIMIT: i64 = 8 * DAY;

/// How large, how long, and how many validations at once.
#[derive(Clone, Copy)]
struct Size {
    nodes: usize,
    days: i64,
    max_idle_nodes: usize,
    /// Whether jobs pause once a week. Otherwise they go on to their end, and are asked.
    pauses: bool,
}

#[derive(Default)]
struct Figures {
    /// The oldest newest validation of a node.
    oldest: i64,
    /// Most open runs of the policies at once.
    most_open: usize,
    /// Most finished runs of policies that a node had.
    most_kept: usize,
    /// The most nodes that were due at once.
    most_due: usize,
    created: usize,
    deleted: usize,
    waits: Waits,
}

/// The older policy selects nine nodes of ten, the younger all.
fn policies(fleet: &Fleet, size: Size) -> [DuePolicy; 2] {
    let policy = |name: &str, created, max_idle_nodes, nodes: &dyn Fn(usize) -> bool| DuePolicy {
        name: name.to_owned(),
        created,
        uid: format!("uid of {name}"),
        interval: 7 * DAY,
        level: LEVEL,
        new_nodes: true,
        suspect_nodes: true,
        max_idle_nodes,
        interrupt_after: (!size.pauses).then_some(7 * DAY),
        suspend: false,
        quarantine: None,
        nodes: fleet.names(nodes).collect(),
    };
    [
        policy("weekly", 1, size.max_idle_nodes, &|at| at % 10 > 0),
        policy("rest", 2, 1 + size.max_idle_nodes / 8, &|_| true),
    ]
}

/// Plans, and again with everything in another order.
fn plan_shuffled(
    rng: &mut Rng,
    policies: &[DuePolicy; 2],
    mut nodes: Vec<DueNode>,
    mut runs: Vec<DueRun>,
    waits: &mut Waits,
    now: i64,
) -> DuePlan {
    let mut waits_again = waits.clone();
    let planned = plan(policies, &nodes, &runs, waits, now);
    let mut policies = policies.clone();
    rng.shuffle(&mut policies);
    rng.shuffle(&mut nodes);
    rng.shuffle(&mut runs);
    let again = plan(&policies, &nodes, &runs, &mut waits_again, now);
    assert_eq!((again, &waits_again), (planned.clone(), &*waits));
    planned
}

impl Figures {
    fn tick(&mut self, fleet: &mut Fleet, size: Size) {
        let policies = policies(fleet, size);
        let (nodes, runs) = (fleet.nodes(), fleet.runs().cloned().collect());
        let mut rng = fleet.rng.fork();
        let now = fleet.now;
        let plan = plan_shuffled(&mut rng, &policies, nodes, runs, &mut self.waits, now);
        let overlapped = plan.policies["rest"].overlapped_by.as_deref();
        assert_eq!(overlapped, Some("weekly"));
        self.created += plan.create.len();
        self.deleted += plan.delete.len();
        let due = plan.policies.values().map(|policy| policy.due).sum();
        self.most_due = self.most_due.max(due);
        for name in &plan.delete {
            fleet.delete(name);
        }
        for withdrawal in &plan.withdraw {
            fleet.withdraw(&withdrawal.run);
        }
        for run in &plan.create {
            fleet.create(run);
        }
        for run in &plan.interrupt {
            fleet.interrupt(run);
        }
        self.check(fleet, &policies, &plan);
    }

    fn check(&mut self, fleet: &Fleet, policies: &[DuePolicy; 2], plan: &DuePlan) {
        let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
        let mut open_on: BTreeMap<&str, usize> = BTreeMap::new();
        let mut open_of: BTreeMap<&str, usize> = BTreeMap::new();
        for run in fleet.runs() {
            match (run.finished, &run.policy) {
                (None, policy) => {
                    *open_on.entry(&run.node).or_default() += 1;
                    *open_of.entry(policy.as_deref().unwrap_or("")).or_default() += 1;
                }
                (Some(_), Some(_)) => *kept.entry(&run.node).or_default() += 1,
                (Some(_), None) => {}
            }
        }
        assert!(open_on.values().all(|open| *open == 1), "{open_on:?}");
        for policy in policies {
            let open = open_of.get(policy.name.as_str()).copied().unwrap_or(0);
            let summary = &plan.policies[&policy.name];
            let withdrawn = plan.withdraw.iter();
            let withdrawn = withdrawn.filter(|one| one.policy == policy.name).count();
            assert_eq!(open + withdrawn, summary.running + summary.waiting);
        }
        let open = open_of.values().sum();
        self.most_open = self.most_open.max(open);
        self.most_kept = kept.into_values().max().unwrap_or(0).max(self.most_kept);
        assert!(self.most_kept <= MOST_KEPT);
        for (name, node) in fleet.present() {
            let age = fleet.now - node.validated;
            self.oldest = self.oldest.max(age);
            let days = age as f64 / DAY as f64;
            assert!(age <= LIMIT, "{name} was validated {days:.2} days ago");
        }
    }
}

#[expect(clippy::print_stdout, reason = "the figures are the result")]
fn print(lines: &str) {
    println!("{lines}");
}

fn run(rng: &mut Rng, size: Size) {
    let mut fleet = Fleet::new(rng.fork(), size.nodes, size.pauses);
    let mut figures = Figures::default();
    let end = fleet.now + size.days * DAY;
    while fleet.now < end {
        figures.tick(&mut fleet, size);
        fleet.pass(TICK);
    }
    let Size {
        nodes,
        days,
        max_idle_nodes,
        pauses,
    } = size;
    let in_days = |seconds: i64| seconds as f64 / DAY as f64;
    let percent = |seconds: i64| 100.0 * seconds as f64 / fleet.total.existed as f64;
    let totals = &fleet.total;
    let met = totals.met as f64 / totals.ended as f64;
    let cost = percent(totals.validated + totals.waited);
    print(&format!(
        "{nodes} nodes, {days} days, jobs pause: {pauses}, at most {max_idle_nodes} idle ones at \
         once: {} runs created, {} deleted, at most {} open, {} due and {} kept of a node; oldest \
         validation {:.2} days; {:.0} % of runs met a partner; {} interruptions; node-seconds: \
         jobs {:.1} %, validations {:.3} %, gangs that wait for them {:.3} %",
        figures.created,
        figures.deleted,
        figures.most_open,
        figures.most_due,
        figures.most_kept,
        in_days(figures.oldest),
        100.0 * met,
        fleet.total.interruptions,
        percent(totals.worked),
        percent(totals.validated),
        percent(totals.waited),
    ));
    assert!(cost <= 0.3, "{cost:.3} % of all node-seconds");
    assert!(met > 0.8, "{met:.2} of all runs met a partner");
    assert!(figures.created > nodes, "each had its second turn");
    assert!(figures.oldest > 6 * DAY);
}

#[test]
fn every_node_is_validated_within_eight_days_at_almost_no_cost() {
    for pauses in [true, false] {
        let size = Size {
            nodes: 200,
            days: 9,
            max_idle_nodes: 4,
            pauses,
        };
        for_each_seed(2, |rng| run(rng, size));
    }
}

#[test]
#[ignore = "two minutes of processor time: a soak, see docs/testing.md"]
fn so_it_is_in_a_month_of_a_large_fleet() {
    for pauses in [true, false] {
        let size = Size {
            nodes: 1250,
            days: 30,
            max_idle_nodes: 16,
            pauses,
        };
        for_each_seed(1, |rng| run(rng, size));
    }
}
