//! Pod templates: they are not mirrored, read when pods are built, and of a job whose spec is too
//! large not at all.

use super::*;
use crate::training_job::job_view::SPEC_LIMIT_BYTES;

/// Makes the spec of a job so large that its template is not read, as an older release allowed.
fn enlarge(api: &Api, job: &str) {
    let mut object = api.state().objects[&path(job)].clone();
    let pad = "x".repeat(SPEC_LIMIT_BYTES);
    object["spec"]["template"]["spec"]["pad"] = json!(pad);
    api.submit(&path(job), object);
}

fn assigned(state: &State, job: &str) -> Value {
    let conditions = state.objects[&path(job)]["status"]["conditions"].clone();
    let all = conditions.as_array().cloned().unwrap_or_default();
    let assigned = all.into_iter().find(|one| one["type"] == "Assigned");
    assigned.unwrap_or_default()
}

#[tokio::test]
async fn a_job_whose_spec_is_too_large_says_so_and_takes_no_nodes_from_others() {
    let api = cluster(3);
    submit(&api, "large", 3);
    enlarge(&api, "large");
    submit(&api, "small", 3);
    let _leader = lead(&api);
    api.until("the other job starts", |state| {
        phase(state, "small") == "Starting"
    })
    .await;
    api.until("the large one says why it waits", |state| {
        assigned(state, "large")["reason"] == "TemplateTooLarge"
    })
    .await;
    let state = api.state();
    let said = assigned(&state, "large")["message"].clone();
    let said = said.as_str().unwrap();
    let bytes = state.objects[&path("large")]["spec"].to_string().len();
    for part in [
        &*bytes.to_string(),
        &*SPEC_LIMIT_BYTES.to_string(),
        "ConfigMaps",
        "create it again",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(pods(&state, "large"), 0);
    let tried = |line: &String| line.contains("/pods/large-");
    assert!(!state.dry_runs.iter().any(tried), "{:?}", state.dry_runs);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_runs_goes_on_though_its_spec_is_too_large_and_can_be_deleted() {
    let api = cluster(3);
    submit(&api, "old", 3);
    {
        let _before = lead(&api);
        api.until("the job starts", |state| phase(state, "old") == "Starting")
            .await;
    }
    enlarge(&api, "old");
    let leader = lead(&api);
    pass(&api, &leader, 600).await;
    {
        let state = api.state();
        assert_eq!(phase(&state, "old"), "Starting");
        assert_eq!(pods(&state, "old"), 3);
        let deletions = state
            .writes
            .iter()
            .filter(|line| line.starts_with("DELETE"));
        assert_eq!(deletions.count(), 0, "{:?}", state.writes);
    }
    api.change(|state| state.delete(&path("old")));
    pass(&api, &leader, 200).await;
    let state = api.state();
    assert_eq!(pods(&state, "old"), 0, "{:?}", state.writes);
    assert!(
        !state.objects.contains_key(&path("old")),
        "{:?}",
        state.writes
    );
}

#[tokio::test]
async fn the_template_of_an_attempt_is_read_once_however_many_pods_it_has() {
    let api = cluster(40);
    submit(&api, "big", 40);
    let _leader = lead(&api);
    api.until("the gang is whole", |state| {
        phase(state, "big") == "Starting"
    })
    .await;
    let state = api.state();
    assert_eq!(pods(&state, "big"), 40);
    let reads = state.reads.iter().filter(|read| **read == path("big"));
    // For the dry run, for the finalizer, and for the pods.
    assert_eq!(reads.count(), 3, "{:?}", state.reads);
}

#[tokio::test]
async fn at_most_eight_templates_are_read_at_once() {
    let api = cluster(40);
    for index in 0..40 {
        submit(&api, &format!("job-{index:02}"), 1);
    }
    api.change(|state| state.held_reads = Some("/trainingjobs/job-"));
    let _leader = lead(&api);
    api.until("templates are read for dry runs", |state| {
        state.waiting == 8
    })
    .await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(api.state().waiting, 8);
    api.change(|state| state.held_reads = None);
    api.until("all start", |state| {
        (0..40).all(|index| phase(state, &format!("job-{index:02}")) == "Starting")
    })
    .await;
}
