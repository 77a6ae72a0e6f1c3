//! The loop of disk, socket and FUSE: a relay on each of the three nodes, and a mount on the client's. What they do is in
//! `part`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fuse::mount::{Unmount, unmount};

use super::part::FILE_NAME;
use super::quantity::DEPTHS;
use crate::network::{Namespace, Network};
use crate::process::Process;

/// How long they may take to start.
const START: Duration = Duration::from_secs(30);

/// All of it.
#[derive(Debug)]
pub(super) struct Relays {
    at: PathBuf,
    front: Process,
    relays: Vec<Process>,
    pub(super) first: SocketAddr,
}

/// A program of this bench's own on a node.
pub(super) fn part_on(node: &Namespace, words: &[&str]) -> Result<Command> {
    let own = std::env::current_exe().context("failed to find this program's own path")?;
    let mut command = node.command(own);
    command.arg("storage-part").args(words);
    Ok(command)
}

impl Relays {
    pub(super) fn start(network: &Network, folder: &Path, bytes: u64) -> Result<Self> {
        let (nodes, client) = match &network.nodes[..] {
            [nodes @ .., client] => (nodes, client),
            [] => anyhow::bail!("there are no nodes"),
        };
        let mut next: Option<SocketAddr> = None;
        let mut relays = Vec::new();
        // From the last to the first: each is there when the one before connects.
        for (number, node) in nodes.iter().enumerate().rev() {
            let file = folder.join(format!("relay-{number}"));
            let made = File::create(&file).and_then(|file| file.set_len(bytes));
            made.with_context(|| format!("failed to make {}", file.display()))?;
            let address = node.address.parse().context("a node has no address")?;
            let listen = SocketAddr::new(address, network.port());
            let mut relay = part_on(node, &["relay", "--listen", &listen.to_string()])?;
            relay.arg("--file").arg(&file);
            if let Some(next) = next {
                relay.args(["--next", &next.to_string()]);
            }
            let log = folder.join(format!("relay-{number}.log"));
            let mut process = Process::start(&relay, log)?;
            wait_for(&mut process, "a relay", || {
                TcpStream::connect(listen).is_ok()
            })?;
            relays.push(process);
            next = Some(listen);
        }
        let first = next.context("there are no relays")?;
        let at = folder.join("front");
        fs::create_dir(&at).with_context(|| format!("failed to make {}", at.display()))?;
        let threads = DEPTHS.into_iter().max().unwrap_or(1).to_string();
        let words = ["front", "--to", &first.to_string(), "--threads", &threads];
        let mut front = part_on(client, &words)?;
        front.arg("--at").arg(&at);
        front.args(["--bytes", &bytes.to_string()]);
        let front = Process::start(&front, folder.join("front.log"))?;
        let mut relays = Self {
            at,
            front,
            relays,
            first,
        };
        let file = relays.file();
        wait_for(&mut relays.front, "the loop's mount", || file.exists())?;
        Ok(relays)
    }

    /// The file of the mount.
    pub(super) fn file(&self) -> PathBuf {
        self.at.join(FILE_NAME)
    }

    pub(super) fn processes(&self) -> BTreeSet<u32> {
        let relays = self.relays.iter().chain([&self.front]);
        relays.map(|process| process.child.id()).collect()
    }
}

fn wait_for(process: &mut Process, what: &str, is_there: impl Fn() -> bool) -> Result<()> {
    let mut ended = false;
    cluster::until(what, START, || {
        ended = process
            .child
            .try_wait()
            .is_ok_and(|status| status.is_some());
        Ok((ended || is_there()).then_some(()))
    })?;
    anyhow::ensure!(!ended, "{what} ended: {}", process.said());
    Ok(())
}

impl Drop for Relays {
    fn drop(&mut self) {
        // It ends with this bench's namespace anyway.
        let _ = unmount(&self.at, Unmount::Detach);
    }
}
