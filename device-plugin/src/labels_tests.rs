//! Which labels are written, and that nothing is written twice.

use std::sync::{Arc, Mutex};

use daemon::Registry;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::testing;

fn map(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    let owned = labels.iter();
    owned
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

fn carried(labels: &[(&str, &str)], ours: &[&str]) -> Carried {
    Carried {
        labels: map(labels),
        ours: ours.iter().map(|key| (*key).to_owned()).collect(),
    }
}

#[test]
fn the_papers_node_is_labelled_with_what_it_is() {
    let labels = wanted(&testing::inventory());
    let expected = map(&[
        ("fireflyer.dev/gpu-count", "8"),
        ("fireflyer.dev/gpu-memory-mib", "40960"),
        ("fireflyer.dev/gpu-product", "NVIDIA-A100-PCIE-40GB"),
        ("fireflyer.dev/node-class", "a100"),
        ("fireflyer.dev/nvlink-pairs", "4"),
        ("fireflyer.dev/rdma-rate-gbps", "200"),
    ]);
    assert_eq!(labels, expected);
    assert!(labels.keys().all(|key| KEYS.contains(&key.as_str())));
}

#[test]
fn what_is_missing_is_written_and_what_is_there_is_not() {
    let facts = map(&[("zone", "a"), ("count", "8")]);
    let fresh = plan(&carried(&[("count", "8")], &["count"]), facts.clone());
    assert_eq!(fresh.apply, Some(facts.clone()));
    let settled = carried(&[("zone", "a"), ("count", "8")], &["count", "zone"]);
    assert_eq!(plan(&settled, facts), LabelChange::default());
}

#[test]
fn a_value_that_somebody_else_set_is_left_alone() {
    let facts = map(&[("zone", "a"), ("count", "8")]);
    let overruled = plan(&carried(&[("zone", "b")], &[]), facts.clone());
    assert_eq!(overruled.apply, Some(map(&[("count", "8")])));
    assert_eq!(overruled.overruled, BTreeSet::from(["zone".to_owned()]));

    let settled = carried(&[("zone", "b"), ("count", "8")], &["count"]);
    assert_eq!(plan(&settled, facts).apply, None);
}

#[test]
fn a_value_of_ours_follows_the_facts() {
    let ours = carried(&[("count", "8"), ("zone", "a")], &["count", "zone"]);
    let fewer = plan(&ours, map(&[("count", "7")]));
    assert_eq!(fewer.apply, Some(map(&[("count", "7")])));
}

#[test]
fn a_label_value_is_checked_as_the_api_server_does() {
    for legal in ["a", "NVIDIA-A100-PCIE-40GB", "1.2_3"] {
        assert_eq!(value(legal).as_deref(), Ok(legal));
    }
    for wrong in ["", "-a", "a.", "a b", "ä", &"x".repeat(64)] {
        assert!(value(wrong).is_err(), "{wrong}");
    }
}

/// An API server that has one Node and keeps what is applied to it.
#[derive(Clone, Default)]
struct ApiServer {
    node: Arc<Mutex<Value>>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl ApiServer {
    fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let path = head.uri.path_and_query().map(ToString::to_string);
                let call = format!("{} {}", head.method, path.unwrap_or_default());
                server.calls.lock().unwrap().push(call);
                let body = body.collect_bytes().await?;
                let node = server.answer(&body);
                Ok::<_, kube::Error>(http::Response::new(Body::from(node)))
            }
        });
        kube::Client::new(service, "default")
    }

    fn answer(&self, applied: &[u8]) -> Vec<u8> {
        let mut node = self.node.lock().unwrap();
        if let Ok(applied) = serde_json::from_slice::<Value>(applied) {
            let labels = applied["metadata"]["labels"].clone();
            let owned: serde_json::Map<String, Value> = labels
                .as_object()
                .unwrap()
                .keys()
                .map(|key| (format!("f:{key}"), json!({})))
                .collect();
            node["metadata"]["labels"] = labels;
            node["metadata"]["managedFields"] = json!([{
                "manager": "fireflyer-device-plugin",
                "operation": "Apply",
                "fieldsV1": {"f:metadata": {"f:labels": owned}},
            }]);
        }
        serde_json::to_vec(&*node).unwrap()
    }
}

#[tokio::test]
async fn a_node_is_written_once_and_then_only_read() {
    let server = ApiServer::default();
    *server.node.lock().unwrap() = json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "node-1"},
    });
    let metrics = Metrics::new(&Registry::new("1.2.3").unwrap()).unwrap();
    let mut labels = Labels::new(server.client(), "node-1".to_owned(), metrics);
    for _ in 0..3 {
        labels
            .reconcile(wanted(&testing::inventory()))
            .await
            .unwrap();
    }
    let read = "GET /api/v1/nodes/node-1";
    let written = "PATCH /api/v1/nodes/node-1?&fieldManager=fireflyer-device-plugin";
    assert_eq!(*server.calls.lock().unwrap(), [read, written, read, read]);
    let node = server.node.lock().unwrap();
    assert_eq!(node["metadata"]["labels"]["fireflyer.dev/gpu-count"], "8");
}
