//! Managers as their callers see them, over a store in memory: also one whose commits conflict and whose outcomes are
//! unknown, and two managers over one store.

#![expect(clippy::unwrap_used, reason = "test harness")]

mod shared;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use chain_link::PeerRole;
use craq::SessionId;
use kv::{InjectedFault, KvStore, MemoryEngine};
use sim::Rng;
use storage_rpc::pb::manager::path_answer::Action;
use storage_rpc::pb::manager::{
    EndSessionRequest, ListRequest, OpenSessionRequest, ReportRequest, TargetReport, WatchRequest,
};
use tonic::Code;

use shared::{Client, Follower, Running, again, creation, registration, start_service};

fn quiet() -> KvStore {
    MemoryEngine::default().into()
}

/// A store of which every third commit or so fails in one of the three ways.
fn faulty(seed: u64) -> KvStore {
    let rng = Mutex::new(Rng::new(seed));
    let plan = move || match rng.lock().unwrap().below(9) {
        0 => InjectedFault::Conflict,
        1 => InjectedFault::UnknownApplied,
        2 => InjectedFault::UnknownLost,
        _ => InjectedFault::None,
    };
    MemoryEngine::with_faults(plan).into()
}

fn session(client: &str) -> OpenSessionRequest {
    OpenSessionRequest {
        client: client.to_owned(),
    }
}

#[tokio::test]
async fn a_chain_is_streamed_when_all_its_members_have_come() {
    let manager = Running::start(quiet(), 1).await;
    let mut service = manager.client(PeerRole::Service);
    let mut operator = manager.client(PeerRole::Meta);
    let mut all = Follower::new(manager.client(PeerRole::Client), 0);
    let (one, a) = start_service(service.clone(), 1).await.unwrap();
    let (two, b) = start_service(service.clone(), 2).await.unwrap();
    let empty = service
        .register(registration(3, 1, &[]))
        .await
        .unwrap()
        .into_inner();
    let (three, c) = (empty.service, empty.paths[0].target.clone());
    operator
        .create_chains(creation(
            "p",
            &[(1, &[a.clone(), b.clone()]), (2, &[b.clone(), c.clone()])],
        ))
        .await
        .unwrap();
    all.until(|map| map.chains.contains_key(&1)).await;
    assert!(!all.map.chains.contains_key(&2), "a member has not come");
    let mut of_one = Follower::new(manager.client(PeerRole::Service), one);
    service.register(registration(3, 4, &c)).await.unwrap();
    all.until(|map| map.chains.contains_key(&2)).await;
    assert_eq!(all.map.chains[&2].services, [two, three]);
    assert_eq!(all.map.chains[&2].table.members[1].life, 4);
    of_one.until(|map| map.chains.len() == 1).await;
    assert!(
        of_one.map.lists.is_empty(),
        "only who places chunks needs them"
    );
    assert_eq!(all.map.lists[&1], [1, 2]);
    assert_eq!(
        of_one.map.services.keys().copied().collect::<Vec<_>>(),
        [one, two]
    );
    // A service comes back over its disk.
    service.register(registration(2, 9, &b)).await.unwrap();
    all.until(|map| {
        map.chains[&1].table.members[1].life == 9 && map.chains[&2].table.members[0].life == 9
    })
    .await;
    of_one
        .until(|map| map.chains[&1].table.members[1].life == 9)
        .await;
    assert_eq!(
        (
            all.map.chains[&1].table.version,
            all.map.chains[&2].table.version
        ),
        (2, 3)
    );
    // And without it: nothing changes.
    let refused = service
        .register(registration(2, 10, &[]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(refused.paths[0].action(), Action::Offline);
    assert!(refused.paths[0].why.contains("never formatted") && refused.paths[0].target == b);
    manager.stop().await;
}

#[tokio::test]
async fn sessions_are_valid_in_all_chains_until_they_end() {
    let manager = Running::start(quiet(), 1).await;
    let service = manager.client(PeerRole::Service);
    let (_, a) = start_service(service.clone(), 1).await.unwrap();
    manager
        .client(PeerRole::Manager)
        .create_chains(creation("p", &[(1, &[a])]))
        .await
        .unwrap();
    let mut client = manager.client(PeerRole::Client);
    let mut follower = Follower::new(manager.client(PeerRole::Service), 1);
    let first = client
        .open_session(session("n1"))
        .await
        .unwrap()
        .into_inner();
    let second = client
        .open_session(session("n1"))
        .await
        .unwrap()
        .into_inner();
    let other = client
        .open_session(session("n2"))
        .await
        .unwrap()
        .into_inner();
    assert!(first.session < second.session && first.revision < second.revision);
    let sessions =
        |open: &[u64]| -> BTreeSet<SessionId> { open.iter().copied().map(SessionId).collect() };
    let both = sessions(&[second.session, other.session]);
    follower
        .until(|map| {
            map.chains
                .values()
                .all(|chain| chain.table.sessions == both)
                && !map.chains.is_empty()
        })
        .await;
    assert!(follower.map.chains[&1].table.revision >= other.revision);
    let version = follower.map.chains[&1].table.version;
    for _ in 0..2 {
        let session = second.session;
        client
            .end_session(EndSessionRequest { session })
            .await
            .unwrap();
    }
    let one = sessions(&[other.session]);
    follower
        .until(|map| map.chains[&1].table.sessions == one)
        .await;
    assert_eq!(
        follower.map.chains[&1].table.version, version,
        "sessions are no new version"
    );
    manager.stop().await;
}

#[tokio::test]
async fn only_those_whose_call_it_is_may_make_it() {
    let manager = Running::start(quiet(), 1).await;
    let mut client = manager.client(PeerRole::Client);
    let mut service = manager.client(PeerRole::Service);
    let refused = |code: Result<(), tonic::Status>| code.unwrap_err().code();
    let denied = [
        refused(client.register(registration(1, 1, &[])).await.map(drop)),
        refused(client.report(ReportRequest::default()).await.map(drop)),
        refused(client.create_chains(creation("p", &[])).await.map(drop)),
        refused(service.open_session(session("n1")).await.map(drop)),
        refused(
            service
                .end_session(EndSessionRequest { session: 1 })
                .await
                .map(drop),
        ),
    ];
    assert_eq!(denied, [Code::PermissionDenied; 5]);
    // Who makes volumes is a client, and needs to know how much room there is.
    client.list(ListRequest {}).await.unwrap();
    let damaged = [
        refused(service.register(registration(1, 0, &[])).await.map(drop)),
        refused(
            service
                .register(registration(1, 1, b"short"))
                .await
                .map(drop),
        ),
        refused(
            service
                .create_chains(creation("p", &[(1, &[vec![7; 15]])]))
                .await
                .map(drop),
        ),
    ];
    assert_eq!(damaged, [Code::InvalidArgument; 3]);
    let unknown = service
        .create_chains(creation("p", &[(1, &[vec![7; 16]])]))
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::FailedPrecondition);
    assert!(
        unknown.message().contains("chain 1") && unknown.message().contains("start the service")
    );
    manager.stop().await;
}

#[tokio::test]
async fn a_list_has_what_there_is_and_what_services_report() {
    let manager = Running::start(quiet(), 1).await;
    let mut service = manager.client(PeerRole::Service);
    let (one, a) = start_service(service.clone(), 1).await.unwrap();
    let (_, b) = start_service(service.clone(), 2).await.unwrap();
    let waits = service
        .register(registration(3, 1, &[]))
        .await
        .unwrap()
        .into_inner()
        .paths[0]
        .target
        .clone();
    service
        .create_chains(creation(
            "p",
            &[(7, &[a.clone(), b.clone()]), (8, &[a.clone(), waits])],
        ))
        .await
        .unwrap();
    manager
        .client(PeerRole::Client)
        .open_session(session("n1"))
        .await
        .unwrap();
    let report = |target: &Vec<u8>| TargetReport {
        target: target.clone(),
        capacity_bytes: 100,
        used_bytes: 40,
        offline: "é".repeat(2_000),
    };
    // The second is not this service's.
    let targets = vec![report(&a), report(&b)];
    service
        .report(ReportRequest {
            service: one,
            targets,
        })
        .await
        .unwrap();
    let list = service.list(ListRequest {}).await.unwrap().into_inner();
    let target = |target: &Vec<u8>| {
        list.targets
            .iter()
            .find(|listed| listed.target == *target)
            .unwrap()
    };
    let reported = target(&a).report.clone().unwrap();
    assert_eq!((reported.used_bytes, reported.offline.len()), (40, 1024));
    assert!(target(&a).is_formatted && target(&a).pool == "p" && target(&a).path == "/disk");
    assert_eq!(target(&b).report, None);
    let waiting: Vec<_> = list
        .chains
        .iter()
        .map(|chain| (chain.chain, chain.is_waiting))
        .collect();
    assert_eq!(waiting, [(7, false), (8, true)]);
    assert_eq!(
        (list.services.len(), list.sessions[0].client.as_str()),
        (3, "n1")
    );
    manager.stop().await;
}

#[tokio::test]
async fn a_manager_learns_what_another_changes() {
    let store = quiet();
    let (one, other) = (
        Running::start(store.clone(), 1).await,
        Running::start(store, 2).await,
    );
    let mut follower = Follower::new(other.client(PeerRole::Client), 0);
    follower.until(|map| map.chains.is_empty()).await;
    let mut service = one.client(PeerRole::Service);
    let (_, a) = start_service(service.clone(), 1).await.unwrap();
    service
        .create_chains(creation("p", &[(1, &[a])]))
        .await
        .unwrap();
    follower.until(|map| map.chains.contains_key(&1)).await;
    one.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_table_of_another_file_system_is_left_alone() {
    let store = quiet();
    Running::start(store.clone(), 1)
        .await
        .client(PeerRole::Meta)
        .list(ListRequest {})
        .await
        .unwrap();
    let listener = tokio::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let key = || link::handshake::Key::new([1; 32]);
    let config = manager::ManagerConfig {
        file_system: 1,
        number: 1,
        keys: storage_rpc::StorageKeys::of_member(key(), key()),
    };
    let shutdown = daemon::CancellationToken::new();
    let refused = manager::serve(config, store, listener, || {}, shutdown)
        .await
        .unwrap_err();
    assert!(
        daemon::chain(&refused).contains("5eed"),
        "{}",
        daemon::chain(&refused)
    );
}

#[tokio::test]
async fn a_manager_that_shuts_down_ends_its_streams() {
    let manager = Running::start(quiet(), 1).await;
    let mut client = manager.client(PeerRole::Client);
    let mut stream = client
        .watch(WatchRequest { service: 0 })
        .await
        .unwrap()
        .into_inner();
    assert!(stream.message().await.unwrap().is_some());
    manager.stop().await;
    assert!(matches!(stream.message().await, Ok(None) | Err(_)));
}

/// Services start and come back, clients open and end sessions, all at once and through both managers, while commits
/// conflict and outcomes are unknown. Whatever was answered is so in the end.
#[tokio::test(flavor = "multi_thread")]
async fn two_managers_over_a_faulty_store_do_everything_once() {
    const SERVICES: u32 = 5;
    const CHAINS: u32 = 40;
    const RETURNS: u64 = 6;
    for seed in 0..8 {
        let store = faulty(seed);
        let managers = [
            Running::start(store.clone(), 1).await,
            Running::start(store, 2).await,
        ];
        let client = |of: u64, role| managers[of as usize % 2].client(role);
        let mut targets = Vec::new();
        for node in 1..=SERVICES {
            let service = client(node.into(), PeerRole::Service);
            let (number, target) = again(&service, |client| start_service(client, node)).await;
            assert_eq!(number, node, "a number is given once");
            targets.push(target);
        }
        let places = |chain: u32| {
            [
                chain % SERVICES,
                (chain + 1) % SERVICES,
                (chain + 2) % SERVICES,
            ]
        };
        let members: Vec<_> = (0..CHAINS)
            .map(|chain| places(chain).map(|place| targets[place as usize].clone()))
            .collect();
        let chains: Vec<(u32, &[Vec<u8>])> = (0..)
            .zip(&members)
            .map(|(chain, members)| (chain, &members[..]))
            .collect();
        let operator = client(seed, PeerRole::Meta);
        let request = creation("p", &chains);
        again(&operator, |mut client| {
            let request = request.clone();
            async move { client.create_chains(request).await }
        })
        .await;
        let mut followers = [0, 1].map(|of| Follower::new(client(of, PeerRole::Client), 0));
        let mut tasks = Vec::new();
        for (node, target) in (1..=SERVICES).zip(targets.clone()) {
            let clients = [0, 1].map(|of| client(of, PeerRole::Service));
            tasks.push(tokio::spawn(come_back(clients, node, target, RETURNS)));
        }
        let opened = Arc::new(Mutex::new(BTreeSet::new()));
        let mut clients = Vec::new();
        for name in 0..4 {
            let managers = [0, 1].map(|of| client(of, PeerRole::Client));
            clients.push(tokio::spawn(open_and_end(managers, name, opened.clone())));
        }
        for task in tasks {
            task.await.unwrap();
        }
        let mut last = BTreeSet::new();
        for client in clients {
            last.insert(SessionId(client.await.unwrap()));
        }
        for follower in &mut followers {
            follower
                .until(|map| {
                    let of_chain = |chain: &chain_link::MappedChain| {
                        let mut lives = chain.table.members.iter().map(|member| member.life);
                        lives.all(|life| life == RETURNS + 1) && chain.table.sessions == last
                    };
                    map.chains.len() == CHAINS as usize && map.chains.values().all(of_chain)
                })
                .await;
            // Once for each return of a member, however often it was asked.
            let most = 1 + 3 * RETURNS;
            assert!(
                follower
                    .map
                    .chains
                    .values()
                    .all(|chain| chain.table.version == most)
            );
        }
        for manager in managers {
            manager.stop().await;
        }
    }
}

/// A service starts again and again, and says so to one manager or the other.
async fn come_back(clients: [Client; 2], node: u32, target: Vec<u8>, returns: u64) {
    for life in 2..=returns + 1 {
        let client = &clients[(life % 2) as usize];
        let served = again(client, |mut client| {
            let request = registration(node, life, &target);
            async move { client.register(request).await }
        })
        .await;
        let served = served.into_inner();
        assert_eq!(
            (served.service, served.paths[0].action()),
            (node, Action::Serve)
        );
    }
}

/// Its last session stays open.
async fn open_and_end(clients: [Client; 2], name: u64, opened: Arc<Mutex<BTreeSet<u64>>>) -> u64 {
    let mut last = 0;
    for round in 0..8 {
        let client = &clients[(round % 2) as usize];
        let answer = again(client, |mut client| async move {
            client.open_session(session(&name.to_string())).await
        })
        .await;
        let session = answer.into_inner().session;
        assert!(
            opened.lock().unwrap().insert(session),
            "session {session} was given twice"
        );
        assert!(session > last);
        last = session;
        if round % 3 == 0 {
            again(client, |mut client| async move {
                client.end_session(EndSessionRequest { session }).await
            })
            .await;
        }
    }
    last
}
