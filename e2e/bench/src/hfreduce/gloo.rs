//! The rival Gloo: PyTorch in the trainer's root, a process a rank.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use crate::hfreduce::case::Shape;
use crate::hfreduce::conductor::Conductor;
use crate::hfreduce::gang::Gang;
use crate::hfreduce::ranks::{self, Program};
use crate::network::Network;

const PROGRAM: Program<'_> = Program {
    name: "gloo.py",
    text: include_str!("programs/gloo.py"),
    arguments: &[],
};

pub(crate) fn start(root: &Path, network: &Network, shape: Shape) -> Result<Gang> {
    let mut conductor = Conductor::new()?;
    ranks::start(&mut conductor, (root, None), network, shape, &PROGRAM)?;
    conductor.gather(shape.world(), BTreeSet::new())
}
