//! What of a template is refused because it would break the gang, where no rule of the API can say so.

use crds::template::PodTemplateBody;

use super::{ATTEMPT_PATH, CHECKPOINT_PATH, KEY_PATH, array};

/// Why the template cannot be used, in one sentence that says what to change.
pub fn template_problem(body: &PodTemplateBody) -> Option<String> {
    let ours = [wire::run_dir::PATH, ATTEMPT_PATH, KEY_PATH, CHECKPOINT_PATH];
    for container in body.containers.iter() {
        let mounts = array(&container.rest, "volumeMounts");
        let paths = mounts
            .iter()
            .filter_map(|mount| mount["mountPath"].as_str());
        if let Some(path) = paths
            .into_iter()
            .find(|path| ours.contains(&path.trim_end_matches('/')))
        {
            return Some(format!(
                "container {} mounts a volume at {path}, which belongs to the operator: use another path",
                container.name
            ));
        }
        let variables = array(&container.rest, "env");
        let names = variables
            .iter()
            .filter_map(|variable| variable["name"].as_str());
        if let Some(name) = names.into_iter().find(|name| RESERVED.contains(name)) {
            return Some(format!(
                "container {} sets {name}, which belongs to the operator: leave it out",
                container.name
            ));
        }
    }
    None
}

const RESERVED: [&str; 12] = [
    "FIREFLYER_JOB",
    "FIREFLYER_NAMESPACE",
    "FIREFLYER_ATTEMPT",
    "FIREFLYER_NODE_RANK",
    "FIREFLYER_NODES",
    "FIREFLYER_PROCS_PER_NODE",
    "FIREFLYER_BACKEND",
    "FIREFLYER_CHECKPOINT_DIR",
    "FIREFLYER_CHECKPOINT_INTERVAL_SECONDS",
    "FIREFLYER_CHECKPOINT_KEEP_LAST",
    "FIREFLYER_RESUME",
    "FIREFLYER_RUN_DIR",
];
