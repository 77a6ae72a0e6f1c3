//! Which GPUs of a node a container should get. Looks at every set of the size asked for and takes
//! the one with the lowest [`Cost`]; a node is small enough for that. The order of the question's
//! lists never shows in the answer.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::node::{Hardware, MAX_GPUS};

/// A set of GPU indices of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuSet(u32);

const _: () = assert!(MAX_GPUS <= 31, "a set of GPUs fits its bits");

/// Why no set can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More were asked for than there are.
    #[error("{size} GPUs were asked for and {available} are available")]
    TooMany {
        /// How many were asked for.
        size: usize,
        /// How many there are to choose from.
        available: usize,
    },
    /// The answer would have to be larger than asked for.
    #[error("{size} GPUs were asked for and {must} must be among them")]
    TooFew {
        /// How many were asked for.
        size: usize,
        /// How many the answer must hold.
        must: usize,
    },
    /// The answer would have to hold what is not to be had.
    #[error("GPU {index} must be in the answer and is not available")]
    NotAvailable {
        /// The GPU.
        index: usize,
    },
}

/// What is wrong with a set, the gravest first: sets compare by the first field that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// GPUs that are known to be faulty.
    pub faulty: u32,
    /// Bridged pairs that were free and would be torn apart.
    pub pairs_broken: u32,
    /// Bridged pairs that the set holds whole.
    pub pairs_whole: Reverse<u32>,
    /// GPUs beyond the first on a root port: they share its bandwidth.
    pub root_ports_shared: u32,
    /// NUMA nodes that the set is spread over.
    pub numa_nodes: u32,
    /// GPUs with no adapter on their NUMA node, counted if the node asks for it.
    pub far_from_hca: u32,
}

/// Chooses `size` GPUs out of `available`, those of `must` among them. `faulty` ones are taken only
/// when there is no other way.
pub fn prefer(
    node: &Hardware,
    available: GpuSet,
    must: GpuSet,
    faulty: GpuSet,
    size: usize,
) -> Result<GpuSet, Error> {
    if let Some(index) = must.without(available).indices().next() {
        return Err(Error::NotAvailable { index });
    }
    let (most, least) = (available.len(), must.len());
    if size > most {
        return Err(Error::TooMany {
            size,
            available: most,
        });
    }
    if size < least {
        return Err(Error::TooFew { size, must: least });
    }
    let free: Vec<usize> = available.without(must).indices().collect();
    let mut best: Option<(Cost, GpuSet)> = None;
    // In the order of their indices, so that of equal sets the one of the lowest indices stays.
    for_each_choice(&free, size - least, must, &mut |chosen| {
        let cost = cost(node, available, faulty, chosen);
        if best.is_none_or(|(lowest, _)| cost < lowest) {
            best = Some((cost, chosen));
        }
    });
    // With the sizes checked above there is always a choice, be it the empty one.
    Ok(best.map_or(must, |(_, chosen)| chosen))
}

/// What is wrong with `chosen`, taken out of `available`.
pub fn cost(node: &Hardware, available: GpuSet, faulty: GpuSet, chosen: GpuSet) -> Cost {
    let mut broken = 0;
    let mut whole = 0;
    for &(one, other) in node.nvlinks() {
        let usable = |gpu| available.contains(gpu) && !faulty.contains(gpu);
        if usable(one) && usable(other) {
            match (chosen.contains(one), chosen.contains(other)) {
                (true, true) => whole += 1,
                (true, false) | (false, true) => broken += 1,
                (false, false) => {}
            }
        }
    }
    let gpus = || chosen.indices().filter_map(|index| node.gpus().get(index));
    let ports: BTreeSet<_> = gpus().map(|gpu| gpu.root_port).collect();
    let numa_nodes: BTreeSet<u32> = gpus().map(|gpu| gpu.numa).collect();
    let near = |numa: u32| node.hcas().iter().any(|hca| hca.numa == numa);
    let far = if node.prefers_near_hca() {
        gpus().filter(|gpu| !near(gpu.numa)).count()
    } else {
        0
    };
    Cost {
        faulty: count(chosen.both(faulty).len()),
        pairs_broken: broken,
        pairs_whole: Reverse(whole),
        root_ports_shared: count(chosen.len() - ports.len()),
        numa_nodes: count(numa_nodes.len()),
        far_from_hca: count(far),
    }
}

/// Calls back with `chosen` plus each set of `more` out of `free`, in lexicographic order.
fn for_each_choice(free: &[usize], more: usize, chosen: GpuSet, visit: &mut impl FnMut(GpuSet)) {
    if more == 0 {
        visit(chosen);
        return;
    }
    for (position, gpu) in free.iter().enumerate() {
        let rest = &free[position + 1..];
        if rest.len() + 1 < more {
            return;
        }
        for_each_choice(rest, more - 1, chosen.with(*gpu), visit);
    }
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

impl GpuSet {
    /// This set and one more GPU. An index that no node has is left out.
    #[must_use]
    pub fn with(self, index: usize) -> Self {
        if index < MAX_GPUS {
            Self(self.0 | 1 << index)
        } else {
            self
        }
    }

    /// The GPUs of this set that are not in the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The GPUs that are in both sets.
    #[must_use]
    pub fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether the GPU is in the set.
    pub fn contains(self, index: usize) -> bool {
        index < MAX_GPUS && self.0 & 1 << index != 0
    }

    /// How many GPUs are in the set.
    pub fn len(self) -> usize {
        self.indices().count()
    }

    /// Whether the set holds none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The GPUs of the set, lowest index first.
    pub fn indices(self) -> impl Iterator<Item = usize> {
        (0..MAX_GPUS).filter(move |index| self.contains(*index))
    }
}

impl FromIterator<usize> for GpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(indices: I) -> Self {
        indices.into_iter().fold(Self::default(), Self::with)
    }
}

#[cfg(test)]
#[path = "preference_tests.rs"]
mod tests;
