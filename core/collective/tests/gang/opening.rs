//! How groups are opened: alike on all their ranks, or not at all and with both sides named.

use collective::Call;
use collective::machine::{Broken, Dispute, Input, MAX_GROUPS, OpenError, OpenReason};
use sim::{Rng, Simulation, for_each_seed};

use crate::calls;
use crate::world::groups::Member;
use crate::world::{MS, Setup, World};

const GROUP: u64 = 7;

fn sum() -> Call {
    calls::sum(200)
}

/// A gang in one zone with two ranks on each of its nodes.
fn gang(rng: &mut Rng, nodes: usize) -> World {
    World::new(rng, Setup::uniform(nodes, 2), &[])
}

fn members(world: &World) -> &[Member] {
    &world.groups[&GROUP].members
}

fn answers(world: &World) -> Vec<Result<(), OpenError>> {
    members(world)
        .iter()
        .map(|one| one.opened.unwrap())
        .collect()
}

// COLL-1: the same error, which names both sides.
#[test]
fn ranks_that_mean_different_groups_learn_both_sides_and_the_others_go_on() {
    for_each_seed(50, |rng| {
        let mut world = gang(rng, 4);
        (0..8).for_each(|rank| world.program(rank).extend([sum(); 3]));
        world.add_group(9, vec![0, 2, 4], true, &[sum(), Call::close()]);
        world.add_group(GROUP, vec![1, 2, 3, 6], true, &[sum()]);
        let odd = rng.below(4);
        let other = [vec![1, 2, 3, 6, 7], vec![0, 1, 2, 3, 6]];
        let opens_with = &mut world.groups.get_mut(&GROUP).unwrap().members[odd].opens_with;
        *opens_with = Some(rng.pick(&other).clone());
        world.start();
        world.run(World::all_ended);
        world.check();
        let answers = answers(&world);
        let Err(OpenError::Dispute(Dispute::Mismatch { one, other })) = answers[0] else {
            panic!("{answers:?}");
        };
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        let odd = world.groups[&GROUP].ranks[odd];
        assert!([one.rank, other.rank].contains(&odd));
        assert_ne!((one.size, one.checksum), (other.size, other.checksum));
    });
}

#[test]
fn a_group_within_a_node_needs_no_frames() {
    for_each_seed(10, |rng| {
        let mut world = gang(rng, 3);
        world.add_group(
            GROUP,
            vec![2, 3],
            true,
            &[sum(), Call::barrier(), Call::close()],
        );
        world.start();
        world.run(World::all_ended);
        world.check();
        assert_eq!((answers(&world), world.seen.frames), (vec![Ok(()); 2], 0));
    });
}

#[test]
fn a_group_over_zones_without_the_nodes_that_join_them_is_refused() {
    for_each_seed(20, |rng| {
        let setup = Setup::new(&[1; 6], &[0, 0, 0, 1, 1, 1]);
        let mut world = World::new(rng, setup, &[]);
        let (near, far) = world.trees(&world.members()).gateway().unwrap();
        let ranks: Vec<u32> = (0..6).filter(|&rank| rank != far as u32).collect();
        world.add_group(GROUP, ranks, true, &[sum(), Call::close()]);
        let pair = [near as u32, far as u32];
        world.add_group(8, pair.to_vec(), true, &[sum(), Call::close()]);
        world.start();
        world.run(World::all_ended);
        world.check();
        let reason = OpenReason::Gateway;
        let refused = |answer: &Result<(), OpenError>| matches!(answer, Err(OpenError::Dispute(Dispute::Refused { reason: why, .. })) if *why == reason);
        assert!(answers(&world).iter().all(refused));
    });
}

#[test]
fn a_list_that_is_none_is_refused_on_all_its_ranks() {
    for wrong in [
        vec![],
        vec![3, 1],
        vec![1, 1, 3],
        vec![1, 3, 99],
        vec![0, 3],
    ] {
        let mut world = gang(&mut Rng::new(0), 2);
        world.add_group(GROUP, vec![1, 3], true, &[sum()]);
        world.groups.get_mut(&GROUP).unwrap().members[0].opens_with = Some(wrong.clone());
        world.start();
        world.run(World::all_ended);
        let reason = OpenReason::Ranks;
        let refused = |answer: &Result<(), OpenError>| {
            matches!(answer, Err(OpenError::Dispute(Dispute::Refused { opener, reason: why }))
                if *why == reason && opener.rank == 1)
        };
        assert!(answers(&world).iter().all(refused), "{wrong:?}");
    }
}

#[test]
fn a_group_that_is_open_is_not_harmed_by_who_opens_another_of_its_number() {
    let mut world = gang(&mut Rng::new(0), 2);
    world.add_group(GROUP, vec![1, 3], true, &[sum(), Call::close()]);
    world.add_group(8, vec![1, 3], true, &[sum()]);
    world.start();
    let is_open = |one: &Member| one.opened.is_some();
    world.run(|world| members(world).iter().all(is_open));
    let ranks = &mut world.sidecars[0].ranks;
    let other = ranks.open((GROUP, 0), vec![0, 2], (true, 0), 0);
    world.handle_all(0, other);
    let ranks = &world.sidecars[0].ranks;
    assert!(ranks.lane(GROUP, 0).is_none(), "it was refused");
    assert!(world.sidecars[0].answered.contains(&(GROUP, 0)));
    world.run(World::all_ended);
    world.check();
    assert!(members(&world).iter().all(Member::has_ended));
}

#[test]
fn a_node_takes_part_in_so_many_groups_and_no_more() {
    let mut world = World::new(&mut Rng::new(0), Setup::uniform(2, 1), &[]);
    for group in 0..=MAX_GROUPS as u64 {
        world.add_group(1 + group, vec![0, 1], true, &[Call::close()]);
        // Closed later than all are opened.
        world.groups.get_mut(&(1 + group)).unwrap().members[0]
            .program
            .clear();
    }
    world.start();
    let opened = |world: &World| {
        let mut members = world.groups.values().flat_map(|group| &group.members);
        members.all(|one| one.opened.is_some())
    };
    world.run(opened);
    let reason = OpenReason::Groups;
    let is_refused = |one: &Member| match one.opened.unwrap() {
        Ok(()) => false,
        Err(OpenError::Dispute(Dispute::Refused { reason: why, .. })) if why == reason => true,
        Err(error) => panic!("{error:?}"),
    };
    let groups = world.groups.values().filter(|one| !one.members.is_empty());
    let answers = groups.map(|one| one.members.iter().map(is_refused).collect::<Vec<_>>());
    let (refused, open): (Vec<_>, Vec<_>) = answers.partition(|one| one.contains(&true));
    assert!(refused.iter().all(|one| *one == [true, true]));
    // Each node refuses the last that it is asked for: both the same, or each another.
    assert!((1..=2).contains(&refused.len()), "{}", refused.len());
    assert!(open.len() >= MAX_GROUPS - 1, "{}", open.len());
}

#[test]
fn who_keeps_others_waiting_for_a_group_is_named_and_who_left_ends_the_wait() {
    let mut world = gang(&mut Rng::new(0), 2);
    world.add_group(GROUP, vec![0, 1, 3], true, &[sum()]);
    world.held.insert(1);
    world.start();
    world.run_until(900 * MS);
    assert_eq!(world.seen.late, []);
    world.run_until(1200 * MS);
    let late = |(_, node, id, ranks): &(_, usize, _, Vec<usize>)| (*node, *id, ranks.clone());
    let late: Vec<_> = world.seen.late.iter().map(late).collect();
    assert_eq!(late, [(0, (GROUP, 0), vec![1])]);
    world.handle(0, Input::RankLeft { rank: 1 });
    world.run_until(1300 * MS);
    let left = Broken::RankLeft {
        rank: 1,
        by: 0,
        op: 0,
    };
    for at in [0, 2] {
        let answer = members(&world)[at].opened;
        assert_eq!(answer, Some(Err(OpenError::Broken(left))));
    }
}

/// The price of groups: what is said to open one and to close it does not grow with what else there is.
#[test]
fn a_group_costs_a_frame_up_and_down_the_worlds_tree_for_each_rank_and_no_more_later() {
    let mut world = gang(&mut Rng::new(0), 8);
    for group in 1..=20 {
        world.add_group(group, vec![0, 4, 8, 12], true, &[Call::barrier()]);
    }
    world.start();
    world.run(World::all_ended);
    let links = |world: &World| {
        world
            .sidecars
            .iter()
            .map(|sidecar| sidecar.links.len())
            .sum::<usize>()
    };
    let before = (world.seen.frames, links(&world));
    // At most four levels to the root for each of four ranks, as many answers, and the barrier's own frames.
    assert!(before.0 <= 20 * (4 * 4 * 2 + 6), "{before:?}");
    // Links are shared: the trees over four nodes have at most five edges, half of them in the world's.
    assert!(before.1 <= 2 * (14 + 5), "{before:?}");
}
