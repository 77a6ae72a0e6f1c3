//! The process that makes and deletes volumes for csi-provisioner.

use std::sync::Arc;

use crate::args::ControllerArgs;
use crate::run::Process;
use crate::volumes::Volumes;

pub(crate) async fn run(args: ControllerArgs, process: Process) -> anyhow::Result<()> {
    let ControllerArgs {
        reach,
        socket,
        volumes,
    } = args;
    let file_system = reach.file_system.read_as_client()?;
    let volumes = Volumes::new(&file_system, &reach, volumes)?;
    process.readiness.gate("listening").open();
    csi::serve::serve_controller(socket, Arc::new(volumes), process.shutdown).await?;
    Ok(())
}
