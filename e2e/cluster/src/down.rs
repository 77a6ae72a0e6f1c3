//! Taking a cluster down: every process, namespace, cgroup and file that bears its name. Works from
//! the state file and from the names alone, because a run that crashed may have recorded less than
//! it started.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cgroup;
use crate::error::{Error, ErrorContext, Result};
use crate::kind;
use crate::layout::Name;
use crate::network;
use crate::paths;
use crate::process::{self, Process};
use crate::state::{NodeEngine, State, lock, lock_all};

const KILL_LIMIT: Duration = Duration::from_secs(30);

/// Removes every trace of a cluster; false when there was none.
pub(crate) fn down(name: &Name) -> Result<bool> {
    let clusters = paths::clusters()?;
    let found = take_down(name, &clusters, None)?;
    remove_all(&kept_logs(&clusters, name))?;
    // Only the last cluster takes the folders of all with it.
    let _ = fs::remove_dir(&clusters);
    if let Some(ours) = clusters.parent() {
        let _ = fs::remove_dir(ours);
    }
    Ok(found)
}

/// Removes a cluster but not its logs, and returns where they are now, until the next `down`; none when there
/// was no cluster.
pub(crate) fn down_but_logs(name: &Name) -> Result<Option<PathBuf>> {
    let clusters = paths::clusters()?;
    let kept = kept_logs(&clusters, name);
    let found = take_down(name, &clusters, Some(&kept))?;
    Ok(found.then(|| kept.join("logs")))
}

/// Names have no dots, so this is no cluster's. The logs are in its `logs`, as in a cluster's folder.
fn kept_logs(clusters: &Path, name: &Name) -> PathBuf {
    clusters.join(name.as_str()).with_extension("ended")
}

/// Kills and removes all of a cluster that nobody brings up; its logs go to `kept` first, if that is given.
fn take_down(name: &Name, clusters: &Path, kept: Option<&Path>) -> Result<bool> {
    let ours = clusters.parent().unwrap_or(clusters);
    if !ours.exists() && network::namespaces(name).is_empty() && !kind::available() {
        // Even the lock would leave a folder.
        return Ok(false);
    }
    let _alone = lock_all(clusters)?;
    let folder = clusters.join(name.as_str());
    let state = read(&folder)?;
    refuse_while_owned(name, state.as_ref())?;
    let found = folder.exists() || !network::namespaces(name).is_empty();
    let logs = folder.join("logs");
    if let Some(kept) = kept.filter(|_| logs.exists()) {
        remove_all(kept)?;
        // Who still writes goes on writing there.
        fs::create_dir_all(kept)
            .and_then(|()| fs::rename(&logs, kept.join("logs")))
            .context(|| format!("failed to move {} away", logs.display()))?;
    }
    remove(name, &folder, state.as_ref())?;
    Ok(found)
}

/// Refuses while another process is bringing the cluster up.
pub(crate) fn refuse_while_owned(name: &Name, state: Option<&State>) -> Result<()> {
    let owner = state
        .and_then(|state| state.owner)
        .filter(|owner| owner.alive());
    match owner {
        Some(owner) if owner.pid != std::process::id() => Err(Error::new(format!(
            "process {} is bringing the cluster {name} up right now: wait for it or end it",
            owner.pid
        ))),
        Some(_) | None => Ok(()),
    }
}

/// The state of a cluster; one that cannot be read counts as none, since the names are enough to
/// clean up.
pub(crate) fn read(folder: &Path) -> Result<Option<State>> {
    if !folder.exists() {
        return Ok(None);
    }
    let _lock = lock(folder)?;
    Ok(State::read(folder).unwrap_or_default())
}

/// Kills and removes all that belongs to the cluster.
pub(crate) fn remove(name: &Name, folder: &Path, state: Option<&State>) -> Result<()> {
    // Without a state nobody knows who ran the nodes; to delete what is not there is no error.
    if state.map_or_else(kind::available, |state| state.engine == NodeEngine::Kind) {
        kind::delete(name, folder)?;
    }
    let namespaces = network::namespaces(name);
    let mut dying: Vec<Process> = Vec::new();
    for process in state.iter().flat_map(|state| state.processes.values()) {
        // A node's init is the child of the process that we recorded, and the rest of the node dies
        // with it.
        if process.alive() {
            dying.extend(process.children()?);
            dying.push(*process);
        }
    }
    for namespace in &namespaces {
        dying.extend(
            process::in_namespace(&network::path(namespace))?
                .into_iter()
                .map(|(process, _)| process),
        );
    }
    process::kill_all(&dying, KILL_LIMIT)?;
    let prefix = name.prefix();
    cgroup::remove(|cgroup| cgroup.starts_with(&prefix))?;
    for namespace in namespaces {
        network::remove(&namespace)?;
    }
    remove_folder(folder)
}

/// Renamed first, so that the name is free at once even when removing takes long or fails half way;
/// the next run then goes on with it.
fn remove_folder(folder: &Path) -> Result<()> {
    // Names have no dots, so this is no cluster's.
    let gone = folder.with_extension("removed");
    remove_all(&gone)?;
    if folder.exists() {
        fs::rename(folder, &gone)
            .context(|| format!("failed to move {} away", folder.display()))?;
        remove_all(&gone)?;
    }
    Ok(())
}

/// What is not there is removed already.
fn remove_all(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed.context(|| format!("failed to remove {}", folder.display())),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio, id};

    use super::{Name, NodeEngine, Process, State, refuse_while_owned};

    /// What is said of a cluster that `owner` brings up.
    fn refusal(owner: Option<Process>) -> Option<String> {
        let mut state = State::new(0, NodeEngine::Native);
        state.owner = owner;
        let name = Name::new("dev").unwrap();
        let refused = refuse_while_owned(&name, Some(&state));
        refused.err().map(|error| error.to_string())
    }

    #[test]
    fn a_cluster_that_somebody_brings_up_is_left_alone_until_they_are_gone() {
        let mut child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let owner = Process::of(child.id()).unwrap();
        let said = refusal(Some(owner)).unwrap();
        assert!(said.contains(&owner.pid.to_string()), "{said}");

        // The pid was given to somebody else since.
        let earlier = Process {
            start: owner.start - 1,
            ..owner
        };
        assert_eq!(refusal(Some(earlier)), None);

        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(refusal(Some(owner)), None);
    }

    #[test]
    fn what_nobody_owns_or_we_ourselves_do_is_not_refused() {
        assert_eq!(refusal(None), None);
        assert_eq!(refusal(Some(Process::of(id()).unwrap())), None);
    }
}
