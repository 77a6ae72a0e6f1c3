//! What the file system's processes use while nobody uses it.

use std::collections::BTreeSet;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cluster::processors::processor_seconds;
use serde_json::{Value, json};
use storage_cell::{CellProcess, Etcd};

use super::args::Args;
use super::mounted::{Ours, place};
use crate::network::Network;

/// How long they are watched: the kernel counts in hundredths of a second.
const WATCHED: Duration = Duration::from_secs(20);
const WATCHED_QUICK: Duration = Duration::from_secs(5);

/// Shares of a core.
#[derive(Debug)]
pub(super) struct Idle {
    services: f64,
    mounts: f64,
    etcd: f64,
    bare_etcd: f64,
    seconds: f64,
}

impl Idle {
    /// Watches services, chain manager and metadata service, a mount on each storage node, their etcd, and another one that
    /// nobody uses.
    pub(super) fn measure(
        args: &Args,
        ours: &Ours,
        network: &Network,
        folder: tempfile::TempDir,
    ) -> Result<Self> {
        let (nodes, client) = match &network.nodes[..] {
            [nodes @ .., client] => (nodes, client),
            [] => anyhow::bail!("there are no nodes"),
        };
        let mounts = nodes.iter().enumerate().map(|(number, node)| {
            let name = format!("idle-{number}");
            ours.mount(node, &name)
        });
        let mounts = mounts.collect::<Result<Vec<_>>>()?;
        let bare = Etcd::start_at(&place(client)?, &args.etcd, folder, &[]);
        cluster::processors::wait_until_quiet(args.gate());
        let id = |process: &CellProcess| process.id().context("a process has ended");
        let mounts = mounts.iter().map(|mount| id(mount.process()));
        let watched: [BTreeSet<u32>; 4] = [
            ours.cell.processes(),
            mounts.collect::<Result<_>>()?,
            [id(ours.cell.etcd.process())?].into(),
            [id(bare.process())?].into(),
        ];
        let used = || {
            let of = |processes: &BTreeSet<u32>| processor_seconds(processes).total();
            watched.each_ref().map(of)
        };
        let (before, started) = (used(), Instant::now());
        thread::sleep(if args.quick { WATCHED_QUICK } else { WATCHED });
        let (after, seconds) = (used(), started.elapsed().as_secs_f64());
        let [services, mounts, etcd, bare_etcd] =
            std::array::from_fn(|of| (after[of] - before[of]) / seconds);
        Ok(Self {
            services,
            mounts,
            etcd,
            bare_etcd,
            seconds,
        })
    }

    /// All that is ours.
    pub(super) fn ours(&self) -> f64 {
        self.services + self.mounts
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "seconds": self.seconds,
            "services": self.services,
            "mounts": self.mounts,
            "etcd": self.etcd,
            "bareEtcd": self.bare_etcd,
        })
    }
}

impl fmt::Display for Idle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |share: f64| share * 100.0;
        write!(
            f,
            "services, manager, meta {:.2} %, three mounts {:.2} %; etcd {:.2} %, a bare one {:.2} %",
            percent(self.services),
            percent(self.mounts),
            percent(self.etcd),
            percent(self.bare_etcd)
        )
    }
}
