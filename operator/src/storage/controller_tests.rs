//! The controller between a real chain manager, over a store in memory, and an API server that
//! keeps what it is sent.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Mutex;

use chain_link::{PeerRole, StoragePeer};
use daemon::Registry;
use http::{Method, Request, Response};
use kube::Client;
use kube::client::Body;
use link::handshake::Key;
use manager::{ManagerConfig, serve};
use storage_rpc::pb::manager::{RegisterRequest, RegisteredPath};
use storage_rpc::{RpcCredentials, StorageKeys, connect};
use tokio::net::TcpListener;

use super::*;
use crate::labels::LabelPool;
use crate::metrics::Metrics;
use crate::mirror::Mirrored;
use crate::testing::{merge, response};
use crate::training_job::translate;

const FILE_SYSTEM: u128 = 7;

fn keys() -> StorageKeys {
    StorageKeys::of_member(Key::new([1; 32]), Key::new([2; 32]))
}

fn channel(address: &str, role: PeerRole) -> Channel {
    let credentials = RpcCredentials {
        identity: StoragePeer::new(FILE_SYSTEM, role, 0),
        keys: keys(),
    };
    connect(address, PeerRole::Manager, credentials).unwrap()
}

/// Objects by path, and the writes that made them.
#[derive(Default)]
struct Api {
    objects: BTreeMap<String, Value>,
    writes: Vec<String>,
}

impl Api {
    fn answer(&mut self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        self.writes.push(format!("{method} {path}"));
        let version = json!(self.writes.len().to_string());
        let key = match body["metadata"]["name"].as_str() {
            Some(name) => format!("{path}/{name}"),
            None => path.trim_end_matches("/status").to_owned(),
        };
        let object = self.objects.entry(key).or_default();
        merge(object, &body);
        object["metadata"]["resourceVersion"] = version;
        (200, object.clone())
    }

    fn of(&self, plural: &str) -> Vec<&Value> {
        let inside = format!("/{plural}/");
        let objects = self.objects.iter();
        objects
            .filter(|(path, _)| path.contains(&inside))
            .map(|(_, object)| object)
            .collect()
    }
}

fn client(api: &Arc<Mutex<Api>>) -> Client {
    let api = Arc::clone(api);
    let service = tower::service_fn(move |request: Request<Body>| {
        let api = Arc::clone(&api);
        async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect_bytes().await.unwrap();
            let body = serde_json::from_slice(&bytes).unwrap();
            let answer = api
                .lock()
                .unwrap()
                .answer(&parts.method, parts.uri.path(), body);
            Ok::<Response<Body>, Infallible>(response(answer))
        }
    });
    Client::new(service, "team")
}

/// What a new operator lists.
fn deliver(api: &Api, storage: &SharedStorage) {
    fn list<T>(mirror: &mut crate::mirror::Mirror<T>, objects: Vec<&Value>)
    where
        T: Mirrored + kube::ResourceExt + DeserializeOwned,
    {
        mirror.listing(0, now());
        for object in objects {
            let object: T = serde_json::from_value(object.clone()).unwrap();
            mirror.listed(key_of(&object), version_of(&object), object);
        }
        mirror.listing_done();
    }
    let mut mirrors = storage.mirrors();
    list(&mut mirrors.pools, api.of("storagepools"));
    list(&mut mirrors.chains, api.of("storagechains"));
}

/// A service of one target starts on a node.
async fn start_service(address: &str, node: &str) {
    let mut manager = ChainManagerClient::new(channel(address, PeerRole::Service));
    let mut target = Vec::new();
    for _formats_then_serves in 0..2 {
        let request = RegisterRequest {
            node: node.to_owned(),
            life: 1,
            member_address: "10.0.0.1:1".to_owned(),
            client_address: "10.0.0.1:2".to_owned(),
            paths: vec![RegisteredPath {
                path: "/data".to_owned(),
                target,
            }],
        };
        let answer = manager.register(request).await.unwrap().into_inner();
        target = answer.paths[0].target.clone();
    }
}

fn node(name: &str) -> translate::MirroredNode {
    let labels = json!({"kubernetes.io/hostname": name});
    let view = json!({"metadata": {"name": name, "labels": labels}});
    translate::node(
        serde_json::from_value(view).unwrap(),
        &translate::TaintRules::default(),
        &LabelPool::default(),
    )
    .unwrap()
}

#[tokio::test]
async fn a_pool_becomes_chains_in_the_table_and_objects_that_show_them() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = ManagerConfig {
        file_system: FILE_SYSTEM,
        number: 1,
        keys: keys(),
    };
    let store = kv::MemoryEngine::default().into();
    let shutdown = CancellationToken::new();
    let managing = tokio::spawn(serve(config, store, listener, || {}, shutdown.clone()));

    let api = Arc::new(Mutex::new(Api::default()));
    let pools = "/apis/fireflyer.dev/v1alpha1/storagepools";
    let pool = json!({
        "apiVersion": "fireflyer.dev/v1alpha1", "kind": "StoragePool",
        "metadata": {"name": "fast"}, "spec": {"paths": ["/data"], "chainsPerTarget": 4},
    });
    api.lock().unwrap().answer(&Method::POST, pools, pool);
    let cluster = SharedCluster::default();
    cluster.mirrors().nodes.listing(0, now());
    for name in ["n1", "n2", "n3"] {
        let key = (String::new(), name.to_owned());
        cluster.mirrors().nodes.listed(key, 1, node(name));
    }
    cluster.mirrors().nodes.listing_done();
    let storage = Arc::new(SharedStorage::default());
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let writer = Writer::new(client(&api), metrics.writes.clone());
    let manager = channel(&address, PeerRole::Meta);
    let mut controller =
        StorageController::new(Arc::clone(&storage), Arc::new(cluster), writer, manager);
    let shown = |path: &str| {
        let api = api.lock().unwrap();
        let status = &api.of("storagepools")[0]["status"];
        status[path].as_str().unwrap_or_default().to_owned()
    };

    controller.step().await;
    assert_eq!(
        api.lock().unwrap().writes.len(),
        1,
        "nothing was listed yet"
    );
    deliver(&api.lock().unwrap(), &storage);
    controller.step().await;
    assert_eq!(shown("reason"), "TargetsMissing");
    for name in ["n1", "n2", "n3"] {
        start_service(&address, name).await;
    }
    controller.step().await;
    assert_eq!(shown("reason"), "CreatingChains");
    // The table has them; then objects come; then they show the table.
    controller.step().await;
    controller.step().await;
    assert_eq!(
        (shown("reason").as_str(), shown("message").as_str()),
        ("Ready", "4 chains of 3 targets serve")
    );
    {
        let api = api.lock().unwrap();
        let chains = api.of("storagechains");
        assert_eq!(chains.len(), 4);
        for chain in chains {
            assert_eq!(chain["status"]["phase"], "Serving");
            assert_eq!(chain["status"]["members"].as_array().unwrap().len(), 3);
        }
    }
    // Nothing more is written, neither by this operator nor by the next.
    let writes = api.lock().unwrap().writes.len();
    controller.step().await;
    deliver(&api.lock().unwrap(), &storage);
    controller.step().await;
    assert_eq!(api.lock().unwrap().writes.len(), writes);
    // An object that is deleted comes back.
    let chain = "/apis/fireflyer.dev/v1alpha1/storagechains/fast-2";
    let gone = api.lock().unwrap().objects.remove(chain);
    deliver(&api.lock().unwrap(), &storage);
    controller.step().await;
    controller.step().await;
    let back = api.lock().unwrap().objects.get(chain).cloned();
    assert_eq!(gone.unwrap()["spec"], back.unwrap()["spec"]);

    shutdown.cancel();
    managing.await.unwrap().unwrap();
    // A manager that is away for a moment is nothing to show.
    controller.step().await;
    assert_eq!(shown("reason"), "Ready");
    controller.listed = now().checked_sub(PATIENCE).unwrap();
    controller.step().await;
    assert_eq!(shown("reason"), "ManagerUnreachable");
    assert!(shown("message").contains("see that the chain manager runs"));
}

#[test]
fn what_is_shown_no_more_is_taken_away() {
    let patch = replacing(&json!({"old": 1, "both": 1}), &json!({"both": 2, "new": 3}));
    assert_eq!(patch, json!({"old": null, "both": 2, "new": 3}));
}
