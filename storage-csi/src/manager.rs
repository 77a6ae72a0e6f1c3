//! The process of a chain manager.

use anyhow::Context as _;
use daemon::args::listen_address;
use tokio::net::TcpListener;

use crate::args::{FileSystem, ManagerArgs};
use crate::run::Process;

/// Where it listens if nobody says so.
const PORT: u16 = 9413;

pub(crate) async fn run(args: ManagerArgs, process: Process) -> anyhow::Result<()> {
    let ManagerArgs {
        file_system,
        store,
        listen,
    } = args;
    let FileSystem { uuid, keys } = file_system.read_as_member()?;
    let store = store.connect()?;
    let address = listen_address(listen, PORT);
    let listener = TcpListener::bind(address).await;
    let listener = listener.with_context(|| format!("failed to listen on {address}"))?;
    let config = manager::ManagerConfig {
        file_system: uuid,
        number: 0,
        keys,
    };
    process.readiness.gate("listening").open();
    manager::serve(config, store, listener, || {}, process.shutdown).await?;
    Ok(())
}
