//! Where this process's memory and its engine lie on the machine: has `sysfs` read what there is and `topology` decide,
//! turns the decision into settings for `link` and the kernel, and reads back what they did. What cannot be read is
//! taken for a machine without NUMA.

mod sysfs;

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;

use link::memory_policy::{MemoryPolicy, may_set_policy};
use link::segment::{Segment, Writers};
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::Serialize;
use topology::numa::Numbers;
use topology::placement::{MemoryPlacement, NumaMachine, NumaPlacement, UnplacedReason, place};
use tracing::{info, warn};

pub use sysfs::free_bytes;

/// Pages of this many bytes are looked at: some huge ones, made and given back at the start.
const SAMPLE_BYTES: usize = 8 << 20;

/// Whether memory and the engine are placed, and by whose word where the adapter is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// The adapter's NUMA node is found in sysfs.
    #[default]
    Auto,
    /// Nothing is placed.
    Off,
    /// The adapter is at this NUMA node.
    Node(u32),
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            ("off", _) => Ok(Self::Off),
            (_, Ok(node)) if node <= topology::numa::MAX_NUMBER => Ok(Self::Node(node)),
            _ => Err("use auto, off, or the number of a NUMA node".to_owned()),
        }
    }
}

/// How a node's adapter may be known.
#[derive(Clone, Debug)]
pub struct NumaAdapter {
    /// Where peers reach this node.
    pub address: IpAddr,
    /// The RDMA device that is named, if one is.
    pub rdma: Option<String>,
    /// Whether RDMA may be used at all.
    pub uses_rdma: bool,
}

/// Where everything goes.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Segments for what local ranks bring.
    pub inputs: MemoryPolicy,
    /// Results, slots, and where RDMA writes.
    pub results: MemoryPolicy,
    /// Processors of the engine.
    pub engine: Option<CpuSet>,
    /// What is logged about it.
    pub report: PlacementReport,
}

/// What became of it, for the log, metrics and `/ops`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementReport {
    /// NUMA nodes of the machine.
    pub numa_nodes: usize,
    /// The adapter's, if it is known.
    pub adapter_node: Option<u32>,
    /// Where inputs are to lie, and on which nodes pages of a sample were seen.
    pub inputs: String,
    /// The same of results and of what is received.
    pub results: String,
    /// Processors of the engine, or why it has none of its own.
    pub engine: String,
    /// Whether shared memory gets huge pages, or why not.
    pub huge_pages: String,
    /// Bytes that may be locked, as RDMA needs; none is no limit.
    pub memlock_bytes: Option<u64>,
}

/// The machine, but for its adapter and for what the kernel lets this process say.
pub fn machine() -> NumaMachine {
    sysfs::seen(Path::new("/"))
}

/// Decides and looks what comes of it. Says it once in the log.
pub fn settle(numa: Numa, adapter: &NumaAdapter) -> Places {
    let root = Path::new("/");
    let mut machine = sysfs::seen(root);
    let placement = match numa {
        Numa::Off => NumaPlacement::none(UnplacedReason::Off),
        Numa::Auto | Numa::Node(_) => {
            machine.adapter = match numa {
                Numa::Node(node) => Some(node),
                Numa::Auto | Numa::Off => sysfs::adapter_node(root, adapter),
            };
            let nodes: Vec<u32> = machine.memory.iter().collect();
            machine.may_set_policy = machine.nodes.len() > 1 && may_set_policy(&nodes);
            place(&machine)
        }
    };
    let mut places = Places {
        inputs: home(&placement.inputs),
        results: home(&placement.results),
        engine: placement.engine.as_ref().ok().map(cpu_set),
        report: PlacementReport::default(),
    };
    let (inputs, _) = sample("fireflyer-sample-inputs", &places.inputs);
    let (results, huge) = sample("fireflyer-sample-results", &places.results);
    places.report = PlacementReport {
        numa_nodes: machine.nodes.len(),
        adapter_node: machine.adapter,
        inputs: format!("{}{inputs}", placement.inputs),
        results: format!("{}{results}", placement.results),
        engine: match &placement.engine {
            Ok(cpus) => cpus.to_string(),
            Err(why) => format!("any: {why}"),
        },
        huge_pages: sysfs::huge_pages(root, huge),
        memlock_bytes: getrlimit(Resource::Memlock).current,
    };
    places.report.log();
    if [&placement.inputs, &placement.results]
        .contains(&&MemoryPlacement::Anywhere(UnplacedReason::Refused))
    {
        warn!(
            "memory may lie on the wrong NUMA node: allow mbind (CAP_SYS_NICE), or give the container processors of every node"
        );
    }
    places
}

impl PlacementReport {
    fn log(&self) {
        let Self {
            numa_nodes,
            adapter_node,
            inputs,
            results,
            engine,
            huge_pages,
            memlock_bytes,
        } = self;
        info!(
            numa_nodes,
            adapter_node,
            inputs,
            results,
            engine,
            huge_pages,
            memlock_bytes,
            "placed memory and engine"
        );
    }
}

impl Places {
    /// Keeps the calling thread on the engine's processors, if it has any of its own.
    pub(crate) fn enter(&self) {
        if let Some(cpus) = &self.engine
            && let Err(error) = sched_setaffinity(None, cpus)
        {
            warn!(%error, "the engine runs on any processor");
        }
    }
}

/// Processors as the kernel takes them.
pub fn cpu_set(cpus: &Numbers) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(cpu as usize));
    set
}

fn home(lie: &MemoryPlacement) -> MemoryPolicy {
    match lie {
        MemoryPlacement::Anywhere(_) => MemoryPolicy::Anywhere,
        MemoryPlacement::Policy(nodes) => MemoryPolicy::Policy(nodes.iter().collect()),
        MemoryPlacement::Touch(nodes) => {
            MemoryPolicy::Touch(nodes.iter().map(|node| cpu_set(&node.cpus)).collect())
        }
    }
}

/// On which nodes the pages of a segment with this home lie, for people, and whether some of them are huge.
fn sample(name: &str, home: &MemoryPolicy) -> (String, bool) {
    let Ok(segment) = Segment::create_at(name, SAMPLE_BYTES, Writers::Creator, home) else {
        return (String::new(), false);
    };
    let file = format!("/memfd:{name}");
    let maps = fs::read_to_string("/proc/self/numa_maps").unwrap_or_default();
    let lies = maps.lines().find(|line| line.contains(&file));
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let own = smaps.split_once(&file).map_or("", |(_, own)| own);
    let mut fields = own.lines();
    let huge = fields.find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
    let is_huge = huge.is_some_and(|huge| huge.trim() != "0 kB");
    drop(segment);
    (lies.map(pages).unwrap_or_default(), is_huge)
}

/// A line of `numa_maps`, for people.
fn pages(line: &str) -> String {
    let on_nodes = line.split_whitespace().filter_map(|word| {
        let (node, pages) = word.strip_prefix('N')?.split_once('=')?;
        let (node, pages): (u32, u64) = (node.parse().ok()?, pages.parse().ok()?);
        Some(format!("{pages} on node {node}"))
    });
    let on_nodes: Vec<String> = on_nodes.collect();
    match &on_nodes[..] {
        [] => String::new(),
        some => format!(" (pages of a sample: {})", some.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // On the machine of the test, whatever it is.
    #[test]
    fn a_sample_says_where_its_pages_lie() {
        let adapter = NumaAdapter {
            address: IpAddr::from([127, 0, 0, 1]),
            rdma: None,
            uses_rdma: false,
        };
        let report = settle(Numa::Node(0), &adapter).report;
        assert!(report.numa_nodes > 0, "{report:?}");
        assert!(report.results.contains(" on node "), "{report:?}");
        let off = settle(Numa::Off, &adapter);
        assert!(off.engine.is_none() && off.report.inputs.contains("turned off"));
    }

    #[test]
    fn the_flag_takes_a_word_or_a_number() {
        assert_eq!("auto".parse(), Ok(Numa::Auto));
        assert_eq!("off".parse(), Ok(Numa::Off));
        assert_eq!("1".parse(), Ok(Numa::Node(1)));
        assert!("5000".parse::<Numa>().is_err() && "on".parse::<Numa>().is_err());
    }
}
