//! A training step, with its gradients exchanged by us, by Gloo or not at all: the same PyTorch program for all, with
//! sidecars in the nodes' namespaces for ours.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::hfreduce::case::{Exchange, Shape, Transport};
use crate::hfreduce::conductor::Conductor;
use crate::hfreduce::gang::Gang;
use crate::hfreduce::ours::{self, Words};
use crate::hfreduce::ranks::{self, Program};
use crate::network::Network;

/// What the ranks need.
#[derive(Clone, Debug)]
pub(crate) struct Trainer {
    pub(crate) root: PathBuf,
    /// The installed wheel.
    pub(crate) wheel: PathBuf,
}

pub(crate) fn start(
    program: &Path,
    trainer: &Trainer,
    network: &Network,
    shape: Shape,
    exchange: Exchange,
) -> Result<Gang> {
    let mut conductor = Conductor::new()?;
    let sidecars = if exchange.is_ours() {
        let words = Words {
            port: 9434,
            metrics: "127.0.0.1:9432",
            ..ours::words(Transport::Tcp)
        };
        ours::serve(&mut conductor, program, network, shape, &words)?.sidecars
    } else {
        BTreeSet::new()
    };
    let ranks = Program {
        name: "step.py",
        text: include_str!("programs/step.py"),
        arguments: &[exchange.word()],
    };
    let site = exchange.is_ours().then_some(trainer.wheel.as_path());
    let place = (trainer.root.as_path(), site);
    ranks::start(&mut conductor, place, network, shape, &ranks)?;
    conductor.gather(shape.world(), sidecars)
}
