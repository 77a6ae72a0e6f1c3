//! Which clusters there are on this machine, and what has become of each.

use std::fs;
use std::path::PathBuf;

use crate::cluster::kubeconfig;
use crate::error::Result;
use crate::layout::Name;
use crate::paths;
use crate::state::{NodeEngine, State};

/// What `status` shows of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterStatus {
    /// Its name.
    pub name: String,
    /// Who runs the nodes.
    pub engine: NodeEngine,
    /// It came up whole once, and was not taken down since.
    pub ready: bool,
    /// What belongs to it and has died.
    pub dead: Vec<String>,
    /// Where its kubeconfig is.
    pub kubeconfig: PathBuf,
}

/// The clusters of this user on this machine.
pub fn list() -> Result<Vec<ClusterStatus>> {
    let entries = fs::read_dir(paths::clusters()?)
        .into_iter()
        .flatten()
        .flatten();
    let names = entries.filter_map(|entry| Name::new(&entry.file_name().to_string_lossy()).ok());
    let mut found = Vec::new();
    for name in names {
        let folder = paths::clusters()?.join(name.as_str());
        // A state that cannot be read is reported, not fatal: `down` and `up` can do without.
        let state = match State::read(&folder) {
            Ok(Some(state)) => state,
            Ok(None) => continue,
            Err(_) => State::new(0, NodeEngine::Native),
        };
        let processes = state.processes.iter();
        let dead = processes.filter(|(_, process)| !process.alive());
        found.push(ClusterStatus {
            name: name.to_string(),
            engine: state.engine,
            ready: state.ready,
            dead: dead.map(|(role, _)| role.clone()).collect(),
            kubeconfig: kubeconfig(&folder),
        });
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}
