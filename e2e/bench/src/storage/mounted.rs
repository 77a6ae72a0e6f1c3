//! Ours: the file system's processes on three nodes, with etcd, the chain manager and the metadata service on the first, and
//! a volume that is mounted on a client's node.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use storage_cell::{CellOptions, CellProcess, CellPrograms, Mounted, ProcessPlace, StorageCell};

use super::args::Args;
use crate::network::{Namespace, Network};

const VOLUME: &str = "bench";
/// What a pool of three targets has by default.
const CHAINS: u32 = 8;
/// Room for the files of a few rounds, whose deleted ones are freed within a minute.
pub(super) const TARGET_BYTES: u64 = 2 << 30;
const VOLUME_BYTES: u64 = 3 << 29;

/// The file system.
#[derive(Debug)]
pub(super) struct Ours {
    // Before the processes that it needs.
    mounted: Mounted,
    pub(super) cell: StorageCell,
}

/// Where processes of a node run.
pub(super) fn place(node: &Namespace) -> Result<ProcessPlace> {
    let address = node.address.parse().context("a node has no address")?;
    let enter = OsString::from(format!("--net={}", node.file().display()));
    Ok(ProcessPlace::namespace(
        vec!["nsenter".into(), enter],
        address,
    ))
}

impl Ours {
    pub(super) fn start(args: &Args, network: &Network, folder: &Path) -> Result<Self> {
        let (first, second, third, client) = match &network.nodes[..] {
            [first, second, third, client] => (first, second, third, client),
            _ => anyhow::bail!("the file system needs four nodes"),
        };
        let programs = CellPrograms {
            etcd: args.etcd.clone(),
            storage_csi: args.storage_csi.clone(),
        };
        let options = CellOptions {
            places: [place(first)?, place(second)?, place(third)?],
            folder: folder.to_owned(),
            chains: CHAINS,
            target_bytes: TARGET_BYTES,
            volume_bytes: VOLUME_BYTES,
            etcd_flags: &[],
        };
        let cell = StorageCell::start(&programs, options);
        let mounted = cell.mount_at(&place(client)?, "client", VOLUME);
        Ok(Self { mounted, cell })
    }

    /// Another mount of the volume.
    pub(super) fn mount(&self, node: &Namespace, name: &str) -> Result<Mounted> {
        Ok(self.cell.mount_at(&place(node)?, name, VOLUME))
    }

    /// A name in the client's mount.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.mounted.at.join(name)
    }

    /// The folder of the mount, as the cell's folder has it.
    pub(super) fn mount_name(&self) -> Result<&Path> {
        let at = self.mounted.at.strip_prefix(self.cell.folder());
        at.context("the mount is elsewhere")
    }

    /// All processes, etcd's among them.
    pub(super) fn processes(&self) -> BTreeSet<u32> {
        let mut all = self.cell.processes();
        let others = [self.mounted.process(), self.cell.etcd.process()];
        all.extend(others.into_iter().filter_map(CellProcess::id));
        all
    }
}
