//! Many worlds, and how often each fault was survived in each phase.

use std::collections::BTreeMap;

use metadata::{MetaOperation, MetaReply, MetaRequest, MountId};
use sim::{Rng, explore, print_count};

use crate::actors::Mount;
use crate::endings::{Collector, Ended, Ending};
use crate::fixture::{LAYOUT, SETTINGS};
use crate::world::{Attempt, Fault, Phase, World};

/// Rounds of a run.
const ROUNDS: u64 = 1500;
/// Rounds until everything has ended.
const MOST_ROUNDS: u64 = 200_000;
/// Chunks are small here, so that files have several.
const CHUNK_BYTES: u32 = 1 << 16;

/// Who makes and deletes volumes.
const CONTROLLER: MountId = MountId(0);

/// Runs so many worlds, and prints what was survived. Returns what never happened.
pub(crate) fn survive(count: u64) -> Vec<(Fault, Phase)> {
    let mut survived: BTreeMap<(Fault, Phase), u64> = BTreeMap::new();
    explore(count, &[], |rng| {
        for (met, count) in run(rng) {
            *survived.entry(met).or_default() += count;
        }
    });
    let mut never = Vec::new();
    for fault in Fault::ALL {
        for phase in Phase::ALL {
            let count = survived.get(&(fault, phase)).copied().unwrap_or_default();
            print_count(&format!("{fault:?} in {phase:?}"), count);
            if count == 0 {
                never.push((fault, phase));
            }
        }
    }
    never
}

fn run(rng: &mut Rng) -> BTreeMap<(Fault, Phase), u64> {
    let mut world = World::new(rng);
    world.is_calm = true;
    let layout = metadata::FileLayout {
        chunk_bytes: CHUNK_BYTES,
        ..LAYOUT
    };
    controller(
        &mut world,
        MetaOperation::MakeVolume {
            name: "one".to_owned(),
            settings: SETTINGS,
            layout,
            most_promised: u64::MAX,
        },
    );
    world.is_calm = rng.chance(1, 10);
    let mut last = 1 + world.rng.range(0..4);
    let mut mounts: Vec<_> = (1..=last).map(Mount::new).collect();
    let mut endings: Vec<Ending> = Vec::new();
    let mut collector = Collector::default();
    for _ in 0..ROUNDS {
        match world.rng.below(20) {
            0 => drop(collector.act(&mut world)),
            1 | 2 if !endings.is_empty() => {
                let at = world.rng.below(endings.len());
                match endings[at].act(&mut world) {
                    Ended::NotYet => {}
                    Ended::Yes => drop(endings.swap_remove(at)),
                    Ended::Lost(service) => endings.push(Ending::new(&mut world, service)),
                }
            }
            _ => {
                let at = world.rng.below(mounts.len());
                if !world.is_calm && world.rng.chance(1, 300) {
                    mounts[at].die(&mut world);
                    endings.push(Ending::new(&mut world, mounts[at].id));
                    if world.rng.chance(1, 3) {
                        // Two services notice.
                        endings.push(Ending::new(&mut world, mounts[at].id));
                    }
                    last += 1;
                    mounts[at] = Mount::new(last);
                }
                mounts[at].act(&mut world, true);
            }
        }
    }
    end(&mut world, mounts, endings, &mut collector);
    world.met
}

/// Everything comes to its end, and nothing is left.
fn end(
    world: &mut World,
    mut mounts: Vec<Mount>,
    mut endings: Vec<Ending>,
    collector: &mut Collector,
) {
    world.is_calm = true;
    let mut rounds = 0;
    while mounts.iter().any(|mount| !mount.is_idle()) || !endings.is_empty() {
        rounds += 1;
        assert!(rounds < MOST_ROUNDS, "META-7: something never ends");
        mounts.iter_mut().for_each(|mount| mount.act(world, false));
        endings.retain_mut(|ending| matches!(ending.act(world), Ended::NotYet));
    }
    if world.rng.chance(1, 2) {
        let name = "one".to_owned();
        controller(world, MetaOperation::DeleteVolume { name });
    }
    for mount in mounts {
        endings.push(Ending::new(world, mount.id));
    }
    while !endings.is_empty() {
        endings.retain_mut(|ending| matches!(ending.act(world), Ended::NotYet));
    }
    while !collector.act(world) {}
    check(world);
}

/// META-4, META-5, META-6 and META-7.
fn check(world: &mut World) {
    let oracle = std::rc::Rc::clone(&world.oracle);
    for (inode, node) in &oracle.nodes {
        let Some(layout) = oracle.attributes(*inode).unwrap().layout else {
            continue;
        };
        if node.kind == metadata::InodeKind::File {
            let end = world.physical.length(*inode, layout, 0, u64::MAX / 2);
            let size = node.set_size.max(end);
            assert_eq!(node.size, size, "META-5: {inode:?} has bytes up to {end}");
        }
        assert!(node.handles.is_empty(), "META-7: {inode:?} is open");
    }
    let files = world.physical.files();
    let lost: Vec<_> = files
        .filter(|file| !oracle.nodes.contains_key(file))
        .collect();
    assert!(lost.is_empty(), "META-6: chunks of {lost:?} are left");
    let store = world.store();
    assert_eq!(store.count(b"mi"), oracle.nodes.len(), "META-7");
    let entries = oracle.nodes.values().map(|node| node.children.len());
    assert_eq!(store.count(b"me"), entries.sum::<usize>(), "META-7");
    for letters in [b"mh", b"mo", b"mg", b"mr"] {
        assert_eq!(
            store.count(letters),
            0,
            "META-7: {}",
            letters.escape_ascii()
        );
    }
    if oracle.volumes.is_empty() {
        for letters in [b"mi", b"mt", b"mn", b"ms", b"mu", b"mv"] {
            assert_eq!(
                store.count(letters),
                0,
                "META-7: {}",
                letters.escape_ascii()
            );
        }
    } else {
        let name = "one".to_owned();
        controller(world, MetaOperation::GetVolume { name });
    }
    let inodes: Vec<_> = oracle.nodes.keys().copied().collect();
    for inode in inodes {
        controller(world, MetaOperation::GetAttributes { inode });
    }
}

/// Does an operation at once; the judge looks at its answer.
fn controller(world: &mut World, operation: MetaOperation) {
    let mut attempt = Attempt::new(CONTROLLER, MetaRequest::reading(operation));
    loop {
        if let Some(answer) = world.advance(&mut attempt) {
            assert!(matches!(
                answer,
                Ok(MetaReply::Volume(_) | MetaReply::Attributes(_) | MetaReply::Done)
            ));
            return;
        }
    }
}
