//! Services over a real etcd that is killed and restarted. Where the program is not built, the test counts as ignored, with
//! the reason.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "test harness"
)]

#[path = "../shared/judged.rs"]
mod judged;
#[path = "../../../../core/metadata/tests/tree/oracle/mod.rs"]
mod oracle;
#[path = "../../../../core/metadata/tests/tree/physical.rs"]
#[expect(dead_code, reason = "the simulation asks for more")]
mod physical;
#[path = "../shared/mod.rs"]
#[expect(dead_code, reason = "here no service is killed")]
mod shared;

use std::process::ExitCode;

use kv::{EtcdEngine, KvStore};
use sim::Rng;
use storage_cell::{Etcd, etcd_program};
use tokio::runtime::Runtime;

use judged::{Judged, volume};
use shared::{Backend, Running, client};

/// Operations between two kills.
const OPERATIONS: u32 = 60;
const KILLS: u32 = 3;

fn main() -> ExitCode {
    let name = "a_tree_survives_kills_of_etcd".to_owned();
    let program = etcd_program();
    sim::run_tests([(name, program.map(|program| move || kills(&program)))])
}

/// META-1 and META-3, over etcd: it is killed while an operation is on its way, and every answer is judged.
fn kills(program: &std::path::Path) {
    let mut etcd = Etcd::start(program, &[]);
    let backend = Backend::default();
    let runtime = Runtime::new().unwrap();
    let store: KvStore =
        runtime.block_on(async { EtcdEngine::connect(&[etcd.url()]).unwrap().into() });
    let services = [
        Running::start(store.clone(), &backend),
        Running::start(store, &backend),
    ];
    let client = runtime.block_on(async { client(&services, 1) });
    let mut judged = Judged::new(client.clone(), backend, Rng::new(5));
    let (sent, received) = std::sync::mpsc::channel();
    let acting = runtime.spawn(async move {
        judged.ask(volume()).await.unwrap();
        for _ in 0..=KILLS {
            sent.send(()).unwrap();
            for _ in 0..OPERATIONS {
                judged.act().await;
            }
        }
        judged
    });
    received.recv().unwrap();
    for _ in 0..KILLS {
        received.recv().unwrap();
        etcd.kill();
        etcd.start_again();
    }
    let mut judged = runtime.block_on(acting).unwrap();
    runtime.block_on(async {
        let usage = metadata::MetaOperation::GetVolume {
            name: "one".to_owned(),
        };
        judged.ask(usage).await.unwrap();
        client.end_mount(client.mount()).await.unwrap();
    });
}
