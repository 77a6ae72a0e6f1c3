//! Tests of `finished`: what follows the runs is what is gathered anew, and costs the same in any
//! fleet.

use std::time::{Duration, Instant};

use crds::fabric::FabricSpec;
use health::Floors;
use scheduler::{JobKey, JobKind};
use serde_json::{Value, json};
use sim::{Rng, for_each_seed};

use super::*;
use crate::node_validation::verdict::{Measure, of_report};
use crate::workload::Workload;

const CLASS: &str = "a100";

fn name(at: usize) -> String {
    format!("gpu-{at:05}")
}

/// A run that ended: node, partner, end, and its results.
fn ended(uid: &str, node: usize, partner: Option<usize>, end: i64, results: &Value) -> MirroredJob {
    let end = k8s_openapi::jiff::Timestamp::from_second(end).unwrap();
    let object = json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "NodeValidation",
        "metadata": {"name": uid, "uid": uid, "generation": 1, "resourceVersion": "1",
            "creationTimestamp": "2026-01-02T03:04:05Z"},
        "spec": {"nodeName": name(node), "level": "Full",
            "partnerNodeName": partner.map(name)},
        "status": {"phase": "Finished", "attempt": 1, "verdict": "Pass", "conditions": [],
            "nodeClass": if node == 3 { "other" } else { CLASS },
            "startTime": end.to_string(), "completionTime": end.to_string(),
            "observedGeneration": 1, "results": results,
            "fingerprint": {"kernel": "6.18", "cpu": "EPYC", "driver": "", "firmware": "", "validator": "1"}},
    });
    let validation: NodeValidation = serde_json::from_value(object).unwrap();
    let job = MirroredJob::new(Workload::from(validation));
    assert!(finished(&job).is_some(), "it is over");
    job
}

fn drawn(rng: &mut Rng, uid: usize) -> MirroredJob {
    let result = |check: &str, device: &str, value: usize| {
        let verdict = if value == 0 { "Warn" } else { "Pass" };
        json!({"check": check, "device": device, "verdict": verdict, "value": value})
    };
    let results = (0..rng.below(4)).map(|_| {
        let (check, device) = *rng.pick(&[
            ("CpuStress", "core 1"),
            ("CpuStress", "core 2"),
            ("MemoryBandwidth", "numa 0"),
            ("Network", "send"),
        ]);
        result(check, device, rng.below(3))
    });
    let results = Value::from(results.collect::<Vec<_>>());
    let (node, end) = (rng.below(4), *rng.pick(&[1000, 1001, 1002, 1003, 1004]));
    let partner = rng.chance(1, 2).then(|| rng.below(5));
    ended(&format!("run-{uid}"), node, partner, end, &results)
}

#[test]
fn what_follows_the_runs_is_what_is_gathered_anew_from_those_that_exist() {
    for_each_seed(30, |rng| {
        let (mut kept, mut jobs) = (FinishedRuns::default(), Vec::new());
        for uid in 0..60 {
            if jobs.is_empty() || rng.chance(3, 5) {
                let job = drawn(rng, uid);
                kept.added(&job);
                jobs.push(job);
            } else {
                let gone: MirroredJob = jobs.swap_remove(rng.below(jobs.len()));
                kept.removed(&gone);
            }
            let mut anew = FinishedRuns::default();
            rng.shuffle(&mut jobs);
            jobs.iter().for_each(|job| anew.added(job));
            assert_eq!(kept, anew);
        }
        jobs.iter().for_each(|job| kept.removed(job));
        assert_eq!(
            kept,
            FinishedRuns::default(),
            "nothing stays of what is gone"
        );
    });
}

#[test]
fn a_validation_that_ends_costs_a_millisecond_among_ten_thousand_nodes() {
    const NODES: usize = 10_000;
    let places = (0..12).map(|numa| format!("numa {numa}"));
    let places: Vec<String> = places.collect();
    let results = |value: f64| {
        let result = |place: &String| {
            json!({"check": "MemoryBandwidth", "device": place, "verdict": "Pass",
                "value": value, "unit": "GB/s", "runs": 1})
        };
        Value::from(places.iter().map(result).collect::<Vec<_>>())
    };
    let mut mirrors = Mirrors::default();
    let key = |at: usize| (String::new(), format!("run-{at}"));
    for at in 0..NODES {
        let value = 300.0 + f64::from(u32::try_from(at * 7919 % 100).unwrap()) / 20.0;
        let run = ended(
            &format!("run-{at}"),
            at,
            None,
            i64::try_from(at).unwrap(),
            &results(value),
        );
        mirrors.validations.applied(key(at), 1, Some(run));
    }
    let report = health::Report {
        validation: "uid".to_owned(),
        boot: "boot".to_owned(),
        fingerprint: Fingerprint {
            kernel: "6.18".to_owned(),
            cpu: "EPYC".to_owned(),
            validator: "1".to_owned(),
            ..Fingerprint::default()
        },
        results: places
            .iter()
            .map(|place| health::CheckResult {
                check: Check::MemoryBandwidth,
                device: place.clone(),
                outcome: health::Outcome::Measured {
                    value: 301.0,
                    runs: 4,
                },
            })
            .collect(),
    };
    let report = String::from_utf8(report.encode()).unwrap();
    let key_of_run = JobKey {
        kind: JobKind::NodeValidation,
        namespace: "fireflyer-validation".into(),
        name: "run".into(),
        uid: "uid".into(),
    };
    let fabric: FabricSpec = serde_json::from_value(json!({
        "classes": [{"name": CLASS, "gpus": 8, "rdma": 1,
            "trainer": {"cpu": "1", "memory": "1Gi"}, "sidecar": {"cpu": "1", "memory": "1Gi"}}],
    }))
    .unwrap();
    let class = fabric.classes.first();
    let mut taken = Vec::new();
    for round in 0..20 {
        let again = ended(
            &format!("run-{round}"),
            round,
            None,
            20_000,
            &results(302.0),
        );
        let node = name(round);
        let began = Instant::now();
        let by = Measure {
            asked: vec![Check::MemoryBandwidth],
            floors: Floors::default(),
            peers: peers(&mirrors, class, &node),
            node: &node,
            partner: None,
            links: links(&mirrors, &node, "gpu-00001"),
        };
        let mut shown = NodeValidationStatus::default();
        of_report(&mut shown, &key_of_run, Some(&report), &by);
        mirrors.validations.applied(key(round), 2, Some(again));
        taken.push(began.elapsed());
        assert_eq!(shown.verdict, Some(ValidationVerdict::Pass));
        assert!(shown.results.iter().all(|result| result.median.is_some()));
    }
    taken.sort_unstable();
    // The fastest: others run on the machine.
    let what = "a validation of 10,000 nodes ends";
    sim::keep_limit(what, Duration::from_millis(1), taken[0]);
}
