//! Where the pages of a segment come to lie on a machine with several NUMA nodes. A page lies where it is when it is
//! first touched, so whoever makes a segment settles that: by the kernel's policy, which stays with the segment whoever
//! touches it, or where a container may not set one, by touching it from threads that run where the pages
//! should be. Which nodes these are is decided by others. Safe code will not do: no crate offers `mbind`.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use rustix::fs::MemfdFlags;
use rustix::mm::Advice;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::segment::{self, Mapping};

/// Pages are dealt out in pieces of this size: that of a huge page, which cannot be divided.
const PIECE_BYTES: usize = 2 << 20;
/// Words of a set of NUMA nodes: 1024 nodes, which are as many as Linux knows.
const WORDS: usize = 16;

/// Where a segment's pages come to lie.
#[derive(Clone, Debug, Default)]
pub enum MemoryPolicy {
    /// Where the thread runs that makes the segment.
    #[default]
    Anywhere,
    /// On these NUMA nodes, by the kernel's policy: on one as long as it has room, on several in turns.
    Policy(Arc<[u32]>),
    /// In turns where these processors are: each piece is touched by a thread that runs on one set of them.
    Touch(Arc<[CpuSet]>),
}

/// Modes of `linux/mempolicy.h`.
const MPOL_PREFERRED: i32 = 1;
const MPOL_INTERLEAVE: i32 = 3;

/// Whether the kernel takes a policy for these NUMA nodes from this process.
#[must_use]
pub fn may_set_policy(nodes: &[u32]) -> bool {
    const BYTES: usize = segment::UNIT_BYTES;
    // One that is only asked about holds no memory: its pages are never touched.
    let Ok(probe) = rustix::fs::memfd_create("fireflyer-policy", MemfdFlags::CLOEXEC) else {
        return false;
    };
    let sized = rustix::fs::ftruncate(&probe, BYTES as u64);
    let mapped = sized
        .ok()
        .and_then(|()| Mapping::untouched(probe.as_fd(), BYTES).ok());
    mapped.is_some_and(|mapping| {
        let (start, bytes) = mapping.place();
        bind(start.as_ptr(), bytes, nodes).is_ok()
    })
}

impl MemoryPolicy {
    /// Settles where the pages of a new writable mapping lie, before others touch what is left of them. Memory that
    /// lies elsewhere is slower and no worse, so what the kernel refuses is no error.
    pub(crate) fn settle(&self, start: NonNull<u8>, bytes: usize) {
        match self {
            Self::Anywhere => {}
            Self::Policy(nodes) => {
                bind(start.as_ptr(), bytes, nodes).ok();
            }
            Self::Touch(places) => touch(start, bytes, places),
        }
    }
}

impl MemoryPolicy {
    /// The same for a mapping that stays untouched: by the policy alone.
    pub(crate) fn promise(&self, start: NonNull<u8>, bytes: usize) {
        match self {
            Self::Policy(_) => self.settle(start, bytes),
            Self::Anywhere | Self::Touch(_) => {}
        }
    }
}

/// Each piece is touched by a thread of its place, or from anywhere if it may not run there.
fn touch(start: NonNull<u8>, bytes: usize, places: &[CpuSet]) {
    let address = start.as_ptr() as usize;
    let work = |turn: usize| {
        let pieces = (0..bytes).step_by(PIECE_BYTES);
        for offset in pieces.skip(turn).step_by(places.len()) {
            touch_piece(address + offset, PIECE_BYTES.min(bytes - offset));
        }
    };
    thread::scope(|scope| {
        for (turn, place) in places.iter().enumerate() {
            let named = thread::Builder::new().name(format!("touch-{turn}"));
            // Without a thread the pieces are left to whoever touches all.
            let spawned = named.spawn_scoped(scope, move || {
                sched_setaffinity(None, place).ok();
                work(turn);
            });
            drop(spawned);
        }
    });
}

/// Touches pages of a mapping that has just been made. Kernels before 5.14 do not know the advice, so these pages are
/// written: they are new, hence zero already.
#[expect(
    unsafe_code,
    reason = "madvise, and bytes that are written for their pages"
)]
fn touch_piece(address: usize, bytes: usize) {
    const PAGE_BYTES: usize = 4096;
    let start = address as *mut u8;
    // SAFETY: the range lies in a mapping that `Mapping::map` has made and not given out yet, and is whole pages from
    // its start on; the advice discards nothing.
    let advised = unsafe { rustix::mm::madvise(start.cast(), bytes, Advice::LinuxPopulateWrite) };
    if advised != Err(rustix::io::Errno::INVAL) {
        return;
    }
    for offset in (0..bytes).step_by(PAGE_BYTES) {
        // SAFETY: as above; nobody reads or writes there yet.
        unsafe { start.add(offset).write_volatile(0) };
    }
}

/// `mbind`: what is touched in the range from now on lies on these nodes. For shared memory the policy is the file's.
#[expect(unsafe_code, reason = "mbind")]
fn bind(start: *mut u8, bytes: usize, nodes: &[u32]) -> std::io::Result<()> {
    let mut set = [0u64; WORDS];
    for node in nodes {
        let word = set.get_mut(*node as usize / 64);
        *word.ok_or(std::io::ErrorKind::InvalidInput)? |= 1 << (node % 64);
    }
    // Not MPOL_BIND: a job must not end because one node's memory is full.
    let mode = match nodes {
        [_] => MPOL_PREFERRED,
        _ => MPOL_INTERLEAVE,
    };
    let bits = WORDS * 64 + 1;
    // SAFETY: the kernel reads `set`, as many bits less one, and changes no content. A range that is no
    // mapping of ours is refused or changes where pages to come lie, which is harmless.
    let done = unsafe { libc::syscall(libc::SYS_mbind, start, bytes, mode, set.as_ptr(), bits, 0) };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_getaffinity;

    use super::*;
    use crate::segment::{Segment, Writers};

    const BYTES: usize = 3 * PIECE_BYTES + PIECE_BYTES / 2;

    /// What the kernel says of where the pages of a memfd of this process lie.
    fn numa_maps(name: &str) -> String {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").unwrap();
        let file = format!("/memfd:{name}");
        let line = maps.lines().find(|line| line.contains(&file));
        line.unwrap().to_owned()
    }

    fn create(name: &str, home: &MemoryPolicy) -> Segment {
        Segment::create_at(name, BYTES, Writers::Creator, home).unwrap()
    }

    /// The first node: it is there on every machine.
    #[test]
    fn a_policy_stays_with_the_segment() {
        if !may_set_policy(&[0]) {
            eprintln!("not run: the kernel takes no memory policy from this process");
            return;
        }
        let segment = create("home-policy", &MemoryPolicy::Policy([0].into()));
        let line = numa_maps("home-policy");
        assert!(line.contains(" prefer:0 "), "{line}");
        drop(segment);
    }

    #[test]
    fn a_node_that_is_not_there_is_no_policy() {
        assert!(!may_set_policy(&[1023]));
        assert!(!may_set_policy(&[5000]));
        // It was promised and is refused: the segment is there all the same.
        let mut segment = create("home-nowhere", &MemoryPolicy::Policy([1023].into()));
        segment.bytes_mut().fill(1);
    }

    #[test]
    fn pages_that_are_touched_in_turns_are_all_touched_and_zero() {
        let here = sched_getaffinity(None).unwrap();
        let segment = create("home-touched", &MemoryPolicy::Touch([here, here].into()));
        let line = numa_maps("home-touched");
        let on_nodes = line.split(' ').filter_map(|word| {
            let (node, pages) = word.split_once('=')?;
            node.strip_prefix('N')?.parse::<u32>().ok()?;
            pages.parse::<usize>().ok()
        });
        let page = rustix::param::page_size();
        assert!(on_nodes.sum::<usize>() * page >= BYTES, "{line}");
        assert!(segment.bytes().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_place_where_no_thread_may_run_leaves_no_page_untouched() {
        let mut nowhere = CpuSet::new();
        nowhere.set(CpuSet::MAX_CPU - 1);
        let mut segment = create("home-elsewhere", &MemoryPolicy::Touch([nowhere].into()));
        segment.bytes_mut().fill(1);
    }
}
