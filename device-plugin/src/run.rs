//! Starts the agent's parts: logs, endpoints, API client, backend.

use anyhow::Context as _;
use daemon::endpoints::Endpoints;
use daemon::{Readiness, Registry};
use tokio::runtime::Builder;
use tracing::info;

use crate::agent::Agent;
use crate::args::{Args, BackendKind};
use crate::backend::mock::Mock;
use crate::labels::Labels;
use crate::metrics::Metrics;

/// Port of /metrics, /live and /ready.
const METRICS_PORT: u16 = 9401;

/// Runs the agent until the process is asked to stop.
///
/// Not async, so that the library instantiates the futures and `main` does not compile them again.
pub fn run(args: Args) -> anyhow::Result<()> {
    let mut runtime = Builder::new_current_thread();
    let runtime = runtime.enable_all().build();
    runtime
        .context("failed to start the runtime")?
        .block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    daemon::logs::init(&args.daemon)?;
    daemon::descriptors::raise_limit();
    info!(?args, version = env!("CARGO_PKG_VERSION"), "starting");
    let place = args.place();
    let Args {
        backend: BackendKind::Mock,
        fixture,
        device_dir,
        plugin_dir,
        node_name,
        node_class: _,
        zone: _,
        leaf: _,
        daemon,
    } = args;

    let shutdown = daemon::shutdown::token().context("failed to watch for signals")?;
    let registry = Registry::new(env!("CARGO_PKG_VERSION"))?;
    let readiness = Readiness::default();
    let metrics = Metrics::new(&registry)?;
    let address = daemon.metrics_address(METRICS_PORT);
    let endpoints = Endpoints::bind(address, registry, readiness.clone()).await?;

    let fixture = fixture.context("the mock backend needs --fixture")?;
    let backend = Mock::new(fixture, node_name.as_deref(), device_dir)?;
    let labels = match node_name {
        Some(node) => {
            let client = kube::Client::try_default()
                .await
                .context("failed to find the API server; leave out --node-name to go without")?;
            Some(Labels::new(client, node, metrics.clone()))
        }
        None => {
            info!("without --node-name this node is not labelled");
            None
        }
    };

    let served = tokio::spawn(endpoints.serve(shutdown.clone()));
    let agent = Agent {
        backend,
        place,
        plugin_dir,
        labels,
        metrics,
        readiness,
        shutdown: shutdown.clone(),
    };
    let result = agent.run().await;
    shutdown.cancel();
    served
        .await
        .context("failed to join the health endpoints")?;
    Ok(result?)
}
