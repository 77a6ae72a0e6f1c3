//! Any gang, any groups, any calls, any fault in any phase. The test that explores.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use collective::machine::{GroupId, Handover, OpId, Recovery, WORLD};
use collective::membership::{Break, probes};
use collective::{Call, DType, Layout, Numerics, OpKind, ReduceOp};
use sim::{Conditions, Rng, explore, print_count};
use topology::OnPeerLoss;

use crate::faults::{FAULTS, Fault, Phase, When};
use crate::fixture::draw;
use crate::fixture::memory::Id;
use crate::lanes::{Lane, Member};
use crate::world::{Setup, World};

const FLOATS: [DType; 5] = [
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::E4m3,
    DType::E5m2,
];

/// Enough that each fault meets each phase several times.
const SEEDS: u64 = 2500;
/// After the last fault everything ends within this: two rounds of giving up who is silent, and of joining.
const LIMIT: Duration = Duration::from_secs(60);

/// More ranks exchange nothing: 5,000 messages.
const MOST_EXCHANGE: u32 = 70;

/// Any call on a group of `world` ranks, of at most some chunks. Mostly sums.
fn any_call(rng: &mut Rng, world: u32) -> Call {
    // Integers show what was combined, floats in which order.
    let dtype = if rng.chance(1, 2) {
        DType::I64
    } else {
        *rng.pick(&FLOATS)
    };
    let op = *rng.pick(if dtype.is_float() {
        &ReduceOp::ALL
    } else {
        &[ReduceOp::Sum, ReduceOp::Avg, ReduceOp::Max, ReduceOp::Min][..]
    });
    let root = rng.range(0..u64::from(world)) as u32;
    let sum = OpKind::AllReduce { op };
    let others = [
        OpKind::Reduce { op, root },
        OpKind::Broadcast { root },
        OpKind::AllGather,
        OpKind::ReduceScatter { op },
        OpKind::Barrier,
    ];
    let exchanges = [
        OpKind::Gather { root },
        OpKind::Scatter { root },
        OpKind::AllToAll { with: None },
    ];
    // Each pair of ranks has a message in one.
    let kind = match rng.below(16) {
        0..8 => sum,
        8 if world <= MOST_EXCHANGE => *rng.pick(&exchanges),
        _ => *rng.pick(&others),
    };
    let count = match kind {
        OpKind::Barrier
        | OpKind::Close
        | OpKind::AllToAll { .. }
        | OpKind::Send { .. }
        | OpKind::Receive { .. } => 0,
        OpKind::AllGather => rng.range(0..30),
        OpKind::Gather { .. } | OpKind::Scatter { .. } => rng.range(0..100),
        OpKind::ReduceScatter { .. } => rng.range(0..60) * u64::from(world),
        OpKind::AllReduce { .. } | OpKind::Reduce { .. } | OpKind::Broadcast { .. } => {
            draw::elements(rng, dtype.size())
        }
    };
    Call {
        kind,
        dtype,
        count,
        tag: 0,
        numerics: *rng.pick(&Numerics::ALL),
    }
}

fn any_setup(rng: &mut Rng) -> Setup {
    let nodes = draw::nodes(rng);
    let ranks = draw::ranks(rng, nodes);
    let split = rng.below(nodes + 1);
    Setup {
        layout: Layout::new(&ranks).unwrap(),
        zones: (0..nodes).map(|node| u64::from(node >= split)).collect(),
        chunk_bytes: *rng.pick(&[512, 576, 1024]),
        slots: rng.range(1..4) as u8,
        window: 1 + rng.below(3),
        recovery: Recovery {
            handover: if rng.chance(3, 4) {
                Handover::Stable
            } else {
                Handover::Immediate
            },
            on_peer_loss: OnPeerLoss::Shrink,
            replicated: rng.chance(7, 8),
        },
        least: 1 + u32::from(rng.chance(1, 4)),
        conditions: Conditions {
            slow_per_mille: if rng.chance(1, 4) { 10 } else { 0 },
            ..Conditions::reliable()
        },
    }
}

/// Some of the ranks: every so many, neighbours, or any.
fn any_ranks(rng: &mut Rng, world: u32) -> Vec<u32> {
    let from = rng.range(0..u64::from(world)) as u32;
    let ranks: Vec<u32> = match rng.below(4) {
        0 => (from % 2..world).step_by(1 + rng.below(4)).collect(),
        1 => (from..world.min(from + 2 + rng.below(6) as u32)).collect(),
        2 => (0..world).collect(),
        _ => (0..world).filter(|_| rng.chance(2, 3)).collect(),
    };
    if ranks.is_empty() { vec![from] } else { ranks }
}

fn any_program(rng: &mut Rng, nodes: usize, ranks: u32) -> Vec<Call> {
    let operations = 0..draw::operations(rng, nodes);
    operations.map(|_| any_call(rng, ranks)).collect()
}

/// Groups of some ranks beside the world, most of which are closed in the end.
fn add_groups(rng: &mut Rng, world: &mut World, count: usize) {
    for group in (0..count as GroupId).map(|number| 1000 - number) {
        let ranks = any_ranks(rng, world.setup.layout.world());
        let mut program = any_program(rng, world.nodes(), ranks.len() as u32);
        program.extend(rng.chance(7, 8).then(Call::close));
        let replicated = rng.chance(2, 3);
        world.add_group(group, ranks, replicated, &program);
    }
}

/// One rank calls something else once.
fn add_mismatch(rng: &mut Rng, world: &mut World) {
    let groups: Vec<GroupId> = world.lanes.keys().copied().collect();
    if let Some(lane) = world.lanes.get_mut(rng.pick(&groups)) {
        let size = lane.ranks.len();
        let program = &mut lane.members[rng.below(size)].program;
        let op = rng.below(program.len());
        if program[op].kind != OpKind::Close {
            program[op] = any_call(rng, size as u32);
        }
    }
}

/// An operation that a fault is about.
fn any_operation(rng: &mut Rng, world: &World, group: GroupId) -> Id {
    let program = &world.lanes[&group].members[0].program;
    (group, rng.below(program.len()) as u64)
}

pub(crate) type Cells = BTreeMap<(Fault, When), u64>;

fn check_run(rng: &mut Rng, cells: &mut Cells) {
    let fault = *rng.pick(&FAULTS);
    let when = *rng.pick(&When::all());
    let setup = any_setup(rng);
    let calls = any_program(rng, setup.layout.nodes(), setup.layout.world());
    let mut world = World::new(rng, setup, &calls);
    let groups = match when {
        When::World(_) if rng.chance(1, 2) => 0,
        When::World(_) | When::Group(_) | When::Life(_) => 1 + rng.below(3),
    };
    add_groups(rng, &mut world, groups);
    if rng.chance(1, 3) {
        let ranks = 0..world.setup.layout.world();
        world.leavers = ranks.filter(|_| rng.chance(1, 2)).collect();
    }
    if rng.chance(1, 16) {
        add_mismatch(rng, &mut world);
    }
    let group = if when.is_of_group() { 1000 } else { WORLD };
    let near: BTreeSet<usize> = world.nodes_of(group);
    let mut last = Duration::ZERO;
    if when.is_recovery() {
        let id = any_operation(rng, &world, group);
        world.run_while(Duration::from_secs(20), |world| {
            !world.is_in(Phase::MidDown, id)
        });
        let first = *rng.pick(&[Fault::Trainer, Fault::Sidecar, Fault::Node, Fault::Link]);
        last = world.befall(rng, first, &near).unwrap_or(last);
    }
    let id = any_operation(rng, &world, group);
    let soon = world.now() + Duration::from_secs(20);
    if world.run_while(soon, |world| !world.is(when, id))
        && let Some(at) = world.befall(rng, fault, &near)
    {
        *cells.entry((fault, when)).or_default() += 1;
        last = last.max(at);
    }
    let over = |world: &World| world.broken.is_some() || world.all_ended();
    let limit = last.max(world.now()) + LIMIT;
    let ended = world.run_while(limit, |world| !over(world));
    world.check();
    if !ended && !waits_for_a_forgotten_refusal(&world) {
        check_that_nobody_could_go_on(&world);
    }
    if ended && world.broken.is_none() {
        check_that_groups_end(&mut world);
    }
    check_that_nobody_was_given_up(&world);
    match world.broken {
        None | Some(Break::TooFew { .. }) => {}
        Some(Break::Forgotten { op }) => check_that_forgetting_was_right(&world, op),
        Some(other) => panic!("broken: {other}"),
    }
}

/// A gang may wait for ever only when its members cannot reach the operator, or nobody is left.
fn check_that_nobody_could_go_on(world: &World) {
    let operator = world.operator();
    let members = world.members();
    let usable: Vec<usize> = members
        .into_iter()
        .filter(|&node| {
            let ranks = world.setup.layout.ranks(node);
            let whole = ranks
                .into_iter()
                .all(|rank| world.clients[rank as usize].alive);
            world.sidecars[node].alive && whole && !world.is_cut(node, operator)
        })
        .collect();
    assert!(
        usable.is_empty(),
        "{usable:?} hang: {:?}, {:?} wait",
        world.phase(),
        world.waiting()
    );
}

/// REC-10 for groups: nothing is left of a group that all have closed.
fn check_that_groups_end(world: &mut World) {
    let whole = world.cut.is_empty() && world.sidecars.iter().all(|one| !one.frozen);
    let lives = |rank: u32| world.clients[rank as usize].alive;
    let runs =
        |&node: &usize| world.sidecars[node].alive && world.setup.layout.ranks(node).all(lives);
    if !whole || !world.members().iter().all(runs) {
        return;
    }
    let settled = world.now() + LIMIT;
    let ended = world.run_while(settled, |world| {
        world.broken.is_none() && !world.left_of_closed_groups().is_empty()
    });
    let left = world.left_of_closed_groups();
    assert!(ended, "left of groups that are closed: {left:?}");
}

/// That a group cannot be opened may have been told by a sidecar alone that has forgotten it: then the other ranks wait as
/// long as their own limit for it. For nothing else does anybody wait.
fn waits_for_a_forgotten_refusal(world: &World) -> bool {
    let forgot = world.sidecars.iter().any(|sidecar| sidecar.life > 1);
    let refused = |lane: &Lane| lane.members.iter().any(Member::is_dead);
    let members = world.members();
    let mut lanes = world.lanes.values();
    forgot && lanes.all(|lane| refused(lane) || world.has_ended(lane, &members))
}

/// Of those whom nothing has befallen all stay that hang together by the pairs that ask each other.
fn check_that_nobody_was_given_up(world: &World) {
    let safe = |node: &u32| !world.struck.contains(&(*node as usize));
    let rings = world.store.iter().map(|commit| &commit.members[..]);
    let least = rings.map(|ring| largest_part(ring, safe)).min();
    let left = match world.broken {
        Some(Break::TooFew { left, .. }) => left as usize,
        Some(_) | None => world.members().len(),
    };
    let struck = &world.struck;
    assert!(least <= Some(left), "{left} are left, without {struck:?}");
}

/// How many of these members hang together, by the pairs that ask each other.
fn largest_part(members: &[u32], safe: impl Fn(&u32) -> bool) -> usize {
    let mut rest: BTreeSet<u32> = members.iter().copied().filter(safe).collect();
    let mut largest = 0;
    while let Some(first) = rest.pop_first() {
        let mut part = vec![first];
        let mut asked = 0;
        while let Some(&one) = part.get(asked) {
            let others = probes(members, one).into_iter();
            part.extend(others.filter(|other| rest.remove(other)));
            asked += 1;
        }
        largest = largest.max(part.len());
    }
    largest
}

fn check_that_forgetting_was_right(world: &World, op: OpId) {
    let forgot = |sidecar: &&crate::sidecar::Sidecar| sidecar.life > 1;
    let forgot = world.sidecars.iter().filter(forgot).count();
    let stable = world.setup.recovery.handover == Handover::Stable;
    // What each rank gets for itself no other node has for it.
    let exchanges = |member: &Member| {
        let call = member.program.get(op as usize);
        call.is_some_and(|call| call.kind.exchanges())
    };
    let mut members = world.lanes.values().flat_map(|lane| &lane.members);
    let forgot_too = usize::from(members.any(exchanges));
    assert!(
        forgot + forgot_too > usize::from(stable),
        "{forgot} losses of memory are not too much, stable: {stable}"
    );
}

// REC-1, REC-2, REC-3, REC-4, REC-5, REC-10.
#[test]
fn any_gang_goes_on_alike_after_any_fault_in_any_phase() {
    let mut cells = Cells::new();
    let mut runs = 0;
    explore(SEEDS, &[], |rng| {
        check_run(rng, &mut cells);
        runs += 1;
    });
    for ((fault, when), &hits) in &cells {
        print_count(&format!("{fault:?} {when}"), hits);
    }
    // Unless one seed is run again.
    if runs >= SEEDS {
        for fault in FAULTS {
            for when in When::all() {
                let hits = cells.get(&(fault, when)).copied().unwrap_or(0);
                assert!(hits >= 3, "{fault:?} {when}: {hits}");
            }
        }
    }
}
