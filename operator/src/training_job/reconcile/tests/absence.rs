//! What the mirrors lack is read from the API server before anything follows from it.

use super::members::pods_are;
use super::*;

#[tokio::test]
async fn a_gang_whose_node_the_watch_does_not_show_trains_until_a_read_has_missed_it_too() {
    let api = cluster(2);
    submit(&api, "train", 2);
    let leader = lead(&api);
    api.until("the gang has its pods", |state| {
        phase(state, "train") == "Starting"
    })
    .await;
    let running = json!({"running": {"startedAt": "2026-01-02T03:04:05Z"}});
    api.change(|state| pods_are(state, &running));
    api.deliver(&leader.cluster);
    api.until("it runs", |state| phase(state, "train") == "Running")
        .await;

    api.change(|state| state.held = Some("/nodes/n000"));
    leader.cluster.mirrors().nodes.missing("", "n000");
    leader.cluster.notify();
    api.until("the node is read", |state| state.waiting == 1)
        .await;
    assert_eq!(phase(&api.state(), "train"), "Running");
    api.change(|state| {
        state.objects.remove("/api/v1/nodes/n000");
        state.held = None;
    });
    // How its pods ended while the node was there is known from here on.
    leader
        .cluster
        .mirrors()
        .pods
        .note_current(std::time::Instant::now());
    leader.cluster.notify();
    api.until("the attempt is void", |state| {
        phase(state, "train") == "Restarting"
    })
    .await;
}

#[tokio::test]
async fn a_node_that_a_read_finds_is_seen_again() {
    let api = cluster(1);
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let applier = applier(&api, &metrics);
    let nodes = || applier.cluster.mirrors().nodes.len();
    applier.cluster.mirrors().nodes.missing("", "n000");
    assert_eq!(nodes(), 0);
    assert!(!applier.node_is_absent("n000").await);
    assert_eq!(nodes(), 1);
    api.change(|state| state.objects.clear());
    assert!(applier.node_is_absent("n000").await);
    assert_eq!(nodes(), 0);
}
