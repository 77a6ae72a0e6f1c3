//! What the machine can do at best, measured by a program of its own in the same rounds as everybody else.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
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
    /// The sum of two nodes with a rank each over such a connection, by as little as it takes, in pieces of so many KiB:
    /// processor-seconds of both per GB.
    Lean(usize),
}

/// Pieces of which one is the best on most machines, in KiB.
pub(crate) const LEAN_PIECES: [usize; 2] = [256, 1024];
pub(crate) const ALL: [Limit; 5] = [
    Limit::Memcpy(1),
    Limit::Memcpy(2),
    Limit::TcpBothWays,
    Limit::Lean(LEAN_PIECES[0]),
    Limit::Lean(LEAN_PIECES[1]),
];

impl Limit {
    pub(crate) const fn unit(self) -> &'static str {
        match self {
            Self::Memcpy(_) | Self::TcpBothWays => "GB/s",
            Self::Lean(_) => "s/GB",
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memcpy(1) => write!(f, "memcpy, 1 thread"),
            Self::Memcpy(threads) => write!(f, "memcpy, {threads} threads"),
            Self::TcpBothWays => write!(f, "tcp, both ways"),
            Self::Lean(kib) => write!(f, "lean all-reduce, {kib} KiB"),
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
        let between = |words: &[&str]| -> Result<f64> {
            let mut listen = far.command(&self.program);
            listen.args(["listen", &far.address]).args(words);
            let listen = listen.stdout(Stdio::piped()).spawn();
            let listen = listen.context("failed to start the listener")?;
            let mut dial = near.command(&self.program);
            let dialled = dial.args(["dial", &far.address]).args(words).output();
            let listened = listen.wait_with_output();
            // Each end gives its share.
            Ok(read(limit, dialled)? + read(limit, listened)?)
        };
        let value = match limit {
            Limit::Memcpy(threads) => {
                let mut copy = Command::new(&self.program);
                read(limit, copy.args(["memcpy", &threads.to_string()]).output())
            }
            Limit::TcpBothWays => between(&[]),
            Limit::Lean(kib) => between(&[&kib.to_string()]),
        }?;
        let others = before.others_since(&nobody);
        Ok((value, others, quiet))
    }
}

/// The number that the program has printed, if connections have the congestion control that all have.
fn read(limit: Limit, output: io::Result<Output>) -> Result<f64> {
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
    // What a connection of ours got, all connections between the nodes get.
    ensure!(
        control.is_none_or(|control| control == CONGESTION_CONTROL),
        "connections between the nodes have {control:?} as congestion control, not {CONGESTION_CONTROL}"
    );
    let value = value.parse();
    value.with_context(|| format!("failed to read {text:?} of {limit}"))
}
