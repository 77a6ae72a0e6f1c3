//! Tests of one watch, against an API server that answers from a script, on a clock that jumps to
//! whatever is due next.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;

use futures::stream;
use http::Request;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::cluster::{Mirrors, SharedCluster};
use crate::testing::{failure, response};
use crate::training_job::translate::{self, MirroredClaim};
use crate::views::ClaimView;

type Kind = fn(&mut Mirrors) -> &mut Mirror<MirroredClaim>;
type Keep = fn(ClaimView) -> Option<MirroredClaim>;

/// A watch of claims, and the requests that it sends.
struct Setup {
    watch: Watch<SharedCluster, ClaimView, Kind, Keep>,
    cluster: Arc<SharedCluster>,
    asked: Arc<Mutex<Vec<String>>>,
}

fn claim(name: &str, version: u32) -> Value {
    json!({"metadata": {"name": name, "namespace": "team", "resourceVersion": version.to_string()}})
}

fn page(names: &[&str]) -> Value {
    let items: Vec<Value> = names.iter().map(|name| claim(name, 5)).collect();
    json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items})
}

/// An API server that answers so to the request of this number, from 0.
fn setup(script: impl Fn(usize, &str) -> (u16, Value) + Send + Sync + 'static) -> Setup {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&asked);
    let script = Arc::new(script);
    let service = tower::service_fn(move |request: Request<Body>| {
        let line = request.uri().to_string();
        let number = {
            let mut asked = noted.lock().unwrap();
            asked.push(line.clone());
            asked.len() - 1
        };
        let answer = script(number, &line);
        async move { Ok::<_, Infallible>(response(answer)) }
    });
    let cluster = Arc::new(SharedCluster::default());
    let watch = Watch {
        api: Api::all(Client::new(service, "team")),
        scope: Scope::default(),
        owner: Arc::clone(&cluster),
        mirror: (|mirrors| &mut mirrors.claims) as Kind,
        translate: (|view| Some(translate::claim(&view))) as Keep,
    };
    Setup {
        watch,
        cluster,
        asked,
    }
}

/// A watch that has listed nothing, at position 7.
async fn listed() -> Setup {
    let setup = setup(|_, _| (200, page(&[])));
    assert_eq!(setup.watch.list(0).await.unwrap(), "7");
    setup
}

fn bookmark(position: &str) -> WatchEvent<ClaimView> {
    let mark = json!({"type": "BOOKMARK", "object": {"kind": "PersistentVolumeClaim",
        "apiVersion": "v1", "metadata": {"resourceVersion": position}}});
    serde_json::from_value(mark).unwrap()
}

fn age(cluster: &SharedCluster) -> Duration {
    let ages = cluster.mirrors().ages(now());
    let mut ages = ages.into_iter();
    ages.find(|(kind, _)| *kind == "PersistentVolumeClaim")
        .unwrap()
        .1
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_says_nothing_is_given_up_and_the_mirror_knows_its_age() {
    let Setup { watch, cluster, .. } = listed().await;
    let mut position = "7".to_owned();
    let began = Instant::now();
    let ended = watch.read(stream::pending(), began, &mut position).await;
    assert!(matches!(ended, Err(Error::Silent(_))), "{ended:?}");
    assert_eq!(began.elapsed(), SILENCE);
    assert_eq!(age(&cluster), SILENCE, "nothing was received");
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_moves_the_position_and_shows_that_the_mirror_is_complete() {
    let Setup { watch, cluster, .. } = listed().await;
    let mut position = "7".to_owned();
    let said = stream::once(async {
        sleep(Duration::from_secs(23)).await;
        Ok(bookmark("90"))
    });
    let said = said.chain(stream::pending());
    watch
        .read(said, Instant::now(), &mut position)
        .await
        .unwrap_err();
    assert_eq!(position, "90");
    assert_eq!(age(&cluster), SILENCE, "since the bookmark");
}

#[tokio::test(start_paused = true)]
async fn only_a_watch_whose_time_was_over_shows_that_there_was_nothing_more() {
    let Setup { watch, cluster, .. } = listed().await;
    let mut position = "7".to_owned();
    let ends_after =
        |time: Duration| Box::pin(stream::once(sleep(time)).filter_map(|()| async { None }));
    let early = watch.read(ends_after(WATCH / 2), Instant::now(), &mut position);
    assert!(matches!(early.await, Err(Error::Early)));
    assert_eq!(age(&cluster), WATCH / 2);
    let whole = watch.read(ends_after(WATCH), Instant::now(), &mut position);
    whole.await.unwrap();
    assert_eq!(age(&cluster), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_position_that_is_too_old_and_a_request_lead_to_a_new_listing() {
    let Setup {
        watch,
        cluster,
        asked,
    } = setup(|number, line| match number {
        0 => (200, page(&["old"])),
        1 => failure(410, "Expired"),
        2 => (200, page(&["new"])),
        _ if line.contains("watch=true") => failure(500, "InternalError"),
        _ => (200, page(&["newest"])),
    });
    let running = tokio::spawn(watch.run());
    let holds = |name: &str| cluster.mirrors().claims.get("team", name).is_some();
    while !holds("new") {
        cluster.changed().await;
    }
    assert!(!holds("old"));
    // Errors of the watch alone keep what is known, and its age shows it.
    let tries = || asked.lock().unwrap().len();
    while tries() < 8 {
        sleep(Duration::from_secs(1)).await;
    }
    assert!(holds("new") && age(&cluster) > Duration::from_secs(5));
    let request = cluster.list_again();
    while !cluster.mirrors().claims.is_listed(request) {
        cluster.changed().await;
    }
    assert!(holds("newest") && !holds("new"));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_an_optional_kind_that_is_not_installed_and_others_keep_what_is_known() {
    let known = |is_optional| async move {
        let Setup {
            mut watch, cluster, ..
        } = setup(|number, _| match number {
            0 => (200, page(&["known"])),
            _ => failure(404, "NotFound"),
        });
        watch.scope.is_optional = is_optional;
        watch.list(0).await.unwrap();
        watch.list(1).await.unwrap_err();
        let mirrors = cluster.mirrors();
        (mirrors.claims.is_listed(1), mirrors.claims.len())
    };
    assert_eq!(known(true).await, (true, 0));
    assert_eq!(known(false).await, (false, 1));
}

/// Claims of which the later ones are large, in pages as the API server makes them.
fn claims(line: &str, sizes: &[usize]) -> Value {
    let pairs = line
        .split(['?', '&'])
        .filter_map(|pair| pair.split_once('='));
    let pairs: BTreeMap<&str, &str> = pairs.collect();
    let from = pairs
        .get("continue")
        .map_or(0, |from| from.parse().unwrap());
    let limit: usize = pairs["limit"].parse().unwrap();
    let to = sizes.len().min(from + limit);
    let items = (from..to).map(|index| {
        let mut claim = claim(&format!("claim-{index}"), 5);
        claim["metadata"]["annotations"] = json!({"note": "x".repeat(sizes[index])});
        claim
    });
    let items: Vec<Value> = items.collect();
    let next = if to < sizes.len() {
        to.to_string()
    } else {
        String::new()
    };
    json!({"metadata": {"resourceVersion": "7", "continue": next}, "items": items})
}

#[tokio::test]
async fn a_page_is_as_large_as_its_objects_allow() {
    let mut sizes = vec![10; 300];
    sizes.extend(vec![256 * 1024; 60]);
    // More than a page may have.
    sizes.push(5 << 20);
    sizes.extend(vec![10; 40]);
    let Setup {
        watch,
        cluster,
        asked,
    } = {
        let sizes = sizes.clone();
        setup(move |_, line| (200, claims(line, &sizes)))
    };
    watch.list(0).await.unwrap();
    assert_eq!(cluster.mirrors().claims.len(), sizes.len());
    let mut spent = 0;
    let mut limits = Vec::new();
    for line in asked.lock().unwrap().iter() {
        let answer = claims(line, &sizes);
        let objects = answer["items"].as_array().unwrap();
        let bytes = answer.to_string().len();
        let is_read = bytes <= 4 << 20 || objects.len() == 1;
        limits.push(objects.len());
        spent += usize::from(!is_read);
    }
    assert_eq!(limits[..4], [4, 8, 16, 32], "small objects: {limits:?}");
    assert!(limits.contains(&128), "{limits:?}");
    assert!(spent <= 6, "pages that were too large: {limits:?}");
    assert!(limits.len() < 50, "{limits:?}");
}
