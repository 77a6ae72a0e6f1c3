//! The paper's node, for unit tests.

use std::path::PathBuf;

use crate::backend::fixture::Fixture;
use crate::backend::{Inventory, Mount};

const PAPER: &str = include_str!("../../e2e/fixtures/node-a100.yaml");

/// The paper's node with a mount for every device.
pub(crate) fn inventory() -> Inventory {
    let Fixture {
        node,
        place,
        faults,
    } = PAPER.parse().expect("the fixture is legal");
    let mount = |name: String| {
        vec![Mount {
            container: PathBuf::from(format!("/dev/fireflyer/{name}")),
            host: PathBuf::from(format!("/run/fireflyer/devices/{name}")),
        }]
    };
    let gpus = node.gpus().iter();
    let gpus = gpus.map(|gpu| (gpu.uuid.clone(), mount(format!("gpu{}", gpu.minor))));
    let hcas = node.hcas().iter();
    let hcas = hcas.map(|hca| {
        (
            hca.name.clone(),
            mount(format!("{}-{}", hca.name, hca.port)),
        )
    });
    Inventory {
        access: gpus.chain(hcas).collect(),
        node,
        place,
        faults,
    }
}

/// The ID of the paper's node's GPU of this index.
pub(crate) fn gpu(index: usize) -> String {
    inventory().node.gpus()[index].uuid.clone()
}
