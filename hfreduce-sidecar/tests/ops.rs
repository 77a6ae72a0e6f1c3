//! What operators see of sidecars that wait, that are slow and that fail: `/ops`, `/metrics`, the flight recorder.
#![expect(clippy::unwrap_used, reason = "test harness")]

mod gang;

use std::fs;
use std::time::{Duration, Instant};

use gang::processes::{Sidecars, get, loopback};
use gang::{PATIENCE, counter, f32s, failure, filled, run, sum, wait_until, wait_until_some};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The answer of a node's `/ops`.
fn ops(sidecars: &Sidecars, node: usize) -> Value {
    let answer = get(sidecars.metrics_address(node), "/ops");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(body).unwrap()
}

#[test]
fn an_operation_that_waits_says_for_whom_and_a_late_rank_is_charged_for_it() {
    let sidecars = Sidecars::start(loopback(2), 2);
    let clients = [(0, 0), (0, 1), (1, 0), (1, 1)].map(|(node, rank)| sidecars.client(node, rank));
    let [early @ .., late] = &clients;
    let one = f32s(&[1.0]);
    let tickets = early.each_ref().map(|client| {
        let input = filled(client, &one);
        (
            client,
            client.submit(sum(1), Some(input), PATIENCE).unwrap(),
        )
    });
    let waiting = wait_until_some(|| {
        let node = ops(&sidecars, 1);
        (node["operations"][0]["joined"] == json!([0])).then_some(node)
    });
    let operation = &waiting["operations"][0];
    assert_eq!(operation["missing"], json!([1]), "{waiting}");
    assert_eq!(operation["call"], "allreduce(sum, 1 x f32)", "{waiting}");
    assert_eq!(waiting["members"], json!([0, 1]), "{waiting}");
    assert_eq!(waiting["links"][0]["name"], "worker-0", "{waiting}");
    // One of two nodes has all its ranks, and waits for the other.
    let complete = wait_until_some(|| {
        let node = ops(&sidecars, 0);
        (node["operations"][0]["missing"] == json!([])).then_some(node)
    });
    let waits_for = &complete["operations"][0]["waitsFor"];
    assert_eq!(*waits_for, json!(["node 1 (worker-1)"]), "{complete}");

    let whom = |at: usize| early[at].waits_for(tickets[at].1, PATIENCE).unwrap();
    assert_eq!(whom(2), "on node 1 rank 3 has not called it");
    assert!(
        whom(0).starts_with("node 1 (worker-1) has not sent its part"),
        "{}",
        whom(0)
    );

    let since = Instant::now();
    run(late, sum(1), &one).unwrap();
    let waited = since.elapsed();
    for (client, ticket) in tickets {
        assert_eq!(
            client.wait(ticket, PATIENCE).unwrap().result[..],
            f32s(&[4.0])
        );
    }
    wait_until(|| ops(&sidecars, 1)["operations"] == json!([]));
    let series = |rank| {
        format!("fireflyer_hfreduce_waited_for_rank_microseconds_total{{local_rank=\"{rank}\"}}")
    };
    let metrics = get(sidecars.metrics_address(1), "/metrics");
    let charged = Duration::from_micros(counter(&metrics, &series(1)));
    assert!(
        charged > Duration::ZERO && charged > waited / 1000,
        "{charged:?}"
    );
    assert_eq!(counter(&metrics, &series(0)), 0, "it was early");
    let said = |history: &str| history.contains("operation 0 succeeded for local rank 1");
    wait_until(|| said(&ops(&sidecars, 1)["history"].to_string()));
    let history = ops(&sidecars, 1)["history"].to_string();
    assert!(
        history.contains("local rank 1 called allreduce(sum, 1 x f32)"),
        "{history}"
    );
    assert!(
        history.contains("operation 0 succeeded for local rank 1"),
        "{history}"
    );
}

#[test]
fn what_led_to_a_failure_is_written_down() {
    let sidecars = Sidecars::start(loopback(2), 1);
    let client = sidecars.client(0, 0);
    let input = filled(&client, &f32s(&[1.0; 100]));
    let ticket = client.submit(sum(100), Some(input), PATIENCE).unwrap();
    wait_until(|| ops(&sidecars, 0)["operations"][0]["joined"] == json!([0]));
    sidecars.signal(1, Signal::KILL);
    failure(client.wait(ticket, PATIENCE));

    let file = sidecars
        .run_dir(0)
        .join(contract::run_dir::FLIGHT_RECORDING);
    let written: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let broken = written["broken"].as_str().unwrap();
    assert!(broken.contains("node 1"), "{written}");
    let history = written["history"].to_string();
    assert!(
        history.contains("local rank 0 called allreduce(sum, 100 x f32)"),
        "{history}"
    );
    assert!(history.contains("the link to node 1 ended"), "{history}");
    wait_until(|| ops(&sidecars, 0)["broken"] == broken);
}

#[test]
fn what_led_to_calls_that_differ_is_written_down() {
    let sidecars = Sidecars::start(loopback(2), 1);
    let clients = [0, 1].map(|node| sidecars.client(node, 0));
    let call = |(client, count): (&_, usize)| {
        let input = filled(client, &f32s(&vec![1.0; count]));
        client.submit(sum(count as u64), Some(input), PATIENCE)
    };
    let tickets = clients
        .iter()
        .zip([100, 101])
        .map(|called| call(called).unwrap());
    let tickets: Vec<_> = tickets.collect();
    for (client, ticket) in clients.iter().zip(tickets) {
        failure(client.wait(ticket, PATIENCE));
    }
    for (node, count) in [(0, 100), (1, 101)] {
        let file = sidecars
            .run_dir(node)
            .join(contract::run_dir::FLIGHT_RECORDING);
        let written: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        assert_eq!(written["broken"], Value::Null, "{written}");
        let history = written["history"].to_string();
        let called = format!("local rank 0 called allreduce(sum, {count} x f32)");
        assert!(history.contains(&called), "{history}");
        let failed = "operation 0 failed for local rank 0: ";
        assert!(history.contains(failed), "{history}");
        assert!(
            history.contains("100 x f32") && history.contains("101 x f32"),
            "{history}"
        );
    }
}
