//! Who takes part in an attempt, in the status of its job: written by compare and swap, read by the
//! next leader, and reported to the gang's rendezvous when somebody is known to be gone.

use collective::membership::Commit;
use collective::recovery::GroupResume;
use contract::CheckpointRef;
use contract::termination::{RunOutcome, TerminationMessage};
use scheduler::Stuck;
use topology::NodeName;

use super::*;
use crate::training_job::apply::Applier;

fn key(name: &str) -> JobKey {
    JobKey {
        kind: scheduler::JobKind::TrainingJob,
        namespace: "team".into(),
        name: name.into(),
        uid: format!("uid-{name}").into(),
    }
}

fn nodes() -> Vec<NodeName> {
    (0..3).map(|rank| format!("n{rank:03}").into()).collect()
}

fn commit(epoch: u64, members: &[u32]) -> Commit {
    let resume = GroupResume {
        group: 0,
        base: epoch,
        served: Vec::new(),
        refused: None,
    };
    Commit {
        epoch,
        members: members.to_vec(),
        resume: vec![resume],
    }
}

/// A cluster with a job that goes on without lost nodes and trains on three.
fn training() -> Api {
    let api = cluster(3);
    submit(&api, "train", 3);
    change(&api, |job| {
        job["spec"]["failurePolicy"] = json!({"onPeerLoss": "Shrink"});
        job["status"] = json!({"phase": "Running", "attempt": 1, "readyNodes": 3});
    });
    api
}

fn change(api: &Api, change: impl FnOnce(&mut Value)) {
    let mut job = api.state().objects[&path("train")].clone();
    change(&mut job);
    api.submit(&path("train"), job);
}

fn shown(api: &Api) -> Value {
    api.state().objects[&path("train")]["status"].clone()
}

async fn try_commit(
    applier: &Applier,
    one: &Commit,
    after: Option<u64>,
) -> Result<(), Option<Commit>> {
    let (job, nodes) = (key("train"), nodes());
    applier.commit(&job, 1, &nodes, one, after).await
}

async fn last(applier: &Applier) -> Option<Commit> {
    applier.committed(&key("train"), 1, 3).await.unwrap()
}

fn writer(api: &Api) -> Arc<Applier> {
    applier(api, &Metrics::new(&Registry::new("0").unwrap()).unwrap())
}

#[tokio::test]
async fn of_two_leaders_one_commit_is_taken_and_the_other_learns_which() {
    let api = training();
    let (one, other) = (writer(&api), writer(&api));
    assert_eq!(last(&one).await, None);
    assert_eq!(try_commit(&one, &commit(1, &[0, 1, 2]), None).await, Ok(()));
    assert_eq!(try_commit(&one, &commit(2, &[0, 2]), Some(1)).await, Ok(()));
    // Its mirror is of before both.
    let refused = try_commit(&other, &commit(2, &[1, 2]), Some(1)).await;
    assert_eq!(refused, Err(Some(commit(2, &[0, 2]))));
    assert_eq!(last(&other).await, Some(commit(2, &[0, 2])));
    // Said again, because the first answer was lost, it is taken once.
    let writes = api.state().writes.len();
    assert_eq!(try_commit(&one, &commit(2, &[0, 2]), Some(1)).await, Ok(()));
    assert_eq!(api.state().writes.len(), writes);
    let status = shown(&api);
    assert_eq!(status["membership"]["participants"], 2);
    assert_eq!(status["membership"]["lostNodes"], json!(["n001"]));
    assert_eq!(
        status["readyNodes"], 3,
        "the rest of the status is untouched"
    );
}

fn records(api: &Api) -> Vec<String> {
    let state = api.state();
    let paths = state.objects.keys();
    let records = paths.filter(|path| path.contains("/configmaps/train-1-"));
    records.cloned().collect()
}

#[tokio::test]
async fn what_members_begin_with_is_in_an_object_of_its_own_until_the_next_epoch() {
    let api = training();
    let applier = writer(&api);
    assert_eq!(
        try_commit(&applier, &commit(1, &[0, 1, 2]), None).await,
        Ok(())
    );
    let first = records(&api);
    assert_eq!(first.len(), 1);
    assert_eq!(
        try_commit(&applier, &commit(2, &[0, 2]), Some(1)).await,
        Ok(())
    );
    let second = records(&api);
    assert!(second.len() == 1 && second != first, "{second:?}");
    let membership = shown(&api)["membership"].clone();
    assert_eq!(membership["resume"], Value::Null);
    let name = membership["record"].as_str().unwrap();
    assert!(second[0].ends_with(name), "{second:?} {name}");
    // Of a commit that was not taken nothing is referred to.
    let refused = try_commit(&applier, &commit(2, &[1, 2]), Some(1)).await;
    assert_eq!(refused, Err(Some(commit(2, &[0, 2]))));
    assert_eq!(records(&api), second);
}

#[tokio::test]
async fn a_record_that_was_changed_or_deleted_is_not_taken_for_nothing() {
    let api = training();
    let applier = writer(&api);
    assert_eq!(
        try_commit(&applier, &commit(1, &[0, 1, 2]), None).await,
        Ok(())
    );
    let record = records(&api).remove(0);
    let mut object = api.state().objects[&record].clone();
    object["data"] = json!({"resume.json": "[]"});
    api.submit(&record, object);
    let read = applier.committed(&key("train"), 1, 3).await;
    assert!(read.is_err_and(|error| error.to_string().contains("changed or deleted")));
    api.state().objects.remove(&record);
    assert!(applier.committed(&key("train"), 1, 3).await.is_err());
}

#[tokio::test]
async fn another_writer_of_the_status_does_not_stop_a_commit_and_keeps_what_it_wrote() {
    let api = training();
    let applier = writer(&api);
    change(&api, |job| job["status"]["restarts"] = json!(2));
    let done = try_commit(&applier, &commit(1, &[0, 1, 2]), None).await;
    assert_eq!(done, Ok(()));
    assert_eq!(shown(&api)["restarts"], 2);
    assert_eq!(last(&applier).await, Some(commit(1, &[0, 1, 2])));
}

#[tokio::test]
async fn nothing_is_committed_for_an_attempt_that_is_void() {
    for void in [
        json!({"phase": "Running", "attempt": 2}),
        json!({"phase": "Restarting", "attempt": 1}),
    ] {
        let api = training();
        let applier = writer(&api);
        change(&api, |job| job["status"] = void.clone());
        let done = try_commit(&applier, &commit(1, &[0, 1, 2]), None).await;
        assert_eq!(done, Err(None));
        assert_eq!(shown(&api), void);
    }
}

/// All pods of the only job, with a trainer in this state.
pub(super) fn pods_are(state: &mut State, trainer: &Value) {
    let paths = state.objects.keys().filter(|path| path.contains("/pods/"));
    let paths: Vec<String> = paths.cloned().collect();
    for path in paths {
        let status = json!({"phase": "Running",
            "containerStatuses": [{"name": "trainer", "state": trainer}]});
        state.says(&path, status);
    }
}

/// A gang of three that trains and may lose members, its leader, and another writer.
async fn running() -> (Api, Leader, Arc<Applier>) {
    let api = cluster(3);
    submit(&api, "train", 3);
    change(&api, |job| {
        job["spec"]["failurePolicy"] = json!({"onPeerLoss": "Shrink"});
    });
    let leader = lead(&api);
    api.until("the gang has its pods", |state| {
        phase(state, "train") == "Starting"
    })
    .await;
    let other = writer(&api);
    let done = try_commit(&other, &commit(1, &[0, 1, 2]), None).await;
    assert_eq!(done, Ok(()));
    let running = json!({"running": {"startedAt": "2026-01-02T03:04:05Z"}});
    api.change(|state| pods_are(state, &running));
    api.deliver(&leader.cluster);
    api.until("it runs", |state| phase(state, "train") == "Running")
        .await;
    (api, leader, other)
}

#[tokio::test]
async fn a_gang_goes_on_without_a_pod_that_vanished_and_ends_only_when_it_says_so() {
    let (api, mut leader, other) = running().await;
    api.change(|state| {
        state
            .objects
            .retain(|path, _| !path.ends_with("/pods/train-1-1"));
    });
    api.deliver(&leader.cluster);
    let gone = leader
        .gone
        .wait_for(|gone| !gone.is_empty())
        .await
        .unwrap()
        .clone();
    assert_eq!((gone[0].attempt, &*gone[0].ranks), (1, &[1][..]));
    assert_eq!(shown(&api)["attempt"], 1);

    let done = try_commit(&other, &commit(2, &[0, 2]), Some(1)).await;
    assert_eq!(done, Ok(()));
    api.deliver(&leader.cluster);
    api.until("it says with how many it goes on", |state| {
        state.objects[&path("train")]["status"]["readyNodes"] == 2
    })
    .await;
    let is_reported = api.state().of("events").iter().any(|event| {
        event["reason"] == "NodesLost" && event["note"] == "Goes on with 2 of 3 nodes: lost n001"
    });
    assert!(is_reported);
    assert_eq!(shown(&api)["membership"]["epoch"], 2);
    leader.gone.wait_for(|gone| gone.is_empty()).await.unwrap();

    leader.reports.send_modify(|reports| {
        let stuck = Stuck {
            job: key("train"),
            attempt: 1,
            since: Timestamp::default(),
            message: "1 nodes are left, fewer than 2".to_owned(),
        };
        reports.stuck.insert((key("train"), 1), stuck);
    });
    api.until("the attempt is void", |state| {
        phase(state, "train") == "Restarting"
    })
    .await;
    let failure = shown(&api)["failure"]["message"].clone();
    assert_eq!(failure, "1 nodes are left, fewer than 2");
}

fn pod(rank: u32) -> String {
    format!("/api/v1/namespaces/team/pods/train-1-{rank}")
}

// SAVE-1
#[tokio::test]
async fn a_gang_that_lost_rank_0_is_suspended_and_what_rank_1_acknowledged_is_recorded() {
    let (api, leader, other) = running().await;
    api.change(|state| {
        state.objects.remove("/api/v1/nodes/n000");
    });
    let done = try_commit(&other, &commit(2, &[1, 2]), Some(1)).await;
    assert_eq!(done, Ok(()));
    api.deliver(&leader.cluster);
    let holds = |object: &Value| !object["metadata"]["finalizers"][0].is_null();
    api.until("the lost pod is let go", |state| {
        !holds(&state.objects[&pod(0)])
    })
    .await;

    change(&api, |job| job["spec"]["suspend"] = json!(true));
    api.deliver(&leader.cluster);
    let asked = |state: &State, rank| {
        let pod = &state.objects[&pod(rank)];
        !pod["metadata"]["deletionTimestamp"].is_null()
    };
    api.until("the others are asked to save", |state| {
        asked(state, 1) && asked(state, 2)
    })
    .await;
    let interrupted = TerminationMessage::new(RunOutcome::Interrupted);
    let ack = CheckpointRef {
        attempt: 1,
        step: 120,
        digest: "ab".repeat(32),
    };
    let acknowledged = TerminationMessage {
        ack: Some(ack),
        ..interrupted.clone()
    };
    api.change(|state| {
        state.ends(&pod(1), &acknowledged);
        state.ends(&pod(2), &interrupted);
    });
    // Whatever had vanished by then would never be read.
    api.deliver(&leader.cluster);
    api.until("it is suspended", |state| {
        phase(state, "train") == "Suspended"
    })
    .await;
    assert_eq!(shown(&api)["lastCheckpoint"]["step"], 120);
    api.until("nothing keeps their pods any more", |state| {
        pods(state, "train") == 1
    })
    .await;
}
