//! Proves a schedule by carrying it out on symbols: every node ends with every contribution exactly once, nobody
//! waits for what nobody sends. Says which node pairs talk and how much, so that a test can count what crosses a
//! zone border.

use crate::schedule::{Carry, Chunk, Flow, Plan, Step, step};
use crate::tree::{DoubleTree, Tree};

/// What is wrong with a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// One side sends what the other does not expect, or the other way round.
    #[error("chunk {chunk}: nodes {from} and {to} disagree on what goes from one to the other")]
    Disagree { chunk: u32, from: usize, to: usize },
    /// A contribution is combined twice.
    #[error("chunk {chunk}: node {node} combines a contribution twice")]
    Twice { chunk: u32, node: usize },
    /// A node sends data it does not have.
    #[error("chunk {chunk}: node {node} has nothing to send")]
    Nothing { chunk: u32, node: usize },
    /// A node that should have the result does not.
    #[error("chunk {chunk}: node {node} ends without the whole result")]
    Missing { chunk: u32, node: usize },
}

/// One message of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Payload.
    pub bytes: u64,
}

/// A set of nodes whose contributions some bytes hold.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Contributions(Vec<u64>);

impl Contributions {
    fn none(nodes: usize) -> Self {
        Self(vec![0; nodes.div_ceil(64)])
    }

    fn all(nodes: usize) -> Self {
        let mut all = Self::none(nodes);
        (0..nodes).for_each(|node| all.0[node / 64] |= 1 << (node % 64));
        all
    }

    fn of(node: usize, nodes: usize) -> Self {
        let mut one = Self::none(nodes);
        one.0[node / 64] |= 1 << (node % 64);
        one
    }

    /// Adds contributions that must be new.
    fn add(&mut self, other: &Self) -> bool {
        let fresh = self
            .0
            .iter()
            .zip(&other.0)
            .all(|(mine, theirs)| mine & theirs == 0);
        self.0
            .iter_mut()
            .zip(&other.0)
            .for_each(|(mine, theirs)| *mine |= theirs);
        fresh
    }
}

/// Carries out every chunk of a plan and returns all messages.
pub fn check(trees: &DoubleTree, plan: &Plan) -> Result<Vec<Message>, Fault> {
    let mut messages = Vec::new();
    for index in 0..plan.chunks() {
        let chunk = plan.chunk(index);
        check_chunk(&trees.trees[chunk.tree()], &chunk, &mut messages)?;
    }
    Ok(messages)
}

fn check_chunk(tree: &Tree, chunk: &Chunk, messages: &mut Vec<Message>) -> Result<(), Fault> {
    let nodes = tree.parent.len();
    let steps: Vec<Step> = (0..nodes).map(|node| step(tree, chunk, node)).collect();
    let order = top_down(tree);
    let expected = |node: usize, child: usize| {
        steps[node]
            .from_children
            .iter()
            .any(|&(expected, _)| expected == child)
    };
    let unheard = (0..nodes)
        .filter(|&node| steps[node].to_parent.is_some())
        .find_map(|node| {
            tree.parent[node]
                .filter(|&parent| !expected(parent, node))
                .map(|parent| (node, parent))
        });
    if let Some((from, to)) = unheard {
        return Err(Fault::Disagree {
            chunk: chunk.index,
            from,
            to,
        });
    }
    let mut held = vec![Contributions::none(nodes); nodes];
    for &node in order.iter().rev() {
        let (own, below) = collect(chunk, node, &steps, &held, messages)?;
        held[node] = own;
        let fresh = below.iter().all(|part| held[node].add(part));
        if !fresh {
            return Err(Fault::Twice {
                chunk: chunk.index,
                node,
            });
        }
        let sends = steps[node].to_parent == Some(Carry::Payload);
        if sends && held[node] == Contributions::none(nodes) {
            return Err(Fault::Nothing {
                chunk: chunk.index,
                node,
            });
        }
    }
    let whole = match chunk.flow {
        Flow::Combine { .. } => Contributions::all(nodes),
        Flow::Spread { from } => Contributions::of(from, nodes),
    };
    hand_down(chunk, &order, &steps, &mut held, &whole, messages)?;
    let entitled = |node: usize| match chunk.flow {
        Flow::Combine { to } => to.is_none_or(|to| to == node),
        Flow::Spread { .. } => true,
    };
    match (0..nodes).find(|&node| entitled(node) && held[node] != whole) {
        Some(node) => Err(Fault::Missing {
            chunk: chunk.index,
            node,
        }),
        None => Ok(()),
    }
}

/// A node's own contribution, and those its children send.
fn collect(
    chunk: &Chunk,
    node: usize,
    steps: &[Step],
    held: &[Contributions],
    messages: &mut Vec<Message>,
) -> Result<(Contributions, Vec<Contributions>), Fault> {
    let nodes = steps.len();
    let own = if steps[node].own {
        Contributions::of(node, nodes)
    } else {
        Contributions::none(nodes)
    };
    let mut below = Vec::new();
    for &(child, carry) in &steps[node].from_children {
        if steps[child].to_parent != Some(carry) {
            return Err(Fault::Disagree {
                chunk: chunk.index,
                from: child,
                to: node,
            });
        }
        messages.push(Message {
            from: child,
            to: node,
            bytes: bytes(chunk, carry),
        });
        if carry == Carry::Payload {
            below.push(held[child].clone());
        }
    }
    Ok((own, below))
}

/// The way down: `held` becomes what each node has in its result.
fn hand_down(
    chunk: &Chunk,
    order: &[usize],
    steps: &[Step],
    held: &mut [Contributions],
    whole: &Contributions,
    messages: &mut Vec<Message>,
) -> Result<(), Fault> {
    let mut told = 1;
    for &node in order {
        for &(child, carry) in &steps[node].to_children {
            if steps[child].from_parent != Some(carry) {
                return Err(Fault::Disagree {
                    chunk: chunk.index,
                    from: node,
                    to: child,
                });
            }
            messages.push(Message {
                from: node,
                to: child,
                bytes: bytes(chunk, carry),
            });
            told += 1;
            if carry == Carry::Payload {
                if held[node] != *whole {
                    return Err(Fault::Nothing {
                        chunk: chunk.index,
                        node,
                    });
                }
                held[child] = whole.clone();
            }
        }
    }
    // Everybody who waits for a message is a child whose parent sends one.
    let waiting = 1 + steps
        .iter()
        .filter(|step| step.from_parent.is_some())
        .count();
    let everybody = !chunk.last || told == steps.len();
    match (told == waiting && everybody, order.first()) {
        (false, Some(&root)) => Err(Fault::Disagree {
            chunk: chunk.index,
            from: root,
            to: root,
        }),
        _ => Ok(()),
    }
}

fn bytes(chunk: &Chunk, carry: Carry) -> u64 {
    match carry {
        Carry::Payload => chunk.bytes,
        Carry::Empty => 0,
    }
}

/// The nodes of a tree, parents before children.
fn top_down(tree: &Tree) -> Vec<usize> {
    let mut order = vec![tree.root];
    let mut at = 0;
    while let Some(&node) = order.get(at) {
        order.extend(&tree.children[node]);
        at += 1;
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::dtype::DType;
    use crate::layout::Layout;
    use crate::op::{Call, OpKind, ReduceOp};

    const ALL_REDUCE: OpKind = OpKind::AllReduce { op: ReduceOp::Sum };

    fn two_zones(nodes: usize, first: usize) -> Vec<bool> {
        (0..nodes).map(|node| node >= first).collect()
    }

    /// Checks a call of `chunks` chunks over `zones`, and that only gateway pairs cross.
    fn prove(trees: &DoubleTree, zones: &[bool], kind: OpKind, chunks: u64) -> Vec<Message> {
        let layout = Layout::uniform(zones.len(), 2).unwrap();
        let count = if kind == OpKind::AllGather {
            16
        } else {
            128 * chunks
        };
        let call = Call {
            kind,
            dtype: DType::F32,
            count,
            tag: 0,
        };
        let messages = match check(trees, &Plan::new(call, &layout, 512)) {
            Ok(messages) => messages,
            Err(fault) => panic!("{} nodes, {kind:?}: {fault}", zones.len()),
        };
        let crossing = messages
            .iter()
            .filter(|message| zones[message.from] != zones[message.to]);
        let pairs: BTreeSet<(usize, usize)> = crossing
            .map(|message| (message.from.min(message.to), message.from.max(message.to)))
            .collect();
        let gateways = trees
            .gateways
            .iter()
            .map(|&(near, far)| (near.min(far), near.max(far)));
        assert_eq!(
            pairs,
            gateways.collect(),
            "exactly the gateway pair crosses"
        );
        messages
    }

    // ZONE-2: exactly one node pair exchanges data across.
    #[test]
    fn every_split_of_2_to_200_nodes_sums_each_contribution_once_and_crosses_on_one_pair() {
        for nodes in 2..=200 {
            for first in 1..nodes {
                let zones = two_zones(nodes, first);
                prove(&DoubleTree::build(&zones), &zones, ALL_REDUCE, 2);
            }
        }
    }

    #[test]
    fn sampled_splits_up_to_1250_nodes_hold_for_every_collective() {
        sim::for_each_seed(24, |rng| {
            let nodes = rng.range(201..1251) as usize;
            let zones = two_zones(nodes, 1 + rng.below(nodes - 1));
            let trees = DoubleTree::build(&zones);
            let root = rng.range(0..2 * nodes as u64) as u32;
            prove(&trees, &zones, ALL_REDUCE, 6);
            prove(
                &trees,
                &zones,
                OpKind::Reduce {
                    op: ReduceOp::Sum,
                    root,
                },
                6,
            );
            prove(&trees, &zones, OpKind::Broadcast { root }, 6);
            prove(&trees, &zones, OpKind::Barrier, 0);
        });
    }

    #[test]
    fn every_root_and_every_gathering_of_small_groups_holds() {
        for nodes in 1..=33 {
            for first in 1..=nodes {
                let zones = two_zones(nodes, first);
                let trees = DoubleTree::build(&zones);
                prove(&trees, &zones, OpKind::AllGather, 1);
                for root in 0..nodes as u32 {
                    prove(&trees, &zones, OpKind::Broadcast { root: 2 * root }, 3);
                    prove(
                        &trees,
                        &zones,
                        OpKind::Reduce {
                            op: ReduceOp::Max,
                            root: 2 * root + 1,
                        },
                        5,
                    );
                }
            }
        }
    }

    #[test]
    fn the_border_carries_the_payload_once_each_way() {
        for (nodes, first) in [(2, 1), (9, 4), (64, 32), (128, 37)] {
            let zones = two_zones(nodes, first);
            let messages = prove(&DoubleTree::build(&zones), &zones, ALL_REDUCE, 8);
            let across = |there| {
                let crossing = messages.iter().filter(|m| zones[m.from] != zones[m.to]);
                crossing
                    .filter(|m| zones[m.to] == there)
                    .map(|m| m.bytes)
                    .sum::<u64>()
            };
            assert_eq!((across(true), across(false)), (8 * 512, 8 * 512));
        }
    }

    #[test]
    fn a_tree_that_forgets_a_node_or_counts_one_twice_is_caught() {
        let zones = vec![false; 7];
        let layout = Layout::uniform(7, 1).unwrap();
        let call = Call {
            kind: ALL_REDUCE,
            dtype: DType::F32,
            count: 1,
            tag: 0,
        };
        let plan = Plan::new(call, &layout, 512);
        let trees = DoubleTree::build(&zones);
        assert!(check(&trees, &plan).is_ok());

        let leaf = (0..7)
            .find(|&node| trees.trees[0].children[node].is_empty())
            .unwrap();
        let parent = trees.trees[0].parent[leaf].unwrap();
        let mut forgetful = trees.clone();
        forgetful.trees[0].children[parent].retain(|&child| child != leaf);
        assert!(check(&forgetful, &plan).is_err());

        let mut twice = trees;
        twice.trees[0].children[parent].push(leaf);
        assert_eq!(
            check(&twice, &plan),
            Err(Fault::Twice {
                chunk: 0,
                node: parent
            })
        );
    }
}
