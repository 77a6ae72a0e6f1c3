//! Starts what every process has, then the one that was asked for.

use anyhow::Context as _;
use daemon::endpoints::Endpoints;
use daemon::{CancellationToken, Readiness, Registry};
use tokio::runtime::Builder;
use tracing::info;

use crate::args::{Cli, Command};
use crate::metrics::ServiceMetrics;

/// Ports of /metrics, /live and /ready.
const SERVICE_PORT: u16 = 9415;
const MANAGER_PORT: u16 = 9416;
const META_PORT: u16 = 9417;
const NODE_PORT: u16 = 9418;
const CONTROLLER_PORT: u16 = 9419;

/// What a process gets.
pub(crate) struct Process {
    pub(crate) readiness: Readiness,
    pub(crate) shutdown: CancellationToken,
}

/// Runs a process until it is asked to stop.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime
        .context("failed to start the runtime")?
        .block_on(serve(cli))
}

async fn serve(cli: Cli) -> anyhow::Result<()> {
    let Cli { command, daemon } = cli;
    daemon::logs::init(&daemon)?;
    daemon::descriptors::raise_limit();
    info!(?command, version = env!("CARGO_PKG_VERSION"), "starting");
    let shutdown = daemon::shutdown::token().context("failed to watch for signals")?;
    let registry = Registry::new(env!("CARGO_PKG_VERSION"))?;
    let metrics = ServiceMetrics::new(&registry)?;
    let readiness = Readiness::default();
    let port = match &command {
        Command::Service(_) => SERVICE_PORT,
        Command::Manager(_) => MANAGER_PORT,
        Command::Meta(_) => META_PORT,
        Command::Node(_) | Command::Mount(_) => NODE_PORT,
        Command::Controller(_) => CONTROLLER_PORT,
    };
    let address = daemon.metrics_address(port);
    let endpoints = Endpoints::bind(address, registry, readiness.clone()).await?;
    let served = tokio::spawn(endpoints.serve(shutdown.clone()));
    let process = Process {
        readiness,
        shutdown: shutdown.clone(),
    };
    let result = match command {
        Command::Service(args) => crate::service::run(args, process, &metrics).await,
        Command::Manager(args) => crate::manager::run(args, process).await,
        Command::Meta(args) => crate::meta::run(args, process).await,
        Command::Node(args) => crate::node::run(args, process).await,
        Command::Controller(args) => crate::controller::run(args, process).await,
        Command::Mount(args) => crate::node::run_mount(args, process).await,
    };
    shutdown.cancel();
    served
        .await
        .context("failed to join the health endpoints")?;
    result
}
