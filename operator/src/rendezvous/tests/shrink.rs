//! Gangs that go on without lost nodes, led over loopback.

use collective::machine::WORLD;
use collective::membership::encoding::FRAME_LIMIT_BYTES;
use collective::recovery::{EpochReport, GroupReport, MAX_RETAINED, Retained};
use collective::{Call, DType, Factor, Numerics, OpKind, ReduceOp};
use scheduler::Gone;
use topology::OnPeerLoss;

use super::*;

/// Three nodes of which two may go on.
fn shrinking() -> OneGang {
    shrinking_of(3)
}

fn shrinking_of(nodes: usize) -> OneGang {
    let mut one = gang(1, nodes);
    Arc::make_mut(&mut one.gang).policy.on_peer_loss = OnPeerLoss::Shrink;
    one
}

fn gone(ranks: &[u32]) -> Vec<Gone> {
    vec![Gone {
        job: gang(1, 3).gang.job.clone(),
        attempt: 1,
        ranks: ranks.to_vec(),
        completed: Vec::new(),
    }]
}

async fn begun(running: &Running) -> Vec<Sidecar> {
    let nodes = running.directory.0.lock().unwrap().gang.nodes.len();
    begun_at(running.address, nodes).await
}

async fn begun_at(address: SocketAddr, nodes: usize) -> Vec<Sidecar> {
    let mut sidecars = Vec::new();
    for rank in 0..nodes as u32 {
        sidecars.push(Sidecar::hello(address, rank, None).await);
    }
    for sidecar in &mut sidecars {
        let roster = sidecar.receive().await;
        assert!(matches!(roster, Some(ToSidecar::Roster { epoch: 1, .. })));
        sidecar.say(&ToOperator::Joined { epoch: 1 }).await;
    }
    for sidecar in &mut sidecars {
        assert_eq!(sidecar.receive().await, Some(ToSidecar::Go { epoch: 1 }));
    }
    sidecars
}

impl Sidecar {
    async fn receives_revoke(&mut self) {
        let answered = self.receive().await;
        assert!(
            matches!(answered, Some(ToSidecar::Revoke { epoch: 1, .. })),
            "{answered:?}"
        );
    }

    /// It has stopped in the first epoch, has done nothing, and reaches these.
    async fn stopped(&mut self, reached: &[u32]) {
        self.stopped_with(&EpochReport::new(), reached).await;
    }

    /// It has stopped in the first epoch so far, and reaches these.
    async fn stopped_with(&mut self, report: &EpochReport, reached: &[u32]) {
        self.say(&ToOperator::Stopped {
            epoch: 1,
            report: report.clone(),
            reached: reached.to_vec(),
            unreached: Vec::new(),
        })
        .await;
    }

    /// The ranks with which it is ordered to go on in epoch 2.
    async fn next(&mut self) -> Vec<u32> {
        match self.receive().await {
            Some(ToSidecar::Next {
                epoch: 2, members, ..
            }) => members.iter().map(|peer| peer.rank).collect(),
            other => panic!("no next epoch but {other:?}"),
        }
    }
}

#[tokio::test]
async fn who_is_known_to_be_gone_is_not_waited_for() {
    let running = start_with(shrinking(), Role::Leading, None).await;
    let mut sidecars = begun(&running).await;
    let mut lost = sidecars.remove(1);
    running.gone.send_replace(gone(&[1]));
    // Its peers have noticed nothing yet.
    for sidecar in &mut sidecars {
        sidecar.receives_revoke().await;
    }
    sidecars[0].stopped(&[2]).await;
    sidecars[1].stopped(&[0]).await;
    for sidecar in &mut sidecars {
        assert_eq!(sidecar.next().await, [0, 2]);
        sidecar.say(&ToOperator::Joined { epoch: 2 }).await;
    }
    for sidecar in &mut sidecars {
        assert_eq!(sidecar.receive().await, Some(ToSidecar::Go { epoch: 2 }));
    }
    lost.receives_revoke().await;
    let refused = lost.receive().await;
    assert!(
        matches!(&refused, Some(ToSidecar::Refused { reason, void: true }) if reason.contains("rank 1 was lost")),
        "{refused:?}"
    );
    assert_eq!(running.metrics.nodes_lost.get(), 1);
    assert!(running.reports.borrow().stuck.is_empty());
}

#[tokio::test]
async fn a_leader_without_memory_learns_from_the_store_who_goes_on() {
    let running = start_with(shrinking(), Role::Leading, None).await;
    let mut sidecars = begun(&running).await;
    running.role.send_replace(Role::Standby { leader: None });
    for sidecar in &mut sidecars {
        assert_eq!(sidecar.receive().await, None);
    }
    running.role.send_replace(Role::Leading);
    running.gone.send_replace(gone(&[2]));
    let mut first = Sidecar::hello(running.address, 0, Some(1)).await;
    let mut second = Sidecar::hello(running.address, 1, Some(1)).await;
    for sidecar in [&mut first, &mut second] {
        sidecar.receives_revoke().await;
    }
    first.stopped(&[1]).await;
    second.stopped(&[0]).await;
    for sidecar in [&mut first, &mut second] {
        assert_eq!(sidecar.next().await, [0, 1]);
    }
}

#[tokio::test]
async fn the_planner_learns_that_too_few_are_left() {
    let mut running = start_with(shrinking(), Role::Leading, None).await;
    let mut sidecars = begun(&running).await;
    running.gone.send_replace(gone(&[1, 2]));
    sidecars[0].receives_revoke().await;
    sidecars[0].stopped(&[]).await;
    let reports = until(&mut running.reports, |reports| !reports.stuck.is_empty()).await;
    let Some(stuck) = reports.stuck.values().next() else {
        panic!("{:?}", reports.stuck);
    };
    assert_eq!(
        (stuck.attempt, &*stuck.message),
        (1, "1 nodes are left, fewer than 2")
    );
}

/// In a cluster the planner ends such an attempt and the kubelets its pods.
#[tokio::test]
async fn without_a_cluster_all_learn_that_nobody_has_a_result_any_more_also_who_comes_later() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let shutdown = CancellationToken::new();
    let served = standalone::serve_one(listener, shrinking(), metrics, shutdown.clone());
    let task = tokio::spawn(served);
    begun_at(address, 3).await;
    // All three sidecars are killed after one process got an outcome, and have no memory when they
    // come back.
    let mut sidecars = Vec::new();
    for (rank, answered, reached) in [(0, 1, [1, 2]), (1, 0, [0, 2]), (2, 0, [0, 1])] {
        let mut sidecar = Sidecar::hello(address, rank, None).await;
        sidecar.receives_revoke().await;
        let report = vec![GroupReport::of_delivered(WORLD, &[answered])];
        sidecar.stopped_with(&report, &reached).await;
        sidecars.push(sidecar);
    }
    let lost = "the result of operation 0 was lost with those who had it";
    let is_lost = |received: &Option<ToSidecar>| matches!(received, Some(ToSidecar::Refused { reason, void: true }) if reason == lost);
    for sidecar in &mut sidecars {
        let mut received = sidecar.receive().await;
        // Said again for each of them that had forgotten.
        while matches!(received, Some(ToSidecar::Revoke { epoch: 1, .. })) {
            received = sidecar.receive().await;
        }
        assert!(is_lost(&received), "{received:?}");
    }
    let mut late = Sidecar::hello(address, 1, None).await;
    assert!(is_lost(&late.receive().await));
    shutdown.cancel();
    task.await.unwrap();
}

/// What a node says of one group, and so many groups that one more would not fit the frame.
fn longest() -> EpochReport {
    let held = |op| Retained {
        op,
        epoch: u32::MAX,
        call: Call {
            kind: OpKind::AllReduce {
                op: ReduceOp::PremulSum(Factor::new(0.625)),
            },
            dtype: DType::Bf16,
            count: u64::MAX,
            tag: u64::MAX,
            numerics: Numerics::Precise,
        },
        bytes: u64::MAX,
        complete: true,
        verdict: None,
    };
    let first = u64::MAX / 2;
    let group = |group| GroupReport {
        group,
        delivered_to_all: first + MAX_RETAINED,
        delivered_to_any: first + MAX_RETAINED,
        retained: (0..MAX_RETAINED).map(|op| held(first + op)).collect(),
        refused: None,
    };
    let length = |report: &EpochReport| serde_json::to_vec(report).unwrap().len();
    let mut report = vec![group(0)];
    let of_one = length(&report);
    // Beside the report a frame names whom the node reaches: 28 of 4,096.
    let room = FRAME_LIMIT_BYTES - 1024;
    while length(&report) + of_one <= room {
        report.push(group(report.len() as u64));
    }
    report
}

#[tokio::test]
async fn the_longest_report_is_read() {
    let running = start_with(shrinking(), Role::Leading, None).await;
    let mut sidecars = begun(&running).await;
    running.gone.send_replace(gone(&[1]));
    let report = longest();
    assert!(report.len() > 2, "{} groups", report.len());
    sidecars.remove(1);
    for (sidecar, other) in sidecars.iter_mut().zip([2, 0]) {
        sidecar.receives_revoke().await;
        sidecar.stopped_with(&report, &[other]).await;
    }
    for sidecar in &mut sidecars {
        assert_eq!(sidecar.next().await, [0, 2]);
    }
}

#[tokio::test]
async fn more_large_reports_than_there_is_room_for_are_all_read() {
    let ranks = 1..=10u32; // Of 1 MiB each; a gang has room for eight.
    let running = start_with(shrinking_of(11), Role::Leading, None).await;
    let mut sidecars = begun(&running).await;
    running.gone.send_replace(gone(&[0]));
    sidecars.remove(0);
    for sidecar in &mut sidecars {
        sidecar.receives_revoke().await;
    }
    let all: Vec<u32> = ranks.collect();
    let (head, tail) = (
        r#"{"kind":"stopped","epoch":1,"report":["#,
        format!(r#"],"reached":{all:?},"unreached":[]}}"#),
    );
    let padding = " ".repeat(FRAME_LIMIT_BYTES - head.len() - tail.len());
    let mut frame = u32::try_from(FRAME_LIMIT_BYTES)
        .unwrap()
        .to_le_bytes()
        .to_vec();
    for part in [head, &padding, &tail] {
        frame.extend(part.as_bytes());
    }
    let said = sidecars
        .iter_mut()
        .map(|sidecar| sidecar.stream.write_all(&frame));
    for said in futures::future::join_all(said).await {
        said.unwrap();
    }
    for sidecar in &mut sidecars {
        assert_eq!(sidecar.next().await, all);
    }
}
