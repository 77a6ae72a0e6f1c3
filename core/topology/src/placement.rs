//! Where the memory and the thread of a node's reduction come to lie on a machine with several NUMA
//! nodes: inputs over all nodes, so that every memory channel serves the GPUs' copies; results and
//! what the network brings next to the adapter, which reads and writes them most; the thread that
//! adds next to them. Decides from what was seen of the machine and what this process may do there;
//! reading and doing are the shell's.

use std::fmt;

use crate::numa::{NumaNode, Numbers};

/// What a process sees of its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaMachine {
    /// Every NUMA node that is online.
    pub nodes: Vec<NumaNode>,
    /// Nodes whose memory the process may use.
    pub memory: Numbers,
    /// Processors that it may run on.
    pub cpus: Numbers,
    /// The node that the network's adapter is attached to, if that is known.
    pub adapter: Option<u32>,
    /// Whether it may set the kernel's memory policy. Containers may not by default.
    pub may_set_policy: bool,
}

/// Where memory is to lie. One node means on it, several mean on them in turns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryPlacement {
    /// Wherever the kernel puts it, which is next to the thread that touches it first.
    Anywhere(UnplacedReason),
    /// On these nodes, by the kernel's policy.
    Policy(Numbers),
    /// On these nodes, each touched first by a thread that runs on its processors given here.
    Touch(Vec<NumaNode>),
}

/// Why nothing is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnplacedReason {
    /// It was turned off.
    Off,
    /// There is nothing to choose from.
    OneNode,
    /// Nothing says at which node the adapter is: a pod's own interface has no device.
    AdapterUnknown,
    /// The process may not use the memory of the adapter's node.
    NoMemoryThere,
    /// The process may not run on processors of the adapter's node.
    NoProcessorThere,
    /// The kernel takes no policy from this process, and it may not run on the nodes in question to
    /// touch memory there.
    Refused,
}

/// What goes where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaPlacement {
    /// What local ranks bring.
    pub inputs: MemoryPlacement,
    /// Results, and what arrives from peers.
    pub results: MemoryPlacement,
    /// Processors for the thread that reduces, or why it runs on any.
    pub engine: Result<Numbers, UnplacedReason>,
}

impl NumaPlacement {
    /// Nothing is placed.
    #[must_use]
    pub const fn none(why: UnplacedReason) -> Self {
        Self {
            inputs: MemoryPlacement::Anywhere(why),
            results: MemoryPlacement::Anywhere(why),
            engine: Err(why),
        }
    }
}

/// Decides for a machine.
#[must_use]
pub fn place(machine: &NumaMachine) -> NumaPlacement {
    if machine.nodes.len() < 2 {
        return NumaPlacement::none(UnplacedReason::OneNode);
    }
    let everywhere = machine.lie(&machine.memory);
    let Some(adapter) = machine.adapter else {
        return NumaPlacement {
            inputs: everywhere.clone(),
            results: everywhere,
            engine: Err(UnplacedReason::AdapterUnknown),
        };
    };
    let beside = machine.runs_on(adapter);
    NumaPlacement {
        results: if machine.memory.contains(adapter) {
            machine.lie(&Numbers::from_iter([adapter]))
        } else {
            MemoryPlacement::Anywhere(UnplacedReason::NoMemoryThere)
        },
        inputs: everywhere,
        engine: if beside.is_empty() {
            Err(UnplacedReason::NoProcessorThere)
        } else {
            Ok(beside)
        },
    }
}

impl NumaMachine {
    /// Processors of a node that the process may run on.
    #[must_use]
    pub fn runs_on(&self, node: u32) -> Numbers {
        let node = self.nodes.iter().find(|known| known.number == node);
        node.map_or_else(Numbers::default, |node| node.cpus.and(&self.cpus))
    }

    /// How memory comes to lie on all of these nodes. None of them is left out: half of an even
    /// spread is none.
    fn lie(&self, on: &Numbers) -> MemoryPlacement {
        if self.may_set_policy {
            return MemoryPlacement::Policy(on.clone());
        }
        let nodes: Vec<NumaNode> = on
            .iter()
            .map(|number| NumaNode {
                number,
                cpus: self.runs_on(number),
            })
            .collect();
        if nodes.iter().any(|node| node.cpus.is_empty()) {
            return MemoryPlacement::Anywhere(UnplacedReason::Refused);
        }
        MemoryPlacement::Touch(nodes)
    }
}

impl fmt::Display for UnplacedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "turned off",
            Self::OneNode => "one NUMA node",
            Self::AdapterUnknown => "the adapter's NUMA node is not known",
            Self::NoMemoryThere => "memory of the adapter's NUMA node may not be used",
            Self::NoProcessorThere => "processors of the adapter's NUMA node may not be used",
            Self::Refused => "the kernel takes no memory policy, and processors may not be used",
        })
    }
}

impl fmt::Display for MemoryPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, by) = match self {
            Self::Anywhere(why) => return write!(f, "anywhere: {why}"),
            Self::Policy(nodes) => (nodes.clone(), "policy"),
            Self::Touch(nodes) => {
                let nodes = nodes.iter().map(|node| node.number).collect();
                (nodes, "first touch")
            }
        };
        match nodes.len() {
            1 => write!(f, "NUMA node {nodes}, by {by}"),
            _ => write!(f, "NUMA nodes {nodes} in turns, by {by}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Gpu, GpuModel, Guid, Hardware, HardwareParts, Hca, PciAddress};

    fn numbers(text: &str) -> Numbers {
        text.parse().unwrap()
    }

    /// The paper's node: two sockets of 32 processors with four GPUs each, and the adapter at the
    /// second one.
    fn paper() -> NumaMachine {
        let address = |text: &str| text.parse::<PciAddress>().unwrap();
        let gpus = (0..8).map(|at| Gpu {
            uuid: format!("GPU-{at}"),
            address: address(&format!("0000:{at}1:00.0")),
            minor: at,
            numa: at / 4,
            root_port: address(&format!("0000:{at}0:00.0")),
        });
        let hca = Hca {
            name: "mlx5_0".to_owned(),
            guid: "0002:c903:0000:0001".parse::<Guid>().unwrap(),
            port: 1,
            rate_gbps: 200,
            numa: 1,
            root_port: address("0000:80:00.0"),
            relaxed_ordering: true,
            slots: 8,
        };
        let node = Hardware::new(HardwareParts {
            numa_nodes: vec![0, 1],
            gpu_model: Some(GpuModel {
                product: "A100".to_owned(),
                memory_mib: 40 << 10,
            }),
            gpus: gpus.collect(),
            hcas: vec![hca],
            ..HardwareParts::default()
        })
        .unwrap();
        NumaMachine {
            nodes: ["0-31", "32-63"]
                .into_iter()
                .zip(0..)
                .map(|(cpus, number)| NumaNode {
                    number,
                    cpus: numbers(cpus),
                })
                .collect(),
            memory: numbers("0-1"),
            cpus: numbers("0-63"),
            adapter: node.hcas().first().map(|hca| hca.numa),
            may_set_policy: true,
        }
    }

    fn check(machine: &NumaMachine, inputs: &str, results: &str, engine: &str) {
        let NumaPlacement {
            inputs: one,
            results: other,
            engine: cpus,
        } = place(machine);
        let cpus = cpus.map_or_else(|why| why.to_string(), |cpus| cpus.to_string());
        assert_eq!(
            [one.to_string(), other.to_string(), cpus],
            [inputs, results, engine]
        );
    }

    const SPREAD: &str = "NUMA nodes 0-1 in turns, by policy";

    #[test]
    fn one_node_leaves_nothing_to_place() {
        let machine = NumaMachine {
            nodes: vec![NumaNode {
                number: 0,
                cpus: numbers("0-1"),
            }],
            memory: numbers("0"),
            cpus: numbers("0-1"),
            adapter: Some(0),
            may_set_policy: true,
        };
        assert_eq!(
            place(&machine),
            NumaPlacement::none(UnplacedReason::OneNode)
        );
    }

    #[test]
    fn inputs_are_spread_and_results_lie_next_to_the_adapter() {
        check(&paper(), SPREAD, "NUMA node 1, by policy", "32-63");
    }

    #[test]
    fn the_engine_stays_within_its_cpuset() {
        let machine = NumaMachine {
            cpus: numbers("28-35"),
            ..paper()
        };
        check(&machine, SPREAD, "NUMA node 1, by policy", "32-35");
    }

    #[test]
    fn a_cpuset_without_the_adapters_node_leaves_the_engine_where_it_may_run() {
        let machine = NumaMachine {
            cpus: numbers("0-7"),
            ..paper()
        };
        let why = "processors of the adapter's NUMA node may not be used";
        check(&machine, SPREAD, "NUMA node 1, by policy", why);
    }

    #[test]
    fn without_the_right_to_a_policy_pinned_threads_touch_memory_first() {
        let machine = NumaMachine {
            may_set_policy: false,
            ..paper()
        };
        let spread = "NUMA nodes 0-1 in turns, by first touch";
        check(&machine, spread, "NUMA node 1, by first touch", "32-63");
        let MemoryPlacement::Touch(nodes) = place(&machine).inputs else {
            panic!("not by touch");
        };
        assert_eq!(nodes, machine.nodes);
    }

    #[test]
    fn without_the_right_to_either_nothing_is_promised() {
        let machine = NumaMachine {
            may_set_policy: false,
            cpus: numbers("0-7"),
            ..paper()
        };
        let refused = "anywhere: the kernel takes no memory policy, and processors may not be used";
        let why = "processors of the adapter's NUMA node may not be used";
        check(&machine, refused, refused, why);
    }

    #[test]
    fn memory_that_may_not_be_used_is_not_asked_for() {
        let machine = NumaMachine {
            memory: numbers("0"),
            ..paper()
        };
        let results = "anywhere: memory of the adapter's NUMA node may not be used";
        check(&machine, "NUMA node 0, by policy", results, "32-63");
    }

    #[test]
    fn an_adapter_of_which_nothing_is_known_makes_everything_even() {
        let machine = NumaMachine {
            adapter: None,
            ..paper()
        };
        let why = "the adapter's NUMA node is not known";
        check(&machine, SPREAD, SPREAD, why);
    }
}
