//! What each node does with each chunk of a collective, as data. Owns the cut into chunks and the way of each
//! chunk along its tree; `machine` carries it out, `check` proves it, and both read the same steps.
//!
//! Every chunk goes up its tree and comes down again. A *combined* chunk meets the other nodes' parts on the way
//! up. A *spread* chunk starts at one node. Two rules make every collective end the same on all nodes:
//! the first chunk of a tree is sent up by everybody, with or without data, so the root turns nothing before all
//! have joined; the last chunk of a tree is sent down to everybody, so nobody ends before the root has turned.

use crate::layout::Layout;
use crate::op::{Call, OpKind};
use crate::tree::Tree;

/// How a chunk gets to where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// All nodes' parts are combined; one node gets the result, or all (`None`).
    Combine { to: Option<usize> },
    /// One node's bytes go to all.
    Spread { from: usize },
}

/// A range of the result that travels as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Counted from 0 through the operation.
    pub index: u32,
    /// First byte in the result.
    pub offset: u64,
    /// Length, 0 for the only chunk of an operation without data.
    pub bytes: u64,
    /// Length of a part of it on its way up: more where parts are in f32 and elements are not.
    pub part_bytes: u64,
    /// Its way.
    pub flow: Flow,
    /// The first of its tree: everybody sends it up.
    pub first: bool,
    /// The last of its tree: it goes down to everybody.
    pub last: bool,
    tree: usize,
}

impl Chunk {
    /// Index of its tree.
    #[must_use]
    pub const fn tree(&self) -> usize {
        self.tree
    }
}

/// Whether a frame brings data or only says that the sender is that far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarding {
    /// The chunk's bytes follow.
    Payload,
    /// Nothing follows.
    Empty,
}

impl Forwarding {
    /// How many of these bytes follow.
    pub(crate) const fn payload(self, bytes: u64) -> u64 {
        match self {
            Self::Payload => bytes,
            Self::Empty => 0,
        }
    }
}

/// What one node does with one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whether its own ranks' input is part of the chunk.
    pub own: bool,
    /// Children that send something up, ascending.
    pub from_children: Vec<(usize, Forwarding)>,
    /// What it then sends up; `None`: nothing, or it is the root, which turns the chunk.
    pub to_parent: Option<Forwarding>,
    /// What comes down to it; `None`: nothing, or it is the root.
    pub from_parent: Option<Forwarding>,
    /// What it then sends down, ascending.
    pub to_children: Vec<(usize, Forwarding)>,
}

/// A call cut into chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPlan {
    call: Call,
    chunk_bytes: u64,
    chunks: u32,
    /// Chunks take so many trees in turn.
    trees: u32,
    cut: Cut,
}

/// Where the chunks of a call lie.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cut {
    /// One range, one way.
    Whole { bytes: u64, flow: Flow },
    /// One range for each node, which brings it to all: (first chunk, first byte, bytes).
    From(Vec<(u32, u64, u64)>),
    /// The same where all combine it for that node.
    To(Vec<(u32, u64, u64)>),
    /// No range: a chunk without data says that all have called, another that each has what others have sent it.
    Twice,
}

impl ChunkPlan {
    /// Cuts a checked call, so that no part is longer than `chunk_bytes`, a multiple of 64.
    #[must_use]
    pub fn new(call: Call, layout: &Layout, chunk_bytes: u32) -> Self {
        let chunk_bytes = u64::from(chunk_bytes) / call.widening();
        let whole = |flow| Cut::Whole {
            bytes: call.result_bytes(layout.world()),
            flow,
        };
        let cut = match call.kind {
            OpKind::AllReduce { .. } | OpKind::Barrier | OpKind::Close => {
                whole(Flow::Combine { to: None })
            }
            OpKind::Reduce { root, .. } => whole(Flow::Combine {
                to: Some(layout.node_of(root)),
            }),
            OpKind::Broadcast { root } => whole(Flow::Spread {
                from: layout.node_of(root),
            }),
            OpKind::AllGather => Cut::From(ranges(call.input_bytes(), layout, chunk_bytes)),
            OpKind::ReduceScatter { .. } => {
                let each = call.input_bytes() / u64::from(layout.world());
                Cut::To(ranges(each, layout, chunk_bytes))
            }
            OpKind::Gather { .. }
            | OpKind::Scatter { .. }
            | OpKind::AllToAll { .. }
            | OpKind::Send { .. }
            | OpKind::Receive { .. } => Cut::Twice,
        };
        let chunks = match &cut {
            Cut::Whole { bytes, .. } => count(*bytes, chunk_bytes),
            Cut::From(nodes) | Cut::To(nodes) => nodes
                .last()
                .map_or(0, |&(first, _, bytes)| first + count(bytes, chunk_bytes)),
            Cut::Twice => 2,
        };
        Self {
            call,
            chunk_bytes,
            chunks,
            trees: call.trees(),
            cut,
        }
    }

    /// Cuts the result of a call that one node has already, to bring it to the others.
    #[must_use]
    pub fn served(call: Call, bytes: u64, from: usize, chunk_bytes: u32) -> Self {
        let chunk_bytes = u64::from(chunk_bytes);
        let flow = Flow::Spread { from };
        Self {
            call,
            chunk_bytes,
            chunks: count(bytes, chunk_bytes),
            trees: 2,
            cut: Cut::Whole { bytes, flow },
        }
    }

    /// Cuts a checked call whose result every node keeps for the others: a reduction to one, or to each its part, takes
    /// the way of one to all, or only one would have the bytes.
    #[must_use]
    pub fn kept(call: Call, layout: &Layout, chunk_bytes: u32) -> Self {
        let plan = Self::new(call, layout, chunk_bytes);
        match plan.cut {
            Cut::Whole {
                flow: Flow::Combine { .. },
                ..
            }
            | Cut::To(_) => {
                let bytes = call.result_bytes(layout.world());
                let flow = Flow::Combine { to: None };
                Self {
                    chunks: count(bytes, plan.chunk_bytes),
                    cut: Cut::Whole { bytes, flow },
                    ..plan
                }
            }
            Cut::Whole { .. } | Cut::From(_) | Cut::Twice => plan,
        }
    }

    /// Bytes of the result.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let last = self.chunk(self.chunks - 1);
        last.offset + last.bytes
    }

    /// The call it cuts.
    #[must_use]
    pub const fn call(&self) -> &Call {
        &self.call
    }

    /// Number of chunks, at least 1.
    #[must_use]
    pub const fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Number of chunks that take a tree.
    #[must_use]
    pub const fn chunks_of(&self, tree: usize) -> u32 {
        let tree = tree as u32;
        if tree < self.trees {
            (self.chunks + self.trees - 1 - tree) / self.trees
        } else {
            0
        }
    }

    /// Index of the chunk that takes a tree as its `nth`, counted from 0.
    #[must_use]
    pub const fn nth_of(&self, tree: usize, nth: u32) -> u32 {
        nth * self.trees + tree as u32
    }

    /// A chunk by its index, which must be below [`ChunkPlan::chunks`].
    #[must_use]
    pub fn chunk(&self, index: u32) -> Chunk {
        let (within, start, bytes, flow) = match &self.cut {
            Cut::Whole { bytes, flow } => (index, 0, *bytes, *flow),
            Cut::Twice => (0, 0, 0, Flow::Combine { to: None }),
            Cut::From(nodes) | Cut::To(nodes) => {
                // Nodes with nothing to bring still own one empty chunk, so the first chunks are distinct.
                let node = nodes.partition_point(|&(first, _, _)| first <= index) - 1;
                let (first, start, bytes) = nodes[node];
                let flow = match self.cut {
                    Cut::To(_) => Flow::Combine { to: Some(node) },
                    Cut::From(_) | Cut::Whole { .. } | Cut::Twice => Flow::Spread { from: node },
                };
                (index - first, start, bytes, flow)
            }
        };
        let skipped = u64::from(within) * self.chunk_bytes;
        let bytes = (bytes - skipped).min(self.chunk_bytes);
        Chunk {
            index,
            offset: start + skipped,
            bytes,
            part_bytes: match flow {
                Flow::Combine { .. } => bytes * self.call.widening(),
                Flow::Spread { .. } => bytes,
            },
            flow,
            first: index < self.trees,
            last: index + self.trees >= self.chunks,
            tree: (index % self.trees) as usize,
        }
    }

    /// How many chunks come down to a node, or are turned by it as a root.
    #[must_use]
    pub fn settles(&self, tree: &Tree, index: usize, node: usize) -> u32 {
        let all = self.chunks_of(index);
        match self.cut {
            Cut::Whole {
                flow: Flow::Combine { to: Some(target) },
                ..
            } if !holds(tree, node, target) => all.min(1),
            Cut::To(_) => {
                let mine = (0..all).filter(|&nth| {
                    let chunk = self.chunk(self.nth_of(index, nth));
                    let to = match chunk.flow {
                        Flow::Combine { to: Some(to) } => holds(tree, node, to),
                        Flow::Combine { to: None } | Flow::Spread { .. } => true,
                    };
                    to || chunk.last
                });
                mine.count() as u32
            }
            Cut::Whole { .. } | Cut::From(_) | Cut::Twice => all,
        }
    }
}

/// Chunks of a range: at least one, which may be empty.
fn count(bytes: u64, chunk_bytes: u64) -> u32 {
    bytes.div_ceil(chunk_bytes).max(1) as u32
}

/// The ranks of a node are neighbours in the result, so a node's part travels as one range. `each`: bytes of a rank.
fn ranges(each: u64, layout: &Layout, chunk_bytes: u64) -> Vec<(u32, u64, u64)> {
    let (mut chunk, mut offset) = (0, 0);
    let ranges = (0..layout.nodes()).map(|node| {
        let bytes = each * layout.local(node) as u64;
        let range = (chunk, offset, bytes);
        chunk += count(bytes, chunk_bytes);
        offset += bytes;
        range
    });
    ranges.collect()
}

/// Whether `node`'s subtree holds `target`. The root's subtree holds everybody.
fn holds(tree: &Tree, node: usize, target: usize) -> bool {
    tree.path(target).any(|at| at == node)
}

/// What a node does with a chunk in the chunk's tree.
#[must_use]
pub fn step(tree: &Tree, chunk: &Chunk, node: usize) -> Step {
    let children = &tree.children[node];
    let has_parent = tree.parent[node].is_some();
    let sometimes = |always_if: bool| always_if.then_some(Forwarding::Empty);
    let each = |carry: &dyn Fn(usize) -> Option<Forwarding>| {
        children
            .iter()
            .filter_map(|&child| Some((child, carry(child)?)))
            .collect()
    };
    match chunk.flow {
        Flow::Combine { to: None } => Step {
            own: true,
            from_children: each(&|_| Some(Forwarding::Payload)),
            to_parent: has_parent.then_some(Forwarding::Payload),
            from_parent: has_parent.then_some(Forwarding::Payload),
            to_children: each(&|_| Some(Forwarding::Payload)),
        },
        Flow::Combine { to: Some(target) } => {
            let toward = tree.toward(node, target);
            let down = |on_the_way| {
                if on_the_way {
                    Some(Forwarding::Payload)
                } else {
                    sometimes(chunk.last)
                }
            };
            Step {
                own: true,
                from_children: each(&|_| Some(Forwarding::Payload)),
                to_parent: has_parent.then_some(Forwarding::Payload),
                from_parent: down(holds(tree, node, target)).filter(|_| has_parent),
                to_children: each(&|child| down(Some(child) == toward)),
            }
        }
        Flow::Spread { from } => {
            let toward = tree.toward(node, from);
            let up = |on_the_way| {
                if on_the_way {
                    Some(Forwarding::Payload)
                } else {
                    sometimes(chunk.first)
                }
            };
            // Who passed the bytes up has them already and only needs to learn that the root turned.
            let down = |on_the_way| {
                if on_the_way {
                    Forwarding::Empty
                } else {
                    Forwarding::Payload
                }
            };
            let held = holds(tree, node, from);
            Step {
                own: node == from,
                from_children: each(&|child| up(Some(child) == toward)),
                to_parent: up(held).filter(|_| has_parent),
                from_parent: has_parent.then_some(down(held)),
                to_children: each(&|child| Some(down(Some(child) == toward))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Numerics;
    use crate::dtype::DType;
    use crate::reduce_op::ReduceOp;

    fn plan(kind: OpKind, count: u64, ranks: &[u32]) -> ChunkPlan {
        let call = Call {
            kind,
            dtype: DType::F32,
            count,
            tag: 0,
            numerics: Numerics::Fast,
        };
        ChunkPlan::new(call, &Layout::new(ranks).unwrap(), 512)
    }

    #[test]
    fn chunks_cover_the_result_without_gap_or_overlap() {
        let sum = OpKind::AllReduce { op: ReduceOp::Sum };
        let shared = OpKind::ReduceScatter { op: ReduceOp::Sum };
        for kind in [
            sum,
            OpKind::Broadcast { root: 3 },
            OpKind::AllGather,
            shared,
        ] {
            for count in [0, 1, 127, 128, 129, 1000].map(|count| count * 6) {
                let plan = plan(kind, count, &[2, 1, 3]);
                let mut end = 0;
                for index in 0..plan.chunks() {
                    let chunk = plan.chunk(index);
                    assert_eq!(chunk.offset, end);
                    assert!(chunk.bytes <= 512);
                    end += chunk.bytes;
                }
                assert_eq!(end, plan.call().result_bytes(6));
                assert_eq!(plan.chunks_of(0) + plan.chunks_of(1), plan.chunks());
            }
        }
    }

    // Trap T15.
    #[test]
    fn offsets_go_beyond_four_gigabytes() {
        let sum = OpKind::AllReduce { op: ReduceOp::Sum };
        let plan = plan(sum, 3 << 30, &[1, 1]);
        let last = plan.chunk(plan.chunks() - 1);
        assert_eq!(last.offset + last.bytes, 12 << 30);
    }

    #[test]
    fn a_result_that_is_kept_or_served_goes_to_everybody() {
        let sum = OpKind::Reduce {
            op: ReduceOp::Sum,
            root: 3,
        };
        let layout = Layout::new(&[2, 1, 3]).unwrap();
        let call = *plan(sum, 300, &[2, 1, 3]).call();
        let kept = ChunkPlan::kept(call, &layout, 512);
        let served = ChunkPlan::served(call, kept.bytes(), 1, 512);
        assert_eq!((kept.bytes(), kept.chunks(), served.chunks()), (1200, 3, 3));
        for index in 0..3 {
            let (kept, served) = (kept.chunk(index), served.chunk(index));
            assert_eq!(kept.flow, Flow::Combine { to: None });
            assert_eq!(served.flow, Flow::Spread { from: 1 });
            assert_eq!((kept.offset, kept.bytes), (served.offset, served.bytes));
        }
        let spread = plan(OpKind::Broadcast { root: 3 }, 300, &[2, 1, 3]);
        assert_eq!(ChunkPlan::kept(*spread.call(), &layout, 512), spread);
    }

    #[test]
    fn an_operation_without_data_is_one_empty_chunk() {
        let op = ReduceOp::Sum;
        for kind in [OpKind::Barrier, OpKind::AllReduce { op }] {
            let plan = plan(kind, 0, &[1, 1]);
            let chunk = plan.chunk(0);
            assert_eq!(
                (plan.chunks(), chunk.bytes, chunk.first, chunk.last),
                (1, 0, true, true),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn a_node_brings_its_ranks_to_a_gathering_in_one_range() {
        let plan = plan(OpKind::AllGather, 100, &[2, 1]);
        let flows: Vec<Flow> = (0..plan.chunks())
            .map(|index| plan.chunk(index).flow)
            .collect();
        let from = |from| Flow::Spread { from };
        assert_eq!(
            flows,
            [from(0), from(0), from(1)],
            "800 bytes in two chunks, 400 in one"
        );
    }
}
