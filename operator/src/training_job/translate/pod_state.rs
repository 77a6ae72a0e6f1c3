//! Reads what the containers of a pod say: that it waits, and for what, how far it is on its way to
//! its trainer, that it runs, or how it ended.

use contract::run_dir::{self, CauseKind};
use contract::termination::{RunOutcome, TerminationMessage};
use crds::names;
use scheduler::{Exit, PodState, Preparation, Problem, ProgramCause};

use super::timestamp;
use crate::condition::cut;
use crate::views::{ContainerStatusView, ContainerView, PodView, TerminatedView};

/// Waiting reasons that mean: this image cannot be had. The kubelet alternates between some of
/// them, so they become one sentence: a status that changes with each try would be written each
/// time. What exactly went wrong is in the pod's Events.
const IMAGE_REASONS: [(&str, &str); 4] = [
    ("ErrImagePull", "cannot be pulled"),
    ("ImagePullBackOff", "cannot be pulled"),
    ("InvalidImageName", "has a name that is not valid"),
    (
        "ErrImageNeverPull",
        "is not on the node, and its pull policy is Never",
    ),
];
/// Waiting reasons that mean: what the container refers to is missing, a Secret of its variables
/// for one. The kubelet's own words may change with each try.
const CONTAINER_REASONS: [&str; 2] = ["CreateContainerConfigError", "CreateContainerError"];
/// Condition by which the cluster says that it ends a pod, and why.
const DISRUPTED: &str = "DisruptionTarget";
/// Waiting reason of a container that ended and is to be started again, later each time.
const BACK_OFF: &str = "CrashLoopBackOff";
/// Reasons by which a kubelet reports that it lost a container over a restart of its node.
const LOST_REASONS: [&str; 2] = ["Unknown", "ContainerStatusUnknown"];

/// What a pod's main container does.
pub(super) fn pod_state(view: &PodView) -> PodState {
    let status = &view.status;
    let containers = &status.container_statuses;
    if let Some(ended) = ended(containers, names::CONTAINER_VALIDATOR) {
        // What it reports is read where it is judged.
        return without_message(view, ended);
    }
    let is_main =
        |name: &str| [names::CONTAINER_TRAINER, names::CONTAINER_VALIDATOR].contains(&name);
    let trainer = containers.iter().find(|status| is_main(&status.name));
    if let Some(ended) = trainer.and_then(|trainer| trainer.state.terminated.as_ref()) {
        return trainer_ended(view, ended);
    }
    let runs = trainer.is_some_and(|trainer| trainer.state.running.is_some());
    if status.phase == "Failed" {
        return failed_without_trainer(view, runs);
    }
    if runs {
        return PodState::Running;
    }
    if view.spec.node_name.is_none() {
        return PodState::Unbound;
    }
    let problem = self::containers(view).find_map(blocked);
    problem.map_or(PodState::Starting, PodState::Blocked)
}

/// Returns the statuses of a pod's containers, in the order in which they start.
fn containers(view: &PodView) -> impl Iterator<Item = &ContainerStatusView> {
    let status = &view.status;
    let inits = status.init_container_statuses.iter();
    inits.chain(&status.container_statuses)
}

/// Returns how far a bound pod is whose trainer has not started. An image that is pulled cannot be
/// told from one that is there: the kubelet says so in Events alone.
pub(super) fn preparation(view: &PodView) -> Preparation {
    let status = &view.status;
    let inits = &status.init_container_statuses;
    let is_ready = |kind: &str| {
        let mut conditions = status.conditions.iter();
        conditions.any(|one| one.kind == kind && one.status == "True")
    };
    let has_sandbox = is_ready("PodReadyToStartContainers");
    let stages: u32 = containers(view).map(stage).sum();
    let sidecar = inits
        .iter()
        .find(|one| one.name == names::CONTAINER_HFREDUCE);
    // The kubelet restarts a sidecar that has waited for the others for ten minutes. In between it
    // neither runs nor waits for a reason.
    let has_run =
        |one: &ContainerStatusView| stage(one) > 0 || is_backing_off(one) || one.restart_count > 0;
    let joins = sidecar.is_some_and(|one| !one.started && has_run(one));
    let at = if joins {
        "its sidecar waits for those of the other nodes".to_owned()
    } else if stages == 0 && !has_sandbox {
        "its volumes are mounted and its network is set up".to_owned()
    } else {
        at_container(view).unwrap_or_else(|| "its trainer starts".to_owned())
    };
    Preparation {
        steps: u32::from(has_sandbox) + stages,
        joins,
        backs_off: waits_to_pull(view),
        at: cut(&at),
    }
}

/// Returns true if the first container that is waited for failed to be pulled, and no try has
/// failed since the kubelet last said that it waits.
fn waits_to_pull(view: &PodView) -> bool {
    let mut containers = containers(view);
    let blocked = containers.find(|container| blocked(container).is_some());
    let waiting = blocked.and_then(|container| container.state.waiting.as_ref());
    waiting.is_some_and(|waiting| waiting.reason == "ImagePullBackOff")
}

/// Stage of a container: it grows while nothing has to be done again.
fn stage(container: &ContainerStatusView) -> u32 {
    let state = &container.state;
    match (&state.terminated, &state.running) {
        (Some(ended), _) if ended.exit_code == 0 => 3,
        (Some(_), _) => 1,
        (None, Some(_)) => 1 + u32::from(container.started),
        (None, None) => 0,
    }
}

/// The first container in the order in which they start that is not where the next one needs it.
fn at_container(view: &PodView) -> Option<String> {
    let status = &view.status;
    let known = |name: &str| {
        let all = status.init_container_statuses.iter();
        let mut all = all.chain(&status.container_statuses);
        all.find(|container| container.name == name)
    };
    let inits = view.spec.init_containers.iter().filter(|spec| {
        let is_sidecar = spec.restart_policy.as_deref() == Some("Always");
        let needed = if is_sidecar { 2 } else { 3 };
        known(&spec.name).is_none_or(|container| stage(container) < needed)
    });
    let others = view.spec.containers.iter();
    let others = others.filter(|spec| known(&spec.name).is_none_or(|one| stage(one) == 0));
    let ContainerView { name, .. } = inits.chain(others).next()?;
    let container = known(name)?;
    let state = &container.state;
    Some(match (&state.running, &state.waiting) {
        (Some(running), _) => match &running.started_at {
            Some(since) => format!("init container {name} runs since {}", since.0),
            None => format!("init container {name} runs"),
        },
        (None, Some(_)) if !is_backing_off(container) => {
            let image = &container.image;
            format!("image {image} of container {name} is pulled, or waited for")
        }
        (None, _) => format!("container {name} ended and waits to be started again"),
    })
}

/// Returns true if a container ended and is to be started again.
fn is_backing_off(container: &ContainerStatusView) -> bool {
    let waiting = container.state.waiting.as_ref();
    waiting.is_some_and(|waiting| waiting.reason == BACK_OFF)
}

/// How a container ended, if it has.
pub(super) fn ended<'a>(
    containers: &'a [ContainerStatusView],
    name: &str,
) -> Option<&'a TerminatedView> {
    let container = containers.iter().find(|status| status.name == name)?;
    container.state.terminated.as_ref()
}

fn trainer_ended(view: &PodView, ended: &TerminatedView) -> PodState {
    let finished = ended.finished_at.as_ref().map(timestamp);
    let exit = Exit {
        code: Some(ended.exit_code),
        finished,
        ..Exit::default()
    };
    if let Ok(message) = TerminationMessage::parse(ended.message.as_bytes()) {
        return match message.outcome {
            RunOutcome::Succeeded => PodState::Succeeded,
            RunOutcome::Interrupted => PodState::Interrupted { ack: message.ack },
            RunOutcome::Failed => PodState::Failed(Exit {
                rank: message.rank,
                code: message
                    .exit_code
                    .or(message.signal.is_none().then_some(ended.exit_code)),
                signal: message.signal,
                reason: oom(ended),
                log: message.log,
                cause: message.cause.map(cause),
                ..exit
            }),
        };
    }
    // No word of the launcher: it was killed, or it never ran.
    without_message(view, ended)
}

/// A container of which only Kubernetes says how it ended.
fn without_message(view: &PodView, ended: &TerminatedView) -> PodState {
    if ended.exit_code == 0 {
        return PodState::Succeeded;
    }
    if LOST_REASONS.contains(&ended.reason.as_str()) {
        return PodState::Refused("the node restarted".to_owned());
    }
    if view.metadata.deletion_timestamp.is_some() && ended.reason != "OOMKilled" {
        // Killed when its grace was over.
        return PodState::Interrupted { ack: None };
    }
    if let Some(reason) = view
        .status
        .reason
        .as_deref()
        .filter(|reason| !reason.is_empty())
    {
        return PodState::Refused(because(reason, view.status.message.as_deref()));
    }
    let log = (!ended.message.is_empty()).then(|| cut(&ended.message));
    let reason =
        (!ended.reason.is_empty() && ended.reason != "Error").then(|| ended.reason.clone());
    PodState::Failed(Exit {
        code: Some(ended.exit_code),
        finished: ended.finished_at.as_ref().map(timestamp),
        reason,
        log,
        ..Exit::default()
    })
}

/// The trainer of a failed pod has not ended: an init container of the user failed, the cluster did
/// not want the pod, or somebody marked it Failed although its trainer ran. A controller does that
/// to pods of a Node that is gone, and says so in a condition.
fn failed_without_trainer(view: &PodView, ran: bool) -> PodState {
    let status = &view.status;
    let reason = status.reason.as_deref().filter(|reason| !reason.is_empty());
    if let Some(reason) = reason {
        return PodState::Refused(because(reason, status.message.as_deref()));
    }
    let mut disrupted = status.conditions.iter();
    let disrupted = disrupted.find(|one| one.kind == DISRUPTED && one.status == "True");
    if let Some((condition, reason)) = disrupted.and_then(|one| Some((one, one.reason.as_ref()?))) {
        return PodState::Refused(because(reason, condition.message.as_deref()));
    }
    let failed = status.init_container_statuses.iter().find_map(|container| {
        let ended = container.state.terminated.as_ref()?;
        (ended.exit_code != 0 && container.name != names::CONTAINER_HFREDUCE)
            .then_some((container, ended))
    });
    if let Some((container, ended)) = failed.filter(|_| !ran) {
        return PodState::Failed(Exit {
            code: Some(ended.exit_code),
            reason: Some(format!("init container {} failed", container.name)),
            log: (!ended.message.is_empty()).then(|| cut(&ended.message)),
            finished: ended.finished_at.as_ref().map(timestamp),
            ..Exit::default()
        });
    }
    let what = if ran {
        "somebody marked it Failed while its trainer ran, and did not say why"
    } else {
        "the pod failed before its trainer started"
    };
    PodState::Refused(what.to_owned())
}

/// Why a container that waits will not start by itself.
fn blocked(container: &ContainerStatusView) -> Option<Problem> {
    let waiting = container.state.waiting.as_ref()?;
    let name = &container.name;
    if CONTAINER_REASONS.contains(&waiting.reason.as_str()) {
        return Some(Problem {
            reason: "ContainerError",
            message: format!("container {name} cannot be created: the pod's Events say why"),
        });
    }
    let (_, what) = IMAGE_REASONS
        .iter()
        .find(|(reason, _)| *reason == waiting.reason)?;
    Some(Problem {
        reason: "ImageError",
        message: cut(&format!(
            "image {} of container {name} {what}",
            container.image
        )),
    })
}

fn oom(ended: &TerminatedView) -> Option<String> {
    (ended.reason == "OOMKilled").then(|| ended.reason.clone())
}

fn because(reason: &str, message: Option<&str>) -> String {
    match message.filter(|message| !message.is_empty()) {
        Some(message) => cut(&format!("{reason}: {message}")),
        None => reason.to_owned(),
    }
}

/// Why a program could not go on, as the planner names it.
fn cause(said: run_dir::StatedCause) -> ProgramCause {
    match said.kind {
        CauseKind::CheckpointUnavailable => ProgramCause::CheckpointUnavailable(said.message),
        CauseKind::NoUsableCheckpoint => ProgramCause::NoUsableCheckpoint(said.message),
    }
}
