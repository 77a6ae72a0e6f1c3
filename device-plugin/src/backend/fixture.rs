//! The declarative description of a node that replaces hardware: its YAML, checked once and
//! turned into an inventory. What containers get to see of it is `mock`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;

use serde::Deserialize;
use topology::node::{self, Gpu, GpuModel, Hardware, HardwareParts, Hca};

use super::NodeLocation;
use crate::labels;

/// Largest fixture that is read: sixteen GPUs and adapters with comments take some 8 KiB.
pub const MAX_BYTES: u64 = 256 * 1024;

/// Why a fixture is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is longer than any node needs.
    #[error("the file is longer than {MAX_BYTES} bytes; is it a node fixture?")]
    TooLong,
    /// It is no YAML, or has other fields than a fixture.
    #[error(transparent)]
    Yaml(#[from] serde_yaml::Error),
    /// A field's text does not parse.
    #[error("{at}: {problem}")]
    Field {
        /// The field.
        at: String,
        /// What is wrong and what to do.
        problem: String,
    },
    /// The node it describes cannot exist.
    #[error(transparent)]
    Hardware(#[from] node::Error),
}

/// What a fixture says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixture {
    /// The hardware.
    pub node: Hardware,
    /// Where the node belongs.
    pub place: NodeLocation,
    /// Broken devices and what is wrong with them.
    pub faults: BTreeMap<String, String>,
}

impl FromStr for Fixture {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Document {
            node_class,
            zone,
            leaf,
            numa_nodes,
            gpu_model,
            gpus,
            nvlinks,
            hcas,
            prefer_near_hca,
            faults,
        } = serde_yaml::from_str(text)?;

        let node = Hardware::new(HardwareParts {
            numa_nodes,
            gpu_model: gpu_model.map(|model| GpuModel {
                product: model.product,
                memory_mib: model.memory_mib,
            }),
            gpus: indexed(gpus, gpu)?,
            nvlinks,
            hcas: indexed(hcas, hca)?,
            prefer_near_hca,
        })?;
        if let Some(model) = node.gpu_model() {
            label("gpuModel.product", Some(model.product.clone()))?;
        }
        Ok(Self {
            place: NodeLocation {
                node_class: label("nodeClass", node_class)?,
                zone: label("zone", zone)?,
                leaf: label("leaf", leaf)?,
            },
            faults: known_faults(&node, faults)?,
            node,
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    node_class: Option<String>,
    zone: Option<String>,
    leaf: Option<String>,
    numa_nodes: Vec<u32>,
    gpu_model: Option<GpuModelEntry>,
    #[serde(default)]
    gpus: Vec<GpuEntry>,
    #[serde(default)]
    nvlinks: Vec<(usize, usize)>,
    #[serde(default)]
    hcas: Vec<HcaEntry>,
    #[serde(default)]
    prefer_near_hca: bool,
    #[serde(default)]
    faults: Vec<FaultEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GpuModelEntry {
    product: String,
    memory_mib: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GpuEntry {
    uuid: String,
    address: String,
    minor: u32,
    numa: u32,
    root_port: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HcaEntry {
    name: String,
    guid: String,
    port: u8,
    rate_gbps: u32,
    numa: u32,
    root_port: String,
    relaxed_ordering: bool,
    slots: u16,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FaultEntry {
    device: String,
    reason: String,
}

fn gpu(index: usize, entry: GpuEntry) -> Result<Gpu, Error> {
    Ok(Gpu {
        address: parsed(format!("gpus[{index}].address"), &entry.address)?,
        root_port: parsed(format!("gpus[{index}].rootPort"), &entry.root_port)?,
        uuid: entry.uuid,
        minor: entry.minor,
        numa: entry.numa,
    })
}

fn hca(index: usize, entry: HcaEntry) -> Result<Hca, Error> {
    Ok(Hca {
        guid: parsed(format!("hcas[{index}].guid"), &entry.guid)?,
        root_port: parsed(format!("hcas[{index}].rootPort"), &entry.root_port)?,
        name: entry.name,
        port: entry.port,
        rate_gbps: entry.rate_gbps,
        numa: entry.numa,
        relaxed_ordering: entry.relaxed_ordering,
        slots: entry.slots,
    })
}

fn known_faults(
    node: &Hardware,
    faults: Vec<FaultEntry>,
) -> Result<BTreeMap<String, String>, Error> {
    let gpus = node.gpus().iter().map(|gpu| gpu.uuid.as_str());
    let hcas = node.hcas().iter().map(|hca| hca.name.as_str());
    let known: BTreeSet<&str> = gpus.chain(hcas).collect();
    for (index, fault) in faults.iter().enumerate() {
        if !known.contains(fault.device.as_str()) {
            return Err(Error::Field {
                at: format!("faults[{index}].device"),
                problem: format!(
                    "the node has no `{}`; name a GPU's uuid or an adapter's name",
                    fault.device.escape_default()
                ),
            });
        }
    }
    Ok(faults
        .into_iter()
        .map(|fault| (fault.device, fault.reason))
        .collect())
}

fn label(at: &str, value: Option<String>) -> Result<Option<String>, Error> {
    value
        .map(|value| labels::value(&value))
        .transpose()
        .map_err(|error| Error::Field {
            at: at.to_owned(),
            problem: error.to_string(),
        })
}

fn parsed<T: FromStr<Err: Display>>(at: String, text: &str) -> Result<T, Error> {
    text.parse().map_err(|error: T::Err| Error::Field {
        at,
        problem: error.to_string(),
    })
}

fn indexed<A, B>(
    entries: Vec<A>,
    convert: impl Fn(usize, A) -> Result<B, Error>,
) -> Result<Vec<B>, Error> {
    entries
        .into_iter()
        .enumerate()
        .map(|(index, entry)| convert(index, entry))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAPER: &str = include_str!("../../../e2e/fixtures/node-a100.yaml");

    #[track_caller]
    fn refused(change: (&str, &str), expected: &str) {
        let text = PAPER.replacen(change.0, change.1, 1);
        assert_ne!(text, PAPER, "the change applies");
        let error = text.parse::<Fixture>().expect_err("the fixture is refused");
        assert!(error.to_string().contains(expected), "{error}");
    }

    #[test]
    fn the_papers_node_is_as_the_paper_says() {
        let fixture: Fixture = PAPER.parse().expect("the fixture is legal");
        let node = &fixture.node;
        assert_eq!(node.gpus().len(), 8);
        assert_eq!(node.nvlinks(), [(0, 1), (2, 3), (4, 5), (6, 7)]);
        assert_eq!(node.shared_root_ports(), [[5, 6]]);
        assert_eq!(node.numa_nodes(), [0, 1]);
        let [hca] = node.hcas() else {
            panic!("the node has one adapter")
        };
        assert_eq!((hca.rate_gbps, hca.slots), (200, 8));
        let alone = node.gpus().iter().all(|gpu| gpu.root_port != hca.root_port);
        assert!(alone, "the adapter has its root port to itself");
        assert_eq!(fixture.place.node_class.as_deref(), Some("a100"));
    }

    #[test]
    fn a_mistake_is_located() {
        refused(
            ("address: \"0000:21:00.0\"", "address: \"21:00\""),
            "gpus[1].address: `21:00` is no PCI address",
        );
        refused(
            ("b859:9f03", "b859-9f03"),
            "hcas[0].guid: `b859-9f03:00d4:1c2a` is no GUID",
        );
        refused(("numa: 1", "numa: 3"), "gpus[4].numa: NUMA node 3");
        refused(("slots: 8", "slot: 8"), "unknown field `slot`");
        refused(
            ("nodeClass: a100", "nodeClass: \"a 100\""),
            "nodeClass: `a 100` is no label value",
        );
        refused(
            ("faults: []", "faults: [{device: gpu9, reason: gone}]"),
            "faults[0].device: the node has no `gpu9`",
        );
    }
}
