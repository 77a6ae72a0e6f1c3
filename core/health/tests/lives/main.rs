//! Lives of a small fleet under an operator that looks at old copies, stops in the middle and
//! returns: VALID-2, nobody leaves quarantine but by a run that passes what had failed or by a
//! person, and nobody enters it by an error of a checker. Leaves what the cluster does to `world`.

use health::{DuePlan, Waits, plan, quarantine};
use sim::{Rng, explore, is_replay, print_count};

use world::{World, policy};

mod world;

/// What the operator reads: copies of the cluster of one or two moments.
struct View {
    nodes: Vec<health::DueNode>,
    runs: Vec<health::DueRun>,
}

/// The leading operator.
struct Operator {
    view: View,
    enforces: bool,
}

impl Operator {
    fn starts(world: &World) -> Self {
        let view = View {
            nodes: world.nodes(),
            runs: world.runs(),
        };
        Self {
            view,
            enforces: true,
        }
    }

    /// Copies arrive, each kind by itself.
    fn sees(&mut self, world: &World, rng: &mut Rng) {
        if rng.chance(2, 3) {
            self.view.nodes = world.nodes();
        }
        if rng.chance(2, 3) {
            self.view.runs = world.runs();
        }
    }

    /// Decides, and writes until it is done or ends in the middle. What it has written it sees.
    fn acts(&mut self, world: &mut World, mut writes_left: usize) {
        let policies = [policy(world, self.enforces)];
        let decided = quarantine(&policies, &self.view.nodes, &self.view.runs);
        let mut may_write = || {
            writes_left = writes_left.saturating_sub(1);
            writes_left > 0
        };
        for change in decided.end {
            if may_write() && world.end(&change) {
                self.noted(&change.node, None);
            }
        }
        for change in decided.begin {
            assert!(self.enforces);
            if may_write() && world.begin(&change) {
                self.noted(&change.node, Some(change.run));
            }
        }
        for name in decided.answered {
            if may_write() {
                world.answer(&name);
            }
        }
        // What is superseded depends on who is in quarantine by now.
        let View { nodes, runs } = &self.view;
        let DuePlan { delete, .. } =
            plan(&policies, nodes, runs, &mut Waits::default(), world.now());
        for name in delete {
            if may_write() {
                world.delete_old(&name);
            }
        }
    }

    fn noted(&mut self, node: &str, by: Option<String>) {
        let mut nodes = self.view.nodes.iter_mut();
        if let Some(node) = nodes.find(|one| one.name == node) {
            node.quarantine = by;
        }
    }
}

#[test]
fn nobody_leaves_quarantine_but_by_a_run_that_passes() {
    let mut totals = world::Counts::default();
    explore(10_000, &[], |rng| {
        let mut world = World::new(rng.fork());
        let mut operator = Operator::starts(&world);
        for _ in 0..rng.range(20..120) {
            world.happens();
            if rng.chance(1, 2) {
                operator.sees(&world, rng);
            }
            if rng.chance(1, 20) {
                operator.enforces = !operator.enforces;
            }
            if rng.chance(1, 2) {
                let writes = if rng.chance(1, 6) { rng.below(4) } else { 100 };
                operator.acts(&mut world, writes);
                if writes < 100 {
                    operator = Operator::starts(&world);
                }
            }
        }
        // Once nothing happens any more, all that is due is done, and then nothing else.
        operator.enforces = true;
        for _ in 0..3 {
            operator.view = Operator::starts(&world).view;
            operator.acts(&mut world, 100);
        }
        let before = world.counts();
        operator.view = Operator::starts(&world).view;
        operator.acts(&mut world, 100);
        assert_eq!(world.counts(), before, "it does not settle");
        world.check_settled();
        totals.add(world.counts());
    });
    assert!(is_replay() || totals.is_worth_it(), "{totals:?}");
    print_count("quarantines", totals.begun);
    print_count("releases", totals.ended);
}
