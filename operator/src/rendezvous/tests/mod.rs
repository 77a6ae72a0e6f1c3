//! The rendezvous service over loopback, with clients that speak as sidecars do.

mod damaged;
mod limits;
mod shrink;
mod stalled;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Mutex;
use std::time::Duration;

use collective::membership::Progress;
use collective::membership::RecoveryPolicy;
use collective::membership::SuspicionReason;
use collective::membership::encoding::{Decoder, Features, ToOperator, ToSidecar, encode};
use contract::CheckpointRef;
use contract::identity::{Identity, JobId, Party};
use daemon::Registry;
use link::handshake::{CHALLENGE_BYTES, Initiator, KEY_BYTES, Key, NONCE_BYTES};
use scheduler::JobKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::standalone::OneGang;
use super::*;
use crate::training_job::observe::Reports;

const UID: &str = "u-1";
const KEY: [u8; KEY_BYTES] = [7; KEY_BYTES];
const DEADLINE: Duration = Duration::from_secs(10);

/// A directory whose gang may be replaced while the service runs.
struct Changing(Mutex<OneGang>);

impl Directory for Changing {
    fn key(&self, job: JobId, attempt: u32) -> Option<Key> {
        self.0.lock().ok()?.key(job, attempt)
    }

    fn gang(&self, job: JobId, attempt: u32) -> Result<Arc<Gang>, GangRefusal> {
        let gangs = self
            .0
            .lock()
            .map_err(|error| GangRefusal::now(error.to_string()))?;
        gangs.gang(job, attempt)
    }
}

fn gang(attempt: u32, nodes: usize) -> OneGang {
    let job = JobKey {
        kind: scheduler::JobKind::TrainingJob,
        namespace: "team".into(),
        name: "digits".into(),
        uid: UID.into(),
    };
    let nodes = (0..nodes).map(|node| format!("n{node}").into()).collect();
    OneGang {
        gang: Arc::new(Gang {
            job,
            attempt,
            nodes,
            policy: RecoveryPolicy::default(),
        }),
        key: Key::new(KEY),
    }
}

struct Running {
    address: SocketAddr,
    directory: Arc<Changing>,
    role: watch::Sender<Role>,
    reports: watch::Receiver<Reports>,
    gone: watch::Sender<Vec<scheduler::Gone>>,
    stalled: watch::Sender<Vec<scheduler::Stalled>>,
    metrics: Metrics,
    shutdown: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

async fn start(role: Role, address: Option<SocketAddr>) -> Running {
    start_with(gang(1, 2), role, address).await
}

async fn start_with(gang: OneGang, role: Role, address: Option<SocketAddr>) -> Running {
    start_over(Arc::new(InMemory::default()), gang, role, address).await
}

async fn start_over(
    store: Arc<dyn CommitStore>,
    gang: OneGang,
    role: Role,
    address: Option<SocketAddr>,
) -> Running {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = TcpListener::bind(address.unwrap_or(any)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let directory = Arc::new(Changing(Mutex::new(gang)));
    let (role, role_receiver) = watch::channel(role);
    let (reports_sender, reports) = watch::channel(Reports::default());
    let (gone_sender, gone) = watch::channel(Vec::new());
    let (stalled_sender, stalled) = watch::channel(Vec::new());
    let metrics = Metrics::new(&Registry::new("0").unwrap()).unwrap();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(serve(
        listener,
        Arc::clone(&directory) as Arc<dyn Directory>,
        store,
        role_receiver,
        Planner {
            reports: reports_sender,
            gone,
            stalled,
        },
        metrics.clone(),
        shutdown.clone(),
    ));
    Running {
        address,
        directory,
        role,
        reports,
        gone: gone_sender,
        stalled: stalled_sender,
        metrics,
        shutdown,
        task,
    }
}

/// What a sidecar does on its control stream.
struct Sidecar {
    stream: TcpStream,
    decoder: Decoder<ToSidecar>,
}

impl Sidecar {
    async fn dial(
        address: SocketAddr,
        rank: u32,
        attempt: u32,
        key: [u8; KEY_BYTES],
    ) -> Option<Self> {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let identity = Identity {
            job: JobId::new(UID),
            attempt,
            party: Party::Sidecar { rank },
        };
        let nonce = [u8::try_from(rank).unwrap(); NONCE_BYTES];
        let (initiator, hello) = Initiator::new(Key::new(key), identity, nonce);
        stream.write_all(&hello).await.unwrap();
        let mut challenge = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut challenge).await.ok()?;
        let (_operator, proof) = initiator.finish(&challenge).ok()?;
        stream.write_all(&proof).await.unwrap();
        Some(Self {
            stream,
            decoder: Decoder::default(),
        })
    }

    /// Dials as `rank` of attempt 1 and says hello.
    async fn hello(address: SocketAddr, rank: u32, joined_epoch: Option<u64>) -> Self {
        let mut sidecar = Self::dial(address, rank, 1, KEY).await.unwrap();
        sidecar.say_hello(rank, joined_epoch).await;
        sidecar
    }

    async fn say_hello(&mut self, rank: u32, joined_epoch: Option<u64>) {
        let last = u8::try_from(rank).unwrap() + 1;
        let address = IpAddr::from([10, 0, 0, last]);
        let version = "test".to_owned();
        self.say(&ToOperator::Hello {
            version,
            address,
            port: 9404,
            joined_epoch,
            features: Features::OURS.list(),
        })
        .await;
    }

    async fn say(&mut self, message: &ToOperator) {
        self.stream
            .write_all(&encode(message).unwrap())
            .await
            .unwrap();
    }

    /// The next message; none when the service closed the connection.
    async fn receive(&mut self) -> Option<ToSidecar> {
        let received = async {
            loop {
                if let Some(message) = self.decoder.next().unwrap() {
                    return Some(message);
                }
                let mut buffer = [0; 4096];
                match self.stream.read(&mut buffer).await {
                    Ok(read @ 1..) => self.decoder.push(&buffer[..read]),
                    Ok(0) | Err(_) => return None,
                }
            }
        };
        tokio::time::timeout(DEADLINE, received).await.unwrap()
    }
}

async fn until(
    reports: &mut watch::Receiver<Reports>,
    holds: impl FnMut(&Reports) -> bool,
) -> Reports {
    tokio::time::timeout(DEADLINE, reports.wait_for(holds))
        .await
        .unwrap()
        .unwrap()
        .clone()
}

/// The checkpoint of the only gang.
fn newest(reports: &Reports) -> scheduler::CheckpointReport {
    reports.checkpoints.values().next().unwrap().clone()
}

/// Two sidecars of a service that is leading, both joined and going.
async fn going(address: SocketAddr) -> [Sidecar; 2] {
    let mut sidecars = [
        Sidecar::hello(address, 0, None).await,
        Sidecar::hello(address, 1, None).await,
    ];
    for sidecar in &mut sidecars {
        let Some(ToSidecar::Roster { epoch: 1, nodes }) = sidecar.receive().await else {
            panic!("no roster");
        };
        let addresses: Vec<_> = nodes
            .iter()
            .map(|peer| (peer.rank, peer.address.to_string()))
            .collect();
        assert_eq!(
            addresses,
            [(0, "10.0.0.1".to_owned()), (1, "10.0.0.2".to_owned())]
        );
    }
    for sidecar in &mut sidecars {
        sidecar.say(&ToOperator::Joined { epoch: 1 }).await;
    }
    for sidecar in &mut sidecars {
        assert_eq!(sidecar.receive().await, Some(ToSidecar::Go { epoch: 1 }));
    }
    sidecars
}

// GANG-2: the trainer's startup waits for this go.
#[tokio::test]
async fn nobody_goes_before_everybody_has_joined() {
    let running = start(Role::Leading, None).await;
    let mut first = Sidecar::hello(running.address, 0, None).await;
    let mut second = Sidecar::hello(running.address, 1, None).await;
    assert!(matches!(
        first.receive().await,
        Some(ToSidecar::Roster { .. })
    ));
    assert!(matches!(
        second.receive().await,
        Some(ToSidecar::Roster { .. })
    ));
    first.say(&ToOperator::Joined { epoch: 1 }).await;
    let early = tokio::time::timeout(Duration::from_millis(200), first.receive()).await;
    assert!(early.is_err(), "{early:?}");
    second.say(&ToOperator::Joined { epoch: 1 }).await;
    assert_eq!(first.receive().await, Some(ToSidecar::Go { epoch: 1 }));
    assert_eq!(second.receive().await, Some(ToSidecar::Go { epoch: 1 }));
}

#[tokio::test]
async fn a_sidecar_that_restarts_before_the_start_delays_it_only_until_it_is_back() {
    let running = start(Role::Leading, None).await;
    let mut first = Sidecar::hello(running.address, 0, None).await;
    let mut second = Sidecar::hello(running.address, 1, None).await;
    for sidecar in [&mut first, &mut second] {
        let roster = sidecar.receive().await;
        assert!(matches!(roster, Some(ToSidecar::Roster { epoch: 1, .. })));
    }
    second.say(&ToOperator::Joined { epoch: 1 }).await;
    drop(second);
    let mut second = Sidecar::hello(running.address, 1, None).await;
    for sidecar in [&mut first, &mut second] {
        let roster = sidecar.receive().await;
        assert!(matches!(roster, Some(ToSidecar::Roster { epoch: 2, .. })));
        sidecar.say(&ToOperator::Joined { epoch: 2 }).await;
    }
    for sidecar in [&mut first, &mut second] {
        assert_eq!(sidecar.receive().await, Some(ToSidecar::Go { epoch: 2 }));
    }
}

#[tokio::test]
async fn a_wrong_key_learns_nothing() {
    let running = start(Role::Leading, None).await;
    // The service proves itself first, so the sidecar with the wrong key notices.
    assert!(
        Sidecar::dial(running.address, 0, 1, [8; KEY_BYTES])
            .await
            .is_none()
    );
}

#[tokio::test]
async fn a_stale_attempt_is_refused_with_the_reason() {
    let running = start(Role::Leading, None).await;
    let mut stale = Sidecar::dial(running.address, 0, 9, KEY).await.unwrap();
    let Some(ToSidecar::Refused { reason, void }) = stale.receive().await else {
        panic!("not refused")
    };
    assert!(reason.contains("attempt 9") && !void, "{reason}");
    assert_eq!(stale.receive().await, None);
}

#[tokio::test]
async fn a_connected_sidecar_learns_that_its_attempt_is_void() {
    let running = start(Role::Leading, None).await;
    let sidecars = going(running.address).await;
    *running.directory.0.lock().unwrap() = gang(2, 2);
    for mut sidecar in sidecars {
        let answered = sidecar.receive().await;
        assert!(
            matches!(answered, Some(ToSidecar::Refused { void: true, .. })),
            "{answered:?}"
        );
        assert_eq!(sidecar.receive().await, None);
    }
}

#[tokio::test]
async fn a_standby_sends_sidecars_to_the_leader() {
    let leader: SocketAddr = "10.0.0.9:9443".parse().unwrap();
    let running = start(
        Role::Standby {
            leader: Some(leader),
        },
        None,
    )
    .await;
    let mut sidecar = Sidecar::dial(running.address, 0, 1, KEY).await.unwrap();
    assert_eq!(
        sidecar.receive().await,
        Some(ToSidecar::Redirect { address: leader })
    );
    assert_eq!(sidecar.receive().await, None);
}

#[tokio::test]
async fn a_deposed_leader_lets_its_sidecars_go() {
    let running = start(Role::Leading, None).await;
    let [mut first, _second] = going(running.address).await;
    running.role.send_replace(Role::Standby { leader: None });
    assert_eq!(first.receive().await, None);
}

#[tokio::test]
async fn a_leader_that_leads_again_starts_with_an_empty_memory() {
    let mut running = start(Role::Leading, None).await;
    // Half of a gang said hello, then somebody else led and the whole gang joined there.
    let mut early = Sidecar::hello(running.address, 0, None).await;
    running.role.send_replace(Role::Standby { leader: None });
    assert_eq!(early.receive().await, None);
    running.role.send_replace(Role::Leading);
    let mut second = Sidecar::hello(running.address, 1, Some(1)).await;
    let mut first = Sidecar::hello(running.address, 0, Some(1)).await;
    for sidecar in [&mut first, &mut second] {
        assert_eq!(sidecar.receive().await, Some(ToSidecar::Go { epoch: 1 }));
    }
    // What the gang says of itself is handled.
    first
        .say(&ToOperator::Suspect {
            epoch: 1,
            rank: 1,
            reason: SuspicionReason::Dead,
            detail: "its link closed".to_owned(),
        })
        .await;
    until(&mut running.reports, |reports| !reports.suspects.is_empty()).await;
}

#[tokio::test]
async fn after_a_restart_sidecars_dial_again_and_go_on() {
    let running = start(Role::Leading, None).await;
    let [mut first, _second] = going(running.address).await;
    running.shutdown.cancel();
    assert_eq!(first.receive().await, None);
    running.task.await.unwrap();

    let again = start(Role::Leading, Some(running.address)).await;
    let mut first = Sidecar::hello(again.address, 0, Some(1)).await;
    let mut second = Sidecar::hello(again.address, 1, Some(1)).await;
    assert_eq!(second.receive().await, Some(ToSidecar::Go { epoch: 1 }));
    assert_eq!(first.receive().await, Some(ToSidecar::Go { epoch: 1 }));
}

#[tokio::test]
async fn checkpoints_and_suspects_reach_the_planner() {
    let mut running = start(Role::Leading, None).await;
    let [mut first, _second] = going(running.address).await;
    let checkpoint = CheckpointRef {
        attempt: 1,
        step: 120,
        digest: "ab".to_owned(),
    };
    let progress = Progress {
        step: 130,
        loss: Some(0.5),
        checkpoint: Some(checkpoint),
        passed_over: Some("resumed from attempt-1/step-120".to_owned()),
    };
    first
        .say(&ToOperator::Heartbeat {
            progress: Some(progress),
            operations: None,
        })
        .await;
    let reports = until(&mut running.reports, |reports| {
        !reports.checkpoints.is_empty()
    })
    .await;
    assert_eq!(newest(&reports).checkpoint.step, 120);
    assert_eq!(
        newest(&reports).passed_over.as_deref(),
        Some("resumed from attempt-1/step-120")
    );
    assert_eq!(&*newest(&reports).job.name, "digits");

    let (reason, detail) = (SuspicionReason::Dead, "its link closed".to_owned());
    first
        .say(&ToOperator::Suspect {
            epoch: 1,
            rank: 1,
            reason,
            detail,
        })
        .await;
    let reports = until(&mut running.reports, |reports| !reports.suspects.is_empty()).await;
    assert_eq!(
        reports
            .suspects
            .keys()
            .map(|node| node.as_str())
            .collect::<Vec<_>>(),
        ["n1"]
    );
}

#[tokio::test]
async fn a_node_that_is_alive_again_is_suspected_no_longer_than_its_time() {
    let mut running = start(Role::Leading, None).await;
    let [mut first, _second] = going(running.address).await;
    first
        .say(&ToOperator::Suspect {
            epoch: 1,
            rank: 1,
            reason: SuspicionReason::Frozen,
            detail: "silent for 2 s".to_owned(),
        })
        .await;
    let suspected = until(&mut running.reports, |reports| !reports.suspects.is_empty()).await;
    first
        .say(&ToOperator::Recovered { epoch: 1, rank: 1 })
        .await;
    // Suspicions run out by the clock, in milliseconds: one renewed from now on would end later.
    let noted = std::time::Instant::now();
    while noted.elapsed() < Duration::from_millis(5) {
        tokio::task::yield_now().await;
    }
    let checkpoint = CheckpointRef {
        attempt: 1,
        step: 120,
        digest: "ab".to_owned(),
    };
    first
        .say(&ToOperator::Heartbeat {
            progress: Some(Progress {
                step: 130,
                loss: None,
                checkpoint: Some(checkpoint),
                passed_over: None,
            }),
            operations: None,
        })
        .await;
    let later = until(&mut running.reports, |reports| {
        !reports.checkpoints.is_empty()
    })
    .await;
    assert_eq!(later.suspects, suspected.suspects);
}

#[tokio::test]
async fn a_sidecar_that_talks_nonsense_is_cut_off() {
    let running = start(Role::Leading, None).await;
    let mut sidecar = Sidecar::dial(running.address, 0, 1, KEY).await.unwrap();
    sidecar
        .stream
        .write_all(&u32::MAX.to_le_bytes())
        .await
        .unwrap();
    assert_eq!(sidecar.receive().await, None);
    *running.directory.0.lock().unwrap() = gang(2, 2);
    let mut stale = Sidecar::dial(running.address, 0, 1, KEY).await.unwrap();
    assert!(matches!(
        stale.receive().await,
        Some(ToSidecar::Refused { .. })
    ));
}

#[tokio::test]
async fn the_planner_learns_which_nodes_are_alive() {
    let names = |nodes: &std::collections::BTreeSet<topology::NodeName>| -> Vec<String> {
        nodes.iter().map(ToString::to_string).collect()
    };
    let mut running = start(Role::Leading, None).await;
    let [mut first, second] = going(running.address).await;
    let key = (gang(1, 2).gang.job.clone(), 1);
    until(&mut running.reports, |reports| {
        let gang = reports.gangs.get(&key);
        gang.is_some_and(|gang| names(&gang.alive) == ["n0", "n1"] && gang.quiet.is_empty())
    })
    .await;

    // Who is only frozen may come back; who is silent for long is given up.
    for (reason, given_up) in [(SuspicionReason::Frozen, 0), (SuspicionReason::Silent, 1)] {
        let detail = "no heartbeat from it".to_owned();
        let (epoch, rank) = (1, 1);
        first
            .say(&ToOperator::Suspect {
                epoch,
                rank,
                reason,
                detail,
            })
            .await;
        until(&mut running.reports, |reports| {
            let gang = &reports.gangs[&key];
            !reports.suspects.is_empty() && gang.given_up.len() == given_up
        })
        .await;
    }

    // It is quiet a while after its last heartbeat, and no longer alive.
    drop(second);
    let beating = tokio::spawn(async move {
        loop {
            first
                .say(&ToOperator::Heartbeat {
                    progress: None,
                    operations: None,
                })
                .await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    });
    let quiet = until(&mut running.reports, |reports| {
        names(&reports.gangs[&key].quiet) == ["n1"]
    })
    .await;
    assert_eq!(names(&quiet.gangs[&key].alive), ["n0"]);
    beating.abort();

    // An attempt that is over is forgotten.
    *running.directory.0.lock().unwrap() = self::gang(2, 2);
    until(&mut running.reports, |reports| reports.gangs.is_empty()).await;
}
