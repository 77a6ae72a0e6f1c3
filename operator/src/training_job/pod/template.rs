//! What of a template is refused because it would break the gang, where no rule of the API can say
//! so.

use crds::names;
use crds::template::{PodTemplateBody, TemplateContainer};
use serde_json::{Map, Value};

use super::{ATTEMPT_PATH, CHECKPOINT_PATH, KEY_PATH, array};

/// Begins the names of the operator's volumes; the API refuses it in a template's `volumes`.
const VOLUME_PREFIX: &str = "fireflyer-";

/// Why the template cannot be used, in one sentence that says what to change.
pub fn template_problem(body: &PodTemplateBody) -> Option<String> {
    path_or_variable_problem(body)
        .or_else(|| volume_problem(body))
        .or_else(|| trainer_problem(body))
}

/// One trainer takes the node. What its launcher says last, the save of an interruption for one, is
/// read where the kubelet looks by default.
fn trainer_problem(body: &PodTemplateBody) -> Option<String> {
    let is_trainer = |one: &&TemplateContainer| one.name == names::CONTAINER_TRAINER;
    let mut trainers = body.containers.iter().filter(is_trainer);
    let (Some(trainer), None) = (trainers.next(), trainers.next()) else {
        return Some("the template needs exactly one container with the name trainer".to_owned());
    };
    trainer.rest.get("terminationMessagePath")?;
    Some(
        "container trainer sets terminationMessagePath, which belongs to the launcher: leave it out"
            .to_owned(),
    )
}

/// The claims that the template's own volumes mount.
pub fn claims(body: &PodTemplateBody) -> impl Iterator<Item = &str> {
    let volumes = array(&body.rest, "volumes").iter();
    volumes.filter_map(|volume| volume["persistentVolumeClaim"]["claimName"].as_str())
}

/// A container that mounts one of our volumes would see the attempt's key, or could replace the
/// launcher.
fn volume_problem(body: &PodTemplateBody) -> Option<String> {
    let containers = body
        .containers
        .iter()
        .map(|container| (container.name.as_str(), &container.rest));
    let init = array(&body.rest, "initContainers").iter();
    let init =
        init.filter_map(|container| Some((container["name"].as_str()?, container.as_object()?)));
    containers.chain(init).find_map(|(container, fields)| {
        ["volumeMounts", "volumeDevices"].into_iter().find_map(|list| {
            let volume = our_volume(fields, list)?;
            Some(format!(
                "container {container} mounts the volume {volume}, which belongs to the operator: \
                 remove that entry of {list}"
            ))
        })
    })
}

fn our_volume<'a>(container: &'a Map<String, Value>, list: &str) -> Option<&'a str> {
    array(container, list)
        .iter()
        .filter_map(|entry| entry["name"].as_str())
        .find(|volume| volume.starts_with(VOLUME_PREFIX))
}

fn path_or_variable_problem(body: &PodTemplateBody) -> Option<String> {
    let ours = [
        contract::run_dir::PATH,
        ATTEMPT_PATH,
        KEY_PATH,
        CHECKPOINT_PATH,
    ];
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
        for name in names {
            if let Some((_, instead)) = RESERVED.iter().find(|(reserved, _)| *reserved == name) {
                return Some(format!(
                    "container {} sets {name}, which belongs to the operator: {instead}",
                    container.name
                ));
            }
        }
    }
    None
}

const LEAVE_OUT: &str = "leave it out";
const SET_CHECKPOINT: &str = "set spec.checkpoint instead";

/// Variables that the operator sets, and what to do instead.
const RESERVED: [(&str, &str); 16] = [
    ("FIREFLYER_JOB", LEAVE_OUT),
    ("FIREFLYER_NAMESPACE", LEAVE_OUT),
    ("FIREFLYER_ATTEMPT", LEAVE_OUT),
    ("FIREFLYER_NODE_RANK", LEAVE_OUT),
    ("FIREFLYER_NODES", "set spec.nodes instead"),
    ("FIREFLYER_PROCS_PER_NODE", "set spec.procsPerNode instead"),
    (
        "FIREFLYER_BACKEND",
        "set spec.communication.backend instead",
    ),
    (
        "FIREFLYER_NUMERICS",
        "set spec.communication.numerics instead",
    ),
    ("FIREFLYER_NVLINK", "set spec.communication.nvlink instead"),
    ("FIREFLYER_CHECKPOINT_DIR", SET_CHECKPOINT),
    ("FIREFLYER_CHECKPOINT_INTERVAL_SECONDS", SET_CHECKPOINT),
    ("FIREFLYER_CHECKPOINT_KEEP_LAST", SET_CHECKPOINT),
    ("FIREFLYER_RESUME", LEAVE_OUT),
    ("FIREFLYER_LAST_CHECKPOINT", LEAVE_OUT),
    ("FIREFLYER_RUN_DIR", LEAVE_OUT),
    (
        "FIREFLYER_ON_PEER_LOSS",
        "set spec.failurePolicy.onPeerLoss instead",
    ),
];
