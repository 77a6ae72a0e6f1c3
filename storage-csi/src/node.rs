//! The process that mounts volumes: on a node for its kubelet, or one volume without Kubernetes. A mount lives as long as its
//! process.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use csi::serve::NodeOptions;
use csi::{DRIVER_NAME, MountError, MountUsage, Mounter};
use metadata::VolumeView;
use mount::{ChunkedFiles, VolumeMount, VolumeMountError};
use storage_rpc::{MetaClient, MetaError};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::args::{DataArgs, FileSystem, MountArgs, NodeArgs, ReachArgs};
use crate::client::{Session, names_of};
use crate::run::Process;
use crate::volumes::{Volumes, make};

/// How long an operation of a mount is tried: a program waits as it waits for a disk.
const PATIENCE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// How long a kubelet's call waits for the metadata service; then the kubelet calls again.
const CALL_LIMIT: Duration = Duration::from_secs(20);
/// How often it is looked whether somebody has unmounted a volume.
const LOOK: Duration = Duration::from_millis(200);

/// All mounts of a process.
struct Mounts {
    session: Session,
    /// Its programs wait as they wait for a disk.
    names: MetaClient,
    mounts: Mutex<BTreeMap<PathBuf, (String, VolumeMount)>>,
}

impl Mounts {
    async fn open(
        file_system: &FileSystem,
        reach: &ReachArgs,
        name: &str,
        data: DataArgs,
    ) -> anyhow::Result<Self> {
        let session = Session::open(file_system, &reach.manager, name, data).await?;
        let names = names_of(file_system, reach, session.id.0)?;
        Ok(Self {
            session,
            names: names.with_limit(PATIENCE),
            mounts: Mutex::default(),
        })
    }

    fn mounts(&self) -> MutexGuard<'_, BTreeMap<PathBuf, (String, VolumeMount)>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(
        &self,
        id: &str,
        view: VolumeView,
        at: &Path,
        read_only: bool,
    ) -> Result<(), VolumeMountError> {
        let chunks: Arc<ChunkedFiles> = Arc::clone(&self.session.chunks);
        let mount = VolumeMount::start(
            at,
            (self.names.clone(), chunks),
            (id, view),
            read_only,
            &Handle::current(),
        )?;
        self.mounts().insert(at.to_owned(), (id.to_owned(), mount));
        info!(volume = id, at = %at.display(), "mounted");
        Ok(())
    }

    /// Unmounts all, and leaves nothing open.
    async fn end(self) {
        let mounts = self
            .mounts
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        drop(mounts);
        if let Err(error) = self
            .names
            .with_limit(CALL_LIMIT)
            .end_mount(self.names.mount())
            .await
        {
            warn!(%error, "failed to end the mount: it ends when its session has");
        }
        self.session.end().await;
    }
}

impl Mounter for Mounts {
    async fn mount(&self, id: &str, at: &Path, read_only: bool) -> Result<(), MountError> {
        let names = self.names.with_limit(CALL_LIMIT);
        let view = match names.get_volume(id.to_owned()).await {
            Ok(view) => view,
            Err(MetaError::Refused(_)) => return Err(MountError::NoSuchVolume),
            Err(error) => return Err(MountError::Unavailable(error.to_string())),
        };
        // One that is dead, or was unmounted by somebody else.
        drop(self.mounts().remove(at));
        let started = self.start(id, view, at, read_only);
        started.map_err(|error| MountError::Failed(daemon::chain(&error)))
    }

    async fn unmount(&self, _: &str, at: &Path) -> Result<(), MountError> {
        // What it does not know of is the driver's to unmount.
        let Some((_, mount)) = self.mounts().remove(at) else {
            return Ok(());
        };
        let unmounted = mount.unmount();
        unmounted.map_err(|error| MountError::Failed(daemon::chain(&error)))
    }

    fn is_serving(&self, id: &str, at: &Path) -> bool {
        let mounts = self.mounts();
        let mount = mounts.get(at).filter(|(volume, _)| volume == id);
        mount.is_some_and(|(_, mount)| !mount.is_over())
    }

    fn usage(&self, id: &str) -> Option<MountUsage> {
        let mounts = self.mounts();
        let (_, mount) = mounts.values().find(|(volume, _)| volume == id)?;
        let view = mount.volume();
        Some(MountUsage {
            bytes: view.settings.bytes,
            used_bytes: u64::try_from(view.usage.bytes).unwrap_or_default(),
            inodes: None,
            used_inodes: u64::try_from(view.usage.inodes).unwrap_or_default(),
        })
    }
}

pub(crate) async fn run(args: NodeArgs, process: Process) -> anyhow::Result<()> {
    let NodeArgs {
        reach,
        node_name,
        kubelet_dir,
        data,
    } = args;
    let file_system = reach.file_system.read_as_client()?;
    let name = format!("node/{node_name}");
    let opened = Mounts::open(&file_system, &reach, &name, data);
    let mounts = tokio::select! {
        mounts = opened => Arc::new(mounts?),
        () = process.shutdown.cancelled() => return Ok(()),
    };
    // The kubelet makes the folder of plugins, and nobody but a plugin its own.
    let folder = kubelet_dir.join("plugins").join(DRIVER_NAME);
    fs::create_dir_all(&folder).with_context(|| {
        format!(
            "failed to make {}; is --kubelet-dir mounted?",
            folder.display()
        )
    })?;
    let options = NodeOptions {
        socket: folder.join("csi.sock"),
        kubelet: kubelet_dir,
        node_name,
    };
    let (registered, mut is_registered) = watch::channel(false);
    let gate = process.readiness.gate("registered with the kubelet");
    let shows = tokio::spawn(async move {
        loop {
            match *is_registered.borrow_and_update() {
                true => gate.open(),
                false => gate.close(),
            }
            if is_registered.changed().await.is_err() {
                return;
            }
        }
    });
    csi::serve::serve_node(options, Arc::clone(&mounts), registered, process.shutdown).await?;
    shows.abort();
    // Calls that still run keep it: then their mounts end with the process.
    if let Some(mounts) = Arc::into_inner(mounts) {
        mounts.end().await;
    }
    Ok(())
}

/// One volume, until it is unmounted or the process is asked to stop.
pub(crate) async fn run_mount(args: MountArgs, process: Process) -> anyhow::Result<()> {
    let MountArgs {
        reach,
        volume,
        at,
        create_bytes,
        volumes,
    } = args;
    let file_system = reach.file_system.read_as_client()?;
    let data = DataArgs {
        chunk_bytes: volumes.chunk_bytes,
        traffic_class: 0,
    };
    let volumes = Volumes::new(&file_system, &reach, volumes)?;
    if let Some(bytes) = create_bytes {
        make(&volumes, &volume, bytes).await?;
    }
    let name = format!("mount/{}/{}", std::process::id(), at.display());
    let mounts = Mounts::open(&file_system, &reach, &name, data).await?;
    let view = volumes.view(&volume).await;
    let view = view
        .map_err(|error| anyhow::anyhow!(error.0))
        .context("failed to look the volume up")?;
    let Some(view) = view else {
        bail!("failed to mount {volume}: there is no such volume; --create-bytes makes it");
    };
    mounts.start(&volume, view, &at, false)?;
    process.readiness.gate("mounted").open();
    let is_over = || mounts.mounts().values().all(|(_, mount)| mount.is_over());
    while !is_over() && !process.shutdown.is_cancelled() {
        tokio::time::sleep(LOOK).await;
    }
    mounts.end().await;
    Ok(())
}
