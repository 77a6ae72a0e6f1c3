//! A manager over a real etcd that is killed and restarted. Where the program is not built, the test counts as ignored,
//! with the reason.

#![expect(clippy::unwrap_used, reason = "test harness")]

#[path = "../shared/mod.rs"]
mod shared;

use std::process::ExitCode;

use chain_link::PeerRole;
use kv::EtcdEngine;
use shared::{Follower, Running, again, creation, registration, start_service};
use storage_cell::{Etcd, etcd_program};
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    let name = "a_table_survives_kills_of_etcd_and_of_managers_and_never_goes_back".to_owned();
    let program = etcd_program();
    sim::run_tests([(name, program.map(|program| move || kills(&program)))])
}

/// Services come back and sessions open while etcd is killed; then another manager takes over.
fn kills(program: &std::path::Path) {
    const KILLS: u64 = 3;
    let mut etcd = Etcd::start(program, &[]);
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let store = || EtcdEngine::connect(&[etcd.url()]).unwrap().into();
        let (first, second) = (store(), store());
        let manager = Running::start(first, 1).await;
        let service = manager.client(PeerRole::Service);
        let mut targets = Vec::new();
        for node in 1..=3 {
            let started = again(&service, |client| start_service(client, node));
            targets.push(started.await.1);
        }
        let chains: Vec<(u32, &[Vec<u8>])> = (0..100).map(|chain| (chain, &targets[..])).collect();
        let request = creation("p", &chains);
        again(&service, |mut client| {
            let request = request.clone();
            async move { client.create_chains(request).await }
        })
        .await;
        let mut follower = Follower::new(manager.client(PeerRole::Client), 0);
        follower.until(|map| map.chains.len() == 100).await;
        for kill in 1..=KILLS {
            let life = 1 + kill;
            // Its hundred chains change in several transactions: etcd goes away between or within them.
            let target = targets[0].clone();
            let client = manager.client(PeerRole::Service);
            let registered = tokio::spawn(async move {
                again(&client, |mut client| {
                    let request = registration(1, life, &target);
                    async move { client.register(request).await }
                })
                .await;
            });
            etcd.kill();
            etcd.start_again();
            registered.await.unwrap();
            follower
                .until(|map| {
                    map.chains
                        .values()
                        .all(|chain| chain.table.members[0].life == life)
                })
                .await;
            assert!(
                follower
                    .map
                    .chains
                    .values()
                    .all(|chain| chain.table.version == life)
            );
        }
        manager.stop().await;
        let next = Running::start(second, 2).await;
        let mut taken_over = Follower::new(next.client(PeerRole::Client), 0);
        taken_over.until(|map| map.chains.len() == 100).await;
        assert_eq!(taken_over.map, follower.map);
        next.stop().await;
    });
}
