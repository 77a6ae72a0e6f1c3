//! The rival Gloo: PyTorch in the trainer's root, a process a rank.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::case::Shape;
use crate::conductor::Conductor;
use crate::gang::Gang;
use crate::network::Network;
use crate::trainer::{self, Program};

const PROGRAM: Program<'_> = Program {
    name: "gloo.py",
    text: include_str!("programs/gloo.py"),
    arguments: &[],
};

pub(crate) fn start(root: &Path, network: &Network, shape: Shape) -> Result<Gang> {
    let mut conductor = Conductor::new()?;
    trainer::start(&mut conductor, (root, None), network, shape, &PROGRAM)?;
    conductor.gather(shape.world(), BTreeSet::new())
}
