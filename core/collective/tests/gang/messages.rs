//! Messages between two ranks arrive, end with their group, their rank or their node, and keep nothing else waiting.

use collective::Call;
use collective::machine::{Broken, Cause, Input, Reason, Verdict, WORLD};
use sim::{Conditions, Rng, Simulation, explore};

use crate::world::messages::Side;
use crate::world::{MS, Setup, World};

fn gang(rng: &mut Rng, nodes: usize) -> World {
    let ranks: Vec<u32> = (0..nodes).map(|_| rng.range(1..4) as u32).collect();
    let split = rng.below(nodes + 1);
    let zones: Vec<u64> = (0..nodes).map(|node| u64::from(node >= split)).collect();
    let setup = Setup {
        conditions: Conditions {
            ordered: rng.chance(3, 4),
            ..Conditions::reliable()
        },
        window: 1 + rng.below(4),
        slots: rng.range(1..4) as u8,
        ..Setup::new(&ranks, &zones)
    };
    World::new(rng, setup, &[])
}

#[test]
fn any_messages_arrive_in_their_order_over_any_ways() {
    explore(1000, &[], |rng| {
        let nodes = 1 + rng.below(9);
        let mut world = gang(rng, nodes);
        for _ in 0..3 {
            world.add_messages(rng);
        }
        world.start();
        world.run(all_called_and_ended);
        world.check_messages();
        for message in &world.messages {
            let fits = message.counts[0] == message.counts[1];
            for side in &message.sides {
                let Side::Ended(outcome) = side else {
                    panic!("{message:?}");
                };
                assert_eq!(outcome.is_ok(), fits, "{message:?}");
            }
        }
    });
}

fn all_called_and_ended(world: &World) -> bool {
    let mut sides = world.messages.iter().flat_map(|message| &message.sides);
    sides.all(|side| matches!(side, Side::Ended(_)))
}

#[test]
fn a_message_for_which_nobody_calls_keeps_no_operation_waiting_and_ends_with_its_group() {
    explore(200, &[], |rng| {
        let nodes = 1 + rng.below(5);
        let mut world = gang(rng, nodes);
        let everybody = world.groups[&WORLD].ranks.clone();
        if everybody.len() < 2 {
            return;
        }
        let calls = [Call::barrier(), Call::close()];
        let (from, to) = (everybody[0], everybody[everybody.len() - 1]);
        world.add_group(7, everybody, true, &calls);
        world.add_message(7, (from, to), 0, [300, 300]);
        let missing = rng.below(2);
        world.messages[0].sides[missing] = Side::GivenUp;
        world.start();
        world.run(|world| world.all_ended() && world.left_of_closed_groups().is_empty());
        let side = &world.messages[0].sides[1 - missing];
        if let Side::Ended(Err(Cause::Verdict(Verdict::Refusal(refusal)))) = side {
            assert_eq!(refusal.reason, Reason::Closed);
        } else {
            assert_eq!(*side, Side::Uncalled, "it has closed the group before");
        }
    });
}

// COLL-1: who waits for a message of a node that is lost learns it.
#[test]
fn a_lost_node_ends_every_message() {
    explore(300, &[], |rng| {
        let nodes = 2 + rng.below(5);
        let mut world = gang(rng, nodes);
        world.add_messages(rng);
        world.add_messages(rng);
        world.start();
        let at = world.now() + MS * rng.range(0..20) as u32;
        world.run_until(at);
        let lost = rng.below(nodes);
        world.lose(lost, false);
        world.run(World::all_ended);
        let end = world.now() + 1000 * MS;
        world.run_until(end);
        world.run(World::messages_ended);
        world.check_messages();
    });
}

#[test]
fn a_rank_that_leaves_is_named_to_who_waits_for_its_message() {
    explore(100, &[], |rng| {
        let nodes = 2 + rng.below(4);
        let mut world = gang(rng, nodes);
        let from = *rng.pick(&world.groups[&WORLD].ranks);
        let others: Vec<u32> = world.groups[&WORLD]
            .ranks
            .iter()
            .copied()
            .filter(|rank| *rank != from)
            .collect();
        let to = *rng.pick(&others);
        world.add_message(WORLD, (from, to), 0, [5, 5]);
        world.messages[0].sides[0] = Side::GivenUp;
        world.start();
        let (node, rank) = (world.setup.layout.node_of(from), world.local(from));
        world.later(20 * MS, node, Input::RankLeft { rank });
        world.run(|world| matches!(world.messages[0].sides[1], Side::Ended(_)));
        let Side::Ended(Err(Cause::Broken(Broken::RankLeft { rank, .. }))) =
            world.messages[0].sides[1]
        else {
            panic!("{:?}", world.messages[0]);
        };
        assert_eq!(rank, from);
    });
}
