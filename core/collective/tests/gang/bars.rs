//! How long going on takes, in virtual time, and what each loss comes to when it is the only one.

use std::collections::BTreeSet;
use std::time::Duration;

use collective::machine::{Handover, Recovery, WORLD};
use collective::membership::GangPhase as Leading;
use sim::{Rng, Simulation, To, for_each_seed};
use topology::OnPeerLoss;

use crate::calls::sum;
use crate::faults::Phase;
use crate::world::{Event, Leads, MS, Setup, World};

/// A gang that sums on and on.
fn gang(rng: &mut Rng, nodes: usize, least: u32) -> World {
    let setup = Setup {
        recovery: Recovery {
            handover: Handover::Stable,
            on_peer_loss: OnPeerLoss::Shrink,
            replicated: true,
        },
        least,
        leads: Leads::Operator,
        ..Setup::uniform(nodes, 2)
    };
    let mut world = World::new(rng, setup, &[sum(300); 60]);
    let start = Duration::from_secs(10);
    let phase = if nodes == 1 {
        Phase::Submitted
    } else {
        Phase::MidUp
    };
    assert!(world.goes_on(start, |world| !world.is_in(phase, (WORLD, 3))));
    world
}

impl World {
    /// The first operation whose end not all of these nodes' ranks know.
    fn delivered(&self, nodes: &[usize]) -> usize {
        let ranks = nodes.iter().flat_map(|&node| self.setup.layout.ranks(node));
        let delivered = ranks.map(|rank| self.outcomes(rank).len());
        delivered.min().unwrap()
    }

    fn called(&self, nodes: &[usize]) -> usize {
        let ranks = nodes.iter().flat_map(|&node| self.setup.layout.ranks(node));
        let called = ranks.map(|rank| self.groups[&WORLD].members[rank as usize].called);
        called.max().unwrap()
    }

    /// What was in flight when it happened ended for these nodes within the limit, without an error.
    fn ends_within(&mut self, limit: Duration, nodes: &[usize]) {
        let (begin, called) = (self.now(), self.called(nodes));
        let ended = self.goes_on(begin + limit, |world| world.delivered(nodes) < called);
        assert!(ended, "{:?}: {:?}", self.delivered(nodes), self.phase());
        self.check();
        let ranks = nodes.iter().flat_map(|&node| self.setup.layout.ranks(node));
        for rank in ranks {
            let outcomes = self.outcomes(rank);
            assert!(outcomes.values().all(Result::is_ok), "rank {rank}");
        }
    }

    fn others(&self, node: usize) -> Vec<usize> {
        (0..self.nodes()).filter(|&other| other != node).collect()
    }
}

// REC-6: a trainer that dies costs the others less than a second, and no operation.
#[test]
fn when_a_trainer_dies_the_operation_ends_without_it_within_a_second() {
    for_each_seed(20, |rng| {
        let nodes = *rng.pick(&[3, 4, 8, 33]);
        let mut world = gang(rng, nodes, 2);
        let victim = rng.below(nodes);
        world.kill_rank(2 * victim as u32);
        let others = world.others(victim);
        world.ends_within(1000 * MS, &others);
        assert_eq!(world.members(), others);
    });
}

#[test]
fn a_hundred_nodes_go_on_without_one_within_a_second() {
    for_each_seed(1, |rng| {
        let mut world = gang(rng, 100, 2);
        world.kill_rank(77);
        let others = world.others(38);
        world.ends_within(1000 * MS, &others);
        assert_eq!(world.members(), others);
    });
}

// REC-7: a sidecar that comes back costs its restart and three seconds, and nobody leaves.
#[test]
fn when_a_sidecar_restarts_the_operation_ends_with_everybody_three_seconds_later() {
    for_each_seed(20, |rng| {
        let nodes = *rng.pick(&[1, 2, 3, 4, 8, 33]);
        let mut world = gang(rng, nodes, 2);
        let victim = rng.below(nodes);
        world.kill_sidecar(victim);
        let back = Duration::from_nanos(rng.range(100_000_000..6_000_000_000));
        let back_again = Event::Restart { node: victim };
        world.hosts.after(back, To::World, back_again);
        let restart = world.now() + back;
        world.run_until(restart);
        let all: Vec<usize> = (0..nodes).collect();
        world.ends_within(3000 * MS, &all);
        assert_eq!(world.members(), all);
    });
}

// REC-7: nobody waits for ranks that have left.
#[test]
fn a_sidecar_restarts_where_ranks_have_left_without_waiting_for_them() {
    for_each_seed(6, |rng| {
        let nodes = 2 + rng.below(4);
        let mut world = gang(rng, nodes, 2);
        let victim = rng.below(nodes);
        // One of two, or both.
        let leavers = world.setup.layout.ranks(victim).skip(rng.below(2));
        world.leavers = leavers.collect();
        let have_left = |world: &World| {
            let mut leavers = world.leavers.iter();
            leavers.all(|&rank| world.clients[rank as usize].has_left)
        };
        let limit = world.now() + 60_000 * MS;
        assert!(world.goes_on(limit, |world| !have_left(world)));
        world.kill_sidecar(victim);
        let restart = world.now() + 200 * MS;
        let back = Event::Restart { node: victim };
        world.hosts.after(200 * MS, To::World, back);
        let goes_on = |world: &World| {
            let leader = world.leader.as_ref();
            let phase = leader.map(|leader| leader.membership.view().phase);
            world.store.len() > 1 && phase == Some(Leading::Running)
        };
        assert!(world.goes_on(restart + 3000 * MS, |world| !goes_on(world)));
        assert_eq!(world.members().len(), nodes);
        let all: Vec<usize> = (0..nodes).collect();
        world.ends_within(1000 * MS, &all);
    });
}

// REC-8: who is silent is named within two seconds, waited for, and out after ten.
#[test]
fn a_silent_node_is_named_at_once_and_given_up_after_its_time() {
    for_each_seed(10, |rng| {
        let nodes = 3 + rng.below(6);
        let mut world = gang(rng, nodes, 2);
        let victim = rng.below(nodes);
        let frozen = world.now();
        world.hosts.freeze(victim);
        world.run_until(frozen + 2010 * MS);
        let view = world.leader.as_ref().unwrap().membership.view();
        let named: BTreeSet<u32> = view.suspects.iter().map(|one| one.rank).collect();
        assert_eq!(named, BTreeSet::from([victim as u32]));
        assert_eq!(view.phase, Leading::Running, "named is not given up");
        let others = world.others(victim);
        world.run_until(frozen + Duration::from_millis(9700));
        assert_eq!(world.members().len(), nodes);
        world.ends_within(2500 * MS, &others);
        assert_eq!(world.members(), others);
        world.thaw(victim);
        let soon = world.now() + 3000 * MS;
        world.run_until(soon);
        assert!(
            world.sidecars[victim].is_out,
            "it learns that when it is back"
        );
        world.check();
    });
}

#[test]
fn a_node_that_wakes_up_in_time_stays() {
    for_each_seed(6, |rng| {
        let mut world = gang(rng, 5, 2);
        world.hosts.freeze(2);
        let thaw = world.now() + Duration::from_nanos(rng.range(2_000_000_000..9_000_000_000));
        world.run_until(thaw);
        world.thaw(2);
        world.ends_within(1000 * MS, &[0, 1, 2, 3, 4]);
        assert_eq!(world.store.len(), 1, "no epoch was needed");
    });
}

// REC-9: two sides never both go on.
#[test]
fn of_a_partition_the_larger_side_that_reaches_the_operator_goes_on() {
    for_each_seed(16, |rng| {
        let nodes = 2 + rng.below(12);
        let mut world = gang(rng, nodes, 1);
        let border = 1 + rng.below(nodes - 1);
        // Which side the operator is cut off from, if from one.
        let cut_off = *rng.pick(&[None, Some(true), Some(false)]);
        let operator = world.operator();
        for one in 0..border {
            for other in border..nodes {
                world.cut(one, other);
            }
        }
        for node in (0..nodes).filter(|&node| cut_off == Some(node < border)) {
            world.cut(node, operator);
        }
        let lower_wins = match cut_off {
            Some(lower_is_cut_off) => !lower_is_cut_off,
            None => border >= nodes - border,
        };
        let winners: Vec<usize> = if lower_wins {
            (0..border).collect()
        } else {
            (border..nodes).collect()
        };
        let losers: Vec<usize> = (0..nodes).filter(|node| !winners.contains(node)).collect();
        world.ends_within(25_000 * MS, &winners);
        assert_eq!(world.members(), winners);
        let delivered = world.delivered(&losers);
        let later = world.now() + 20_000 * MS;
        world.run_until(later);
        assert_eq!(
            world.delivered(&losers),
            delivered,
            "the others wait, or know that they are out"
        );
        world.heal();
        let later = world.now() + 20_000 * MS;
        world.run_until(later);
        assert!(losers.iter().all(|&node| world.sidecars[node].is_out));
        world.check();
    });
}

// REC-9: no commit, no progress with fewer members.
#[test]
fn while_no_operator_answers_nobody_shrinks() {
    for_each_seed(6, |rng| {
        let mut world = gang(rng, 4, 1);
        let operator = world.operator();
        (0..4).for_each(|node| world.cut(node, operator));
        world.run_until(world.now() + 2000 * MS);
        world.kill_node(1);
        let others = world.others(1);
        world.run_until(world.now() + 200 * MS);
        let delivered = world.delivered(&others);
        world.run_until(world.now() + 60_000 * MS);
        assert_eq!(
            (world.delivered(&others), world.store.len()),
            (delivered, 1)
        );
        world.heal();
        world.ends_within(15_000 * MS, &others);
    });
}

// REC-5: leaders come and go in the middle of everything.
#[test]
fn leaders_that_die_all_the_time_delay_only() {
    for_each_seed(12, |rng| {
        let nodes = 2 + rng.below(6);
        let mut world = gang(rng, nodes, 1);
        let victim = rng.below(nodes);
        if rng.chance(1, 2) {
            world.kill_rank(2 * victim as u32);
        } else {
            world.kill_node(victim);
        }
        let others = world.others(victim);
        for _ in 0..6 {
            let lives = Duration::from_nanos(rng.range(1_000_000..3_000_000_000));
            world.run_until(world.now() + lives);
            world.kill_leader();
        }
        world.ends_within(30_000 * MS, &others);
        assert_eq!(world.members(), others);
    });
}

#[test]
fn with_too_few_left_the_attempt_ends_and_says_so() {
    for_each_seed(4, |rng| {
        let mut world = gang(rng, 3, 3);
        world.kill_rank(0);
        let limit = world.now() + 2000 * MS;
        assert!(world.goes_on(limit, |world| world.broken.is_none()));
        let broken = world.broken.unwrap().to_string();
        assert_eq!(broken, "2 nodes are left, fewer than 3");
        assert_eq!(world.store.len(), 1, "nobody went on");
    });
}
