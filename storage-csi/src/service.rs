//! The process of a storage service: finds out what is at its paths, asks the chain manager what to do with it, serves.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use chain_link::{ChainMap, PeerRole};
use craq::TargetId;
use storage::disk::{DiskFound, EmptyDisk, TargetDisk, look};
use storage::{ServiceOptions, ServiceTarget, StorageService, TargetStatus};
use storage_rpc::pb::manager::chain_manager_client::ChainManagerClient;
use storage_rpc::pb::manager::path_answer::Action;
use storage_rpc::pb::manager::{
    PathAnswer, RegisterRequest, RegisterResponse, RegisteredPath, ReportRequest, TargetReport,
};
use storage_rpc::{target_bytes, target_from};
use tokio::sync::Notify;
use tonic::Code;
use tonic::transport::Channel;
use tracing::{error, info, warn};

use crate::args::ServiceArgs;
use crate::client::{manager_of, until_answered};
use crate::follow::follow;
use crate::metrics::ServiceMetrics;
use crate::run::Process;

/// Codes of a registration that would be refused again.
const REFUSALS: [Code; 2] = [Code::InvalidArgument, Code::FailedPrecondition];
/// How long after a registration the next one may be made.
const PAUSE: Duration = Duration::from_millis(500);
/// How often the manager gets a report.
const REPORT: Duration = Duration::from_secs(3);

/// What is at a path.
enum AtPath {
    Empty(EmptyDisk),
    Target(TargetDisk),
    /// It cannot be used now.
    Nothing,
}

/// A path and what is there.
struct ServicePath {
    path: PathBuf,
    at: AtPath,
}

pub(crate) async fn run(
    args: ServiceArgs,
    process: Process,
    metrics: &ServiceMetrics,
) -> anyhow::Result<()> {
    let file_system = args.file_system.read_as_member()?;
    let manager = manager_of(&file_system, &args.manager, PeerRole::Service)?;
    let listen = |port| bind(args.address, port);
    let (members, clients) = (listen(args.member_port)?, listen(args.client_port)?);
    let registered = process.readiness.gate("registered");
    let life = life()?;
    let mut paths: Vec<ServicePath> = args.paths.iter().map(|path| at_path(path)).collect();
    let mut registration = Registration {
        manager: manager.clone(),
        request: RegisterRequest {
            node: args.node_name.clone(),
            life,
            member_address: members.local_addr()?.to_string(),
            client_address: clients.local_addr()?.to_string(),
            paths: Vec::new(),
        },
    };
    let enrolled = registration.register(&mut paths, args.target_bytes);
    let number = tokio::select! {
        number = enrolled => number?,
        () = process.shutdown.cancelled() => return Ok(()),
    };
    let asked = paths.len();
    let disks = paths.into_iter().filter_map(|path| match path.at {
        AtPath::Target(disk) => Some(disk),
        AtPath::Empty(_) | AtPath::Nothing => None,
    });
    let disks: Vec<TargetDisk> = disks.collect();
    let serves_all = disks.len() == asked;
    let targets: BTreeSet<TargetId> = disks.iter().map(|disk| TargetId(disk.uuid())).collect();
    let disks = disks.into_iter().map(|disk| ServiceTarget { disk, life });
    let options = ServiceOptions {
        file_system: file_system.uuid,
        number,
        members: (
            members,
            file_system.key(PeerRole::Service, PeerRole::Service)?,
        ),
        clients: (
            clients,
            file_system.key(PeerRole::Service, PeerRole::Client)?,
        ),
        chunk_bytes: args.data.chunk_bytes,
        traffic_class: args.data.traffic_class,
    };
    let service = StorageService::start(options, disks.collect())?;
    registered.open();
    info!(service = number, "serving");
    let complete = process.readiness.gate("chains complete");
    let (stale, news) = (Notify::new(), Notify::new());
    let take = |map: Arc<ChainMap>| {
        if has_other_life(&map, &targets, life) {
            stale.notify_one();
        }
        service.follow(map);
        news.notify_one();
    };
    let look = || {
        let status = service.status();
        let all = |of: &TargetStatus| of.failed.is_none() && of.complete_chains == of.chains;
        // The chains of a path that is no target here are not complete either.
        match serves_all && status.iter().all(all) {
            true => complete.open(),
            false => complete.close(),
        }
        status.iter().for_each(|of| metrics.show(of));
        status
    };
    tokio::select! {
        () = follow(manager.clone(), number, take) => {}
        () = report(manager, number, look, &news) => {}
        result = registration.again_whenever(&stale) => result?,
        () = process.shutdown.cancelled() => {}
    }
    Ok(())
}

fn bind(address: IpAddr, port: u16) -> anyhow::Result<TcpListener> {
    let address = SocketAddr::new(address, port);
    TcpListener::bind(address).with_context(|| format!("failed to listen on {address}"))
}

/// A number that no start before had.
fn life() -> anyhow::Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).context("failed to draw a random number")?;
    Ok(u64::from_le_bytes(bytes).max(1))
}

fn at_path(path: &Path) -> ServicePath {
    let at = match look(path) {
        Ok(DiskFound::Empty(empty)) => AtPath::Empty(empty),
        Ok(DiskFound::Target(disk)) => AtPath::Target(disk),
        Err(error) => {
            error!(error = daemon::chain(&error), "a target is offline");
            AtPath::Nothing
        }
    };
    let path = path.to_owned();
    ServicePath { path, at }
}

/// Whether a map has a target of this service as another start of it brought it.
fn has_other_life(map: &ChainMap, targets: &BTreeSet<TargetId>, life: u64) -> bool {
    let chains = map.chains.values();
    let mut members = chains.flat_map(|chain| &chain.table.members);
    members.any(|member| targets.contains(&member.target) && member.life != life)
}

/// What the manager is asked.
struct Registration {
    manager: ChainManagerClient<Channel>,
    request: RegisterRequest,
}

impl Registration {
    /// Until all paths are served or left alone. Answers the service's number.
    async fn register(
        &mut self,
        paths: &mut [ServicePath],
        bytes: Option<u64>,
    ) -> anyhow::Result<u32> {
        loop {
            let asked: Vec<usize> = (0..paths.len())
                .filter(|at| !matches!(paths[*at].at, AtPath::Nothing))
                .collect();
            ensure!(
                !asked.is_empty(),
                "failed to serve: none of the paths is a target or can become one"
            );
            self.request.paths = asked.iter().map(|at| registered(&paths[*at])).collect();
            let RegisterResponse {
                service,
                paths: answers,
            } = self.ask().await?;
            ensure!(
                answers.len() == asked.len(),
                "failed to register: the chain manager answered {} of {} paths",
                answers.len(),
                asked.len()
            );
            let mut formatted = false;
            for (at, answer) in asked.into_iter().zip(answers) {
                formatted |= follow_answer(&mut paths[at], answer, bytes)?;
            }
            if !formatted {
                return Ok(service);
            }
        }
    }

    /// Registers again when the table has another life of a target: a registration of an earlier start may come late.
    async fn again_whenever(&mut self, stale: &Notify) -> anyhow::Result<()> {
        loop {
            stale.notified().await;
            warn!("the chain table has an earlier start of this service: registers again");
            self.ask().await?;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn ask(&mut self) -> anyhow::Result<RegisterResponse> {
        let Self { manager, request } = self;
        let ask = async || manager.register(request.clone()).await;
        let answer = until_answered(ask, &REFUSALS).await;
        answer.map_err(|status| anyhow!("failed to register: {}", status.message()))
    }
}

fn registered(path: &ServicePath) -> RegisteredPath {
    RegisteredPath {
        path: path.path.display().to_string(),
        target: match &path.at {
            AtPath::Target(disk) => target_bytes(TargetId(disk.uuid())),
            AtPath::Empty(_) | AtPath::Nothing => Vec::new(),
        },
    }
}

/// Does what the manager says. Whether the path was formatted.
fn follow_answer(
    of: &mut ServicePath,
    answer: PathAnswer,
    bytes: Option<u64>,
) -> anyhow::Result<bool> {
    let path = of.path.display().to_string();
    let at = std::mem::replace(&mut of.at, AtPath::Nothing);
    match (answer.action(), at) {
        (Action::Serve, AtPath::Target(disk)) => of.at = AtPath::Target(disk),
        (Action::Format, AtPath::Empty(empty)) => {
            let target = target_from(&answer.target)?;
            info!(path, target = %format!("{:032x}", target.0), "formats an empty path");
            of.at = AtPath::Target(empty.format(target.0, bytes)?);
            return Ok(true);
        }
        (Action::Offline, _) => error!(path, why = answer.why, "a target is offline"),
        (action, _) => bail!(
            "failed to register {path}: the chain manager says {action:?}, which fits nothing there"
        ),
    }
    Ok(false)
}

/// Looks at the targets when there is a map, at each new one and now and then, and says how they are.
async fn report(
    mut manager: ChainManagerClient<Channel>,
    number: u32,
    look: impl Fn() -> Vec<TargetStatus>,
    news: &Notify,
) {
    // Before the first map nobody knows which chains there are.
    news.notified().await;
    loop {
        let targets = look().into_iter().map(|of| TargetReport {
            target: target_bytes(of.target),
            capacity_bytes: of.capacity_bytes,
            used_bytes: of.used_bytes,
            offline: of.failed.unwrap_or_default(),
        });
        let request = ReportRequest {
            service: number,
            targets: targets.collect(),
        };
        // The next one comes soon.
        manager.report(request).await.ok();
        tokio::time::timeout(REPORT, news.notified()).await.ok();
    }
}
