//! Ranks in PyTorch: processes in the trainer's root, in the same namespaces as our nodes.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::hfreduce::case::Shape;
use crate::hfreduce::conductor::Conductor;
use crate::network::{INTERFACE, Namespace, Network};
use crate::trainer::{self, FOLDER};

/// A program for the ranks: its name, its text, and the arguments before those that all have.
pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) text: &'a str,
    pub(crate) arguments: &'a [&'a str],
}

/// The file of a node's namespace, and its processors behind `@`; nothing behind it means all.
fn place(node: &Namespace) -> String {
    let cores = node.cores.as_deref().unwrap_or_default();
    format!("{}@{cores}", node.file().display())
}

/// Starts the process that forks the ranks.
pub(crate) fn start(
    conductor: &mut Conductor,
    (root, site): (&Path, Option<&Path>),
    network: &Network,
    shape: Shape,
    program: &Program<'_>,
) -> Result<()> {
    let nodes = network.nodes.get(..shape.nodes).context("too few nodes")?;
    let first = nodes.first().context("no nodes")?;
    let folder = &conductor.folder;
    folder.write(program.name, program.text)?;
    folder.write("ranks.py", include_str!("programs/ranks.py"))?;
    let mut ranks = trainer::python(root, site, &folder.path);
    ranks.arg(format!("{FOLDER}/{}", program.name));
    ranks.args(program.arguments);
    ranks.arg(format!("{FOLDER}/conductor.sock"));
    ranks.arg(format!("{}:{}", first.address, network.port()));
    ranks.arg(INTERFACE);
    ranks.arg(shape.procs.to_string());
    ranks.args(nodes.iter().map(place));
    conductor.start(&ranks).map(drop)
}
