//! One compute node as hardware: GPUs, the NVLink bridges between them, host channel adapters,
//! NUMA nodes and root ports. Owns what a legal node is. Where the facts come from is a backend's
//! business; which GPUs a container should get is decided in `preference`.

use std::collections::{BTreeMap, BTreeSet};

pub use crate::address::{AddressError, Guid, GuidError, PciAddress};

/// Most GPUs in one node. Choosing among them looks at every subset of one size: at most
/// 12,870 for 16.
pub const MAX_GPUS: usize = 16;
/// Most adapters in one node.
pub const MAX_HCAS: usize = 16;
/// Most slots of one adapter port, so that a slot's number has two digits.
pub const MAX_SLOTS: u16 = 99;
/// Longest name of a GPU or adapter. The kubelet takes device IDs of up to 63 characters, and a
/// slot's ID adds `-<port>-<slot>` to its adapter's name.
pub const MAX_NAME: usize = 56;

/// Why a node cannot be as described. `at` is the field, as in `gpus[5].numa`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}; {remedy}")]
pub struct Error {
    /// The field.
    pub at: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do about it.
    pub remedy: &'static str,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The driver's name for this very board, the same in every slot and after every boot.
    pub uuid: String,
    /// Where it sits on the PCI bus.
    pub address: PciAddress,
    /// Number of its device file.
    pub minor: u32,
    /// The NUMA node it is attached to.
    pub numa: u32,
    /// The root port it hangs on. GPUs that share one share its bandwidth.
    pub root_port: PciAddress,
}

/// What all GPUs of a node are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuModel {
    /// The vendor's name, for example `NVIDIA-A100-PCIE-40GB`.
    pub product: String,
    /// Memory of one GPU.
    pub memory_mib: u32,
}

/// One port of a host channel adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hca {
    /// The kernel's name, for example `mlx5_0`.
    pub name: String,
    /// Identity on the fabric.
    pub guid: Guid,
    /// Which of the adapter's ports.
    pub port: u8,
    /// Signalling rate.
    pub rate_gbps: u32,
    /// The NUMA node it is attached to.
    pub numa: u32,
    /// The root port it hangs on.
    pub root_port: PciAddress,
    /// Whether the platform lets it write to memory in relaxed order.
    pub relaxed_ordering: bool,
    /// How many containers may use it at once.
    pub slots: u16,
}

/// The unchecked description of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HardwareParts {
    /// Numbers of the NUMA nodes.
    pub numa_nodes: Vec<u32>,
    /// What the GPUs are; needed if there are any.
    pub gpu_model: Option<GpuModel>,
    /// GPUs in the order of their PCI addresses, which is the order that tools number them in.
    pub gpus: Vec<Gpu>,
    /// NVLink bridges, each between two positions in `gpus`.
    pub nvlinks: Vec<(usize, usize)>,
    /// Adapters.
    pub hcas: Vec<Hca>,
    /// Whether work on this node leans on the network more than on memory, so that GPUs near an
    /// adapter are worth preferring.
    pub prefer_near_hca: bool,
}

/// A node that can exist. Built by [`Hardware::new`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hardware {
    parts: HardwareParts,
}

impl Hardware {
    /// Checks the description.
    pub fn new(mut parts: HardwareParts) -> Result<Self, Error> {
        check_numa_nodes(&parts)?;
        check_gpus(&parts)?;
        check_nvlinks(&parts)?;
        check_hcas(&parts)?;
        for (one, other) in &mut parts.nvlinks {
            if *one > *other {
                std::mem::swap(one, other);
            }
        }
        parts.nvlinks.sort_unstable();
        Ok(Self { parts })
    }

    /// GPUs; a position in this list is the GPU's index everywhere else.
    pub fn gpus(&self) -> &[Gpu] {
        &self.parts.gpus
    }

    /// What the GPUs are; some whenever there are any.
    pub fn gpu_model(&self) -> Option<&GpuModel> {
        self.parts.gpu_model.as_ref()
    }

    /// Bridged pairs of GPU indices, lower index first, in order; no GPU is in two.
    pub fn nvlinks(&self) -> &[(usize, usize)] {
        &self.parts.nvlinks
    }

    /// Adapter ports.
    pub fn hcas(&self) -> &[Hca] {
        &self.parts.hcas
    }

    /// Numbers of the NUMA nodes.
    pub fn numa_nodes(&self) -> &[u32] {
        &self.parts.numa_nodes
    }

    /// Whether GPUs near an adapter are worth preferring.
    pub fn prefers_near_hca(&self) -> bool {
        self.parts.prefer_near_hca
    }

    /// Groups of at least two GPU indices that hang on one root port, in order.
    pub fn shared_root_ports(&self) -> Vec<Vec<usize>> {
        let mut ports: BTreeMap<PciAddress, Vec<usize>> = BTreeMap::new();
        for (index, gpu) in self.gpus().iter().enumerate() {
            ports.entry(gpu.root_port).or_default().push(index);
        }
        let mut shared: Vec<_> = ports.into_values().filter(|gpus| gpus.len() > 1).collect();
        shared.sort_unstable();
        shared
    }
}

fn error(at: impl Into<String>, problem: impl Into<String>, remedy: &'static str) -> Error {
    Error {
        at: at.into(),
        problem: problem.into(),
        remedy,
    }
}

fn check_numa_nodes(parts: &HardwareParts) -> Result<(), Error> {
    let mut seen = BTreeSet::new();
    for (index, id) in parts.numa_nodes.iter().enumerate() {
        if !seen.insert(*id) {
            return Err(error(
                format!("numaNodes[{index}]"),
                format!("NUMA node {id} is listed twice"),
                "remove one",
            ));
        }
    }
    if seen.is_empty() {
        return Err(error(
            "numaNodes",
            "a node has at least one NUMA node",
            "list their numbers, for example [0, 1]",
        ));
    }
    Ok(())
}

fn check_gpus(parts: &HardwareParts) -> Result<(), Error> {
    let gpus = &parts.gpus;
    if gpus.len() > MAX_GPUS {
        return Err(error(
            "gpus",
            format!("{} GPUs are more than {MAX_GPUS}", gpus.len()),
            "describe a smaller node",
        ));
    }
    if !gpus.is_empty() && parts.gpu_model.is_none() {
        return Err(error(
            "gpuModel",
            "there are GPUs, and nothing says what they are",
            "give product and memoryMib",
        ));
    }
    let (mut uuids, mut minors) = (BTreeSet::new(), BTreeSet::new());
    let mut previous: Option<PciAddress> = None;
    for (index, gpu) in gpus.iter().enumerate() {
        let at = |field| format!("gpus[{index}].{field}");
        check_name(&gpu.uuid).map_err(|problem| error(at("uuid"), problem, NAME_REMEDY))?;
        if !uuids.insert(&gpu.uuid) {
            let problem = format!("{} is the UUID of another GPU too", gpu.uuid);
            return Err(error(at("uuid"), problem, "give each GPU its own"));
        }
        if !minors.insert(gpu.minor) {
            let problem = format!("{} is the minor of another GPU too", gpu.minor);
            return Err(error(at("minor"), problem, "give each GPU its own"));
        }
        if previous.is_some_and(|previous| previous >= gpu.address) {
            return Err(error(
                at("address"),
                format!("{} does not follow its predecessor's", gpu.address),
                "list GPUs in the order of their PCI addresses, each address once",
            ));
        }
        previous = Some(gpu.address);
        check_numa(parts, gpu.numa, at("numa"))?;
    }
    Ok(())
}

fn check_nvlinks(parts: &HardwareParts) -> Result<(), Error> {
    let mut bridged = BTreeSet::new();
    for (index, (one, other)) in parts.nvlinks.iter().enumerate() {
        let at = format!("nvlinks[{index}]");
        if one == other {
            let problem = format!("GPU {one} is bridged to itself");
            return Err(error(at, problem, "name two different GPUs"));
        }
        for gpu in [one, other] {
            if *gpu >= parts.gpus.len() {
                return Err(error(
                    at,
                    format!("there is no GPU {gpu}, the node has {}", parts.gpus.len()),
                    "name GPUs by their position in gpus, from 0",
                ));
            }
            if !bridged.insert(*gpu) {
                let problem = format!("GPU {gpu} is in another bridge too");
                return Err(error(at, problem, "a GPU has one bridge, to one other GPU"));
            }
        }
    }
    Ok(())
}

fn check_hcas(parts: &HardwareParts) -> Result<(), Error> {
    if parts.hcas.len() > MAX_HCAS {
        return Err(error(
            "hcas",
            format!("{} adapters are more than {MAX_HCAS}", parts.hcas.len()),
            "describe a smaller node",
        ));
    }
    let mut seen = BTreeSet::new();
    for (index, hca) in parts.hcas.iter().enumerate() {
        let at = |field| format!("hcas[{index}].{field}");
        check_name(&hca.name).map_err(|problem| error(at("name"), problem, NAME_REMEDY))?;
        if hca.port == 0 {
            return Err(error(at("port"), "ports count from 1", "correct it"));
        }
        if !seen.insert((&hca.name, hca.port)) {
            let problem = format!("{} port {} is listed twice", hca.name, hca.port);
            return Err(error(at("port"), problem, "list each port once"));
        }
        if !(1..=MAX_SLOTS).contains(&hca.slots) {
            let problem = format!("{} slots are not between 1 and {MAX_SLOTS}", hca.slots);
            return Err(error(
                at("slots"),
                problem,
                "use as many as the node has GPUs",
            ));
        }
        check_numa(parts, hca.numa, at("numa"))?;
    }
    Ok(())
}

fn check_numa(parts: &HardwareParts, numa: u32, at: String) -> Result<(), Error> {
    if parts.numa_nodes.contains(&numa) {
        return Ok(());
    }
    Err(error(
        at,
        format!("NUMA node {numa} is not in numaNodes"),
        "add it there, or correct the number",
    ))
}

const NAME_REMEDY: &str = "use 1 to 56 of the characters A-Z a-z 0-9 - _ starting with a letter";

/// Names become device IDs, file names and parts of comma-separated lists.
fn check_name(name: &str) -> Result<(), String> {
    let legal = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name.len() <= MAX_NAME
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    if legal {
        Ok(())
    } else {
        Err(format!("`{}` cannot name a device", name.escape_default()))
    }
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
