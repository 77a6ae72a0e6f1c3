//! Which processors a node has: as many as the command line says, of its own as long as the machine has enough. Without that
//! all nodes have all of them.

use std::fmt;

use anyhow::{Result, ensure};
use rustix::thread::{CpuSet, sched_getaffinity};
use serde_json::{Value, json};

/// Processors for each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    /// How many each node has.
    pub(crate) each: usize,
    /// Those of this machine.
    machine: Vec<usize>,
}

/// Processors in the kernel's notation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CoreList(Vec<usize>);

impl Cores {
    /// So many for each node, of those that this program may use.
    pub(crate) fn new(each: usize) -> Result<Self> {
        let usable = sched_getaffinity(None)?;
        let machine = (0..CpuSet::MAX_CPU).filter(|core| usable.is_set(*core));
        Self::among(each, machine.collect())
    }

    fn among(each: usize, machine: Vec<usize>) -> Result<Self> {
        let count = machine.len();
        ensure!(
            each <= count,
            "failed to give each node {each} processors: this machine has {count}"
        );
        Ok(Self { each, machine })
    }

    /// Those of a node. Where there are not enough, the later ones begin with the first again.
    pub(crate) fn of_node(&self, node: usize) -> CoreList {
        let first = node * self.each;
        let all = self.machine.iter().copied().cycle();
        let mut list: Vec<usize> = all
            .skip(first % self.machine.len())
            .take(self.each)
            .collect();
        list.sort_unstable();
        CoreList(list)
    }

    /// Those of so many nodes together.
    pub(crate) fn of_nodes(&self, nodes: usize) -> CoreList {
        let count = (nodes * self.each).min(self.machine.len());
        CoreList(self.machine.iter().copied().take(count).collect())
    }

    /// Whether so many nodes share none.
    pub(crate) fn are_apart(&self, nodes: usize) -> bool {
        nodes * self.each <= self.machine.len()
    }

    /// What a reader has to know of a run.
    pub(crate) fn json(&self, nodes: usize) -> Value {
        let lists = (0..nodes).map(|node| self.of_node(node).to_string());
        let apart = (1..=nodes).rev().find(|nodes| self.are_apart(*nodes));
        json!({
            "perNode": self.each,
            "ofNodes": lists.collect::<Vec<_>>(),
            "nodesWithCoresOfTheirOwn": apart.unwrap_or(0),
        })
    }
}

impl CoreList {
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Display for CoreList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::Cores;

    #[test]
    fn nodes_have_processors_of_their_own_as_long_as_there_are_enough() {
        let cores = Cores::among(2, vec![0, 1, 4, 5, 8, 9]).unwrap();
        let lists = [0, 1, 2, 3].map(|node| cores.of_node(node).to_string());
        assert_eq!(lists, ["0,1", "4,5", "8,9", "0,1"]);
        assert!(cores.are_apart(3) && !cores.are_apart(4));
        assert_eq!(cores.of_nodes(2).to_string(), "0,1,4,5");
        assert_eq!(cores.of_nodes(4).len(), 6);
        assert_eq!(cores.json(4)["nodesWithCoresOfTheirOwn"], 3);
    }

    #[test]
    fn a_node_that_crosses_the_end_shares_the_first() {
        let cores = Cores::among(2, vec![0, 1, 2]).unwrap();
        assert_eq!(cores.of_node(1).to_string(), "0,2");
        assert!(!cores.are_apart(2));
    }

    #[test]
    fn more_processors_than_the_machine_has_are_refused_with_their_number() {
        let refused = Cores::among(4, vec![0, 1]).unwrap_err();
        assert!(refused.to_string().ends_with("this machine has 2"));
    }
}
