//! Starts and stops the operator's parts in order. Stopping interrupts no job: planning ends, the
//! Lease goes to another replica, and sidecars find it by dialling again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use daemon::endpoints::Endpoints;
use daemon::{CancellationToken, Readiness, Registry, Watchdog, chain};
use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tracing::{error, info, warn};

use crate::args::{Cli, Command, OperatorArgs, StandaloneArgs};
use crate::cluster::SharedCluster;
use crate::fence::WriteFence;
use crate::leader::{self, Elector, Role};
use crate::metrics::Metrics;
use crate::node_validation::policy::PolicyKeeper;
use crate::proof::Masters;
use crate::rendezvous::{self, ClusterDirectory};
use crate::storage::{self, SharedStorage, StorageController};
use crate::training_job::apply::{Applier, Templates};
use crate::training_job::observe::Reports;
use crate::training_job::pod::Settings;
use crate::training_job::reconcile::{Reconciler, STALLED};
use crate::training_job::translate::TaintRules;
use crate::training_job::write::{WritePurpose, Writer};
use crate::{bootstrap, fabric, watch as watches};

/// Port of health and metrics.
const METRICS_PORT: u16 = 9400;
/// Port of the rendezvous service.
const RENDEZVOUS_PORT: u16 = 9443;
/// How often the first listings are looked at.
const SYNC_PERIOD: Duration = Duration::from_millis(20);
/// Before another try to reach the API server at start.
const START_RETRY: Duration = Duration::from_secs(2);

/// Runs the command until the process is asked to stop.
///
/// Not async, so that the library instantiates the futures and `main` does not compile them again.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    let runtime = Runtime::new().context("failed to start the runtime")?;
    runtime.block_on(serve(cli))
}

async fn serve(cli: Cli) -> anyhow::Result<()> {
    let Cli {
        command,
        daemon,
        operator,
    } = cli;
    daemon::logs::init(&daemon)?;
    daemon::descriptors::raise_limit();
    let shutdown = daemon::shutdown::token().context("failed to listen for signals")?;
    let registry = Registry::new(env!("CARGO_PKG_VERSION"))?;
    let metrics = Metrics::new(&registry)?;
    let address = daemon.metrics_address(METRICS_PORT);
    let readiness = Readiness::default();
    let watchdog = Watchdog::new(STALLED);
    let endpoints = Endpoints::bind(address, registry, readiness.clone())
        .await?
        .with_watchdog(watchdog.clone());
    // Until the end of the process: a probe is answered also while the parts stop.
    let stopped = CancellationToken::new();
    let serving = tokio::spawn(endpoints.serve(stopped.clone()));
    let result = match command {
        None => operate(operator, &readiness, watchdog, metrics, shutdown).await,
        Some(Command::Rendezvous(args)) => standalone(&args, metrics, shutdown).await,
    };
    stopped.cancel();
    serving
        .await
        .context("failed to join the health endpoints")?;
    result
}

async fn standalone(
    args: &StandaloneArgs,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    info!(?args, "configuration");
    Ok(rendezvous::serve_standalone(args, metrics, shutdown).await?)
}

async fn operate(
    args: OperatorArgs,
    readiness: &Readiness,
    watchdog: Watchdog,
    metrics: Metrics,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    info!(version = env!("CARGO_PKG_VERSION"), ?args, "configuration");
    let rendezvous = args.rendezvous()?;
    let OperatorArgs {
        namespace,
        pod_name,
        pod_ip,
        rendezvous_service: _,
        rendezvous_service_host: _,
        rendezvous_service_port: _,
        rendezvous_listen,
        sidecar_image,
        validator_image,
        sidecar_pull_policy,
        pull_secrets,
        sidecar_numa,
        sidecar_env,
        default_fabric,
        dedicated_taints,
        leave_taints,
        storage,
    } = args;
    let taints = TaintRules {
        dedicated: dedicated_taints,
        leave: leave_taints,
    };
    let default_fabric = bootstrap::default_fabric(default_fabric.as_deref())?;
    let lists = readiness.gate("first lists");
    let rendezvous_listen = daemon::args::listen_address(rendezvous_listen, RENDEZVOUS_PORT);
    let listener = TcpListener::bind(rendezvous_listen)
        .await
        .with_context(|| format!("failed to listen on {rendezvous_listen}"))?;
    let config = Config::infer().await;
    let config = config.context("failed to find the API server")?;
    let client = Client::try_from(config.clone()).context("failed to set up the API client")?;
    // Of its own, with connections of its own: a renewal waits behind no other request.
    let leases = Client::try_from(config).context("failed to set up the client of the Lease")?;
    let writer = Writer::new(client.clone(), metrics.writes.clone());
    let Some(masters) = masters(&writer, &namespace, &shutdown).await? else {
        return Ok(());
    };

    let cluster = Arc::new(SharedCluster::default());
    let ages = metrics.watch_age.clone();
    let mut watching = watches::start(
        &client,
        &cluster,
        taints.clone(),
        Arc::clone(&masters),
        ages,
        &shutdown,
    );
    if !synced(&cluster, &shutdown).await {
        return Ok(());
    }
    lists.open();

    let (role_sender, role) = watch::channel(Role::Standby { leader: None });
    let (reports_sender, reports) = watch::channel(Reports::default());
    let (gone_sender, gone) = watch::channel(Vec::new());
    let (stalled_sender, stalled) = watch::channel(Vec::new());
    let settings = Settings {
        sidecar_image,
        validator_image,
        sidecar_pull_policy,
        pull_secrets,
        sidecar_numa,
        sidecar_env,
        rendezvous,
        taints: taints.clone(),
    };
    let fence = WriteFence::default();
    let applier = Arc::new(Applier {
        writer: writer.fenced(fence.clone()),
        cluster: Arc::clone(&cluster),
        settings,
        masters: Arc::clone(&masters),
        instance: pod_name.clone(),
        templates: Templates::default(),
    });
    let directory = ClusterDirectory::new(Arc::clone(&cluster), masters);
    let serving = tokio::spawn(rendezvous::serve(
        listener,
        Arc::new(directory),
        Arc::new(rendezvous::InStatus(Arc::clone(&applier))),
        role.clone(),
        rendezvous::Planner {
            reports: reports_sender,
            gone,
            stalled,
        },
        metrics.clone(),
        shutdown.clone(),
    ));
    let identity = leader::identity(&pod_name, pod_ip);
    let elector = Elector::new(leases, &namespace, identity, rendezvous_listen.port());
    let elector = elector.guarding(fence, Arc::clone(&cluster));
    let elector = elector.watched_by(watchdog.clone());
    let elected = CancellationToken::new();
    let electing = tokio::spawn(elector.run(role_sender, elected.clone()));

    let (writer, given) = (applier.writer.clone(), default_fabric.clone());
    let reconciler = Reconciler::new(
        Arc::clone(&cluster),
        applier,
        default_fabric,
        reports,
        gone_sender,
        stalled_sender,
        metrics.clone(),
    )
    .watched_by(watchdog);
    let seen = reconciler.seen();
    let keeper = PolicyKeeper {
        cluster: Arc::clone(&cluster),
        writer: writer.for_purpose(WritePurpose::Note),
        taints,
        instance: pod_name,
        metrics: metrics.clone(),
        waits: Mutex::default(),
    };
    let keeping = tokio::spawn(keeper.keep(seen.clone(), shutdown.clone()));
    // Jobs are planned whatever is wrong with storage.
    let manager = storage::channel(&storage).unwrap_or_else(|error| {
        error!(error = %chain(&error), "storage is off until the operator is restarted with what it lacks");
        None
    });
    let storing = match manager {
        Some(manager) => {
            let mirrors = Arc::new(SharedStorage::default());
            let watching = watches::start_storage(&client, &mirrors, &shutdown);
            let writer = writer.for_purpose(WritePurpose::Storage);
            let cluster = Arc::clone(&cluster);
            let controller = StorageController::new(mirrors, cluster, writer, manager);
            Some((
                watching,
                tokio::spawn(controller.run(role.clone(), shutdown.clone())),
            ))
        }
        None => None,
    };
    let reporting = tokio::spawn(fabric::report(
        cluster,
        writer,
        given,
        seen,
        shutdown.clone(),
    ));
    lead(reconciler, role, &metrics, &shutdown).await;

    // In this order: nothing is planned any more, so another replica may begin.
    elected.cancel();
    electing.await.context("failed to join the election")?;
    serving
        .await
        .context("failed to join the rendezvous service")?;
    reporting
        .await
        .context("failed to join the report on the Fabric")?;
    keeping
        .await
        .context("failed to join the keeper of validation policies")?;
    if let Some((mut watching, storing)) = storing {
        storing
            .await
            .context("failed to join the storage controller")?;
        watching.shutdown().await;
    }
    watching.shutdown().await;
    info!("stopped");
    Ok(())
}

/// Plans whenever this replica leads.
pub(crate) async fn lead(
    mut reconciler: Reconciler,
    mut role: watch::Receiver<Role>,
    metrics: &Metrics,
    shutdown: &CancellationToken,
) {
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            leads = role.wait_for(|role| *role == Role::Leading) => if leads.is_err() { return },
        }
        metrics.leader.set(1);
        let leading = shutdown.child_token();
        tokio::select! {
            () = reconciler.lead(&leading) => {}
            _ = role.wait_for(|role| *role != Role::Leading) => {}
        }
        reconciler.rest();
        // They say what the leader sees; a replica that does not plan would show it for ever.
        metrics.jobs.reset();
        metrics.nodes.reset();
        metrics.validated.reset();
        metrics.avoided.reset();
        metrics.storms.reset();
        metrics.leader.set(0);
    }
}

/// The master key; tried until the API server answers, so that a start during its outage works.
async fn masters(
    writer: &Writer,
    namespace: &str,
    shutdown: &CancellationToken,
) -> anyhow::Result<Option<Arc<Masters>>> {
    loop {
        let error = match bootstrap::masters(writer, namespace).await {
            Ok(masters) => return Ok(Some(Arc::new(masters))),
            Err(error @ bootstrap::Error::Write(_)) => error,
            Err(error) => return Err(error.into()),
        };
        warn!(%error, "failed to get the master key, trying again");
        tokio::select! {
            () = shutdown.cancelled() => return Ok(None),
            () = tokio::time::sleep(START_RETRY) => {}
        }
    }
}

/// Waits for the first listing of every kind; false when asked to stop before.
async fn synced(cluster: &SharedCluster, shutdown: &CancellationToken) -> bool {
    while !cluster.mirrors().is_synced() {
        tokio::select! {
            () = shutdown.cancelled() => return false,
            () = tokio::time::sleep(SYNC_PERIOD) => {}
        }
    }
    true
}
