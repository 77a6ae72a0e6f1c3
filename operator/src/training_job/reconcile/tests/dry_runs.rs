//! The dry run of a job's first pod: asked before nodes are given, once a generation of the spec,
//! and again with pauses after a refusal.

use super::*;
use crate::fence::WriteFence;
use crate::training_job::job_view::JobView;

fn assigned(state: &State, job: &str) -> (String, String) {
    let conditions = state.objects[&path(job)]["status"]["conditions"].clone();
    let all = conditions.as_array().cloned().unwrap_or_default();
    let assigned = all.into_iter().find(|one| one["type"] == "Assigned");
    let assigned = assigned.unwrap_or_default();
    let text = |member: &str| assigned[member].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

fn is_refused(state: &State, job: &str) -> bool {
    assigned(state, job).0 == "Refused"
}

fn starts(state: &State) -> bool {
    phase(state, "big") == "Starting"
}

/// A new generation of a job's spec.
fn edit(api: &Api, job: &str, generation: i64, change: impl FnOnce(&mut Value)) {
    let mut object = api.state().objects[&path(job)].clone();
    object["metadata"]["generation"] = json!(generation);
    change(&mut object["spec"]);
    api.submit(&path(job), object);
}

const PODS: &str = "/api/v1/namespaces/team/pods";

#[tokio::test(start_paused = true)]
async fn what_would_be_refused_is_reported_before_nodes_are_given() {
    let api = cluster(3);
    submit(&api, "big", 3);
    let words = "violates PodSecurity \"restricted:latest\": runAsNonRoot != true";
    api.change(|state| {
        state.admission = Some((403, words));
        state.refused = Some("/pods/big-");
    });
    let leader = lead(&api);
    api.until("the refusal is reported", |state| is_refused(state, "big"))
        .await;
    pass(&api, &leader, 60).await;
    {
        let state = api.state();
        let message = assigned(&state, "big").1;
        assert!(message.contains(words), "{message}");
        assert!(message.contains("of namespace team"), "{message}");
        assert_eq!(phase(&state, "big"), "Queued");
        let held = ["configmaps", "secrets", "pods"].map(|kind| state.of(kind).len());
        assert_eq!(held, [0, 0, 0]);
        let job = &state.objects[&path("big")];
        assert!(
            job["status"]["attempt"]
                .as_u64()
                .is_none_or(|attempt| attempt == 0)
        );
        // After 0, 1, 3, 7, 15 and 31 s.
        assert_eq!(state.dry_runs.len(), 6, "{:?}", state.dry_runs);
    }
    api.change(|state| {
        state.admission = None;
        state.refused = None;
    });
    api.deliver(&leader.cluster);
    let asked = Instant::now();
    api.until("the job is asked about again and starts", |state| {
        starts(state) && state.dry_runs.len() == 7
    })
    .await;
    assert!(asked.elapsed() < Duration::from_secs(4));
    pass(&api, &leader, 600).await;
    assert_eq!(api.state().dry_runs.len(), 7, "once it is known");
}

#[tokio::test(start_paused = true)]
async fn a_new_generation_of_the_spec_is_tried_at_once() {
    let api = cluster(3);
    submit(&api, "big", 3);
    edit(&api, "big", 1, |_| {});
    api.change(|state| state.admission = Some((422, "unknown field")));
    let leader = lead(&api);
    pass(&api, &leader, 100).await;
    let tried = api.state().dry_runs.len();
    assert!(is_refused(&api.state(), "big"));
    edit(&api, "big", 2, |spec| {
        spec["ttlSecondsAfterFinished"] = json!(9);
    });
    api.change(|state| state.admission = None);
    api.deliver(&leader.cluster);
    let edited = Instant::now();
    api.until("the job starts", starts).await;
    assert!(edited.elapsed() < Duration::from_millis(200));
    assert_eq!(api.state().dry_runs.len(), tried + 1);
    // Nor does a job that has its nodes need another answer.
    edit(&api, "big", 3, |spec| {
        spec["ttlSecondsAfterFinished"] = json!(8);
    });
    api.deliver(&leader.cluster);
    pass(&api, &leader, 60).await;
    assert_eq!(api.state().dry_runs.len(), tried + 1);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_fails_to_answer_refuses_nothing() {
    let api = cluster(3);
    submit(&api, "big", 3);
    api.change(|state| state.admission = Some((500, "failed calling webhook")));
    let _leader = lead(&api);
    let began = Instant::now();
    api.until("the real creation is to show it", starts).await;
    let state = api.state();
    assert_eq!(state.dry_runs.len(), 3, "after 0, 1 and 3 s");
    assert!((3..4).contains(&began.elapsed().as_secs()));
    assert_eq!(assigned(&state, "big").0, "Placed");
}

#[tokio::test]
async fn a_webhook_that_cannot_be_tried_keeps_no_job_waiting() {
    let api = cluster(3);
    submit(&api, "big", 3);
    let words = "admission webhook \"meter.example.com\" does not support dry run";
    api.change(|state| state.admission = Some((400, words)));
    let _leader = lead(&api);
    api.until("the job starts", starts).await;
    assert_eq!(api.state().dry_runs.len(), 1);
}

#[tokio::test]
async fn unknown_fields_are_refused_unless_the_job_has_run_with_them() {
    let api = cluster(1);
    submit(&api, "one", 1);
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let applier = applier(&api, &metrics);
    let fabric = bootstrap::default_fabric(None).unwrap();
    let job = api.state().objects[&path("one")].clone();
    let mut job: JobView = serde_json::from_value(job).unwrap();
    assert_eq!(
        applier.dry_run(&job.clone().into(), &fabric).await,
        apply::DryRunAnswer::Accepted
    );
    job.status = Some(serde_json::from_value(json!({"attempt": 4})).unwrap());
    assert_eq!(
        applier.dry_run(&job.clone().into(), &fabric).await,
        apply::DryRunAnswer::Accepted
    );
    let query = "dryRun=All&fieldManager=fireflyer-operator";
    assert_eq!(
        api.state().dry_runs,
        [
            format!("{PODS}/one-1-0?&{query}&fieldValidation=Strict"),
            format!("{PODS}/one-5-0?&{query}"),
        ]
    );
    assert_eq!(api.state().of("pods").len(), 0);
}

#[tokio::test]
async fn without_a_fresh_lease_nothing_is_tried() {
    let api = cluster(1);
    submit(&api, "one", 1);
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let mut applier = (*applier(&api, &metrics)).clone();
    applier.writer = applier.writer.fenced(WriteFence::default());
    let fabric = bootstrap::default_fabric(None).unwrap();
    let job = api.state().objects[&path("one")].clone();
    let job: JobView = serde_json::from_value(job).unwrap();
    assert_eq!(
        applier.dry_run(&job.clone().into(), &fabric).await,
        apply::DryRunAnswer::NotAsked
    );
    assert_eq!(api.state().dry_runs.len(), 0);
}

#[tokio::test]
async fn dry_runs_that_hang_hold_up_no_other_write() {
    let api = cluster(50);
    submit(&api, "big", 3);
    let leader = lead(&api);
    api.until("the first job starts", starts).await;
    api.change(|state| state.dry_runs_hang = true);
    for index in 0..40 {
        submit(&api, &format!("job-{index:03}"), 1);
    }
    edit(&api, "big", 2, |spec| spec["suspend"] = json!(true));
    api.deliver(&leader.cluster);
    api.until(
        "dry runs hang and the first job is asked to leave",
        |state| {
            let leaves = state.writes.iter().any(|line| line.starts_with("DELETE"));
            state.dry_runs.len() > 1 && leaves
        },
    )
    .await;
    let hanging = api.state().dry_runs.len() - 1;
    assert!(hanging <= 8, "{hanging} at once");
    api.change(|state| state.dry_runs_hang = false);
    api.until("all are whole", |state| {
        (0..40).all(|index| phase(state, &format!("job-{index:03}")) == "Starting")
    })
    .await;
    assert_eq!(api.state().dry_runs.len(), 41, "each once");
}
