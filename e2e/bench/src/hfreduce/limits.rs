//! What the machine can do at best, measured by a program of its own in the same rounds as everybody else.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::hfreduce::programs;
use crate::network::{CONGESTION_CONTROL, Network};
use cluster::processors::{self, ProcessorUse};

/// A limit, by the name that the table and the bars use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// libc's memcpy by so many threads, bytes read and written counted, GB/s.
    Memcpy(usize),
    /// One TCP connection between two nodes' namespaces, both ways at once, bytes of both counted, GB/s.
    TcpBothWays,
}

pub(crate) const ALL: [Limit; 3] = [Limit::Memcpy(1), Limit::Memcpy(2), Limit::TcpBothWays];

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memcpy(1) => write!(f, "memcpy, 1 thread"),
            Self::Memcpy(threads) => write!(f, "memcpy, {threads} threads"),
            Self::TcpBothWays => write!(f, "tcp, both ways"),
        }
    }
}

/// The program that measures.
#[derive(Debug)]
pub(crate) struct Limits {
    program: PathBuf,
}

impl Limits {
    pub(crate) fn new() -> Result<Self> {
        let program = programs::compile("cc", "limits.c", "limits", &[])?;
        Ok(Self { program })
    }

    /// The limit, the share of the processors that others used meanwhile, and whether the machine was quiet before.
    pub(crate) fn measure(
        &self,
        limit: Limit,
        network: &Network,
        gate: Duration,
    ) -> Result<(f64, f64, bool)> {
        let (near, far) = match &network.nodes[..] {
            [near, far, ..] => (near, far),
            _ => anyhow::bail!("the wire needs two nodes"),
        };
        let quiet = processors::wait_until_quiet(gate);
        let nobody = BTreeSet::new();
        let before = ProcessorUse::now(&nobody);
        let mut listener = None;
        let output = match limit {
            Limit::Memcpy(threads) => Command::new(&self.program)
                .args(["memcpy", &threads.to_string()])
                .output(),
            Limit::TcpBothWays => {
                let mut listen = far.command(&self.program);
                listen.args(["listen", &far.address]).stdout(Stdio::null());
                listener = Some(listen.spawn().context("failed to start the listener")?);
                near.command(&self.program)
                    .args(["dial", &far.address])
                    .output()
            }
        };
        if let Some(mut listener) = listener {
            let ended = listener.wait().context("failed to wait for the listener")?;
            ensure!(ended.success(), "the listener of {limit} failed");
        }
        let output = output.with_context(|| format!("failed to measure {limit}"))?;
        ensure!(
            output.status.success(),
            "failed to measure {limit}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8_lossy(&output.stdout);
        let (value, control) = match text.trim().split_once(' ') {
            Some((value, control)) => (value, Some(control)),
            None => (text.trim(), None),
        };
        let value = value.parse();
        let value = value.with_context(|| format!("failed to read {text:?} of {limit}"))?;
        // What a connection of ours got, all connections between the nodes get.
        ensure!(
            control.is_none_or(|control| control == CONGESTION_CONTROL),
            "connections between the nodes have {control:?} as congestion control, not {CONGESTION_CONTROL}"
        );
        let others = before.others_since(&nobody);
        Ok((value, others, quiet))
    }
}
