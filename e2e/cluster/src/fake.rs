//! Simulated nodes: Node objects that kwok keeps Ready, for tests of scale. They are tainted, so
//! that only pods which tolerate `kwok.x-k8s.io/node` land there.

use std::time::Duration;

use crate::cluster::Cluster;
use crate::command;
use crate::control;
use crate::error::{Error, Result};
use crate::state::NodeEngine;
use crate::template::{FAKE_NODE, KWOK, render};
use crate::wait::until;

/// Nodes below one leaf switch: 40 ports down, as in the paper's fabric.
const NODES_PER_LEAF: usize = 40;
const READY_LIMIT: Duration = Duration::from_secs(120);

/// Simulated nodes need a process of ours beside the control plane.
pub(crate) fn check(engine: NodeEngine) -> Result<()> {
    match engine {
        NodeEngine::Native => Ok(()),
        NodeEngine::Kind => Err(Error::new(
            "simulated nodes need a cluster of this machine's own processes: kind has no place for them",
        )),
    }
}

/// Adds nodes `fake-1`..=`fake-COUNT`, divided into the zones in blocks, and waits until they are
/// Ready.
pub(crate) fn add(cluster: &Cluster, count: usize, zones: &[impl AsRef<str>]) -> Result<()> {
    let Some(last) = zones.last() else {
        return Err(Error::new("simulated nodes need a zone"));
    };
    if count_ready(cluster)? >= count {
        return Ok(());
    }
    cluster.apply(KWOK)?;
    control::start_kwok(cluster.site())?;
    let per_zone = count.div_ceil(zones.len());
    let mut yaml = String::new();
    for index in 0..count {
        let zone = zones.get(index / per_zone).unwrap_or(last).as_ref();
        let leaf = format!("{zone}-{}", index % per_zone / NODES_PER_LEAF);
        let name = format!("fake-{}", index + 1);
        yaml += &render(
            FAKE_NODE,
            &[("NAME", &name), ("ZONE", zone), ("LEAF", &leaf)],
        );
    }
    let mut create = cluster.kubectl(["create", "--validate=false", "-f", "-"])?;
    command::run_with_input(&mut create, yaml.as_bytes())?;
    until("all fake nodes Ready", READY_LIMIT, || {
        Ok((count_ready(cluster)? >= count).then_some(()))
    })
}

fn count_ready(cluster: &Cluster) -> Result<usize> {
    let ready = cluster.ready_nodes()?;
    Ok(ready
        .iter()
        .filter(|name| name.starts_with("fake-"))
        .count())
}
