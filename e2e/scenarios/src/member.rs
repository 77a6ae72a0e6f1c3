//! Plays the sidecars of pods on simulated nodes: joins each gang at the real rendezvous service,
//! reports progress and checkpoints, and ends the pod well when its time is over. The kubelet's part
//! is played by kwok.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cluster::Cluster;
use collective::membership::Progress;
use collective::membership::encoding::{Decoder, Features, ToOperator, ToSidecar, encode};
use contract::CheckpointRef;
use contract::identity::{Identity, JobId, Party};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::watcher::{self, Event};
use kube::{Client, ResourceExt as _};
use link::handshake::{CHALLENGE_BYTES, Initiator, Key, NONCE_BYTES};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::context::leader;
use crate::scenario::scale::RUN_SECONDS;

/// Pause before a lost rendezvous is dialled again.
const REDIAL: Duration = Duration::from_millis(300);
/// Port that is announced to peers; nobody dials it.
const DATA_PORT: u16 = 9500;

/// The process that plays the members, beside the control plane: pods are reached from there.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts it.
    pub fn start(cluster: &Cluster) -> Result<Self> {
        let log = cluster.logs().join("members.log");
        let log = File::create(&log).context("failed to create the log of the members")?;
        let mut command = cluster.in_control_plane(&std::env::current_exe()?)?;
        command
            .arg("members")
            .arg(cluster.control_plane_kubeconfig())
            .stdin(Stdio::piped())
            .stderr(log.try_clone()?)
            .stdout(log);
        Ok(Self(
            command.spawn().context("failed to start the members")?,
        ))
    }

    /// Ends it.
    pub fn stop(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        self.0.wait().context("failed to wait for the members")?;
        Ok(())
    }
}

/// Serves until the watch ends for good.
pub async fn serve(client: Client) -> Result<()> {
    let system: Api<Secret> = Api::namespaced(client.clone(), crds::names::SYSTEM_NAMESPACE);
    let secret = system
        .get("fireflyer-master")
        .await
        .context("the operator has no master key")?;
    let master = secret.data.and_then(|mut data| data.remove("key"));
    let master: Arc<[u8]> = master
        .context("the master key's Secret has no `key`")?
        .0
        .into();

    let mut members: BTreeMap<String, JoinHandle<()>> = BTreeMap::new();
    let pods: Api<Pod> = Api::all(client.clone());
    let config = watcher::Config::default().labels(crds::names::LABEL_JOB);
    let mut events = std::pin::pin!(watcher::watcher(pods, config));
    while let Some(event) = events.try_next().await? {
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => {
                let Some(uid) = pod.uid() else { continue };
                let Some(member) = Member::of(&pod, &master) else {
                    continue;
                };
                let client = client.clone();
                members.entry(uid).or_insert_with(|| {
                    tokio::spawn(async move {
                        if let Err(error) = member.live(client).await {
                            eprintln!("member {}: {error:#}", member.pod);
                        }
                    })
                });
            }
            Event::Delete(pod) => {
                if let Some(task) = pod.uid().and_then(|uid| members.remove(&uid)) {
                    task.abort();
                }
            }
            Event::Init | Event::InitDone => {}
        }
    }
    Ok(())
}

/// One simulated sidecar and its trainer.
struct Member {
    namespace: String,
    pod: String,
    identity: Identity,
    key: Key,
    address: IpAddr,
    attempt: u32,
    rank: u32,
    run: Duration,
}

impl Member {
    /// The member of a pod that runs and is simulated; none for any other pod.
    fn of(pod: &Pod, master: &[u8]) -> Option<Self> {
        let run = pod.annotations().get(RUN_SECONDS)?.parse().ok()?;
        let status = pod.status.as_ref()?;
        if status.phase.as_deref() != Some("Running") {
            return None;
        }
        let label = |name: &str| pod.labels().get(name)?.parse::<u32>().ok();
        let attempt = label(crds::names::LABEL_ATTEMPT)?;
        let rank = label(crds::names::LABEL_RANK)?;
        let uid = &pod.owner_references().first()?.uid;
        Some(Self {
            namespace: pod.namespace()?,
            pod: pod.name_any(),
            identity: Identity {
                job: JobId::new(uid),
                attempt,
                party: Party::Sidecar { rank },
            },
            key: Key::derive(master, uid, attempt),
            address: status.pod_ip.as_ref()?.parse().ok()?,
            attempt,
            rank,
            run: Duration::from_secs(run),
        })
    }

    async fn live(&self, client: Client) -> Result<()> {
        let mut started: Option<Started> = None;
        let mut redirected = None;
        loop {
            let ended = match redirected.take() {
                Some(address) => self.attend(address, &mut started).await,
                None => match rendezvous(&client).await {
                    Ok(address) => self.attend(address, &mut started).await,
                    Err(error) => Err(error),
                },
            };
            match ended {
                Ok(Ended::Redirected(address)) => {
                    redirected = Some(address);
                    continue;
                }
                Ok(Ended::TimeIsOver) => return self.end_well(client).await,
                Ok(Ended::Refused(reason)) => bail!("refused: {reason}"),
                // The operator is being replaced, or the member was early: dial again.
                Err(_) => {}
            }
            tokio::time::sleep(REDIAL).await;
        }
    }

    /// One connection to the rendezvous service, until it ends or the time is over.
    async fn attend(&self, target: SocketAddr, started: &mut Option<Started>) -> Result<Ended> {
        let mut stream = TcpStream::connect(target).await?;
        self.shake_hands(&mut stream).await?;
        let hello = ToOperator::Hello {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            address: self.address,
            port: DATA_PORT,
            joined_epoch: started.map(|started| started.epoch),
            features: Features::OURS.list(),
        };
        stream.write_all(&encode(&hello)?).await?;
        let mut decoder = Decoder::<ToSidecar>::default();
        let mut buffer = vec![0; 16 << 10];
        let mut heartbeat = tokio::time::interval(Duration::from_secs(
            collective::membership::encoding::HEARTBEAT_SECONDS,
        ));
        let mut step = 0;
        loop {
            tokio::select! {
                read = stream.read(&mut buffer) => {
                    let read = read?;
                    if read == 0 {
                        bail!("the operator closed the connection");
                    }
                    decoder.push(&buffer[..read]);
                    while let Some(message) = decoder.next()? {
                        match message {
                            ToSidecar::Redirect { address } => {
                                return Ok(Ended::Redirected(address));
                            }
                            ToSidecar::Retry { reason } => bail!("has to dial again: {reason}"),
                            ToSidecar::Refused { reason, .. } => return Ok(Ended::Refused(reason)),
                            ToSidecar::Roster { epoch, .. } => {
                                stream.write_all(&encode(&ToOperator::Joined { epoch })?).await?;
                            }
                            // Said to attempts that go on without lost nodes; these restart.
                            ToSidecar::Revoke { .. } | ToSidecar::Next { .. } => {}
                            // It has no ranks.
                            ToSidecar::Stacks { .. } => {}
                            ToSidecar::Go { epoch } => {
                                let at = started.map_or_else(Instant::now, |started| started.at);
                                *started = Some(Started { epoch, at });
                            }
                        }
                    }
                }
                _ = heartbeat.tick() => {
                    step += 1;
                    let progress = (self.rank == 0 && started.is_some()).then(|| self.progress(step));
                    stream.write_all(&encode(&ToOperator::Heartbeat { progress, operations: None })?).await?;
                    if started.is_some_and(|started| started.at.elapsed() >= self.run) {
                        stream.write_all(&encode(&ToOperator::Leaving)?).await?;
                        return Ok(Ended::TimeIsOver);
                    }
                }
            }
        }
    }

    async fn shake_hands(&self, stream: &mut TcpStream) -> Result<()> {
        let mut nonce = [0; NONCE_BYTES];
        // The process and the moment: unique on this machine, which is all a simulation needs.
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)?
            .as_nanos();
        nonce[..16].copy_from_slice(&now.to_le_bytes());
        nonce[16..20].copy_from_slice(&std::process::id().to_le_bytes());
        nonce[20..24].copy_from_slice(&self.rank.to_le_bytes());
        let (initiator, hello) = Initiator::new(self.key.clone(), self.identity, nonce);
        stream.write_all(&hello).await?;
        let mut challenge = [0; CHALLENGE_BYTES];
        stream.read_exact(&mut challenge).await?;
        let (peer, proof) = initiator.finish(&challenge)?;
        ensure!(
            peer.party == Party::Operator,
            "{peer} answers in the operator's place"
        );
        stream.write_all(&proof).await?;
        Ok(())
    }

    /// A checkpoint at every tenth step, as a trainer that saves often.
    fn progress(&self, step: u64) -> Progress {
        let saved = step / 10 * 10;
        let checkpoint = (saved > 0).then(|| CheckpointRef {
            attempt: self.attempt,
            step: saved,
            digest: format!("sha256:{saved:064x}"),
        });
        Progress {
            step,
            loss: Some(1.0 / step as f64),
            checkpoint,
            passed_over: None,
        }
    }

    /// What the kubelet reports when the trainer's launcher ended well.
    async fn end_well(&self, client: Client) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(client, &self.namespace);
        let ended = json!({"terminated": {
            "exitCode": 0,
            "reason": "Completed",
            "message": json!({"outcome": "Succeeded"}).to_string(),
        }});
        let patch = json!({"status": {
            "phase": "Succeeded",
            "containerStatuses": [{
                "name": crds::names::CONTAINER_TRAINER,
                "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": ended,
            }],
        }});
        pods.patch_status(&self.pod, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .context("failed to end the pod")?;
        Ok(())
    }
}

/// Where the leader serves. Sidecars reach it through a Service; simulated nodes have none.
async fn rendezvous(client: &Client) -> Result<SocketAddr> {
    let (_, address) = leader(client).await?;
    let address: IpAddr = address.parse().context("the leader's address is none")?;
    Ok(SocketAddr::new(
        address,
        collective::membership::encoding::PORT,
    ))
}

/// The trainer runs since then.
#[derive(Clone, Copy)]
struct Started {
    epoch: u64,
    at: Instant,
}

enum Ended {
    Redirected(SocketAddr),
    Refused(String),
    TimeIsOver,
}
