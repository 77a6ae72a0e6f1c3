//! Proves a schedule by carrying it out on symbols: every node ends with every contribution exactly once, nobody
//! waits for what nobody sends. Says which node pairs talk and how much, so that a test can count what crosses a
//! zone border.

use crate::schedule::{Chunk, ChunkPlan, Flow, Forwarding, Step, step};
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
pub struct CheckMessage {
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
pub fn check(trees: &DoubleTree, plan: &ChunkPlan) -> Result<Vec<CheckMessage>, Fault> {
    let mut messages = Vec::new();
    for index in 0..plan.chunks() {
        let chunk = plan.chunk(index);
        check_chunk(&trees.trees[chunk.tree()], &chunk, &mut messages)?;
    }
    Ok(messages)
}

fn check_chunk(tree: &Tree, chunk: &Chunk, messages: &mut Vec<CheckMessage>) -> Result<(), Fault> {
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
        let sends = steps[node].to_parent == Some(Forwarding::Payload);
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
    messages: &mut Vec<CheckMessage>,
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
        messages.push(CheckMessage {
            from: child,
            to: node,
            bytes: bytes(chunk.part_bytes, carry),
        });
        if carry == Forwarding::Payload {
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
    messages: &mut Vec<CheckMessage>,
) -> Result<(), Fault> {
    let mut arrived = 1;
    for &node in order {
        for &(child, carry) in &steps[node].to_children {
            if steps[child].from_parent != Some(carry) {
                return Err(Fault::Disagree {
                    chunk: chunk.index,
                    from: node,
                    to: child,
                });
            }
            messages.push(CheckMessage {
                from: node,
                to: child,
                bytes: bytes(chunk.bytes, carry),
            });
            arrived += 1;
            if carry == Forwarding::Payload {
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
    let everybody = !chunk.last || arrived == steps.len();
    match (arrived == waiting && everybody, order.first()) {
        (false, Some(&root)) => Err(Fault::Disagree {
            chunk: chunk.index,
            from: root,
            to: root,
        }),
        _ => Ok(()),
    }
}

fn bytes(bytes: u64, carry: Forwarding) -> u64 {
    match carry {
        Forwarding::Payload => bytes,
        Forwarding::Empty => 0,
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
mod tests;
