//! The members of an epoch: their ranks in the attempt, and their names for whoever reads errors.

use std::fmt::Write as _;

use collective::machine::Cause;

/// Lost ranks that an error names.
const MOST_NAMED: usize = 8;

#[derive(Debug)]
pub(super) struct Members {
    /// The rank in the attempt of each.
    ranks: Vec<u32>,
    /// Of all nodes of the attempt.
    names: Vec<String>,
}

impl Members {
    pub(super) fn new(ranks: Vec<u32>, names: Vec<String>) -> Self {
        Self { ranks, names }
    }

    /// These are the members from here on.
    pub(super) fn enter(&mut self, ranks: Vec<u32>) {
        self.ranks = ranks;
    }

    pub(super) fn ranks(&self) -> &[u32] {
        &self.ranks
    }

    /// A member's rank in the attempt.
    pub(super) fn rank_of(&self, node: usize) -> usize {
        self.ranks.get(node).map_or(node, |rank| *rank as usize)
    }

    /// The member with this rank.
    pub(super) fn place_of(&self, rank: usize) -> Option<usize> {
        self.ranks.binary_search(&(rank as u32)).ok()
    }

    /// A member's name.
    pub(super) fn name(&self, node: usize) -> &str {
        self.name_of(self.rank_of(node)).unwrap_or("")
    }

    /// A member as people look for it: `node 1 (worker-1)`.
    pub(super) fn described(&self, node: usize) -> String {
        format!("node {} ({})", self.rank_of(node), self.name(node))
    }

    fn name_of(&self, rank: usize) -> Option<&str> {
        let name = self.names.get(rank).map(String::as_str);
        name.filter(|name| !name.is_empty())
    }

    /// A cause in words, with the name of the node to look at.
    pub(super) fn text(&self, cause: &Cause) -> String {
        let Cause::Broken(broken) = cause else {
            return cause.to_string();
        };
        let broken = broken.renumbered(|node| self.rank_of(node));
        match broken
            .node()
            .and_then(|rank| Some((rank, self.name_of(rank)?)))
        {
            Some((rank, name)) => format!("{broken}; node {rank} is {name}"),
            None => broken.to_string(),
        }
    }

    /// Which of these ranks were lost, in words that follow those of a cause. `each`: ranks of a node.
    pub(super) fn lost(&self, ranks: &[u32], each: u32) -> String {
        let is_lost = |rank: &&u32| self.place_of((**rank / each) as usize).is_none();
        let lost: Vec<u32> = ranks.iter().filter(is_lost).copied().collect();
        let mut text = String::new();
        for (place, rank) in lost.iter().take(MOST_NAMED).enumerate() {
            let node = rank / each;
            let before = if place == 0 { "; lost:" } else { "," };
            let _ = write!(text, "{before} rank {rank} on node {node}");
            if let Some(name) = self.name_of(node as usize) {
                let _ = write!(text, " ({name})");
            }
        }
        if lost.len() > MOST_NAMED {
            let _ = write!(text, " and {} more", lost.len() - MOST_NAMED);
        }
        text
    }
}
