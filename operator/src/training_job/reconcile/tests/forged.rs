//! What somebody else writes beside the operator, in the namespace of their own job.

use contract::assignment::Assignment;
use scheduler::JobPhase;

use super::*;
use crate::training_job::translate::{self, ASSIGNMENT_FILE, AttemptProof};
use crate::views::AttemptView;

const MAPS: &str = "/api/v1/namespaces/team/configmaps";

/// The ConfigMap by which the operator gave `job` its nodes.
fn written(state: &State, job: &str, attempt: u32) -> Option<AttemptView> {
    let map = state.objects.get(&format!("{MAPS}/{job}-{attempt}"))?;
    serde_json::from_value(map.clone()).ok()
}

#[tokio::test]
async fn a_configmap_written_beforehand_gives_a_job_no_pods() {
    let api = cluster(3);
    submit(&api, "honest", 1);
    let first = lead(&api);
    api.until("an honest attempt", |state| pods(state, "honest") == 1)
        .await;
    // Like the operator's in all but the proof, which is of another job.
    let mut map = api.state().objects[&format!("{MAPS}/honest-1")].clone();
    drop(first);
    map["metadata"]["name"] = json!("sly-1");
    map["metadata"]["uid"] = json!("planted");
    map["metadata"]["labels"]["fireflyer.dev/job"] = json!("sly");
    map["metadata"]["ownerReferences"][0]["name"] = json!("sly");
    map["metadata"]["ownerReferences"][0]["uid"] = json!("uid-sly");
    api.submit(&format!("{MAPS}/sly-1"), map);
    submit(&api, "sly", 1);
    let _leader = lead(&api);
    api.until("the next number has pods", |state| {
        state
            .objects
            .contains_key("/api/v1/namespaces/team/pods/sly-2-0")
    })
    .await;
    let state = api.state();
    let pods: Vec<_> = state
        .writes
        .iter()
        .filter(|line| line.contains("/pods/sly-1-"))
        .collect();
    assert_eq!(pods, [""; 0], "the planted ConfigMap decided something");
    let signed = written(&state, "sly", 2).unwrap();
    let read = translate::attempt(&signed, &api::masters()).unwrap();
    assert!(matches!(read.standing, AttemptProof::Proved(_)), "{read:?}");
    let file = &signed.binary_data[ASSIGNMENT_FILE].0;
    let assignment =
        Assignment::from_gz(file, contract::assignment::ASSIGNMENT_LIMIT_BYTES).unwrap();
    assert_eq!((assignment.attempt, assignment.nodes.len()), (2, 1));
}

#[tokio::test]
async fn a_gang_trains_on_when_its_configmap_is_taken_away_or_replaced() {
    let api = cluster(2);
    submit(&api, "train", 2);
    let first = lead(&api);
    api.until("it has its pods", |state| {
        phase(state, "train") == "Starting"
    })
    .await;
    drop(first);
    api.change(|state| {
        for rank in 0..2 {
            let path = format!("/api/v1/namespaces/team/pods/train-1-{rank}");
            let mut pod = state.objects[&path].clone();
            pod["spec"]["nodeName"] = json!(format!("n00{rank}"));
            let running = json!({"running": {}});
            pod["status"] = json!({"phase": "Running",
                "containerStatuses": [{"name": "trainer", "state": running}]});
            state.objects.insert(path, pod);
        }
        let map = format!("{MAPS}/train-1");
        state.objects.remove(&map);
    });
    let leader = lead(&api);
    let unproved = |state: &State| {
        let conditions = &state.objects[&path("train")]["status"]["conditions"];
        let is_unproved =
            |one: &Value| one["type"] == "AssignmentUnproved" && one["status"] == "True";
        conditions
            .as_array()
            .is_some_and(|all| all.iter().any(is_unproved))
    };
    api.until("it trains and says what is wrong", |state| {
        phase(state, "train") == "Running" && unproved(state)
    })
    .await;
    assert_eq!(pods(&api.state(), "train"), 2);
    let mirrors = leader.cluster.mirrors();
    let job = mirrors.jobs.get("team", "train").unwrap().whole().unwrap();
    let status = job.status().unwrap();
    assert_eq!((status.phase, status.attempt), (JobPhase::Running, 1));
}
