//! Pools over tables as a manager lists them: which chains they get, and what is said of what is
//! wrong.

use std::time::Instant;

use crds::storage_chain::ChainPhase;
use crds::storage_pool::StorageTargetState;
use serde_json::{Value, json};
use storage_rpc::pb::manager::{
    ListResponse, ListedChain, ListedService, ListedTarget, TargetReport, WatchedMember,
};

use super::*;
use crate::labels::LabelPool;
use crate::storage::table::LastReports;
use crate::training_job::translate;

/// A table as the manager lists it, with one target `/data` on each of so many nodes.
fn list(nodes: u32) -> ListResponse {
    let mut list = ListResponse::default();
    for number in 1..=nodes {
        list.services.push(ListedService {
            service: number,
            node: format!("n{number}"),
            ..ListedService::default()
        });
        list.targets.push(ListedTarget {
            target: uuid(number),
            service: number,
            path: "/data".to_owned(),
            is_formatted: true,
            report: Some(TargetReport {
                capacity_bytes: 100 << 30,
                used_bytes: 20 << 30,
                ..TargetReport::default()
            }),
            ..ListedTarget::default()
        });
    }
    list
}

fn uuid(number: u32) -> Vec<u8> {
    u128::from(number).to_be_bytes().to_vec()
}

fn node(number: u32, zone: &str) -> MirroredNode {
    let name = format!("n{number}");
    let labels = json!({"kubernetes.io/hostname": name, "zone": zone, "storage": "yes"});
    let view = json!({"metadata": {"name": name, "labels": labels, "uid": name}});
    translate::node(
        serde_json::from_value(view).unwrap(),
        &translate::TaintRules::default(),
        &LabelPool::default(),
    )
    .unwrap()
}

fn pool(name: &str, age: u32, spec: &Value) -> StoragePool {
    let created = format!("2026-01-0{}T00:00:00Z", 9 - age);
    serde_json::from_value(json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "StoragePool",
        "metadata": {"name": name, "creationTimestamp": created, "generation": 3},
        "spec": spec,
    }))
    .unwrap()
}

fn observed(spec: &Value, list: ListResponse) -> Observed {
    let nodes = (1..=4).map(|number| (format!("n{number}"), node(number, "a")));
    Observed {
        pools: vec![pool("fast", 0, spec)],
        nodes: nodes.collect(),
        table: ChainTable::new(list, &mut LastReports::default(), Instant::now()).unwrap(),
        ..Observed::default()
    }
}

/// Three targets, one by one.
fn three() -> Value {
    let target = |node: &str| json!({"nodeName": node, "path": "/data"});
    json!({"targets": [target("n1"), target("n2"), target("n3")], "chainsPerTarget": 2})
}

/// The table after the plan was carried out.
fn taken(observed: &Observed, list: &ListResponse) -> ListResponse {
    let mut list = list.clone();
    for (pool, chains) in &plan(observed).create {
        for new in chains {
            let members = new.targets.iter().map(|target| WatchedMember {
                target: target.to_be_bytes().to_vec(),
                life: 1,
                service: 0,
            });
            list.chains.push(ListedChain {
                chain: new.chain,
                version: 1,
                members: members.collect(),
                is_waiting: false,
            });
            for listed in &mut list.targets {
                if new
                    .targets
                    .iter()
                    .any(|target| listed.target == target.to_be_bytes())
                {
                    listed.pool.clone_from(pool);
                }
            }
        }
    }
    list
}

/// The objects that lack are created.
fn with_objects(mut observed: Observed) -> Observed {
    let specs = plan(&observed).objects.into_iter();
    let objects = specs.map(|spec| StorageChain::new(&object_name(&spec), spec));
    observed.chains = objects.collect();
    observed
}

fn said(observed: &Observed) -> (String, String) {
    let status = &plan(observed).pools["fast"];
    let text = |text: &Option<String>| text.clone().unwrap();
    (text(&status.reason), text(&status.message))
}

#[test]
fn a_pool_gets_its_chains_and_shows_that_they_serve() {
    let before = list(3);
    let first = observed(&three(), before.clone());
    let chains = &plan(&first).create["fast"];
    let numbers: Vec<_> = chains.iter().map(|chain| chain.chain).collect();
    assert_eq!(numbers, [1, 2]);
    assert!(chains.iter().all(|chain| chain.targets.len() == 3));
    assert_eq!(said(&first).0, "CreatingChains");

    let second = observed(&three(), taken(&first, &before));
    let planned = plan(&second);
    assert!(planned.create.is_empty());
    let names: Vec<_> = planned.objects.iter().map(object_name).collect();
    assert_eq!(names, ["fast-1", "fast-2"]);
    let second = with_objects(second);
    let third = plan(&second);
    assert!(third.objects.is_empty());
    let chain = &third.chains["fast-1"];
    assert_eq!((chain.phase, chain.version), (ChainPhase::Serving, Some(1)));
    let status = &third.pools["fast"];
    assert_eq!(
        said(&second),
        ("Ready".to_owned(), "2 chains of 3 targets serve".to_owned())
    );
    assert_eq!(
        (
            status.target_count,
            status.chain_count,
            status.serving_count
        ),
        (3, 2, 2)
    );
    assert_eq!(status.used.as_deref(), Some("60Gi"));
    assert_eq!(status.targets[0].chains, 2);
    assert_eq!(status.observed_generation, Some(3));
}

#[test]
fn a_target_that_does_not_serve_is_named_where_its_replicas_are() {
    let first = observed(&three(), list(3));
    let mut with = taken(&first, &list(3));
    with.targets[1].report = Some(TargetReport {
        offline: "the disk is full".to_owned(),
        ..TargetReport::default()
    });
    let second = with_objects(observed(&three(), with));
    let planned = plan(&second);
    let chain = &planned.chains["fast-1"];
    assert_eq!(chain.phase, ChainPhase::Stalled);
    assert!(chain.replicas.as_ref().unwrap().contains("n2 (Offline)"));
    assert_eq!(
        chain.message.as_deref(),
        Some("/data of n2: the disk is full")
    );
    let message = "1 of 3 targets: /data of n2: the disk is full. Writes to 2 chains wait for them";
    assert_eq!(
        said(&second),
        ("TargetsOffline".to_owned(), message.to_owned())
    );
    assert_eq!(
        planned.pools["fast"].targets[0].state,
        StorageTargetState::Offline
    );
}

#[test]
fn no_chain_is_made_until_every_target_can_have_one() {
    let (reason, message) = said(&observed(&three(), list(2)));
    assert_eq!(reason, "TargetsMissing");
    assert!(message.starts_with("1 of 3 targets: /data of n3: no storage service has brought it"));

    let mut list3 = list(3);
    list3.targets[0].is_formatted = false;
    let (reason, message) = said(&observed(&three(), list3));
    assert_eq!(reason, "TargetsMissing");
    assert!(
        message.contains("/data of n1: its path is not formatted yet"),
        "{message}"
    );

    let mut list3 = list(3);
    list3.targets[2].pool = "slow".to_owned();
    let (reason, message) = said(&observed(&three(), list3));
    assert_eq!(reason, "TargetOfAnotherPool");
    assert!(
        message.contains("/data of n3: it belongs to the pool slow"),
        "{message}"
    );

    let mut gone = observed(&three(), list(3));
    gone.nodes.remove("n2");
    let (reason, message) = said(&gone);
    assert_eq!(reason, "TargetsMissing");
    assert!(
        message.contains("/data of n2: there is no such node"),
        "{message}"
    );

    let mut unlabelled = three();
    unlabelled["failureDomain"] = json!("rack");
    let (reason, message) = said(&observed(&unlabelled, list(3)));
    assert_eq!(reason, "NoFailureDomain");
    assert!(message.starts_with("3 of 3 targets: /data of n1: its node has no label rack"));

    let mut in_one = three();
    in_one["failureDomain"] = json!("zone");
    let (reason, message) = said(&observed(&in_one, list(3)));
    assert_eq!(reason, "TooFewDomains");
    assert!(
        message.starts_with("3 replicas need 3 failure domains"),
        "{message}"
    );

    let none = json!({"paths": ["/data"], "nodeSelector": {"storage": "no"}});
    assert_eq!(said(&observed(&none, list(3))).0, "NoTargets");

    let mut refused = observed(&three(), list(3));
    refused
        .refused
        .insert("fast".to_owned(), "chain 1 is another".to_owned());
    let planned = plan(&refused);
    assert_eq!(planned.create.len(), 1, "it is tried again");
    assert_eq!(said(&refused).0, "ManagerRefused");
}

#[test]
fn selected_nodes_have_targets_at_each_path_and_the_older_pool_gets_them() {
    let spec = json!({"paths": ["/data"], "nodeSelector": {"storage": "yes"}});
    let mut both = observed(&spec, list(4));
    both.pools = vec![pool("fast", 0, &spec), pool("old", 1, &spec)];
    let planned = plan(&both);
    // Four targets with eight chains each, three a chain.
    assert_eq!(planned.create["old"].len(), 10);
    assert!(!planned.create.contains_key("fast"));
    let (reason, message) = said(&both);
    assert_eq!(reason, "TargetOfAnotherPool");
    assert!(message.contains("it belongs to the pool old"), "{message}");
}

#[test]
fn a_large_pool_has_as_many_chains_as_the_table_takes() {
    let spec = json!({"paths": ["/data"], "replicas": 1, "chainsPerTarget": 64});
    let mut large = observed(&spec, list(200));
    large.nodes = (1..=200)
        .map(|number| (format!("n{number}"), node(number, "a")))
        .collect();
    let chains = plan(&large).create["fast"].len();
    assert_eq!(chains, 200 * (MOST_POOL_CHAINS / 200));
}

#[test]
fn objects_that_are_not_as_the_table_say_so_and_change_nothing() {
    let first = observed(&three(), list(3));
    let mut second = observed(&three(), taken(&first, &list(3)));
    let specs = plan(&second).objects;
    let mut other = specs[0].clone();
    other.targets.reverse();
    let mut foreign = specs[1].clone();
    foreign.chain = 77;
    second.chains = [other, foreign]
        .map(|spec| StorageChain::new(&object_name(&spec), spec))
        .into();
    let planned = plan(&second);
    assert!(planned.create.is_empty());
    for name in ["fast-1", "fast-77"] {
        let status = &planned.chains[name];
        assert_eq!(status.phase, ChainPhase::Pending);
        assert!(
            status
                .message
                .as_ref()
                .unwrap()
                .contains("delete this object")
        );
    }
    // The name is taken; the other object comes.
    let names: Vec<_> = planned.objects.iter().map(object_name).collect();
    assert_eq!(names, ["fast-2"]);
}

#[test]
fn a_pool_that_is_deleted_keeps_its_chains_and_their_objects() {
    let first = observed(&three(), list(3));
    let mut second = observed(&three(), taken(&first, &list(3)));
    second.pools.clear();
    let planned = plan(&second);
    assert_eq!(planned.objects.len(), 2);
    assert!(planned.create.is_empty() && planned.pools.is_empty());
}
