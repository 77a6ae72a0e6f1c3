//! A training step, with its gradients exchanged by us, by Gloo or not at all: the same PyTorch program for all, with
//! sidecars in the nodes' namespaces for ours.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::case::{Exchange, Shape, Transport};
use super::conductor::Conductor;
use super::gang::Gang;
use super::network::Network;
use super::ours::{self, Words};
use super::trainer::{self, Program};
use crate::images;

/// What the ranks need.
#[derive(Clone, Debug)]
pub(super) struct Trainer {
    root: PathBuf,
    /// The installed wheel.
    site: PathBuf,
}

/// The trainer's root and the wheel of this tree.
pub(super) fn prepare() -> Result<Trainer> {
    Ok(Trainer {
        root: trainer::root()?,
        site: images::trainer::wheel()?,
    })
}

pub(super) fn start(
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
    let site = exchange.is_ours().then_some(trainer.site.as_path());
    let place = (trainer.root.as_path(), site);
    trainer::start(&mut conductor, place, network, shape, &ranks)?;
    conductor.gather(shape.world(), sidecars)
}
