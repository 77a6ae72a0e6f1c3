//! What is drawn for new operations: few names, so that operations meet.

use metadata::{AttributeChange, EntryName, InodeKind, InodeNumber};

use crate::actors::MOST_BYTES;
use crate::world::World;

pub(crate) fn change(world: &mut World) -> AttributeChange {
    let mut change = AttributeChange::default();
    match world.rng.below(6) {
        0 => change.mode = Some(0o2700),
        1 => change.gid = Some(5),
        2 => change.mtime_ns = Some(77),
        _ => change.size = Some(world.rng.range(0..MOST_BYTES)),
    }
    change
}

pub(crate) fn name(world: &mut World) -> EntryName {
    let letter = b'a' + world.rng.below(6) as u8;
    EntryName::new(&[letter]).unwrap()
}

/// Mostly one that is there.
pub(crate) fn name_of(world: &mut World, directory: InodeNumber) -> EntryName {
    let node = world.oracle.nodes.get(&directory);
    let names: Vec<_> = node
        .into_iter()
        .flat_map(|node| node.children.keys())
        .cloned()
        .collect();
    match names.is_empty() || world.rng.chance(1, 3) {
        true => name(world),
        false => names[world.rng.below(names.len())].clone(),
    }
}

pub(crate) fn inode(world: &mut World) -> InodeNumber {
    let inodes: Vec<_> = world.oracle.nodes.keys().copied().collect();
    inodes[world.rng.below(inodes.len())]
}

pub(crate) fn directory(world: &mut World) -> InodeNumber {
    let nodes = world.oracle.nodes.iter();
    let directories = nodes.filter(|(_, node)| node.kind == InodeKind::Directory);
    let directories: Vec<_> = directories.map(|(inode, _)| *inode).collect();
    directories[world.rng.below(directories.len())]
}
