//! Starts the agent: flags, logs, endpoints, API client, backend.

use anyhow::Context as _;
use clap::Parser as _;
use daemon::endpoints::Endpoints;
use daemon::{Readiness, Registry};
use device_plugin::Agent;
use device_plugin::args::{Args, BackendKind};
use device_plugin::backend::mock::Mock;
use device_plugin::labels::Labels;
use device_plugin::metrics::Metrics;
use tracing::info;

/// Port of /metrics, /live and /ready.
const METRICS_PORT: u16 = 9401;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    daemon::logs::init(&args.daemon)?;
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
    let backend = Mock::new(fixture, device_dir)?;
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
        .context("failed to serve health and metrics")??;
    Ok(result?)
}
