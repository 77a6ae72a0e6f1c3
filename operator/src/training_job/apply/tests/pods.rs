//! Pods: which are deleted, by how many requests, and whose an existing pod is.

use super::*;

#[tokio::test]
async fn pods_that_an_older_release_made_without_the_uid_go_one_by_one() {
    let world = world(|line| match line {
        line if line.contains("labelSelector") => panic!("they are not selected: {line}"),
        line if line.starts_with("DELETE") => failure(404, "NotFound"),
        _ => (200, job_json(5)),
    });
    for rank in 0..2 {
        let mut pod = pod_json(rank, "u-1", 10);
        pod["metadata"]["labels"]["fireflyer.dev/job-uid"] = Value::Null;
        let labels = pod["metadata"]["labels"].as_object_mut().unwrap();
        labels.remove("fireflyer.dev/job-uid");
        world.applier.saw_pod(serde_json::from_value(pod).unwrap());
    }
    world.apply(deletions(&[0, 1])).await.unwrap();
    assert_eq!(world.asked().len(), 2);
}

#[tokio::test]
async fn a_gang_is_released_by_one_write_that_names_the_uid_of_its_job() {
    let world = world(|_| (200, json!({"kind": "PodList", "items": []}))).with_pods();
    world.apply(deletions(&[1, 2])).await.unwrap();
    let asked = world.asked();
    let [line] = &asked[..] else {
        panic!("not one request: {asked:?}")
    };
    assert!(
        line.starts_with("DELETE /api/v1/namespaces/team/pods?"),
        "{line}"
    );
    assert!(line.contains("fireflyer.dev%2Fjob-uid%3Du-1%2C"), "{line}");
    assert!(line.contains("rank+in+%281%2C2%29"), "{line}");
    let deleting = [0, 1, 2].map(|rank| world.delete_by(rank).is_some());
    assert_eq!(deleting, [false, true, true], "the next plan knows");
}

#[tokio::test]
async fn without_the_right_to_delete_collections_pods_go_one_by_one() {
    let world = world(|line| match line {
        line if line.contains("labelSelector") => failure(403, "Forbidden"),
        line => {
            let rank = line
                .rsplit('-')
                .next()
                .and_then(|rank| rank[..1].parse().ok())
                .unwrap_or(0);
            let mut pod = pod_json(rank, "u-1", 20);
            pod["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
            (200, pod)
        }
    })
    .with_pods();
    world.apply(deletions(&[0, 1, 2])).await.unwrap();
    assert_eq!(world.asked().len(), 4);
    assert!((0..3).all(|rank| world.delete_by(rank).is_some()));
}

#[tokio::test]
async fn pods_of_an_earlier_job_of_the_same_name_are_not_swept_up() {
    let world = world(|line| match line {
        line if line.starts_with("DELETE") => failure(404, "NotFound"),
        _ => (200, job_json(5)),
    })
    .with_pods();
    let view = serde_json::from_value(pod_json(2, "u-0", 20)).unwrap();
    world.applier.saw_pod(view);
    world.apply(deletions(&[0, 1, 2])).await.unwrap();
    let asked = world.asked();
    assert!(
        asked.iter().all(|line| !line.contains("labelSelector")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_pod_that_exists_is_fine_only_if_it_is_this_jobs() {
    let create = || Action::CreatePod {
        attempt: 1,
        rank: 1,
        node: "n1".into(),
        finalizer: false,
    };
    let ours = world(|line| match line {
        line if line.starts_with("POST") => failure(409, "AlreadyExists"),
        line if line.contains("trainingjobs") => (200, job_json(5)),
        _ => (200, pod_json(1, "u-1", 10)),
    })
    .with_attempt();
    ours.apply(vec![create()]).await.unwrap();
    let theirs = world(|line| match line {
        line if line.starts_with("POST") => failure(409, "AlreadyExists"),
        line if line.contains("trainingjobs") => (200, job_json(5)),
        _ => (200, pod_json(1, "u-0", 10)),
    })
    .with_attempt();
    assert_eq!(
        theirs.apply(vec![create()]).await.unwrap_err().wait,
        Wait::Retry
    );
    let foreign = world(|line| match line {
        line if line.starts_with("POST") => failure(409, "AlreadyExists"),
        line if line.contains("trainingjobs") => (200, job_json(5)),
        _ => {
            let mut pod = pod_json(1, "u-0", 10);
            pod["metadata"]["ownerReferences"] = json!([]);
            (200, pod)
        }
    })
    .with_attempt();
    let wait = foreign.apply(vec![create()]).await.unwrap_err().wait;
    assert!(matches!(wait, Wait::Refused(why) if why.contains("pod digits-1-1")));
}

fn creations() -> Vec<Action> {
    let create = |rank: u32| Action::CreatePod {
        attempt: 1,
        rank,
        node: format!("n{rank}").into(),
        finalizer: false,
    };
    (0..3).map(create).collect()
}

#[tokio::test]
async fn pods_are_built_from_the_template_of_the_job_that_was_planned_alone() {
    /// Returns the job that the API server has by now, as its answer.
    fn now(change: impl FnOnce(&mut Value)) -> (u16, Value) {
        let mut job = job_json(9);
        change(&mut job);
        (200, job)
    }
    let scripts: [Script; 3] = [
        |_| now(|job| job["metadata"]["uid"] = json!("u-2")),
        |_| now(|job| job["metadata"]["generation"] = json!(2)),
        |_| failure(404, "NotFound"),
    ];
    for script in scripts {
        let world = world(script).with_attempt();
        let stopped = world.apply(creations()).await.unwrap_err();
        assert_eq!(stopped.wait, Wait::Look, "{}", stopped.error);
        let asked = world.asked();
        let is_written = |line: &String| !line.starts_with("GET");
        assert!(!asked.iter().any(is_written), "{asked:?}");
    }
}
